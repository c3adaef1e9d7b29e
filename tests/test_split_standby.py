"""The same model on the client's flash: it goes on where no server answers, and the text is the server's."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import edgespec
from edgespec.config import EngineOptions, GenerationOptions
from edgespec.engine import Engine
from edgespec.errors import LinkError, OptionError, RefusedError, StorageError
from edgespec.models.packing import pack_model
from edgespec.response import Response, whole
from edgespec.split import link as links
from edgespec.split.client import RemoteEngine
from edgespec.split.options import ConnectOptions
from edgespec.split.standby import Standby
from edgespec.split.websocket import websocket
from tests.sessions import WAIT, wait_for
from tests.split_ends import Running, Wire, Wires, listening
from tests.test_session import prompt_of, write_model
from tests.test_split_client import Parrot

REPLY = GenerationOptions(max_tokens=40, ignore_eos=True)
HOT = GenerationOptions(max_tokens=40, ignore_eos=True, temperature=0.9, top_k=50, seed=11)
PROMPT = prompt_of(6) * 8
CONTEXT = 200


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("standby") / "m", max_position_embeddings=2048)


@pytest.fixture(scope="module")
def engine(model: Path) -> Iterator[Engine]:
    with edgespec.load(model, memory="2GB", context=1200, drafter="none") as engine:
        yield engine


@pytest.fixture(scope="module")
def here(model: Path) -> Iterator[Engine]:
    """Streamed: nothing but its head is in memory."""
    with edgespec.load(model, memory="2GB", context=300, drafter="ngram", resident_layers=0) as engine:
        yield engine


@pytest.fixture(scope="module")
def expected(engine: Engine) -> dict[str, Response]:
    told = {"greedy": REPLY, "sample": HOT}
    return {name: edgespec.generate(engine, PROMPT, options) for name, options in told.items()}


@pytest.fixture
def wires(engine: Engine) -> Iterator[Wires]:
    with Running(engine) as running:
        yield Wires(running.host)


def remote(wires: Wires, here: Engine, **asked: float) -> RemoteEngine:
    told = ConnectOptions(**{"wait": 20.0, **asked})  # type: ignore[arg-type]
    return RemoteEngine(wires, "the server", told, EngineOptions(), Parrot, here)


@pytest.mark.parametrize("at", [1, 10, 25])
@pytest.mark.parametrize("name", ["greedy", "sample"])
def test_it_goes_on_and_the_server_takes_over_again(
    wires: Wires, here: Engine, expected: dict[str, Response], name: str, at: int
) -> None:
    with remote(wires, here, alone=0) as far, far.new_session(CONTEXT) as session:
        steps, asked = [], 0
        for step in session.generate(PROMPT, HOT if name == "sample" else REPLY):
            steps.append(step)
            if len(steps) == at:
                wires.cut()
                asked = session.rounds
            if len(steps) == at + 3:
                wires.down = False
            if len(steps) > at + 3 and session.rounds <= asked + 1:
                time.sleep(0.1)  # this model is faster than any connection is made
        reply = whole(steps)
        assert session.rounds > asked + 1, "the server goes on behind what was said here"
    assert all(step.withdrawn is None for step in steps)
    assert all(step.verified for step in steps), "the same model has judged it"
    assert reply.tokens == expected[name].tokens
    assert reply.text == expected[name].text
    assert reply.stats.lost == 1


@pytest.mark.parametrize("at", [0, 12])
def test_a_server_that_stays_away_is_not_missed(
    wires: Wires, here: Engine, expected: dict[str, Response], at: int
) -> None:
    """Also from the prompt on; and the next reply begins with the server, if it is back."""
    with remote(wires, here, wait=0.0) as far, far.new_session(CONTEXT) as session:
        if at == 0:
            wires.cut()
        steps = []
        for step in session.generate(PROMPT, REPLY):
            steps.append(step)
            if len(steps) == at:
                wires.cut()
        reply = whole(steps)
        assert (reply.tokens, reply.verified, reply.finish_reason) == (
            expected["greedy"].tokens,
            True,
            "length",
        )
        wires.down = False
        again = whole(session.generate([*PROMPT, *reply.tokens, 5], GenerationOptions(max_tokens=5)))
        assert again.verified
        with far.new_session(CONTEXT) as other:
            assert (
                again.tokens
                == whole(other.generate([*PROMPT, *reply.tokens, 5], GenerationOptions(max_tokens=5))).tokens
            )


def test_a_late_answer_ends_its_pass_and_no_word_is_said_twice(
    wires: Wires, here: Engine, engine: Engine, expected: dict[str, Response]
) -> None:
    """The connection is there and silent; then another one brings the answer, between two layers."""
    with remote(wires, here) as far, far.new_session(CONTEXT) as session:
        steps = []
        for step in session.generate(PROMPT, REPLY):
            steps.append(step)
            if len(steps) == 5:
                wires.mute()
    assert whole(steps).tokens == expected["greedy"].tokens
    assert all(step.withdrawn is None for step in steps)


def test_answers_that_are_late_are_read_for(
    wires: Wires, here: Engine, expected: dict[str, Response], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here, all of them; and when one does not come, the next token is there."""
    monkeypatch.setattr(links.Patience, "usual", 0.0)
    with remote(wires, here) as far, far.new_session(CONTEXT) as session:
        before = here.bytes_read
        reply = whole(session.generate(PROMPT, REPLY))
        assert here.bytes_read > before
        assert (reply.tokens, reply.stats.lost) == (expected["greedy"].tokens, 0)
        steps = []
        for step in session.generate(PROMPT, REPLY):
            steps.append(step)
            if len(steps) == 20:
                wires.cut()
        assert whole(steps).tokens == expected["greedy"].tokens
        assert steps[-1].stats.lost == 1
        assert all(step.verified for step in steps)


def test_what_goes_wrong_here_is_no_matter_to_a_server_that_answers(
    wires: Wires, here: Engine, expected: dict[str, Response], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links.Patience, "usual", 0.0)

    def broken(self: Standby) -> list[int]:
        raise StorageError("the disk is gone")

    monkeypatch.setattr(Standby, "say", broken)
    with remote(wires, here) as far, far.new_session(CONTEXT) as session:
        assert whole(session.generate(PROMPT, REPLY)).tokens == expected["greedy"].tokens
        wires.cut()
        with pytest.raises(StorageError, match="the disk is gone"):
            whole(session.generate(PROMPT, REPLY))


def test_it_can_be_cancelled(wires: Wires, here: Engine) -> None:
    with remote(wires, here) as far, far.new_session(CONTEXT) as session:
        steps = []
        for step in session.generate(PROMPT, REPLY):
            steps.append(step)
            if len(steps) == 5:
                wires.cut()
            if len(steps) == 9:
                session.cancel()
    reply = whole(steps)
    assert (reply.finish_reason, len(reply.tokens)) == ("cancelled", 9)
    with here.new_session() as free:
        assert free.context == 300, "its memory is back"


def test_private_text_is_verified_here(wires: Wires, here: Engine, expected: dict[str, Response]) -> None:
    with remote(wires, here) as far, far.new_session(CONTEXT) as session:
        wires.frames.clear()
        reply = whole(session.generate(PROMPT, REPLY, safe=0))
    assert (reply.tokens, reply.verified) == (expected["greedy"].tokens, True)
    assert len(wires.frames) <= 2, "it takes its seat, and leaves it"


def test_where_it_has_no_room_the_drafter_speaks(wires: Wires, here: Engine) -> None:
    """Another conversation has its memory; or its context ends."""
    with (
        here.new_session(),
        remote(wires, here, wait=0.0, alone=3) as far,
        far.new_session(CONTEXT) as session,
    ):
        replies = session.generate(PROMPT, REPLY)
        for _ in range(5):
            next(replies)
        wires.cut()
        alone = [next(replies) for _ in range(3)]
        assert not any(step.verified for step in alone)
        with pytest.raises(edgespec.LinkError):
            next(replies)


def test_another_model_is_refused(wires: Wires, here: Engine, tmp_path: Path) -> None:
    other = write_model(tmp_path / "other", seed=5, max_position_embeddings=2048)
    with (
        edgespec.load(other, memory="2GB", context=300) as wrong,
        pytest.raises(OptionError, match="is not the model at the server"),
    ):
        remote(wires, wrong)


def test_a_server_that_comes_back_with_another_model_ends_the_reply(
    wires: Wires, here: Engine, tmp_path: Path
) -> None:
    other = write_model(tmp_path / "other", seed=5, max_position_embeddings=2048)
    with (
        edgespec.load(other, memory="2GB", context=300, drafter="none") as second,
        Running(second) as running,
        remote(wires, here) as far,
        far.new_session(CONTEXT) as session,
    ):
        replies = session.generate(PROMPT, REPLY)
        for _ in range(5):
            next(replies)
        wires.cut()
        wires.host, wires.down = running.host, False
        with pytest.raises(RefusedError, match="loaded in another way"):
            whole(replies)
        assert session.generate(PROMPT, REPLY) is not None, "the session is not stuck in a reply"


def test_a_packed_copy_of_the_same_values_is_the_model(engine: Engine, model: Path, tmp_path: Path) -> None:
    pack_model(str(model), tmp_path / "packed")
    with edgespec.load(tmp_path / "packed", memory="2GB", context=300) as packed:
        assert packed.files.identity == engine.files.identity


def test_a_server_that_is_away_at_the_start_takes_over_when_it_is_there(
    wires: Wires, here: Engine, expected: dict[str, Response]
) -> None:
    wires.down = True
    with remote(wires, here, alone=0) as far, far.new_session(CONTEXT) as session:
        assert far.away == "nobody listens there"
        assert far.config.max_context == 300, "as here"
        steps = []
        for step in session.generate(PROMPT, REPLY):
            steps.append(step)
            if len(steps) == 5:
                assert session.rounds == 1
                wires.down = False
            if len(steps) > 5 and session.rounds == 1:
                time.sleep(0.1)  # this model is faster than any connection is made
        assert whole(steps).tokens == expected["greedy"].tokens
        assert all(step.verified and step.withdrawn is None for step in steps)
        assert session.rounds > 1
        assert far.away is None
        assert far.config.max_context == 1200, "the server's"


@pytest.mark.parametrize("standby", [False, True])
def test_without_a_model_here_such_a_server_is_an_error(wires: Wires, here: Engine, standby: bool) -> None:
    """And so is, with one, a server that refuses for good."""

    def dial() -> Wire:
        raise (
            RefusedError("it does not know the key", "key") if standby else LinkError("nobody listens there")
        )

    with pytest.raises(RefusedError if standby else LinkError):
        RemoteEngine(dial, "the server", ConnectOptions(), EngineOptions(), Parrot, here if standby else None)


def test_a_server_that_turns_out_to_have_another_model_ends_the_reply(
    wires: Wires, here: Engine, tmp_path: Path
) -> None:
    other = write_model(tmp_path / "other", seed=5, max_position_embeddings=2048)
    wires.down = True
    with (
        edgespec.load(other, memory="2GB", context=300, drafter="none") as second,
        Running(second) as running,
        remote(wires, here) as far,
        far.new_session(CONTEXT) as session,
    ):
        replies = session.generate(PROMPT, REPLY)
        next(replies)
        wires.host, wires.down = running.host, False
        slowly = (time.sleep(0.1) for _ in replies)  # this model is faster than any connection is made
        with pytest.raises(OptionError, match="is not the model at the server"):
            list(slowly)


def test_a_server_with_less_room_than_a_conversation_that_began_alone(
    model: Path, wires: Wires, here: Engine, expected: dict[str, Response]
) -> None:
    """That goes on alone; the next one is of the server's size."""
    wires.down = True
    with (
        edgespec.load(model, memory="2GB", context=100, tree_nodes=8, drafter="ngram") as small,
        Running(small) as running,
        remote(wires, here) as far,
        far.new_session(CONTEXT) as session,
    ):
        wires.host, wires.down = running.host, False
        reply = whole(session.generate(PROMPT, REPLY))
        assert (reply.tokens, reply.verified) == (expected["greedy"].tokens, True)
        assert session.rounds == 1
        with far.new_session() as other:
            assert other.context == 100
            asked = other.generate(PROMPT[:40], GenerationOptions(max_tokens=8, ignore_eos=True))
            assert whole(asked).stats.lost == 0


def test_who_comes_during_a_long_pass_waits_for_it(
    engine: Engine, expected: dict[str, Response], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Longer than a server may be silent: it is greeted at once, and told that its seat will come."""
    monkeypatch.setattr(links, "OPEN_SECONDS", 0.6)
    with Running(engine) as running, listening(running.host) as url:
        told = websocket(url, None, None), url, ConnectOptions(), EngineOptions(), Parrot
        with RemoteEngine(*told) as first, first.new_session(CONTEXT) as one:
            running.held.clear()
            reply = list[Response]()
            busy = threading.Thread(target=lambda: reply.append(whole(one.generate(PROMPT, REPLY))))
            busy.start()
            wait_for(lambda: len(running.batch) > 0)
            threading.Timer(1.5, running.held.set).start()
            with RemoteEngine(*told) as second:
                assert not running.held.is_set(), "it is known before the pass has ended"
                with second.new_session(CONTEXT) as two:
                    assert running.held.is_set()
                    assert whole(two.generate(PROMPT, REPLY)).tokens == expected["greedy"].tokens
            busy.join(WAIT)
            assert reply[0].tokens == expected["greedy"].tokens
