"""What commands share: loading a model with its progress shown, and saying what was planned."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from edgespec.config import EngineOptions
from edgespec.devices.names import DEVICES, NOT_YET
from edgespec.errors import OptionError
from edgespec.progress import ProgressCallback
from edgespec.split.options import ConnectOptions
from edgespec.values import did_you_mean, format_bytes, options_of

if TYPE_CHECKING:
    from edgespec.apps.terminal import Terminal
    from edgespec.engine import Engine
    from edgespec.offload.plan.plan import Plan
    from edgespec.tuning.predict import Interval

DEMO_LAYERS = 5  # of 10 in memory


def load_engine(model: str | Path, options: EngineOptions, progress: ProgressCallback) -> Engine:
    """The model behind a command; imports torch, after what can be refused without it."""
    if options.device not in DEVICES and options.device not in NOT_YET:
        hint = did_you_mean(options.device, DEVICES, f"choose from {', '.join(DEVICES)}")
        raise OptionError(f"device {options.device!r} is unknown; {hint}", "device")
    check_source(model)
    if options.draft_model is not None:
        check_source(options.draft_model)
    if options.adapters is not None and not Path(options.adapters).is_dir():
        raise OptionError(f"adapters is {options.adapters!r}; there is no such directory", "adapters")
    from edgespec.engine import Engine

    return Engine.load(model, options, progress)


def check_source(model: str | Path) -> None:
    """Raises ModelError for what is neither here nor a name on the hub: torch takes seconds to import."""
    from edgespec.models.hub import find_here

    find_here(str(model))


@contextmanager
def open_engine(model: str | Path, options: EngineOptions, terminal: Terminal) -> Iterator[Engine]:
    """Load `model`, showing progress; it is closed at the end."""
    from edgespec.drafters.resident import away  # numpy: not for --help

    terminal.busy("starting")
    with load_engine(model, options, terminal.progress) as engine:
        from edgespec.kernels.compiled import unavailable  # torch, which the engine has loaded
        from edgespec.runtimes.torch.choices import slow

        if reason := slow(engine.plan.table):
            speed = engine.plan.predicted_tokens_per_second
            helps = " (`edgespec pack MODEL -o DIR --precision bf16`)" if unavailable() else ""
            terminal.note(f"{reason}{helps}" + (f"; expect {speed:.2g} tokens/s" if speed else ""))
        if options.drafter != "auto":
            idle = [name for name in options.drafter.split("+") if name not in ("none", *engine.drafters)]
            if idle:
                terminal.note(f"{' and '.join(idle)} will not draft: {engine.plan.reasons[-1]}")
        if (why := away(engine.resident)) is not None:
            terminal.note(f"no drafts from the server yet: {why}")
        yield engine


def demo_model() -> Path:
    """The small model that comes with the package. Raises OptionError when it is missing."""
    import edgespec

    path = Path(str(edgespec.__file__)).parent / "demo_model"
    if not path.is_dir():
        raise OptionError(f"the demo model is not in {path}; name a MODEL")
    return path


def demo_options(options: EngineOptions) -> EngineOptions:
    """The options for the demo model, to which its adapters belong.

    Unless something is said about memory, half of it streams, so that one sees the machinery.
    """
    wants = (
        options.draft_model is options.draft_server is None
        if options.drafter == "auto"
        else "cascade" in options.drafter
    )
    if wants and options.adapters is None and options.precision is None:
        options = replace(options, adapters=str(demo_model() / "cascade"))
    if options.memory is None and options.resident_layers is None:
        options = replace(options, resident_layers=DEMO_LAYERS)
    return options


def describe_plan(
    model: str, plan: Plan, drafters: Sequence[str] = (), expected: Interval | None = None
) -> str:
    """What was loaded, what the plan decided, and who drafts, in two lines. expected: tokens a second; None =
    nothing is known but the plan."""
    first = [model, f"memory {format_bytes(plan.dial)}", f"context {plan.context}"]
    speed = plan.predicted_tokens_per_second if expected is None else expected.middle
    if speed:
        first.append(f"about {speed:.2g} tokens/s" if speed < 10 else f"about {speed:.0f} tokens/s")
    if plan.streamed_bytes:
        second = f"{format_bytes(plan.pinned_bytes)} of weights in memory, "
        second += f"{format_bytes(plan.streamed_bytes)} streamed for each pass"
    else:
        second = f"all {format_bytes(plan.pinned_bytes)} of weights in memory"
    if drafters:
        second += f" · drafts by {' and '.join(drafters)}"
    return f"{' · '.join(first)}\n{second}"


def check_server(
    server: str | None, key_file: Path | None, link: ConnectOptions, drafts: bool = True
) -> None:
    """Raises OptionError for flags of a server that go with none. drafts: tokens are drafted here."""
    known = options_of(ConnectOptions)
    named = [name for name in known if getattr(link, name) != known[name].default]
    if server is not None and not drafts:
        named = [name for name in named if name != "ca"]
    if named and (server is None or not drafts):
        flags = ", ".join(known[name].flag for name in named)
        raise OptionError(f"{flags}: for what is drafted here, with --server URL --drafter NAME")
    if server is None and key_file is not None:
        raise OptionError("--api-key-file is for --server URL; give both, or neither")


def multiply_alone() -> None:
    """A drafter beside a server's answers multiplies small matrices, and OpenBLAS's threads would wait longer
    for each other than that takes. Numpy reads this when it is imported; what the user says goes."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def say_whose(
    engine: EngineOptions,
    terminal: Terminal,
    ours: Collection[str] = (),
    whose: str = "the server goes by its own",
) -> None:
    """Options of a model here, from flags or wherever else, change nothing at a server, but for `ours`."""
    known = options_of(EngineOptions)
    idle = [name for name in known if name not in ours and getattr(engine, name) != known[name].default]
    if idle:
        terminal.note(f"{', '.join(known[name].flag for name in idle)}: {whose}")
