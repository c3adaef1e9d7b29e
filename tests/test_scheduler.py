"""Requests that come and go: each says what it says alone, whoever else is there, fails, or waits."""

from __future__ import annotations

import gc
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import edgespec
from edgespec.config import GenerationOptions
from edgespec.core import batch
from edgespec.engine import Engine
from edgespec.errors import (
    Cancelled,
    ClosedError,
    ContextError,
    OptionError,
    OverloadError,
    StorageError,
)
from edgespec.response import Response, whole
from edgespec.serving import shelf
from edgespec.serving.scheduler import Scheduler
from edgespec.serving.ticket import Ticket
from tests.sessions import wait_for
from tests.test_session import prompt_of, write_model

COLD = GenerationOptions(max_tokens=24, ignore_eos=True)
HOT = GenerationOptions(max_tokens=24, ignore_eos=True, temperature=0.9, seed=3)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("scheduler") / "m", max_position_embeddings=4096)


@pytest.fixture(scope="module")
def engine(model: Path) -> Iterator[Engine]:
    with edgespec.load(model, memory="4GB", context=400, batch=3, resident_layers=1) as engine:
        yield engine


@pytest.fixture(scope="module")
def alone(model: Path) -> Iterator[Engine]:
    with edgespec.load(model, memory="4GB", context=1000, drafter="none") as engine:
        yield engine


@pytest.fixture
def scheduler(engine: Engine) -> Iterator[Scheduler]:
    scheduler = Scheduler(engine, waiting=40)
    yield scheduler
    scheduler.close()
    assert engine.pool.held == 0


def reply(ticket: Ticket) -> Response:
    """All of it, in one."""
    found = Response("")
    for said in ticket:
        found.text += said.text
        found.tokens += said.tokens
        found.finish_reason, found.stats = said.finish_reason, said.stats
    return found


def test_each_says_what_it_says_alone(scheduler: Scheduler, alone: Engine) -> None:
    """More of them than there is room for, of all lengths, cold and hot; some grow, most wait."""
    rng, asked = random.Random(1), list[tuple[list[int], GenerationOptions]]()
    for n in range(14):
        options = replace(rng.choice([COLD, HOT]), max_tokens=rng.choice([1, 9, 40, 90]), seed=n)
        asked.append((prompt_of(rng.choice([1, 5, 64, 200]), seed=n), options))
    tickets = [scheduler.submit(*each) for each in asked]
    for ticket, (prompt, options) in zip(tickets, asked, strict=True):
        said, expected = reply(ticket), edgespec.generate(alone, prompt, options)
        assert said.tokens == expected.tokens
        assert said.text == expected.text
        assert said.finish_reason == "length"
        assert ticket.over
    assert scheduler.counters.replies == {"length": 14}
    assert scheduler.counters.passes < sum(options.max_tokens or 0 for _, options in asked)


def test_replies_without_a_limit_are_made_side_by_side(model: Path, alone: Engine) -> None:
    """Each may need all of the context."""
    endless = GenerationOptions(ignore_eos=True)
    with edgespec.load(model, memory="4GB", context=100, batch=3, resident_layers=1) as engine:
        scheduler = Scheduler(engine, waiting=40)
        tickets = [scheduler.submit(prompt_of(20, seed=n), endless) for n in range(4)]
        wait_for(lambda: scheduler.state.replying == 3)
        replies = [reply(ticket) for ticket in tickets]
        scheduler.close()
    assert [len(each.tokens) for each in replies] == [80] * 4
    for place in (0, 3):
        expected = edgespec.generate(alone, prompt_of(20, seed=place), endless, max_tokens=80)
        assert replies[place].tokens == expected.tokens


def test_nobody_waits_for_ever(scheduler: Scheduler) -> None:
    """A long one among short ones that never cease."""
    long = scheduler.submit(prompt_of(200), replace(COLD, max_tokens=90))
    stop = threading.Event()

    def pester() -> None:
        while not stop.is_set():
            reply(scheduler.submit(prompt_of(30), replace(COLD, max_tokens=5)))

    threads = [threading.Thread(target=pester) for _ in range(6)]
    for thread in threads:
        thread.start()
    assert len(reply(long).tokens) == 90
    stop.set()
    for thread in threads:
        thread.join()


# --- what is kept ------------------------------------------------------------------------------------------


def test_the_next_turn_computes_what_is_new(scheduler: Scheduler, alone: Engine) -> None:
    prompt = prompt_of(100)
    with alone.new_session() as session:
        for turn in range(3):
            said = reply(scheduler.submit(prompt, COLD))
            expected = whole(session.generate(prompt, COLD))
            assert said.tokens == expected.tokens
            assert (
                said.stats.reused_tokens
                == expected.stats.reused_tokens
                == (0 if not turn else len(prompt) - 12)
            )
            # The last token of a reply is not computed before the next turn.
            prompt = [*prompt, *said.tokens, *prompt_of(11, seed=turn)]
            wait_for(lambda: scheduler.state.kept == 1)  # after the reply was said


def test_what_others_asked_changes_no_reply(
    scheduler: Scheduler, alone: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts that begin alike share whole blocks, or nothing."""
    for module in (batch, shelf):
        monkeypatch.setattr(module, "PREFILL_ROWS", 64)
    start = prompt_of(200)
    for end, reused in ((start, 0), ([*start[:180], 5, 6, 7], 128), (start[:150], 128), (start[:64], 0)):
        said = reply(scheduler.submit(end, COLD))
        assert said.tokens == edgespec.generate(alone, end, COLD).tokens
        assert said.stats.reused_tokens == reused
    assert reply(scheduler.submit(start[:150], COLD, reuse=False)).stats.reused_tokens == 0
    short = prompt_of(60, seed=9)
    for end in (short, short[:50], [*short[:50], 9], short):
        said = reply(scheduler.submit(end, COLD))
        assert said.stats.reused_tokens == 0
        assert said.tokens == edgespec.generate(alone, end, COLD).tokens


def test_a_quoted_reply_is_computed_by_who_quotes_it(
    scheduler: Scheduler, alone: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was decoded has other bits than a prompt: it is taken over with the whole reply alone, which is
    the next turn. (Rows of this model agree in tokens, so what was taken over is counted.)"""
    for module in (batch, shelf):
        monkeypatch.setattr(module, "PREFILL_ROWS", 64)
    start = prompt_of(100)
    told = reply(scheduler.submit(start, COLD)).tokens
    for part in (1, len(told) - 2):
        quoted = [*start, *told[:part], *prompt_of(20, seed=part)]
        said = reply(scheduler.submit(quoted, COLD))
        assert said.stats.reused_tokens == 64
        assert said.tokens == edgespec.generate(alone, quoted, COLD).tokens
    said = reply(scheduler.submit([*start, *told, 5], COLD))
    assert said.stats.reused_tokens == len(start) + len(told) - 1


def test_what_is_kept_makes_room(scheduler: Scheduler, engine: Engine) -> None:
    """At most as many sessions as replies; they hold what was said, and go when others need room."""
    for n in range(5):
        reply(scheduler.submit(prompt_of(64, seed=n), COLD))
    wait_for(lambda: engine.pool.held == 3 * 128)
    assert scheduler.state.kept == 3
    big = [scheduler.submit(prompt_of(370, seed=n), COLD) for n in range(3)]
    for ticket in big:
        reply(ticket)
    wait_for(lambda: engine.pool.held == engine.pool.positions == 3 * 448)


def test_one_at_a_time_keeps_the_last(model: Path, alone: Engine) -> None:
    """With drafts, and all of the context for each."""
    with edgespec.load(model, memory="4GB", context=400, resident_layers=1) as engine:
        assert engine.drafters == ("ngram",)
        scheduler = Scheduler(engine)
        prompts = [prompt_of(30, seed=n) for n in range(3)]
        tickets = [scheduler.submit(prompt, COLD) for prompt in prompts]
        replies = [reply(ticket) for ticket in tickets]
        for prompt, said in zip(prompts, replies, strict=True):
            assert said.tokens == edgespec.generate(alone, prompt, COLD).tokens
        again = reply(scheduler.submit([*prompts[2], *replies[2].tokens, 7, 8], COLD))
        assert again.stats.reused_tokens == 30 + 23
        assert reply(scheduler.submit(prompts[1], COLD)).stats.reused_tokens == 0
        scheduler.close()
        assert engine.pool.held == 0


def test_replies_are_counted_while_they_are_made(scheduler: Scheduler) -> None:
    ticket = scheduler.submit(prompt_of(20), replace(COLD, max_tokens=120))
    wait_for(lambda: scheduler.counters.reply_tokens > 3)
    assert not ticket.over, "it was counted when it had ended"
    assert scheduler.counters.prompt_tokens == 20
    said = reply(ticket)
    wait_for(lambda: scheduler.counters.replies["length"] == 1)
    counted = scheduler.counters
    assert (counted.reply_tokens, counted.cycles) == (120, said.stats.cycles)
    assert (counted.drafted, counted.accepted) == (said.stats.drafted, said.stats.accepted)


# --- trouble -----------------------------------------------------------------------------------------------


def test_cancelled_ones_end_and_the_others_go_on(scheduler: Scheduler, alone: Engine) -> None:
    endless = GenerationOptions(ignore_eos=True)
    tickets = [scheduler.submit(prompt_of(20, seed=n), endless) for n in range(2)]
    kept = scheduler.submit(prompt_of(20, seed=7), replace(COLD, max_tokens=90))
    waiting = scheduler.submit(prompt_of(20, seed=8), COLD)
    dropped = scheduler.submit(prompt_of(20, seed=9), COLD)
    dropped.cancel()
    for ticket in tickets:
        next(iter(ticket))
        ticket.cancel()
    for ticket in tickets:
        said = reply(ticket)
        assert said.finish_reason == "cancelled"
        assert len(said.tokens) < 380
    with pytest.raises(Cancelled):
        reply(dropped)
    assert reply(kept).tokens == edgespec.generate(alone, prompt_of(20, seed=7), COLD, max_tokens=90).tokens
    assert reply(waiting).tokens == edgespec.generate(alone, prompt_of(20, seed=8), COLD).tokens
    late = scheduler.submit(prompt_of(20, seed=1), COLD)
    tickets[0].cancel()  # too late: the session may be another's
    assert reply(late).finish_reason == "length"


def test_all_cancelled_in_one_pass(scheduler: Scheduler) -> None:
    endless = GenerationOptions(ignore_eos=True)
    for _ in range(5):
        tickets = [scheduler.submit(prompt_of(20, seed=n), endless) for n in range(4)]
        next(iter(tickets[2]))
        for ticket in tickets:
            ticket.cancel()
        for ticket in tickets:
            try:
                assert reply(ticket).finish_reason == "cancelled"
            except Cancelled:
                assert ticket.began is None
    assert scheduler.failed is None


def test_wrong_requests_are_refused_at_once(scheduler: Scheduler) -> None:
    with pytest.raises(ContextError, match="390 tokens and the reply may have 24"):
        scheduler.submit(prompt_of(390), COLD)
    for prompt in ([], [5, 1000]):
        with pytest.raises(OptionError):
            scheduler.submit(prompt, COLD)
    assert scheduler.state.waiting == 0


def test_an_error_of_one_is_no_matter_to_others(
    scheduler: Scheduler, alone: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    from edgespec.text import detokenize

    add = detokenize.Detokenizer.add

    def sometimes(self: Any, token: int) -> str:
        if self is broken:
            raise ZeroDivisionError("what nobody thought of")
        return add(self, token)

    broken: Any = None
    monkeypatch.setattr(detokenize.Detokenizer, "add", sometimes)
    tickets = [scheduler.submit(prompt_of(20, seed=n), replace(COLD, max_tokens=100)) for n in range(3)]
    wait_for(lambda: len(scheduler._members) == 3)
    broken = scheduler._members[1].reply.writer.text
    with pytest.raises(ZeroDivisionError):
        reply(tickets[1])
    for place in (0, 2):
        expected = edgespec.generate(alone, prompt_of(20, seed=place), COLD, max_tokens=100)
        assert reply(tickets[place]).tokens == expected.tokens
    assert reply(scheduler.submit(prompt_of(9), COLD)).finish_reason == "length"


def test_a_disk_error_ends_what_is_under_way_and_no_more(
    scheduler: Scheduler, engine: Engine, alone: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, passes = engine.target.run, 0

    def sometimes(*arguments: Any) -> Any:
        nonlocal passes
        passes += 1
        if passes == 5:
            raise StorageError("the disk went away")
        return run(*arguments)

    monkeypatch.setattr(engine.target, "run", sometimes)
    tickets = [scheduler.submit(prompt_of(20, seed=n), COLD) for n in range(3)]
    for ticket in tickets:
        with pytest.raises(StorageError, match="went away"):
            reply(ticket)
    assert (
        reply(scheduler.submit(prompt_of(20), COLD)).tokens
        == edgespec.generate(alone, prompt_of(20), COLD).tokens
    )
    assert scheduler.counters.replies["error"] == 3


def test_what_nobody_expects_ends_all_and_says_so(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = threading.Event()
    scheduler = Scheduler(engine, failing=failed.set)

    def broken(*arguments: Any) -> Any:
        raise MemoryError("no more")

    monkeypatch.setattr(engine.target, "run", broken)
    tickets = [scheduler.submit(prompt_of(20, seed=n), COLD) for n in range(5)]
    for ticket in tickets:
        with pytest.raises((MemoryError, ClosedError)):
            reply(ticket)
    assert failed.wait(10)
    with pytest.raises(ClosedError, match="no more"):
        scheduler.submit(prompt_of(20), COLD)
    scheduler.close()
    assert engine.pool.held == 0


def test_a_full_queue_refuses_with_a_time(engine: Engine) -> None:
    scheduler = Scheduler(engine, waiting=2)
    endless = GenerationOptions(ignore_eos=True)
    under_way = [scheduler.submit(prompt_of(9, seed=n), endless) for n in range(2)]
    wait_for(lambda: scheduler.state.replying == 2)
    third = scheduler.submit(prompt_of(9, seed=2), endless)
    wait_for(lambda: scheduler.state.replying == 3)
    waiting = [scheduler.submit(prompt_of(9, seed=n), COLD) for n in range(2)]
    with pytest.raises(OverloadError, match="3 replies are under way and 2 requests wait") as caught:
        scheduler.submit(prompt_of(9), COLD)
    assert 1 <= caught.value.patience <= 60
    waiting[0].cancel()
    wait_for(lambda: scheduler.state.waiting == 1)
    scheduler.submit(prompt_of(9), COLD)
    for ticket in (*under_way, third):
        ticket.cancel()
    reply(waiting[1])
    assert scheduler.counters.refused == 1
    scheduler.close()


def test_who_never_takes_costs_a_reply_and_no_more(scheduler: Scheduler) -> None:
    ticket = scheduler.submit(prompt_of(20), replace(COLD, max_tokens=120))
    wait_for(lambda: ticket.over)
    for n in range(3):
        reply(scheduler.submit(prompt_of(20, seed=n), COLD))
    said = ticket.take()
    assert said is not None
    assert len(said.tokens) == 120
    assert said.finish_reason == "length"
    assert ticket.take() is None


def test_closing_lets_replies_end_or_cuts_them_off(engine: Engine) -> None:
    long = replace(COLD, max_tokens=120)
    for patience, ends in ((60.0, "length"), (0.0, "cancelled")):
        scheduler = Scheduler(engine)
        tickets = [scheduler.submit(prompt_of(20, seed=n), long) for n in range(4)]
        wait_for(lambda: scheduler.state.replying == 3)  # noqa: B023
        for ticket in tickets[:3]:
            next(iter(ticket))
        scheduler.close(patience)
        assert [ticket.reason for ticket in tickets[:3]] == [ends] * 3
        with pytest.raises(ClosedError, match="has not begun with this request"):
            reply(tickets[3])
        with pytest.raises(ClosedError, match="the server stops"):
            scheduler.submit(prompt_of(20), COLD)
        assert engine.pool.held == 0


def test_the_dial_moves_while_replies_are_made(scheduler: Scheduler, engine: Engine, alone: Engine) -> None:
    options = replace(COLD, max_tokens=100)
    tickets = [scheduler.submit(prompt_of(20, seed=n), options) for n in range(3)]
    for ticket in tickets:
        next(iter(ticket))
    before = engine.dial
    engine.set_memory("3GB")
    engine.set_memory(before)
    assert reply(tickets[0]).finish_reason == "length"
    expected = edgespec.generate(alone, prompt_of(20, seed=2), options).tokens
    rest = reply(tickets[2]).tokens  # something was taken
    assert 0 < len(rest) < len(expected)
    assert rest == expected[-len(rest) :]


def test_many_leave_nothing_behind(scheduler: Scheduler, engine: Engine) -> None:
    rng = random.Random(5)
    tickets = list[Ticket]()
    for n in range(80):
        while True:
            try:
                options = replace(COLD, max_tokens=rng.choice([1, 2, 9]))
                tickets.append(scheduler.submit(prompt_of(rng.randint(1, 40), seed=n), options))
                break
            except OverloadError:
                time.sleep(0.01)
        if rng.random() < 0.3:
            rng.choice(tickets).cancel()
    for ticket in tickets:
        wait_for(lambda: ticket.over)  # noqa: B023
    wait_for(lambda: scheduler.counters.replies.total() == 80)
    scheduler.close()
    del tickets
    gc.collect()
    assert not [s for s in engine._open_sessions() if not s.closed]
