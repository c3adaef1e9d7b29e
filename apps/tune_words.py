"""What tuning has found, in words: for the terminal's table and for the page alike."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from edgespec.apps import options
from edgespec.config import EngineOptions
from edgespec.values import format_bytes, format_seconds, two_digits

if TYPE_CHECKING:
    from edgespec.devices.presets import Preset
    from edgespec.tuning.compare import Compared
    from edgespec.tuning.predict import Interval, Setting
    from edgespec.tuning.result import Row, Tuning

SHORT = 1000  # positions of a context, from where on nothing need be said of it

HEADS = (
    "memory",
    "context",
    "pinned",
    "a pass reads",
    "plain, tokens/s",
    "best, tokens/s",
    "with",
    "500 tokens",
    "+1 GB",
)


def machine_line(found: Tuning) -> str:
    """What it was predicted for."""
    machine = "this machine" if found.preset is None else found.preset.label
    read = found.machine.read_gbps
    rates = f"flash {read:.3g} GB/s, memory {found.machine.memory_gbps:.3g} GB/s" if read else "flash unknown"
    return f"{machine}: {format_bytes(found.machine.total)}, {rates}"


def preset_figures(preset: Preset) -> list[tuple[str, str, str]]:
    """(name, value, source) of what is known of a machine that one does not have."""
    return [
        ("memory", format_bytes(preset.memory.value), preset.memory.source),
        ("memory rate", f"{preset.bandwidth.value:g} GB/s", preset.bandwidth.source),
        ("flash", f"{preset.flash.value:g} GB/s", preset.flash.source),
        ("cores", f"{preset.cores.value:g}", preset.cores.source),
        ("arithmetic", f"{preset.gflops.value:.0f} GFLOPS", preset.gflops.source),
    ]


def speed_of(speed: Interval) -> str:
    """0.31 (0.2-0.5): the middle, and 80 %."""
    return f"{two_digits(speed.middle)} ({two_digits(speed.low)}-{two_digits(speed.high)})"


def seconds_of(time: Interval) -> str:
    """5.2 s (4.1-6.6): likewise."""
    low, middle, high = map(format_seconds, (time.low, time.middle, time.high))
    if low.endswith(" s") and middle.endswith(" s") and high.endswith(" s") and "min" not in high:
        low, high = low.removesuffix(" s"), high.removesuffix(" s")
    return f"{middle} ({low}-{high})"


def how(setting: Setting) -> str:
    return "plain decoding" if setting.drafter == "none" else f"{setting.drafter}, {setting.schedule}"


def cells_of(row: Row) -> list[str]:
    """A dial's line of the table under HEADS; the dial and the refusal where nothing runs in it."""
    if row.best is None or row.plain is None:
        return [format_bytes(row.dial), row.refusal or ""]
    plan = row.best.plan
    return [
        format_bytes(row.dial),
        str(plan.context),
        f"{plan.pinned_bytes / plan.table.nbytes:.0%}",
        format_bytes(plan.bytes_per_pass) if plan.bytes_per_pass else "nothing",
        speed_of(row.plain.speed),
        speed_of(row.best.speed),
        how(row.best),
        seconds_of(row.best.first_token),
        "" if row.more is None else f"{row.more - 1:+.0%}",
    ]


def context_note(found: Tuning, engine: EngineOptions) -> str | None:
    """That a dial leaves a conversation little room; None where none does, and where it is as short as was
    asked for, or as the model's own is."""
    plans = [row.best.plan for row in found.rows if row.best is not None]
    short = min(plans, key=lambda plan: plan.context)
    if engine.context is not None or short.context >= min(SHORT, found.max_context):
        return None
    return (
        f"With {format_bytes(short.dial)}, prompt and reply have room for {short.context} tokens together; "
        f"--context N asks for more, up to the model's {found.max_context}, and leaves less for weights."
    )


MEASURED_HEADS = (
    "memory",
    "with",
    "a pass reads",
    "replies",
    "tokens/cycle",
    "expected",
    "measured",
    "off by",
    "in its 80 %",
    "expected now",
)


def measured_lines(compared: Sequence[Compared]) -> list[list[str]]:
    """The lines under MEASURED_HEADS."""
    files: dict[tuple[str, str], set[str]] = {}
    for one in compared:
        files.setdefault((one.drafter, one.schedule), set()).add(one.files)
    return [_measured_cells(one, len(files[one.drafter, one.schedule]) > 1) for one in compared]


def _measured_cells(one: Compared, named: bool) -> list[str]:
    """named: the drafter's files tell it from another line."""
    name = Path(one.files).name
    if len(name) > 25:
        name = f"{name[:12]}…{name[-12:]}"
    drafter = f"{one.drafter} ({name})" if named and name else one.drafter
    return [
        _range(*one.dials),
        "plain decoding" if one.drafter == "none" else f"{drafter}, {one.schedule}",
        format_bytes(one.reads) if one.reads else "nothing",
        str(one.replies),
        f"{one.tokens_per_cycle:.2g}",
        two_digits(one.expected),
        two_digits(one.measured),
        f"{one.error:+.0%}",
        f"{one.within} of {one.told}" if one.told else "",
        "" if one.now is None else speed_of(one.now),
    ]


def _range(least: int, most: int) -> str:
    """21.5-22 GB."""
    first, last = format_bytes(least), format_bytes(most)
    if first == last:
        return first
    number, unit = first.split()
    return f"{number}-{last}" if last.endswith(f" {unit}") else f"{first}-{last}"


def notes_of(found: Tuning) -> list[str]:
    """With commands where the library names its functions."""
    return [note.replace("measure_machine_facts()", "`edgespec devices`") for note in found.notes]


def model_line(found: Tuning) -> str:
    return f"{format_bytes(found.nbytes)} of weights ({found.precision}), {found.layers} layers"


def lossy_setting(found: Tuning) -> Setting | None:
    """The fastest of other precisions at the recommended dial, whose output is not quite the model's."""
    dial = found.recommended.dial
    lossy = [s for row in found.rows if row.dial == dial for s in row.settings if not s.exact]
    return max(lossy, key=lambda s: s.speed.middle, default=None)


def lossy_line(best: Setting) -> str:
    return (
        f"Packed as {best.precision}, which does not say quite the same, it would make "
        f"{speed_of(best.speed)} tokens/s in {format_bytes(best.dial)}, with {how(best)}:"
    )


def commands(found: Tuning, setting: Setting, engine: EngineOptions) -> list[str]:
    """Those that make what is to be there first, and the one that runs with the setting."""
    return [*map(options.command_of, setting.before), command(found, setting, engine)]


def command(found: Tuning, setting: Setting, engine: EngineOptions) -> str:
    """The command that runs with a setting."""
    from edgespec.tuning.profile import settings_of

    model = found.model if setting.exact else setting.before[0].arguments["out"]
    words = ["edgespec chat", shlex.quote(model)]
    for name, value in settings_of(setting, engine).items():
        shown = f"{value // 10**6}MB" if name == "memory" else str(value)
        if name == "memory" and value % 10**9 == 0:
            shown = f"{value // 10**9}GB"
        words.append(f"{options.FLAGS[name]} {shlex.quote(shown)}")
    return " ".join(words)
