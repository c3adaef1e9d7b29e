"""What a reply calls (progress, a trace, a controller) asks things of the engine itself, or goes wrong."""

# Fixtures of other files are imported, and named by tests.
# ruff: noqa: F401, F811
from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

import edgespec
from edgespec.control.fixed import Fixed
from edgespec.core.schedule import TreeBudget
from edgespec.core.trace import Trace
from edgespec.engine import Engine
from edgespec.errors import BusyError, ClosedError
from edgespec.response import Response
from edgespec.session import Session
from tests.sessions import PROMPTS, REPLY, SHORT, engine, expected, in_threads, model, tokens_of

PROMPT, OTHER = PROMPTS[:2]
IN_A_PASS = ("layers", "layer", "draft")
BETWEEN = ("prefill", "cycle")


class Asking(Fixed):
    """Decides as `SHORT`, and asks something before."""

    def __init__(self, ask: Callable[[], object]) -> None:
        super().__init__(SHORT._budget)
        self.ask = ask

    def budget(self, limit: TreeBudget, passes: range) -> TreeBudget | None:
        self.ask()
        return super().budget(limit, passes)


def calling(engine: Engine, place: str, call: Callable[[], object]) -> tuple[Session, Iterator[Response]]:
    """A session and its reply, which makes `call` at the first moment of this kind behind its first token."""
    called = False

    def once() -> None:
        nonlocal called
        if not called and (place == "prefill" or len(session.tokens) >= len(PROMPT)):
            called = True
            call()

    trace = Trace(
        cycle=(lambda cycle: once()) if place == "cycle" else None,
        layer=(lambda layer: once()) if place == "layer" else None,
    )
    session = engine.new_session(100, Asking(once) if place == "draft" else SHORT, trace)
    return session, session.generate(PROMPT, REPLY, lambda at: once() if at.stage == place else None)


def in_thread(work: Callable[[], Any]) -> Any:
    """Its result or exception: who waits for himself would hang the tests for ever."""
    return in_threads([work])[0]


@pytest.mark.parametrize("place", IN_A_PASS)
@pytest.mark.parametrize("what", ["a session", "a reply"])
def test_who_asks_for_a_turn_within_one_is_told_so(
    engine: Engine, expected: list[list[int]], place: str, what: str
) -> None:
    other = engine.new_session(100)

    def ask() -> object:
        return engine.new_session(50) if what == "a session" else list(other.generate(OTHER, REPLY))

    session, reply = calling(engine, place, ask)
    refused = in_thread(partial(list, reply))
    assert type(refused) is BusyError
    assert "asked by one of its callbacks" in str(refused)
    reply = session.generate(PROMPT, REPLY)
    assert tokens_of(in_thread(partial(list, reply))) == expected[0]
    assert tokens_of(list(other.generate(OTHER, REPLY))) == expected[1]
    for used in (session, other):
        used.close()
    assert engine.new_session().context == 800, "nothing is left of what was refused"
    session, reply = calling(engine, place, lambda: edgespec.generate(engine, OTHER, REPLY))
    with pytest.raises(BusyError):  # in the main thread, too
        list(reply)


@pytest.mark.parametrize("place", BETWEEN)
def test_between_passes_a_callback_may_ask_for_anything(
    engine: Engine, expected: list[list[int]], place: str
) -> None:
    said: list[Response] = []

    def ask() -> None:
        with engine.new_session(100) as other:
            said.extend(other.generate(OTHER, REPLY))

    session, reply = calling(engine, place, ask)
    assert tokens_of(in_thread(partial(list, reply))) == expected[0]
    assert tokens_of(said) == expected[1]
    session.close()


@pytest.mark.parametrize("place", [*IN_A_PASS, *BETWEEN])
@pytest.mark.parametrize("what", ["session", "engine"])
def test_a_callback_closes_its_session_or_its_engine(
    engine: Engine, expected: list[list[int]], place: str, what: str
) -> None:
    closing: dict[str, Callable[[], None]] = {"session": lambda: session.close(), "engine": engine.close}
    session, reply = calling(engine, place, closing[what])
    ended = in_thread(partial(list, reply))
    assert ended[-1].finish_reason == "cancelled"
    assert tokens_of(ended) == expected[0][: len(ended) - 1]
    with pytest.raises(ClosedError):
        session.generate(PROMPT)
    if what == "session":
        assert engine.new_session().context == 800
    else:
        assert engine.target.weights.streamer is not None
        assert engine.target.weights.streamer._closed


@pytest.mark.parametrize("place", [*IN_A_PASS, *BETWEEN])
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_what_a_callback_raises_ends_its_reply_and_no_more(
    engine: Engine, expected: list[list[int]], place: str, error: type[BaseException]
) -> None:
    def fail() -> None:
        raise error("no more")

    session, reply = calling(engine, place, fail)
    with pytest.raises(error, match="no more"):
        list(reply)
    assert not engine.verifier.inside()
    assert session.cache.length == len(session.tokens)
    assert tokens_of(list(session.generate(PROMPT, REPLY))) == expected[0]
    session.close()
    assert in_thread(lambda: engine.new_session().context) == 800
