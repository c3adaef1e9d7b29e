"""`edgespec devices`: what this machine, or a preset, can do."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgespec.apps import options
from edgespec.apps.terminal import Terminal
from edgespec.apps.tune_words import preset_figures
from edgespec.kernels.choice import NAMES
from edgespec.values import Option, Options, format_bytes

if TYPE_CHECKING:
    from edgespec.devices.disk import ReadSettings
    from edgespec.devices.presets import Preset
    from edgespec.tuning.machines import DiskFacts, MachineFacts


@dataclass(frozen=True)
class DevicesFlags(Options):
    """What is shown."""

    preset: Annotated[
        str | None,
        Option("Show a machine that is not this one; list: all there are.", metavar="NAME", default="none"),
    ] = None
    fresh: Annotated[bool, Option("Measure again what was measured before.")] = False
    json: Annotated[bool, Option("Print one JSON object.")] = False


@options.takes()
def devices(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="PATH",
            help="A file or directory on the disk to measure, such as a model's.",
            show_default=False,
        ),
    ] = Path(),
    *,
    wanted: DevicesFlags,
) -> None:
    """Show this machine: memory, disk, processor and matmuls, measured once and remembered, and the engines
    that can draft."""
    with Terminal() as terminal:
        if wanted.preset is not None:
            terminal.result(presets_text(wanted.preset, wanted.json))
            return
        terminal.busy("measuring this machine")
        from edgespec.tuning.machines import measure_machine_facts

        facts = measure_machine_facts(path, wanted.fresh, terminal.progress)
        terminal.result(json.dumps(_object(facts)) if wanted.json else _described(facts))
        for note in facts.disk.notes:
            terminal.note(note)


def _described(facts: MachineFacts) -> str:
    limited = "" if facts.limit is None else f", of a container's limit of {format_bytes(facts.limit)}"
    rows = [
        ("processor", f"{facts.processor}, {facts.cores} to use"),
        ("instructions", " ".join(facts.features) or "unknown"),
        ("kernels", facts.kernels),
        ("accelerators", "; ".join(facts.accelerators) or "none found"),
        ("memory", f"{format_bytes(facts.total)}, {format_bytes(facts.available)} free{limited}"),
        ("", f"read at {facts.memory_gbps:.3g} GB/s" + (", shared with the GPU" if facts.unified else "")),
        *_disk_rows(facts.disk),
    ]
    lines = [
        textwrap.fill(f"{name:<13}{text}", 80, subsequent_indent=" " * 13, break_on_hyphens=False)
        for name, text in rows
    ]
    return "\n".join([*lines, "", *_engine_lines(), "", *_matmul_lines(facts), "", *_kernel_lines(facts)])


def _engine_lines() -> list[str]:
    from edgespec.drafters.engine_facts import engine_facts

    lines = ["engines of a draft model, for --draft-engine"]
    for fact in engine_facts():
        state = fact.version or f"missing: {fact.install}"
        text = f"  {fact.name:<19}{state}; {fact.use}"
        lines.append(textwrap.fill(text, 80, subsequent_indent=" " * 21, break_on_hyphens=False))
    return lines


def _disk_rows(disk: DiskFacts) -> list[tuple[str, str]]:
    name = disk.disk.name or f"device {disk.disk.device}"
    size = "" if disk.disk.nbytes is None else f", {format_bytes(disk.disk.nbytes)}"
    kind = disk.filesystem.kind or "unknown filesystem"
    rows = [("disk", f"{name}{size}, {kind} on {disk.filesystem.mount}")]
    if disk.best is None:
        rows.append(("", "how fast it reads is unknown"))
    else:
        rows.append(("", f"reads at {disk.best.gbps:.3g} GB/s: {_reads(disk.best.settings)}"))
    if disk.rates:
        from edgespec.devices.rates import CANDIDATES, DEPTHS, SIZES, TIE

        rows.append(("tries, GB/s", "".join(f"{f'{depth} at once':>11}" for depth in DEPTHS)))
        for i, size_bytes in enumerate(SIZES):
            row = disk.rates[i * len(DEPTHS) : (i + 1) * len(DEPTHS)]
            cells = "".join(f"{rate.gbps:>11.3g}" for rate in row)
            rows.append((f"  {size_bytes // 2**10} KiB", cells))
        usual = _reads(CANDIDATES[0])
        rows.append(
            (
                "",
                "one short try of each; plans go by the rate above, which was measured apart, and by "
                f"{usual}, unless others are {TIE - 1:.0%} faster",
            )
        )
    return rows


def _reads(settings: ReadSettings) -> str:
    return f"{settings.request_bytes // 2**10} KiB each, {settings.threads} at a time"


def _matmul_lines(facts: MachineFacts) -> list[str]:
    from edgespec.devices.matmuls import ROWS

    lines = ["matmuls, GB of stored weights a second, by rows"]
    lines.append(f"{'':<13}" + "".join(f"{rows:>9}" for rows in ROWS))
    for encoding, seconds in facts.matmuls.seconds.items():
        # As plans go by: of many rows one matrix is measured, from a cache.
        slowest = accumulate(seconds, max)
        lines.append(f"  {NAMES.get(encoding, encoding):<11}" + "".join(f"{1 / s:>9.3g}" for s in slowest))
    return lines


def _kernel_lines(facts: MachineFacts) -> list[str]:
    """What multiplies, and in how many microseconds what was tried did with a small matrix: the quickest for
    the fewest rows, and for the most."""
    lines = ["kernels, the fastest here; and microseconds that the fewest and most rows took"]
    for encoding, choice in facts.choices.items():
        tried = "; ".join(f"{name} {times[0]:.3g}-{times[-1]:.3g}" for name, times in choice.tried.items())
        told = [(NAMES.get(encoding, encoding), choice.describe(encoding)), ("", tried)]
        for head, text in told[: 1 + bool(tried)]:
            line = f"  {head:<11}{text}"
            lines.append(textwrap.fill(line, 80, subsequent_indent=" " * 13, break_on_hyphens=False))
    return lines if facts.choices else []


def presets_text(name: str, as_json: bool) -> str:
    """The preset of this name; all of them for "list". Raises OptionError."""
    from edgespec.devices.presets import PRESETS
    from edgespec.tuning.machines import find_preset

    shown = list(PRESETS) if name == "list" else [find_preset(name)]
    return _as_json(shown) if as_json else "\n\n".join(map(_preset, shown))


def _preset(preset: Preset) -> str:
    lines = [f"{preset.name}: {preset.label}"]
    for name, value, source in preset_figures(preset):
        lines.append(f"  {name:<12}{value:<12}{source}")
    return "\n".join(lines)


def _as_json(presets: Sequence[Preset]) -> str:
    return json.dumps([asdict(preset) for preset in presets])


def _object(facts: MachineFacts) -> dict[str, Any]:
    from edgespec.devices.matmuls import ROWS
    from edgespec.drafters.engine_facts import engine_facts

    disk = facts.disk
    found = asdict(facts)
    found["engines"] = [asdict(fact) for fact in engine_facts()]
    found["matmuls"] = {"rows": ROWS, "seconds_per_gb": dict(facts.matmuls.seconds)}
    found["disk"] |= {"path": str(disk.path), "place": disk.filesystem.place}
    found["disk"]["filesystem"]["mount"] = str(disk.filesystem.mount)
    return found
