"""`edgespec bench`: how fast a model reads prompts (pp) and writes replies (tg), and what that reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Annotated

import typer

from edgespec.apps import options
from edgespec.apps.bench_apart import measure_apart
from edgespec.apps.bench_runs import Arm, Test, measure
from edgespec.apps.bench_tables import as_text
from edgespec.apps.terminal import Terminal
from edgespec.apps.timeline import TRACE_HELP
from edgespec.config import OF_SCHEDULES, EngineOptions, GenerationOptions
from edgespec.errors import BudgetError, EdgeSpecError, OptionError
from edgespec.values import Option, Options, count_of, format_bytes, options_of, with_keywords

SWEPT = ("memory", "batch", "threads", "drafter", "schedule")
OUTPUTS = ("md", "csv", "json", "jsonl")
MARGIN = 1.05  # a dial so much too small is refused before anything runs


@dataclass(frozen=True)
class BenchFlags(Options):
    """What is measured."""

    prompt_tokens: Annotated[
        tuple[int, ...],
        Option("Lengths of prompts; 0 for none.", metavar="N,...", short="-p", least=0, most=10**6),
    ] = (512,)
    new_tokens: Annotated[
        tuple[int, ...],
        Option("Lengths of replies; 0 for none.", metavar="N,...", short="-n", least=0, most=10**6),
    ] = (128,)
    depth: Annotated[
        tuple[int, ...],
        Option("Tokens in the context before each test.", metavar="N,...", short="-d", least=0, most=10**6),
    ] = (0,)
    steps: Annotated[
        tuple[int, ...],
        Option(
            "Passes of drafting in each cycle.",
            metavar="N,...", default="the controller decides, cycle by cycle", least=1, most=64,
        ),
    ] = ()  # fmt: skip
    repetitions: Annotated[int, Option("Runs of each test.", metavar="N", short="-r", least=1, most=1000)] = 5
    cold: Annotated[
        bool, Option("Make each run the first of a process, with no file of the model in the page cache.")
    ] = False
    output: Annotated[
        str, Option(f"How to print: {', '.join(OUTPUTS)}.", metavar="NAME", short="-o", choices=OUTPUTS)
    ] = "md"
    json: Annotated[bool, Option("Print one JSON object, as -o json.")] = False
    trace: Annotated[Path | None, Option(TRACE_HELP, metavar="FILE")] = None


@options.takes(swept=SWEPT)
def bench(model: options.Model, *, wanted: BenchFlags, engine: list[EngineOptions]) -> None:
    """Measure speed: prompt reading (pp), greedy replies (tg), and what they read.

    Mean ± standard deviation; of a model that streams also the disk's own rate, measured beside each run.
    Several values with commas (--memory 4GB,8GB --drafter none,ngram) are measured in every combination.
    With --batch, tokens/s are of all replies together.
    """
    if wanted.json and wanted.output not in ("md", "json"):
        raise OptionError(f"--json and -o {wanted.output} are two ways to print; leave one out")
    lengths = [("pp", n) for n in wanted.prompt_tokens if n] + [("tg", n) for n in wanted.new_tokens if n]
    tests = [(kind, n, depth) for depth in wanted.depth for kind, n in lengths]
    if not tests:
        raise OptionError("there is nothing to measure: --prompt-tokens and --new-tokens are both 0")
    with Terminal() as terminal:
        settings = []
        for options_, steps in _legal(engine, wanted.steps, terminal):
            setting = Arm(options_, steps, [Test(*test) for test in tests])
            setting.options = replace(options_, context=_context(setting))
            settings.append(setting)
        apart = wanted.cold or len(settings) > 1
        if wanted.trace is not None and any(setting.options.batch != 1 for setting in settings):
            raise OptionError("--trace is of one conversation, and --batch asks for several; leave one out")
        if wanted.trace is not None and apart and len(settings) * len(tests) * wanted.repetitions > 1:
            raise OptionError("--trace is of one process, and this asks for several; ask for one setting")
        if not apart:
            measure(model, settings[0], wanted.repetitions, False, wanted.trace, terminal)
            failed = stopped = False
        else:
            settings = _affordable(model, settings, terminal)
            failed, stopped = _each(model, settings, wanted, terminal)
        measured = [setting for setting in settings if setting.found]
        if measured:
            output = "json" if wanted.json else wanted.output
            terminal.result(as_text(output, Path(model).name, measured, wanted.cold))
    if failed or stopped:
        raise typer.Exit(130 if stopped else 1)


def _context(setting: Arm) -> int:
    """That the setting's conversations have room in, together. Raises OptionError where it is given, and is
    less."""
    from edgespec.runtimes.formats.needs import context_of  # numpy: not for --help

    given, batch = setting.options.context, setting.options.batch
    needed = context_of(max(batch, 1), setting.positions)
    if given is not None and given < needed:
        one = f"the longest test takes {needed} positions"
        several = f"{batch} conversations of {setting.positions} positions at once need --context {needed}"
        raise OptionError(f"--context is {given}, but {one if batch == 1 else several}")
    return needed if given is None else given


def _each(model: str, settings: list[Arm], wanted: BenchFlags, terminal: Terminal) -> tuple[bool, bool]:
    """Measure each in processes of their own; whether one failed, and whether Ctrl-C has stopped it all.

    Cold runs take turns, setting by setting, a process each; of others, all of a setting share one.
    """
    jobs = [(setting, setting, wanted.repetitions) for setting in settings]
    if wanted.cold:
        ones = [
            (whole, Arm(whole.options, whole.steps, [test])) for whole in settings for test in whole.tests
        ]
        jobs = [(whole, one, 1) for _ in range(wanted.repetitions) for whole, one in ones]
    broken: set[int] = set()
    for turn, (whole, one, repetitions) in enumerate(jobs):
        if id(whole) in broken:
            continue
        terminal.note(f"{turn + 1} of {len(jobs)}: {_words(one, settings)}")
        try:
            measure_apart(model, one, repetitions, wanted.cold, wanted.trace)
        except KeyboardInterrupt:
            return bool(broken), True
        except EdgeSpecError as error:
            broken.add(id(whole))
            terminal.error(f"{_words(whole, settings)}: {error}")
            continue
        peak = max(one.found["peak_memory"], whole.found.get("peak_memory", 0))
        whole.found = one.found | {"peak_memory": peak}
    return bool(broken), False


def _legal(
    asked: Sequence[EngineOptions], steps: Sequence[int], terminal: Terminal
) -> list[tuple[EngineOptions, int | None]]:
    """The combinations that can be, each once; the others are said. Raises OptionError for a name that is
    none, and when nothing is left."""
    sweep = len(asked) * max(1, len(steps)) > 1
    drafters = {one.drafter for one in asked}
    found: dict[tuple[EngineOptions, int | None], None] = {}
    refused: list[tuple[str, OptionError]] = []
    for one, fixed in product(asked, steps or (None,)):
        if len(drafters) > 1:
            one, fixed = _its_own(one, fixed)
        try:
            options.check_together(one, GenerationOptions())
            if fixed is not None and not _makes_passes(one):
                raise OptionError(f"drafter {one.drafter} makes no passes; leave --steps out")
        except OptionError as error:
            if not sweep or error.option in ("drafter", "schedule"):
                raise
            refused.append((f"--drafter {one.drafter} --schedule {one.schedule}", error))
            continue
        found[one, fixed] = None
    if not found:
        raise refused[0][1]
    for name, why in dict(refused).items():
        terminal.note(f"left out, {name}: {options.message_of(why)}")
    return list(found)


def _its_own(one: EngineOptions, steps: int | None) -> tuple[EngineOptions, int | None]:
    """Beside other drafters: without what only they would use."""
    from edgespec.drafters.kinds import KINDS, kinds_of

    if one.drafter == "auto":
        return one, steps
    used = kinds_of(one.drafter.split("+"))
    needed = {kind.option for kind in used} | set(OF_SCHEDULES.get(one.schedule, ()))
    idle = {kind.option for kind in KINDS if kind.option is not None and kind.option not in needed}
    if not any(kind.beside for kind in used):
        idle.add("draft_worker")
    if one.drafter == "none":
        idle.add("schedule")  # nobody drafts at any time
    known = options_of(EngineOptions)
    one = with_keywords(one, {name: known[name].default for name in idle})
    return one, steps if _makes_passes(one) else None


def _makes_passes(one: EngineOptions) -> bool:
    from edgespec.drafters.kinds import kinds_of

    return one.drafter == "auto" or any(not kind.make for kind in kinds_of(one.drafter.split("+")))


def _affordable(model: str, settings: Sequence[Arm], terminal: Terminal) -> list[Arm]:
    """Those whose dial holds at least the model without drafters; of the others it is said before anything
    runs. Raises BudgetError when nothing is left."""
    from edgespec.devices.machine import Machine
    from edgespec.models.hub import resolve_model
    from edgespec.models.planning import plan_engine
    from edgespec.runtimes.formats.describe import describe_model

    first = settings[0].options
    files = describe_model(resolve_model(model, terminal.progress, first.offline), first.precision)
    largest = max(files.table.files(), key=lambda path: path.stat().st_size)
    machine = Machine.remembered(largest)
    found, errors = list[Arm](), list[BudgetError]()
    for setting in settings:
        try:
            plan_engine(files, setting.options, machine)
        except BudgetError as error:
            if error.smallest > MARGIN * error.dial:  # the process itself may turn out smaller
                errors.append(error)
                continue
        found.append(setting)
    if not found:
        raise errors[0]
    for message in dict.fromkeys(options.message_of(error) for error in errors):
        terminal.note(f"left out: {message}")
    return found


def _words(setting: Arm, among: Sequence[Arm]) -> str:
    """What tells a setting from the others, and which tests it has."""
    words = []
    for name in SWEPT:
        value = getattr(setting.options, name)
        if len({getattr(other.options, name) for other in among}) > 1:
            words.append(f"{name} {format_bytes(value) if name == 'memory' and value else value}")
    if len({other.steps for other in among}) > 1:
        words.append("no fixed steps" if setting.steps is None else count_of(setting.steps, "step"))
    return ", ".join([*words, *(test.name for test in setting.tests)])
