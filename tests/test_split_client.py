"""The client's end of a split: the text is the server's, whatever becomes of the link."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import edgespec
from edgespec.apps import saved
from edgespec.config import EngineOptions, GenerationOptions
from edgespec.control.fixed import Fixed
from edgespec.core.schedule import TreeBudget
from edgespec.core.tree import TokenTree
from edgespec.drafters.base import Drafter
from edgespec.drafters.ngram import NGram
from edgespec.engine import Engine
from edgespec.errors import (
    ClosedError,
    ContextError,
    LinkError,
    OptionError,
    ProtocolError,
    RefusedError,
)
from edgespec.response import Response, whole
from edgespec.runtimes.base import PREFILL_ROWS
from edgespec.split import guests, line, link, seat
from edgespec.split.client import RemoteEngine
from edgespec.split.options import ConnectOptions
from edgespec.split.payload import pack_tokens, unpack_tokens, unsqueeze
from edgespec.split.protocol import (
    REQUESTS,
    VERSION,
    Behind,
    GiveUp,
    Judge,
    Judged,
    Refusal,
    Still,
    Told,
    Upload,
    Uploaded,
    Welcome,
    read,
    written,
)
from edgespec.split.transcript import Transcript
from edgespec.text.conversation import Message
from tests.sessions import WAIT, in_threads, wait_for
from tests.split_ends import Running, Wire, Wires
from tests.test_session import prompt_of, write_model

REPLY = GenerationOptions(max_tokens=40, ignore_eos=True)
HOT = GenerationOptions(max_tokens=40, ignore_eos=True, temperature=0.9, top_k=50, seed=11)
# The model repeats itself, so n-grams have something to say.
PROMPT = prompt_of(6) * 8
CONTEXT = 200
SLACK = 10.0  # seconds, of a machine that others use


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("split") / "m", max_position_embeddings=2048)


@pytest.fixture(scope="module")
def engine(model: Path) -> Iterator[Engine]:
    with edgespec.load(model, memory="2GB", context=1200, drafter="none") as engine:
        yield engine


@pytest.fixture(scope="module")
def expected(engine: Engine) -> dict[str, Response]:
    told = {"greedy": REPLY, "sample": HOT}
    return {name: edgespec.generate(engine, PROMPT, options) for name, options in told.items()}


@pytest.fixture
def running(engine: Engine) -> Iterator[Running]:
    with Running(engine) as running:
        yield running


@pytest.fixture
def wires(running: Running) -> Wires:
    return Wires(running.host)


class Parrot(NGram):
    """Says the tokens from one on, whatever was said: always something, and mostly wrong."""

    def draft(self, path: Sequence[int], budget: TreeBudget) -> TokenTree:
        drafted = [(path[-1] + step) % 128 for step in range(1, min(budget.depth, budget.nodes - 1) + 1)]
        return TokenTree.chain([path[-1], *drafted], [0.0, *[-0.5] * len(drafted)])


def remote(
    wires: Wires, drafter: str = "ngram", made: Callable[[], Drafter] | None = None, **asked: Any
) -> RemoteEngine:
    told = ConnectOptions(**{"wait": 20.0, **asked})
    return RemoteEngine(wires, "the server", told, EngineOptions(drafter=drafter), made)


def meddling(replies: Iterator[Response], at: int, meddle: Callable[[], None]) -> list[Response]:
    """A reply's steps; something happens when so many were heard."""
    steps = []
    for step in replies:
        steps.append(step)
        if len(steps) == at:
            meddle()
    return steps


@pytest.mark.parametrize("drafter", ["none", "ngram"])
@pytest.mark.parametrize("name", ["greedy", "sample"])
def test_text_is_what_the_server_alone_would_say(
    wires: Wires, expected: dict[str, Response], name: str, drafter: str
) -> None:
    with remote(wires, drafter) as engine:
        reply = edgespec.generate(engine, PROMPT, HOT if name == "sample" else REPLY)
    assert reply.tokens == expected[name].tokens
    assert reply.text == expected[name].text
    assert reply.verified
    assert reply.stats.lost == reply.stats.unverified_tokens == 0
    if drafter == "none":
        assert reply.stats.cycles == 40


def test_a_lost_answer_is_asked_for_again(wires: Wires, expected: dict[str, Response]) -> None:
    with remote(wires) as engine, engine.new_session(CONTEXT) as session:
        replies = session.generate(PROMPT, REPLY)
        steps = meddling(replies, 3, lambda: setattr(wires, "loses", 1))
    reply = whole(steps)
    assert reply.tokens == expected["greedy"].tokens
    assert reply.text == expected["greedy"].text
    assert len(wires.made) == 3  # one to ask for the tokenizer, one for the session, one more


@pytest.mark.parametrize("at", [1, 10, 25])
@pytest.mark.parametrize("name", ["greedy", "sample"])
def test_text_made_again_is_what_it_would_have_been(
    wires: Wires, expected: dict[str, Response], name: str, at: int
) -> None:
    steps: list[Response] = []
    with remote(wires, made=Parrot) as engine, engine.new_session(CONTEXT) as session:
        for step in session.generate(PROMPT, HOT if name == "sample" else REPLY):
            steps.append(step)
            if len(steps) == at:
                wires.cut()
                cut = time.monotonic()
            if not step.verified and wires.down:
                assert time.monotonic() - cut < 1 + SLACK, "text goes on soon"
                wires.down = False
    reply = whole(steps)
    assert reply.tokens == expected[name].tokens
    assert reply.text == expected[name].text
    assert reply.verified
    assert reply.stats.unverified_tokens == 0
    assert reply.stats.lost == 1
    unverified = [step for step in steps if not step.verified]
    assert unverified
    withdrawn = [step.withdrawn for step in steps if step.withdrawn is not None]
    assert sum(w.tokens for w in withdrawn) == len(unverified)
    assert sum(w.characters for w in withdrawn) == sum(len(step.text) for step in unverified)


@pytest.mark.parametrize("at", [1, 10])
def test_text_that_is_kept_is_gone_on_from(wires: Wires, engine: Engine, at: int) -> None:
    steps: list[Response] = []
    with remote(wires, made=Parrot, unverified="keep", alone=6) as far, far.new_session(CONTEXT) as session:
        for step in session.generate(PROMPT, REPLY):
            steps.append(step)
            if len(steps) == at:
                wires.cut()
            if not step.verified:
                wires.down = False
        first = whole(steps)
        unverified = [place for place, step in enumerate(steps) if not step.verified]
        assert unverified
        assert all(step.withdrawn is None for step in steps)
        assert first.text == "".join(step.text for step in steps)
        assert first.stats.unverified_tokens == len(unverified)
        assert not first.verified
        assert len(first.tokens) == 40
        assert steps[-1].verified
        # What the server says behind it is what it says behind the same text.
        last = unverified[-1] + 1
        rest = GenerationOptions(max_tokens=40 - last, ignore_eos=True)
        assert first.tokens[last:] == edgespec.generate(engine, [*PROMPT, *first.tokens[:last]], rest).tokens
        again = whole(session.generate([*PROMPT, *first.tokens, 5, 6], rest))
        assert again.verified
        assert again.tokens == edgespec.generate(engine, [*PROMPT, *first.tokens, 5, 6], rest).tokens


def test_a_server_that_is_gone_when_the_prompt_comes(wires: Wires, expected: dict[str, Response]) -> None:
    with remote(wires, made=Parrot) as engine, engine.new_session(CONTEXT) as session:
        wires.cut()
        steps = []
        for step in session.generate(PROMPT, REPLY):
            steps.append(step)
            if len(steps) == 5:
                wires.down = False
        assert not steps[0].verified
        assert whole(steps).tokens == expected["greedy"].tokens
        assert session.tokens == [*PROMPT, *expected["greedy"].tokens[:-1]]


def test_who_is_not_there_is_not_waited_for(wires: Wires, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection is lost, and nobody listens where it was: that is known at once."""
    monkeypatch.setattr(link.Patience, "seconds", WAIT)
    with remote(wires, made=Parrot, wait=0.0) as engine, engine.new_session(CONTEXT) as session:
        replies = session.generate(PROMPT, REPLY)
        steps = [next(replies) for _ in range(5)]
        wires.cut()
        began = time.monotonic()
        steps += [next(replies) for _ in range(10)]
        assert time.monotonic() - began < WAIT / 2
        assert not steps[-1].verified


def test_a_silent_link_is_given_up(wires: Wires, expected: dict[str, Response]) -> None:
    with remote(wires, made=Parrot) as engine, engine.new_session(CONTEXT) as session:
        steps = meddling(session.generate(PROMPT, REPLY), 3, wires.mute)
        assert [step for step in steps if not step.verified]
        assert whole(steps).tokens == expected["greedy"].tokens
        assert whole(steps).stats.lost == 1
    assert len(wires.made) == 3


def test_a_server_at_work_is_waited_for(
    wires: Wires, running: Running, expected: dict[str, Response]
) -> None:
    """Longer than the link may be silent: it says that it is there."""
    with remote(wires, made=Parrot) as engine, engine.new_session(CONTEXT) as session:

        def slow() -> None:
            running.held.clear()
            threading.Timer(1.5, running.held.set).start()

        reply = whole(meddling(session.generate(PROMPT, REPLY), 3, slow))
        assert reply.tokens == expected["greedy"].tokens
        assert reply.stats.lost == 0
        assert session.cache.links.patience.seconds < 1.5


def test_a_pass_that_hangs_does_not_stop_the_text(
    wires: Wires, running: Running, expected: dict[str, Response], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the server says that it is at work."""
    monkeypatch.setattr(seat, "LATE_WORK", 0.6)
    with remote(wires, made=Parrot, alone=5) as engine, engine.new_session(CONTEXT) as session:
        replies = session.generate(PROMPT, REPLY)
        steps = [next(replies) for _ in range(3)]
        running.held.clear()
        steps += [next(replies) for _ in range(5)]
        assert [step.verified for step in steps] == [True] * 3 + [False] * 5
        running.held.set()
        assert whole([*steps, *replies]).tokens == expected["greedy"].tokens


def test_words_without_end_hold_nobody(wires: Wires, monkeypatch: pytest.MonkeyPatch) -> None:
    with remote(wires, "none") as engine, engine.new_session(CONTEXT) as session:
        monkeypatch.setattr(Wire, "receive", lambda wire, timeout: written(Still(1)))
        threading.Timer(0.2, session.cancel).start()
        assert [step.finish_reason for step in session.generate(PROMPT, REPLY)] == ["cancelled"]


def test_a_server_that_stays_away_ends_the_wait(wires: Wires) -> None:
    with remote(wires, "none", wait=2.0) as engine, engine.new_session(CONTEXT) as session:
        replies = session.generate(PROMPT, REPLY)
        steps = [next(replies) for _ in range(3)]
        wires.cut()
        with pytest.raises(LinkError, match="has not come back"):
            list(replies)
        assert session.tokens == [*PROMPT, *[step.token for step in steps[:2]]]
        wires.down = False
        assert whole(session.generate(PROMPT, REPLY)).verified, "the session can be used"
    with remote(wires, made=Parrot, wait=0.3) as engine, engine.new_session(CONTEXT) as session:
        steps = meddling(session.generate(PROMPT, REPLY), 3, wires.cut)
        reply = whole(steps)
        assert reply.finish_reason == "length"
        assert not reply.verified
        assert (len(reply.tokens), reply.stats.unverified_tokens) == (40, 37)
        wires.down = False
    with remote(wires, made=Parrot, wait=0.3, alone=5) as engine, engine.new_session(CONTEXT) as session:
        replies = session.generate(PROMPT, REPLY)
        steps = [next(replies) for _ in range(3)]
        wires.cut()
        steps += [next(replies) for _ in range(5)]
        assert [step.verified for step in steps] == [True] * 3 + [False] * 5
        with pytest.raises(LinkError):
            next(replies)  # it may say no more alone


def test_a_reply_without_link_can_be_cancelled(wires: Wires) -> None:
    with remote(wires, "none") as engine, engine.new_session(CONTEXT) as session:
        replies = session.generate(PROMPT, REPLY)
        next(replies)
        wires.cut()
        threading.Timer(1.2, session.cancel).start()
        assert [step.finish_reason for step in replies] == ["cancelled"]


def test_a_round_can_be_cancelled(wires: Wires, running: Running, expected: dict[str, Response]) -> None:
    with remote(wires) as engine, engine.new_session(CONTEXT) as session:
        replies = session.generate(PROMPT, REPLY)
        next(replies)
        running.held.clear()
        threading.Timer(0.1, session.cancel).start()
        assert [step.finish_reason for step in replies] == ["cancelled"]
        assert isinstance(read(wires.frames[-1], REQUESTS), GiveUp), "the server is told"
        running.held.set()
        assert whole(session.generate(PROMPT, REPLY)).tokens == expected["greedy"].tokens


def test_memory_that_the_server_gave_to_others_is_filled_again(
    wires: Wires, running: Running, expected: dict[str, Response]
) -> None:
    def evict() -> None:
        done = threading.Event()
        running.mail.put(lambda: [running.host.guests.drop(g) for g in running.host.guests] and done.set())
        assert done.wait(WAIT)

    with remote(wires) as engine, engine.new_session(CONTEXT) as session:
        reply = whole(meddling(session.generate(PROMPT, REPLY), 10, evict))
        assert reply.tokens == expected["greedy"].tokens
        assert reply.stats.lost == 0
        assert len(wires.made) == 2


def test_a_long_prompt_crosses_the_link_once(wires: Wires, running: Running, engine: Engine) -> None:
    """It takes the server several passes, and the connection is lost in their midst."""
    prompt = prompt_of(1100, seed=4)
    expected = edgespec.generate(engine, prompt, REPLY)
    assert len(prompt) > 2 * PREFILL_ROWS

    def uploads() -> list[Upload]:
        return [asked for frame in wires.frames if isinstance(asked := read(frame, REQUESTS), Upload)]

    with remote(wires) as far, far.new_session(1180) as session:
        assert whole(session.generate(prompt, REPLY)).tokens == expected.tokens
        assert len(uploads()) == 1
    wires.frames.clear()
    replies = list[Response]()
    with remote(wires) as far, far.new_session(1180) as session:
        running.held.clear()
        thread = threading.Thread(target=lambda: replies.append(whole(session.generate(prompt, REPLY))))
        thread.start()
        wait_for(lambda: bool(uploads()))
        wires.cut(down=False)
        running.held.set()
        thread.join()
    assert [(reply.tokens, reply.verified) for reply in replies] == [(expected.tokens, True)]


def test_two_clients_of_one_session_hear_no_wrong_text(wires: Wires, expected: dict[str, Response]) -> None:
    """As of a program that was copied while it ran: each takes the session from the other."""
    with remote(wires) as far, far.new_session(CONTEXT) as one, far.new_session(CONTEXT) as two:
        whole(one.generate(PROMPT[:9], REPLY))
        two.cache.links.seat, two.cache.rounds = one.cache.links.seat, one.cache.rounds
        two.cache.links.drop()
        told = {"greedy": (one, REPLY), "sample": (two, HOT)}
        said: dict[str, list[int]] = {name: [] for name in told}

        def reply(name: str) -> None:
            session, options = told[name]
            for step in session.generate(PROMPT, options):
                assert step.verified
                said[name] += [] if step.token is None else [step.token]

        ends = in_threads([partial(reply, name) for name in told])
        for name, end in zip(told, ends, strict=True):
            tokens = expected[name].tokens
            assert said[name] == tokens[: len(said[name])]
            if end is None:
                assert said[name] == tokens
            else:  # the session is taken, its round over, or an answer the other's
                assert isinstance(end, (RefusedError, ProtocolError)), end
    with remote(wires) as far:
        assert edgespec.generate(far, PROMPT, REPLY).tokens == expected["greedy"].tokens


def test_who_found_no_room_goes_on_when_there_is_some(
    wires: Wires, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guests, "SPARE_SECONDS", 1.0)
    more = [*PROMPT, 3, 4, 5]
    expected = edgespec.generate(engine, more, REPLY).tokens
    with remote(wires) as client, client.new_session(CONTEXT) as session:
        whole(session.generate(PROMPT, REPLY))
        time.sleep(1.1)
        other = client.new_session(client.config.max_context)  # takes all memory, as this one rests
        timer = threading.Timer(0.7, other.close)
        timer.start()
        began = time.monotonic()
        assert whole(session.generate(more, REPLY)).tokens == expected
        assert 0.6 < time.monotonic() - began < SLACK
        timer.join()


def test_a_server_that_was_started_anew_goes_on(engine: Engine, expected: dict[str, Response]) -> None:
    with Running(engine) as one, Running(engine) as two:
        wires = Wires(one.host)

        def restart() -> None:
            wires.cut(down=False)
            wires.host = two.host

        with remote(wires) as far, far.new_session(CONTEXT) as session:
            assert whole(meddling(session.generate(PROMPT, REPLY), 10, restart)).tokens == (
                expected["greedy"].tokens
            )


def test_a_server_that_plans_other_room_goes_on(
    engine: Engine, model: Path, expected: dict[str, Response]
) -> None:
    """As one that is started anew finds other memory free."""
    context = engine.plan.context - 64
    smaller = edgespec.load(model, memory="2GB", context=context, drafter="none")
    with smaller, Running(engine) as one, Running(smaller) as two:
        wires = Wires(one.host)

        def restart() -> None:
            wires.cut(down=False)
            wires.host = two.host

        with remote(wires) as far, far.new_session(CONTEXT) as session:
            told = whole(meddling(session.generate(PROMPT, REPLY), 10, restart))
    assert told.tokens == expected["greedy"].tokens


def test_a_server_with_another_model_is_refused(engine: Engine, tmp_path: Path) -> None:
    another = edgespec.load(write_model(tmp_path / "other", seed=1), memory="2GB", context=200)
    with another, Running(engine) as one, Running(another) as two:
        wires = Wires(one.host)
        with remote(wires) as far, far.new_session(CONTEXT) as session:
            replies = session.generate(PROMPT, REPLY)
            next(replies)
            wires.cut(down=False)
            wires.host = two.host
            with pytest.raises(RefusedError, match="now serves other"):
                list(replies)


LIES: list[tuple[str, Callable[[Judged], Told]]] = [
    ("not drafted", lambda said: replace(said, tokens=pack_tokens([3, 4]))),
    ("vocabulary", lambda said: replace(said, tokens=pack_tokens([160]))),
    ("no number", lambda said: replace(said, tokens=said.tokens + b"1")),
    ("another text", lambda said: replace(said, hash=bytes(8))),
    ("another text", lambda said: replace(said, committed=said.committed + 1)),
    ("not asked for", lambda said: replace(said, round=said.round + 1)),
    ("not asked for", lambda said: Uploaded(said.round, said.committed, said.hash, 3)),
    ("not asked for", lambda said: Welcome(VERSION, "m", 160, [], 1, 1, 1, bytes(16), bytes(16))),
    ("lost the text", lambda said: Behind(said.round, said.committed, said.hash)),
    ("refuses", lambda said: Refusal("nonsense", "what?")),
]


@pytest.mark.parametrize(("fact", "lie"), LIES)
def test_what_no_verification_can_give_is_an_error_and_no_text(
    wires: Wires,
    expected: dict[str, Response],
    monkeypatch: pytest.MonkeyPatch,
    fact: str,
    lie: Callable[[Judged], Told],
) -> None:
    with remote(wires, "none") as engine, engine.new_session(CONTEXT) as session:
        replies = session.generate(PROMPT, REPLY)
        steps = [next(replies) for _ in range(5)]

        def written_wrongly(message: Told) -> bytes:
            return written(lie(message) if isinstance(message, Judged) else message)

        with monkeypatch.context() as patch:
            patch.setattr(line, "written", written_wrongly)
            with pytest.raises(ProtocolError, match=fact):
                next(replies)
        assert [step.token for step in steps] == expected["greedy"].tokens[:5]
        again = whole(session.generate(PROMPT, REPLY))
        assert again.tokens == expected["greedy"].tokens, "the session can be used"


def test_a_draft_that_is_refused_and_said_is_a_lie(wires: Wires, monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(message: Told) -> bytes:
        return written(replace(message, tokens=pack_tokens([10])) if isinstance(message, Judged) else message)

    class Ten(NGram):
        def draft(self, path: Sequence[int], budget: TreeBudget) -> TokenTree:
            return TokenTree.chain([path[-1], 10][: budget.depth + 1])

    with remote(wires, made=Ten) as engine, engine.new_session(CONTEXT) as session:
        monkeypatch.setattr(line, "written", refusing)
        with pytest.raises(ProtocolError, match="refused token 10, and says it"):
            list(session.generate(PROMPT, REPLY))


def test_prompts_are_checked_for_lies(wires: Wires, monkeypatch: pytest.MonkeyPatch) -> None:
    for changed in ({"token": 160}, {"token": -1}, {"committed": 3}, {"hash": bytes(8)}):

        def wrong(message: Told, changed: dict[str, Any] = changed) -> bytes:
            return written(replace(message, **changed) if isinstance(message, Uploaded) else message)

        with remote(wires) as engine, engine.new_session(CONTEXT) as session, monkeypatch.context() as patch:
            patch.setattr(line, "written", wrong)
            with pytest.raises(ProtocolError):
                list(session.generate(PROMPT, REPLY))


def test_many_clients_at_once(wires: Wires, engine: Engine) -> None:
    prompts = [prompt_of(n, seed=n) for n in (5, 17, 30)]
    with remote(wires, made=Parrot) as far:
        replies = in_threads([partial(reply_in, far, prompt) for prompt in prompts])
    assert [r.tokens for r in replies] == [edgespec.generate(engine, p, REPLY).tokens for p in prompts]


def reply_in(engine: RemoteEngine, prompt: list[int]) -> Response:
    with engine.new_session(CONTEXT) as session:
        return whole(session.generate(prompt, REPLY))


def test_what_a_client_cannot_do_is_refused(wires: Wires) -> None:
    with remote(wires) as engine, engine.new_session(CONTEXT) as session:
        with pytest.raises(OptionError, match="acceptance=sample"):
            session.generate(PROMPT, GenerationOptions(temperature=0.7, acceptance="ratio"))
        with pytest.raises(ContextError, match="1201"):
            engine.new_session(1201)
    with pytest.raises(ClosedError):
        engine.new_session()
    for options, fact in (
        (EngineOptions(drafter="eagle", adapters="m"), "drafts where torch is"),
        (EngineOptions(drafter="model", draft_model="org/small"), "was not exported"),
        (EngineOptions(memory=10**9), "memory is the server's"),
        (EngineOptions(schedule="mirror", drafter="ngram"), "mirror"),
    ):
        with pytest.raises(OptionError, match=fact):
            RemoteEngine(wires, "the server", ConnectOptions(), options)


def test_a_full_server_says_so(wires: Wires) -> None:
    with remote(wires) as engine, engine.new_session() as session:
        with pytest.raises(RefusedError, match="no room") as caught:
            engine.new_session(CONTEXT)
        assert caught.value.why == "full"
        assert caught.value.seconds > 0
        session.close()
        engine.new_session(CONTEXT).close()


def test_a_chat_goes_over_the_link(wires: Wires, engine: Engine) -> None:
    options = GenerationOptions(max_tokens=8)
    with edgespec.Chat(engine, options=options, context=400) as chat:
        expected = [chat.send(words).text for words in ("Hello", "And then?")]
    with remote(wires) as far, edgespec.Chat(far, options=options) as chat:
        assert [chat.send(words).text for words in ("Hello", "And then?")] == expected
        assert chat.last is not None
        assert chat.last.stats.reused_tokens > 0


# Privacy: what is marked private stays on the client, and so does all that follows.


def heard_by_server(wires: Wires) -> list[int]:
    """The tokens of all uploads, one behind the other; nothing may be judged."""
    found = list[int]()
    for frame in wires.frames:
        request = read(frame, REQUESTS)
        assert not isinstance(request, Judge)
        if isinstance(request, Upload):
            found += unpack_tokens(unsqueeze(request.packed, request.tokens, 10**4), 160)
    return found


@pytest.mark.parametrize("safe", [0, 1, 20, 40])
def test_nothing_private_leaves_the_client(wires: Wires, safe: int) -> None:
    prompt = prompt_of(40, seed=5)
    with remote(wires, made=Parrot) as engine, engine.new_session(CONTEXT) as session:
        wires.frames.clear()
        reply = whole(session.generate(prompt, REPLY, safe=safe))
        if safe < 40:
            assert heard_by_server(wires) == prompt[:safe]
            text = Transcript()
            text.extend(prompt)
            known = {text.hash(length) for length in range(safe + 1)}
            asked = [read(frame, REQUESTS) for frame in wires.frames]
            assert {request.hash for request in asked if isinstance(request, Upload)} <= known
            assert not any(
                pack_tokens(prompt[at : at + 2]) in b"".join(wires.frames) for at in range(safe, 39)
            )
            assert reply.stats.unverified_tokens == len(reply.tokens) == 40
        assert reply.verified == (safe == 40)
        assert len(session.tokens) <= max(safe, 80)
        with pytest.raises(OptionError, match="41"):
            session.generate(prompt, REPLY, safe=41)


def test_private_replies_need_no_server(wires: Wires) -> None:
    with remote(wires, made=Parrot) as engine, engine.new_session(CONTEXT) as session:
        wires.cut()
        reply = whole(session.generate(PROMPT, REPLY, safe=10))
        assert (len(reply.tokens), reply.finish_reason) == (40, "length")
        assert not reply.verified
    with remote(wires_up(wires), "none") as engine, engine.new_session(CONTEXT) as session:
        reply = whole(session.generate(PROMPT, REPLY, safe=10))
        assert (reply.tokens, reply.finish_reason) == ([], "length"), "nobody can say anything"


def wires_up(wires: Wires) -> Wires:
    wires.down = False
    return wires


def test_a_chat_keeps_a_private_message_and_what_follows(wires: Wires) -> None:
    secret, after = "The password is hunter2", "Say it again"
    with remote(wires, made=Parrot) as engine, edgespec.Chat(engine, context=400) as chat:
        chat.options = GenerationOptions(max_tokens=4, ignore_eos=True)
        assert chat.send("Hello").verified
        wires.frames.clear()
        before = len(chat.conversation.prompt())
        first, second = chat.send(secret, private=True), chat.send(after)
        assert not first.verified
        assert not second.verified
        sent = heard_by_server(wires)
        assert engine.tokenizer.decode(sent).endswith("User:")
        assert len(sent) <= before
        for words in (secret, after, first.text, second.text):
            tokens = engine.encode(words)
            assert pack_tokens(tokens[-2:]) not in b"".join(wires.frames)
        chat.undo()
        chat.undo()
        assert chat.send("Something else").verified, "it is private no more"


@pytest.mark.parametrize("schedule", ["serial", "ssd"])
def test_nothing_of_a_private_message_that_was_taken_back_is_drafted(wires: Wires, schedule: str) -> None:
    """N-grams say again what they have read, and what they draft is sent."""
    public, secret = [100 + i % 7 for i in range(40)], [3, 4, 5, 6, 7, 8, 9] * 10
    options = EngineOptions(drafter="ngram", schedule=schedule)
    with (
        RemoteEngine(wires, "the server", ConnectOptions(), options) as far,
        far.new_session(CONTEXT, Fixed(TreeBudget(8, 7, 1))) as session,
    ):
        whole(session.generate(public, REPLY))
        assert not whole(session.generate(public + secret, REPLY, safe=len(public))).verified
        wires.frames.clear()
        said = whole(session.generate([*public, 100, 101, secret[0]], REPLY)).tokens
        asked = [read(frame, REQUESTS) for frame in wires.frames]
        nodes = b"".join(judge.nodes for judge in asked if isinstance(judge, Judge))
        drafted = {int.from_bytes(nodes[at : at + 3], "little") for at in range(0, len(nodes), 4)}
        assert drafted
        assert not drafted & set(secret) - set(said) - {secret[0]}


def test_a_private_message_is_nothing_special_to_a_model_that_is_here(engine: Engine) -> None:
    with edgespec.Chat(engine, context=200) as chat:
        said = chat.send("Hello", max_tokens=5).text
    with edgespec.Chat(engine, context=200) as chat:
        reply = chat.send("Hello", private=True, max_tokens=5)
        assert reply.text == said
        assert reply.verified


def test_what_is_private_is_so_in_a_saved_chat(tmp_path: Path) -> None:
    said = [Message("user", "a secret", private=True), Message("assistant", "yes")]
    saved.save(tmp_path / "talk.json", said, "m")
    assert saved.load(tmp_path / "talk.json") == said
