"""`edgespec tune`: what a machine can run, how fast, at which dial, with which settings."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgespec.apps import options, prompts
from edgespec.apps.devices import presets_text
from edgespec.apps.terminal import Terminal
from edgespec.apps.tune_object import object_of
from edgespec.apps.tune_table import fitted
from edgespec.apps.tune_words import (
    HEADS,
    MEASURED_HEADS,
    cells_of,
    command,
    commands,
    context_note,
    how,
    lossy_line,
    lossy_setting,
    machine_line,
    measured_lines,
    model_line,
    notes_of,
    speed_of,
)
from edgespec.config import EngineOptions
from edgespec.values import Option, Options, format_bytes

if TYPE_CHECKING:
    from edgespec.text.prompt import Prompt
    from edgespec.tuning.compare import Compared
    from edgespec.tuning.result import Row, Tuning
    from edgespec.tuning.runs import Trial

MARGIN = "    "


@dataclass(frozen=True)
class TuneFlags(Options):
    """What is compared, and where the answer goes."""

    memory_: Annotated[  # not EngineOptions' own, of one dial
        str | None,
        Option(
            "Dials to compare, such as 2GB,4GB,8GB.", metavar="SIZE,...", default="what the machine has free"
        ),
    ] = None
    preset: Annotated[
        str | None,
        Option("Tune for another machine; list: all there are.", metavar="NAME", default="this one"),
    ] = None
    measure: Annotated[
        bool, Option("Run the model for some minutes, and set the predictions right by what that shows.")
    ] = False
    prompts: Annotated[
        Path | None,
        Option("Prompts to measure with, one a line.", metavar="FILE", default="some of our own"),
    ] = None
    profile_out: Annotated[
        Path | None,
        Option(
            "Write the recommended settings there, for --profile.", metavar="FILE", short="-o", default="none"
        ),
    ] = None
    html: Annotated[
        Path | None,
        Option("Write a page with charts there, which opens offline.", metavar="FILE", default="none"),
    ] = None
    png: Annotated[Path | None, Option("Write the charts there.", metavar="FILE", default="none")] = None
    json: Annotated[bool, Option("Print one JSON object.")] = False
    interactive: Annotated[
        bool, Option("Move the dial with the arrow keys, and see what that changes.", short="-i")
    ] = False


# What stays as it is where it is given.
FIXED = (
    *("context", "precision", "resident_layers", "drafter", "draft_model", "draft_worker", "adapters"),
    *("tree_nodes", "offline", "schedule", "verifier_layers"),
)


@options.takes(engine=FIXED)
def tune(model: options.Model, *, wanted: TuneFlags, engine: EngineOptions) -> None:
    """Predict speed and memory at several dials, and recommend settings; nothing is loaded or downloaded.

    What is known of MODEL are its headers, and what runs of it have shown here, such as those that --measure
    makes. Settings that are given as flags stay as they are.
    """
    if wanted.preset == "list":
        Terminal().result(presets_text(wanted.preset, wanted.json))
        return
    texts = _prompts(wanted)
    if wanted.interactive:
        from edgespec.apps.tune_live import check_view

        check_view(model, {name: getattr(wanted, name) for name in ("json", "html", "png")})
    with Terminal() as terminal:
        terminal.busy("planning")
        from edgespec.apps.tune_files import check_files, written
        from edgespec.apps.tune_page import write_page
        from edgespec.apps.tune_picture import draw, require_plots
        from edgespec.tuning.profile import write_profile
        from edgespec.tuning.tune import tune_model

        outputs = {"profile_out": wanted.profile_out, "html": wanted.html, "png": wanted.png}
        check_files(outputs, model, engine)
        if wanted.png is not None:
            require_plots()
        dials = [] if wanted.memory_ is None else wanted.memory_.split(",")
        replies = _measure(model, engine, dials, texts, terminal) if wanted.measure else None
        if replies == 0:
            wanted = replace(wanted, profile_out=None, html=None, png=None)
        if wanted.interactive:
            from edgespec.apps.tune_live import explore

            found = explore(model, engine, dials, wanted.preset, terminal)
        else:
            found = tune_model(model, engine, dials, wanted.preset, terminal.progress)
        if wanted.profile_out is not None:
            write_profile(found, engine, wanted.profile_out)
        if wanted.html is not None:
            write_page(found, engine, wanted.html)
        if wanted.png is not None:
            with written(wanted.png) as temporary:
                draw(found, temporary)
        if wanted.json:
            terminal.result(json.dumps(object_of(found, engine)))
        else:
            if wanted.interactive:
                _show_chosen(found, engine, terminal)
            else:
                _show(found, engine, terminal)
            _tell_files(model, wanted, terminal)
        if replies is not None:
            raise typer.Exit(130)


def _prompts(wanted: TuneFlags) -> list[Prompt]:
    """To measure with. Raises OptionError."""
    if wanted.prompts is None and not wanted.measure:
        return []
    from edgespec.tuning.measure import check_measuring

    check_measuring(wanted.measure, wanted.preset, None if wanted.prompts is None else [str(wanted.prompts)])
    if wanted.prompts is None:
        return []
    found = prompts.from_file(wanted.prompts, "prompts")
    return [[{"role": "user", "content": p.turns[0]}] if p.is_chat else p.turns[0] for p in found]


def _measure(
    model: str, engine: EngineOptions, dials: list[str], texts: list[Prompt], terminal: Terminal
) -> int | None:
    """The replies after which it was stopped, which count; None = it was not stopped."""
    from edgespec.tuning.measure import measure_model

    trials: list[Trial] = []
    try:
        for note in measure_model(model, engine, dials, texts, terminal.progress, trials):
            terminal.note(note)
    except KeyboardInterrupt:
        shown = (
            "what it has shown until then counts" if trials else "nothing was measured, no file is written"
        )
        terminal.note(f"[measuring was stopped; {shown}]")
        return len(trials)
    return None


def _show_chosen(found: Tuning, engine: EngineOptions, terminal: Terminal) -> None:
    terminal.result("\n".join(commands(found, found.recommended, engine)))
    _tell_notes(found, terminal)


def _show(found: Tuning, engine: EngineOptions, terminal: Terminal) -> None:
    columns = shutil.get_terminal_size((100, 24)).columns if sys.stdout.isatty() else None
    terminal.result(_described(found, engine, columns))
    _tell_notes(found, terminal)


def _tell_notes(found: Tuning, terminal: Terminal) -> None:
    for note in notes_of(found):
        terminal.note(note)


def _tell_files(model: str, wanted: TuneFlags, terminal: Terminal) -> None:
    if wanted.profile_out is not None:
        terminal.note(f"written to {wanted.profile_out}: edgespec chat {shlex.quote(model)} --profile ...")
    for path in filter(None, (wanted.html, wanted.png)):
        terminal.note(f"written to {path}")


def _described(found: Tuning, engine: EngineOptions, columns: int | None) -> str:
    """columns: of the terminal; None = of a file, which has room for all of the table."""
    width = min(120, columns or 100)
    room = width if columns else sys.maxsize
    lines = [
        f"{found.model}: {model_line(found)}",
        machine_line(found),
        "",
        *_table(found.rows, room),
        "",
    ]
    note = context_note(found, engine)
    if note is not None:
        lines += [*textwrap.wrap(note, width - 1), ""]
    best = found.recommended
    lines += [f"Recommended, {speed_of(best.speed)} tokens/s:", f"  {command(found, best, engine)}"]
    for reason in found.reasons:
        lines += textwrap.wrap(reason, width - 1, initial_indent="  - ", subsequent_indent=MARGIN)
    lossy = lossy_setting(found)
    if lossy is not None:
        lines += ["", *textwrap.wrap(lossy_line(lossy), width - 1)]
        lines += [f"  {line}" for line in commands(found, lossy, engine)]
    lines += ["", "Where its memory goes", *best.plan.ledger.rows()]
    if found.later is not None:
        said = f"Faster still, {speed_of(found.later.speed)} tokens/s, once a low-bit copy is packed:"
        lines += ["", said]
        lines += [f"  {line}" for line in commands(found, found.later, engine)]
    if found.front_tells:
        lines += ["", "The dials at which more memory buys speed"]
        front = [(format_bytes(s.dial), speed_of(s.speed), how(s)) for s in found.front]
        wide = max(len(speed) for _, speed, _ in front)
        lines += [f"  {dial:>8}  {speed:<{wide}}  {way}" for dial, speed, way in front]
    if found.compared:
        lines += ["", "Predicted beside measured, tokens/s", *_measured(found.compared, room)]
    return "\n".join(lines)


def _table(rows: Sequence[Row], width: int) -> list[str]:
    """One line a dial."""
    lines = [list(HEADS), *(cells_of(row) for row in rows)]
    # Dials are comparable where their contexts are the same, and need not be told then.
    contexts = {row.best.plan.context for row in rows if row.best is not None}
    told = [0, 1 if len(contexts) > 1 else 7, 6, 5, 2, 0, 0, 3, 4]
    return fitted(lines, told, {HEADS.index("with")}, width)


def _measured(compared: Sequence[Compared], width: int) -> list[str]:
    lines = [list(MEASURED_HEADS), *measured_lines(compared)]
    told = [0, 0, 2, 5, 6, 0, 0, 4, 3, 1]
    return [f"  {line}" for line in fitted(lines, told, {MEASURED_HEADS.index("with")}, width - 2)]
