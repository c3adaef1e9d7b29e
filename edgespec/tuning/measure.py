"""Short runs of a model here, from which its predictions are set right.

The machine's rates are taken anew; then plain decoding and the fastest schedule of each way of drafting
reply to a few prompts, to as many as the time allows. By what that has shown, those that could be the best
run once more: of a few short runs the best is often one that was lucky. After each reply its `Trial` is kept
(`tuning.watch`): whatever comes in between, what was measured stays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Sized
from contextlib import closing
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING

from edgespec.config import EngineOptions, GenerationOptions
from edgespec.control.fixed import Fixed
from edgespec.core.schedule import TreeBudget
from edgespec.devices.probe import memory_total, process_memory
from edgespec.devices.rates import memory_rate, read_rate
from edgespec.errors import BudgetError, ModelError, OptionError
from edgespec.progress import Progress, ProgressCallback
from edgespec.text.prompt import Prompt
from edgespec.text.tokenizer import LEAST_LONGEST
from edgespec.tuning.predict import Setting
from edgespec.tuning.profile import settings_of
from edgespec.tuning.result import Tuning
from edgespec.tuning.runs import Trial
from edgespec.tuning.subject import open_subject
from edgespec.tuning.tune import tune_model
from edgespec.tuning.watch import LEAST_CYCLES, Watch
from edgespec.values import format_bytes

if TYPE_CHECKING:
    from edgespec.engine import Engine

SECONDS = 180.0  # of all runs; what is under way when they are over ends LEAST_CYCLES later at most
REPLY_CYCLES = 12  # of a reply: more of one text say little about others
# Of a reply before another prompt has its turn: the first four cycles of stories gave 5.1 tokens each, eight
# 6.1 and all of them 6.0.
ENOUGH_CYCLES = 8
PROMPTS = 8  # that are replied to, of more every n-th
PROMPT_TOKENS = 512  # of a longer prompt the last: one block of a pass
DRAFTED = 4  # times as long as plain decoding does each way of drafting run, as its cycles differ more
FIRST = 0.5  # of the time, in which every way runs; the rest is for those that could be the best
CLOSE, MOST_AGAIN = 0.85, 3  # of the best speed: who could be the best; and so many of them, at most

SAMPLES = (
    "Explain to a curious child why the sky is blue by day and red in the evening.",
    "Write a Python function that reads a CSV file and returns the mean of every numeric column, with a "
    "docstring and type hints.",
    "Correct the spelling and say nothing else: The comittee recieved the anual report on wensday, and "
    "desided to publish the anual report, with the recomendations of the comittee, on the folowing wensday.",
    "List five things to check before buying a used bicycle, each with one sentence of reasons.",
)


def check_measuring(measure: bool, preset: str | None, prompts: Sequence[Prompt] | None) -> None:
    """Raises OptionError for what does not go together."""
    if measure and preset is not None:
        raise OptionError(
            f"measure= runs the model here, and preset={preset} is another machine; leave one out"
        )
    if prompts and not measure:
        raise OptionError(
            "prompts changes nothing without measure=; add it, or leave prompts= out", "prompts"
        )


def measure_model(
    model: str,
    options: EngineOptions | None = None,
    memory: Sequence[str | float] = (),
    prompts: Sequence[Prompt] = (),
    progress: ProgressCallback | None = None,
    trials: list[Trial] | None = None,
    seconds: float = SECONDS,
) -> list[str]:
    """Run the model for about so many seconds, loading aside; `tune_model` then goes by what that has shown.

    memory: as for `tune_model`; what runs is under the dial that it recommends, or the largest that is free.
    prompts: text or chat messages; () = `SAMPLES`. trials: what each reply showed is added to it at once.

    Returns what could not be run, and why. Raises OptionError for an empty prompt, ModelError when the model
    is not on this machine, and what `tune_model` and loading raise.
    """
    options = options or EngineOptions()
    prompts = _some(prompts)
    found = tune_model(model, options, memory, progress=progress)
    _take_rates(model, options, progress)
    settings = settings_to_run(found)
    ends, shares = perf_counter() + seconds, [1] + [DRAFTED] * (len(settings) - 1)
    texts = partial(_texts, prompts)
    run = partial(_run_in_turn, model, options, progress=progress, trials=trials)
    notes = run(settings, shares, texts, ends - seconds * (1 - FIRST))
    if perf_counter() < ends:
        settings = settings_to_run_again(tune_model(model, options, [settings[0].dial]))
        # The last texts first: there may have been no time for them.
        notes += run(settings, [1] * len(settings), lambda engine: texts(engine)[::-1], ends)
    return notes


def _run_in_turn(
    model: str,
    options: EngineOptions,
    settings: Sequence[Setting],
    shares: Sequence[int],
    texts: Callable[[Engine], Sequence[Prompt]],
    ends: float,
    progress: ProgressCallback | None,
    trials: list[Trial] | None,
) -> list[str]:
    """Run each setting for its share of the time that is left; what could not be run, and why."""
    notes = list[str]()
    for number, setting in enumerate(settings):
        if progress is not None:
            progress(Progress("measure", number, len(settings), "settings"))
        left = ends - perf_counter()
        share = left * shares[number] / sum(shares[number:])
        try:
            with _load(model, options, setting, progress) as engine:
                stops = perf_counter() + share
                run_setting(Watch(engine), setting, texts(engine), stops, progress, trials)
        except BudgetError as error:  # this process has grown
            if setting.drafter == "none":
                raise
            notes.append(f"{setting.drafter} was not run: {error.message}")
    return notes


def settings_to_run(found: Tuning) -> list[Setting]:
    """Plain decoding and each way of drafting that is there, by its fastest schedule, under one dial. Raises
    OptionError when none of the dials is free."""
    machine = found.machine
    free = machine.available + machine.baseline
    rows = [row for row in found.rows if row.best is not None and row.dial <= free]
    if not rows:
        raise OptionError(
            f"memory: {format_bytes(free)} are free now, and the smallest dial to measure under is "
            f"{format_bytes(min(row.dial for row in found.rows if row.best is not None))}; close other "
            "programs, name a smaller one, or leave measure= out",
            "memory",
        )
    row = next((row for row in rows if row.dial == found.recommended.dial), rows[-1])
    assert row.plain is not None
    chosen = {"none": row.plain}
    for setting in row.settings:  # the fastest first
        if setting.exact and not setting.before:
            chosen.setdefault(setting.drafter, setting)
    return [*chosen.values()]


def settings_to_run_again(found: Tuning) -> list[Setting]:
    """Those that could be the best under the one dial, the fastest first; none where the best has run and
    nothing else comes near."""
    (row,) = found.rows
    exact = [setting for setting in row.settings if setting.exact and not setting.before]
    close = [s for s in exact if s.speed.middle >= CLOSE * exact[0].speed.middle][:MOST_AGAIN]
    return [] if len(close) == 1 and close[0].ran else close


def _some(prompts: Sequence[Prompt]) -> list[Prompt]:
    """At most PROMPTS of them, from all over. Raises OptionError."""
    if any(isinstance(prompt, Sized) and not len(prompt) for prompt in prompts):
        raise OptionError("a prompt to measure with is empty; leave it out", "prompts")
    few = prompts[:: -(-len(prompts) // PROMPTS) or 1]
    return [*few]


def _end_of(prompt: Prompt, characters: int) -> Prompt:
    """So much of a text, or of each message: of the rest nothing is measured, and much would be refused."""
    if isinstance(prompt, str):
        return prompt[-characters:]
    if not isinstance(prompt, Sequence):
        return prompt
    messages = [one for one in prompt if isinstance(one, Mapping) and isinstance(one.get("content"), str)]
    if len(messages) < len(prompt):
        return prompt
    return [{**message, "content": message["content"][-characters:]} for message in messages]


def _take_rates(model: str, options: EngineOptions, progress: ProgressCallback | None) -> None:
    """The machine's rates as they are now. Raises ModelError when the model is not here."""

    def advance(done: int, total: int) -> None:
        if progress is not None:
            progress(Progress("matmuls", done, total, "steps"))

    with open_subject(model, options.offline) as subject:
        if not subject.here:
            raise ModelError(
                f"{model} is not on this machine, and measuring runs it; fetch its weights first (loading "
                "does), or leave measure= out to predict from its headers"
            )
        if progress is not None:
            progress(Progress("probe", 0, 1, "steps"))
        read_rate(max(subject.files.table.files(), key=lambda path: path.stat().st_size), fresh=True)
        memory_rate(fresh=True)
        from edgespec.runtimes.torch.machine import measure_machine  # torch: seconds
        from edgespec.runtimes.torch.matmuls import matmuls

        # What a process takes is remembered of one that has not multiplied yet.
        measure_machine(subject.files)
    matmuls(fresh=True, progress=advance)


def _load(model: str, options: EngineOptions, setting: Setting, progress: ProgressCallback | None) -> Engine:
    from edgespec.engine import Engine

    where = {name: getattr(options, name) for name in ("device", "device_memory", "threads", "offline")}
    chosen = settings_of(setting, options)
    try:
        return Engine.load(model, EngineOptions(**where, **chosen), progress)
    except BudgetError:
        # This process has measured, and loaded others: it has grown beyond one that only loads.
        grown = process_memory().current - setting.plan.owners["interpreter and libraries"]
        chosen["memory"] = min(setting.dial + max(0, grown), memory_total())
        return Engine.load(model, EngineOptions(**where, **chosen), progress)


def run_setting(
    watch: Watch,
    setting: Setting,
    prompts: Sequence[Prompt],
    ends: float,
    progress: ProgressCallback | None = None,
    trials: list[Trial] | None = None,
) -> list[Trial]:
    """Reply to one prompt after the other with the tree and the steps of the setting, until the time is over
    (`ends`, as of perf_counter); the first gets its cycles in any case. What each reply showed is kept, and
    added to `trials`."""
    engine, found = watch.engine, [] if trials is None else trials
    engine.target.weights.listen(watch.chunk)
    steps = setting.steps if watch.candidate is not None and watch.candidate.layers else 0
    budget = TreeBudget(setting.tree_nodes, setting.steps, steps)
    for number, prompt in enumerate(prompts):
        now = perf_counter()
        if number and now >= ends:
            break
        stop = now + (ends - now) / (len(prompts) - number)
        with engine.new_session(controller=Fixed(budget), trace=watch.trace) as session:
            length = min(PROMPT_TOKENS, session.context // 2)
            tokens = engine.encode(_end_of(prompt, length * LEAST_LONGEST))[-length:]
            most = min(REPLY_CYCLES * setting.tree_nodes, session.context - len(tokens))
            stats = None
            try:
                with closing(session.generate(tokens, GenerationOptions(max_tokens=most), progress)) as said:
                    for response in said:
                        stats = response.stats
                        done = stats.cycles - 1  # the first is the prompt's
                        now = perf_counter()
                        over = now >= ends or (now >= stop and done >= ENOUGH_CYCLES)
                        if done >= REPLY_CYCLES or (done >= LEAST_CYCLES and over):
                            break
            finally:
                if stats is not None and (run := watch.reply(stats, budget)) is not None:
                    found.append(run)
    return found


def _texts(prompts: Sequence[Prompt], engine: Engine) -> Sequence[Prompt]:
    """The user's, or `SAMPLES` as the model's users would put them."""
    if prompts or not engine.tokenizer.template.is_chat:
        return prompts or SAMPLES
    return [[{"role": "user", "content": text}] for text in SAMPLES]
