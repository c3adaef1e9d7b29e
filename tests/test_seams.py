"""Sessions on an engine: closed, cancelled or interrupted at any moment; traced; with any schedule."""

# Fixtures of other files are imported, and named by tests.
# ruff: noqa: F401, F811
from __future__ import annotations

import gc
import inspect
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import edgespec
from edgespec import session as sessions
from edgespec.config import GenerationOptions
from edgespec.control.controller import Adaptive
from edgespec.control.fixed import Fixed
from edgespec.core import passes
from edgespec.core import reply as replying
from edgespec.core.acceptance import Outcome
from edgespec.core.schedule import Context, Controller, TreeBudget
from edgespec.core.trace import Cycle, Layer, Trace
from edgespec.core.tree import TokenTree
from edgespec.drafters.ngram import NGram
from edgespec.engine import Engine
from edgespec.errors import BudgetError, ClosedError, OptionError
from edgespec.progress import Progress
from edgespec.response import Response
from edgespec.schedules.serial import Plain, Serial
from edgespec.session import Session
from edgespec.training.corpus import Sample
from edgespec.training.generate import Replies
from tests.sessions import (
    PROMPTS,
    REPLY,
    SHORT,
    WAIT,
    engine,
    expected,
    in_threads,
    model,
    tokens_of,
    wait_for,
)
from tests.table_runtime import TableVerifier, plain


def replies(session: Session, prompt: list[int], progress: Any = None) -> list[Response]:
    return list(session.generate(prompt, REPLY, progress))


class Refuses(Fixed):
    """Decides that nothing is drafted."""

    refusal = "drafts do not pay"

    def __init__(self) -> None:
        super().__init__(TreeBudget(4, 2, 2))

    def budget(self, limit: TreeBudget, passes: range) -> TreeBudget | None:
        return None


def test_sessions_in_threads_share_passes_and_keep_their_text(
    engine: Engine, expected: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them, where who leads a pass has the patience to wait for the others."""
    monkeypatch.setattr(passes, "GATHER", 1e9)
    cycles: list[Cycle] = []
    opened = [engine.new_session(100, Refuses(), Trace(cycle=cycles.append)) for _ in PROMPTS]
    calls = [partial(replies, *job) for job in zip(opened, PROMPTS, strict=True)]
    verifier, found = engine.verifier, list[Any]()
    with verifier.turn:
        thread = threading.Thread(target=lambda: found.extend(in_threads(calls)))
        thread.start()
        wait_for(lambda: len(verifier._waiting) == len(PROMPTS))
    thread.join(WAIT)
    assert [tokens_of(responses) for responses in found] == expected
    assert [cycle.outcome.beside for cycle in cycles] == [3] * 29 * len(PROMPTS)


@pytest.mark.parametrize("what", ["cancelled", "closed", "raises"])
def test_one_of_several_ends_and_the_others_say_what_they_say(
    engine: Engine, expected: list[list[int]], what: str
) -> None:
    opened = [engine.new_session(100, SHORT) for _ in PROMPTS]
    victim = opened[1]

    def end(progress: Progress) -> None:
        if progress.stage == "layers" and len(victim.tokens) > 36:
            if what == "raises":
                raise ValueError("no more")
            getattr(victim, "cancel" if what == "cancelled" else "close")()

    calls = [
        lambda s=s, p=p: replies(s, p, end if s is victim else None)
        for s, p in zip(opened, PROMPTS, strict=True)
    ]  # type: ignore[misc]
    found = in_threads(calls)
    ended = found.pop(1)
    assert [tokens_of(responses) for responses in found] == expected[:1] + expected[2:]
    if what == "raises":
        assert str(ended) == "no more"
    else:
        assert ended[-1].finish_reason == "cancelled"
        assert 0 < len(tokens_of(ended)) < 30
        assert tokens_of(ended) == expected[1][: len(tokens_of(ended))]
    if what != "closed":
        assert tokens_of(replies(victim, PROMPTS[1])) == expected[1]


@pytest.mark.parametrize("stage", ["prefill", "layers", "between"])
def test_a_session_is_closed_by_another_thread_while_it_replies(
    engine: Engine, expected: list[list[int]], stage: str
) -> None:
    session, begun, ended = engine.new_session(800), threading.Event(), list[Response]()

    def wait(here: bool) -> None:
        if here and not begun.is_set():
            begun.set()
            wait_for(lambda: session._closed)

    def run() -> None:
        options = GenerationOptions(ignore_eos=True)
        for response in session.generate(PROMPTS[0], options, lambda progress: wait(progress.stage == stage)):
            ended.append(response)
            wait(stage == "between")

    thread = threading.Thread(target=run)
    thread.start()
    assert begun.wait(WAIT)
    session.close()
    other = engine.new_session(800)  # its memory is back
    thread.join(WAIT)
    assert not thread.is_alive()
    assert ended[-1].finish_reason == "cancelled"
    assert tokens_of(ended) == expected[0][: len(ended) - 1]
    assert len(ended) == 1 + (stage == "between")
    assert tokens_of(replies(other, PROMPTS[0])) == expected[0]


def test_a_closed_session_says_so(engine: Engine) -> None:
    session = engine.new_session(100)
    assert repr(session) == "<Session of 100 positions, 0 in use>"
    running = session.generate(PROMPTS[0], REPLY)
    next(running)
    assert repr(session) == "<Session of 100 positions, 20 in use, replying>"
    session.close()
    assert [r.finish_reason for r in running] == ["cancelled"]
    with pytest.raises(ClosedError, match=r"session was closed.*new_session"):
        session.generate(PROMPTS[0])
    session.close()
    session.cancel()
    assert repr(session) == "<Session, closed>"
    with engine.new_session(100) as another:
        early = another.generate(PROMPTS[0], REPLY)
    assert another.closed
    assert [r.finish_reason for r in early] == ["cancelled"]


def test_cancelling_ends_the_reply_that_was_asked_for_and_no_other(
    engine: Engine, expected: list[list[int]]
) -> None:
    session = engine.new_session(100)
    session.cancel()  # nothing runs
    assert tokens_of(replies(session, PROMPTS[0])) == expected[0]
    session.cancel()  # too late
    asked = session.generate(PROMPTS[0], REPLY)
    session.cancel()  # in time, though nothing has been computed
    with pytest.raises(OptionError):
        session.generate([])
    assert [r.finish_reason for r in asked] == ["cancelled"]
    assert tokens_of(replies(session, PROMPTS[0])) == expected[0]


@pytest.mark.parametrize("drafter", ["none", "model"])
@pytest.mark.parametrize("inside", [False, True])  # in the midst of a pass of several, or between passes
def test_an_engine_is_closed_while_replies_run(
    model: Path, expected: list[list[int]], drafter: str, inside: bool
) -> None:
    options: dict[str, Any] = {"draft_model": model} if drafter == "model" else {}
    with edgespec.load(model, memory="4GB", context=2000, resident_layers=1, **options) as engine:
        begun = threading.Event()

        def wait() -> None:
            begun.set()
            wait_for(lambda: engine.closed)

        def started(prompt: list[int]) -> Iterator[Response]:
            session = engine.new_session(100, SHORT)

            def show(progress: Progress) -> None:
                if inside and progress.stage == "layers" and len(session.tokens) > len(prompt) + 5:
                    wait()

            return session.generate(prompt, REPLY, show)

        def run(running: Iterator[Response]) -> list[Response]:
            ended = []
            for response in running:
                ended.append(response)
                if not inside and len(ended) == 5:
                    wait()
            return ended

        closing = threading.Thread(target=lambda: (begun.wait(WAIT), engine.close()))
        closing.start()
        session = engine.new_session(100)
        early = session.generate(PROMPTS[0])
        found = in_threads([partial(run, running) for running in map(started, PROMPTS)])
        closing.join(WAIT)
        assert not closing.is_alive()
        for ended, text in zip(found, expected, strict=True):
            assert ended[-1].finish_reason == "cancelled"
            assert tokens_of(ended) == text[: len(ended) - 1]
        assert [r.finish_reason for r in early] == ["cancelled"]
        for again in (lambda: engine.new_session(10), lambda: session.generate(PROMPTS[0])):
            with pytest.raises(ClosedError, match="engine was closed; load the model again"):
                again()
        with pytest.raises(ClosedError):
            edgespec.generate(engine, PROMPTS[0])
        session.close()
        engine.close()


@pytest.mark.parametrize("stage", ["prefill", "layers"])
def test_an_engine_is_closed_by_what_a_reply_calls(model: Path, stage: str) -> None:
    with edgespec.load(model, memory="4GB", context=800, resident_layers=1) as engine:
        session, read = engine.new_session(), engine.target.weights.streamer

        def close(progress: Progress) -> None:
            if progress.stage == stage and (stage == "prefill" or len(session.tokens) > 25):
                engine.close()

        ended = replies(session, PROMPTS[0], close)
        assert ended[-1].finish_reason == "cancelled"
        assert read is not None
        assert read._closed
        with pytest.raises(ClosedError):
            session.generate(PROMPTS[0])


def test_a_callback_closes_other_sessions(engine: Engine, expected: list[list[int]]) -> None:
    idle, paused, speaking = (engine.new_session(100) for _ in range(3))
    early = paused.generate(PROMPTS[1], REPLY)
    next(early)

    def close(progress: Progress) -> None:
        idle.close()
        paused.close()
        assert idle.closed
        assert paused.closed

    assert tokens_of(replies(speaking, PROMPTS[0], close)) == expected[0]
    assert [r.finish_reason for r in early] == ["cancelled"]
    speaking.close()
    assert engine.new_session().context == 800


def test_a_second_session_is_told_how_to_have_room(engine: Engine) -> None:
    first = engine.new_session()
    with pytest.raises(
        BudgetError, match=r"^another session does not fit: .*hold 800, .*; close one,.*context="
    ):
        engine.new_session()
    with pytest.raises(BudgetError, match=r"^a session of 5 positions does not fit"):
        engine.new_session(5)
    first.close()


# --- a target elsewhere ------------------------------------------------------------------------------------


def host_of(engine: Engine, verifier: TableVerifier) -> Any:
    """The engine's words, with another target behind the verifier."""
    own = ("tokenizer", "options", "eos", "drafters", "config", "dial", "peak_memory")
    host = SimpleNamespace(**{name: getattr(engine, name) for name in own})
    host.verifier, host.closed, host.bytes_read = verifier, False, 0
    host.after_cycle = host.learn = lambda *arguments: None
    return host


def test_a_session_needs_no_target_of_its_own(engine: Engine) -> None:
    """Its seat is none of this machine's caches: only the verifier knows what lies there."""
    verifier, seen = TableVerifier(), list[Cycle]()
    seat, schedule = verifier.new_seat(200), Serial(NGram(), Fixed(TreeBudget(16, 4, 0)), 64)
    session = Session(host_of(engine, verifier), seat, schedule, trace=Trace(seen.append))
    expected = plain(count=90, prompt=[3, 1, 4])
    options = GenerationOptions(max_tokens=90, ignore_eos=True)
    assert tokens_of(list(session.generate([3, 1, 4], options))) == expected
    assert sum(cycle.outcome.accepted for cycle in seen) > 0
    assert seat.text == session.tokens == [3, 1, 4, *expected[:-1]]
    edited = [3, 1, 4, *expected[:5], 7, 2]
    last = list(session.generate(edited, REPLY))
    assert tokens_of(last) == plain(count=30, prompt=edited)
    assert last[-1].stats.reused_tokens == 8
    stopped = session.generate(edited, REPLY)
    next(stopped)
    session.cancel()
    assert [response.finish_reason for response in stopped] == ["cancelled"]


def test_training_data_needs_a_verifier_and_nothing_else() -> None:
    verifier, found = TableVerifier(), dict[int, Sample]()
    prompts = [(i, [i % 12, 5, i % 7][: 2 + i % 2]) for i in range(8)]
    Replies(verifier, frozenset({0}), 3, 20, GenerationOptions()).run(prompts, found.__setitem__)
    assert max(verifier.seats) == 3
    lengths = set()
    for index, prompt in prompts:
        reply = plain(count=20 - len(prompt), prompt=prompt)
        reply = reply[: reply.index(0) + 1] if 0 in reply else reply
        assert found[index] == Sample.behind(prompt + reply, len(prompt))
        lengths.add(len(reply))
    assert len(lengths) > 2  # some end before the others


# --- Ctrl-C -----------------------------------------------------------------------------------------------

WHERE = {str(module.__file__) for module in (sessions, replying)}


def test_ctrl_c_anywhere_in_a_reply_leaves_the_session_usable(
    engine: Engine, expected: list[list[int]]
) -> None:
    session, left = engine.new_session(100, Refuses()), 0  # as many moments in every reply

    def interrupt(frame: FrameType, event: str, argument: object) -> None:
        nonlocal left
        # A signal comes to whoever called a generator, not to the generator that yields.
        yields = event == "return" and frame.f_code.co_flags & inspect.CO_GENERATOR
        if event in ("call", "return", "c_return") and frame.f_code.co_filename in WHERE and not yields:
            left -= 1
            if left < 0:
                sys.setprofile(None)
                raise KeyboardInterrupt

    def run(nth: int) -> int:
        nonlocal left
        left = nth
        sys.setprofile(interrupt)
        try:
            list(session.generate(PROMPTS[0], GenerationOptions(max_tokens=3, ignore_eos=True)))
        finally:
            sys.setprofile(None)
        return nth - left

    moments = min(run(10**9) for _ in range(3))  # more of them are waits where the machine is busy
    assert moments > 150
    interrupted = 0
    gc.disable()
    try:
        for nth in range(0, moments, 5):
            try:
                run(nth)
            except KeyboardInterrupt:
                interrupted += 1
            else:
                assert left >= 0, "it came, and was swallowed; else the reply was over before"
            assert session.cache.length >= len(session.tokens)
            again = list(session.generate(PROMPTS[0], GenerationOptions(max_tokens=2, ignore_eos=True)))
            assert tokens_of(again) == expected[0][:2], f"after an interrupt at moment {nth}"
        assert interrupted > 0.9 * moments / 5
    finally:
        gc.enable()


# --- traces, controllers, schedules -----------------------------------------------------------------------


def test_a_trace_has_every_cycle_and_layer(engine: Engine, expected: list[list[int]]) -> None:
    cycles, layers = list[Cycle](), list[Layer]()
    controller = Fixed(TreeBudget(16, 4, 0))
    with engine.new_session(100, controller, Trace(cycles.append, layers.append)) as session:
        assert session.schedule.controller is controller  # type: ignore[attr-defined]
        last = replies(session, PROMPTS[0])[-1]
    assert len(cycles) == last.stats.cycles - 1
    assert sum(cycle.outcome.accepted for cycle in cycles) == last.stats.accepted
    assert sum(len(cycle.tree) - 1 for cycle in cycles) == last.stats.drafted > 0
    assert [t for cycle in cycles for t in cycle.outcome.tokens][:29] == expected[0][1:]
    assert all(cycle.verify_seconds > 0 and cycle.draft_seconds > 0 for cycle in cycles)
    assert sum(c.verify_seconds + c.draft_seconds for c in cycles) < last.stats.decode_seconds
    assert {cycle.took for cycle in cycles} == {None}  # nobody has measured a plain one
    assert [layer.index for layer in layers] == [0, 1, 2] * last.stats.cycles
    assert [layer.rows for layer in layers[3::3]] == [len(cycle.tree) for cycle in cycles]
    assert [layer.at for layer in layers] == sorted(layer.at for layer in layers)


def test_who_takes_its_own_time_is_not_billed_for_waiting(engine: Engine) -> None:
    """What a pass shared is said, and what it cost is the pass alone."""
    costs = Adaptive()
    outcome = Outcome(tokens=(5,), path=np.array([0]), seconds=2.0, beside=3)
    costs.record(Cycle(None, TokenTree.root(1), outcome, 0.0, 2.0))
    assert costs.costs.verify.weight(4) > 0
    assert costs.costs.verify.weight(1) == 0
    assert costs.took == pytest.approx(1.0)  # a plain cycle would have shared it as well


class Taught(Plain):
    """A schedule that nobody knows."""

    def __init__(self, controller: Controller) -> None:
        self.controller, self.reason = controller, ""

    def settle(self, outcome: Outcome) -> Cycle:
        return replace(super().settle(outcome), took=3.0)

    def lesson(self) -> Controller:
        return self.controller

    def give_back(self, reason: str) -> None:
        self.reason = reason


def test_any_schedule_teaches_and_gives_memory_back(
    model: Path, expected: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with edgespec.load(model, memory="4GB", context=400, draft_model=model) as engine:
        engine.holdings.without_drafter = engine.plan
        monkeypatch.setattr(engine.holdings.handover, "record", lambda tokens, took: took == 3.0)
        session, controller = engine.new_session(), Adaptive()
        session.schedule = schedule = Taught(controller)
        assert tokens_of(replies(session, PROMPTS[0])) == expected[0]
        assert engine.controller is controller
        assert schedule.reason == engine.plan.reasons[-1]
        assert engine.resident == []


def test_why_nothing_is_drafted_is_told() -> None:
    """By a controller that has found out that it does not pay, and once memory went to the target."""
    controller = Adaptive()
    limit = TreeBudget(64, 20, 0)
    for _ in range(30):
        controller.costs.add(1, 1.0, None, 0.0)
        controller.costs.add(20, 9.0, 4, 5.0)
    assert controller.budget(limit, range(1, 9)) is None
    assert controller.refusal is not None
    assert "plain decoding 1" in controller.refusal or "more time than they saved" in controller.refusal
    reason = controller.refusal
    assert controller.budget(TreeBudget(64, 0, 0), range(1, 9)) is None  # the reply's end is no reason
    assert controller.refusal == reason
    schedule = Serial(NGram(), controller, 64)
    assert schedule.undrafted == reason
    schedule.give_back("pinned instead")
    assert schedule.undrafted == "pinned instead"
    cheap = Adaptive()
    cheap.costs.add(1, 1.0, None, 0.0)
    assert cheap.budget(limit, range(1)) is not None
    assert cheap.refusal is None


def test_the_reason_is_in_the_statistics(engine: Engine) -> None:
    with engine.new_session(100, Refuses()) as session:
        assert replies(session, PROMPTS[0])[-1].stats.undrafted == "drafts do not pay"
    with engine.new_session(100, Fixed(TreeBudget(4, 2, 0))) as session:
        assert replies(session, PROMPTS[0])[-1].stats.undrafted is None


def test_drafters_are_given_sampler_and_noise_whatever_judges(engine: Engine) -> None:
    seen: list[Context] = []

    class Listens(Plain):
        def begin(self, context: Context, limit: int) -> None:
            seen.append(context)

    session = engine.new_session(100)
    session.schedule = Listens()
    list(session.generate(PROMPTS[0], GenerationOptions(max_tokens=3, temperature=0.7, seed=5)))
    (context,) = seen
    assert context.sampler.options.temperature == 0.7
    assert context.noise.seed == 5
    assert not context.drawn


def test_eos_can_be_ignored(model: Path) -> None:
    with edgespec.load(model, memory="4GB", context=400) as engine:
        whole = edgespec.generate(engine, PROMPTS[0], REPLY).tokens
        assert len(whole) == 30
        engine.eos = frozenset({whole[12]})
        assert edgespec.generate(engine, PROMPTS[0], max_tokens=30).finish_reason == "stop"
        assert edgespec.generate(engine, PROMPTS[0], max_tokens=30, ignore_eos=True).tokens == whole
