"""A drafter on a server: the same text whatever it says, and also when it is gone; refusals at both ends."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

import edgespec
from edgespec.config import EngineOptions, GenerationOptions
from edgespec.control.fixed import Fixed
from edgespec.core.acceptance import make_acceptance
from edgespec.core.schedule import TreeBudget
from edgespec.drafters.channel import Cancel, Close, Commit, Draft, Open, Prefill, RootPath, Stop, encoded
from edgespec.drafters.choice import choose_drafters
from edgespec.drafters.remote import drafter as remote
from edgespec.drafters.remote import host as hosts
from edgespec.drafters.remote import server as servers
from edgespec.drafters.remote.opening import open_host
from edgespec.drafters.remote.server import DraftServer, RemoteDrafter
from edgespec.drafters.remote.wire import ASKED, DRAFT_VERSION, REPLIED, Apply, Declined, Hired, NoRoom
from edgespec.drafters.resident import away
from edgespec.engine import Engine
from edgespec.errors import BudgetError, OptionError, ProtocolError, RefusedError, TokenizerError
from edgespec.models.asked import check_options
from edgespec.schedules.kinds import check_acceptance
from edgespec.split.address import DRAFT, VERIFY
from edgespec.tuning.watch import Watch
from tests.sessions import WAIT, in_threads, tokens_of, wait_for
from tests.test_session import prompt_of, write_model

pytest.importorskip("uvicorn", reason="needs the extra `serve`")
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect
from websockets.sync.server import serve as serve_sockets

from edgespec.apps.server import draft
from edgespec.apps.server.draft import make_draft_app
from edgespec.apps.server.listen import Server, listening
from edgespec.apps.server.metrics import draft_metrics
from edgespec.apps.server.service import Service, digest_of

PROMPT = prompt_of(40)
GREEDY = GenerationOptions(max_tokens=24, ignore_eos=True)
SAMPLED = GenerationOptions(max_tokens=24, ignore_eos=True, temperature=0.9, top_p=0.95, seed=7)

BUDGET = TreeBudget(12, 4, 3)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "FAR", 60.0)  # the machine may be busy


class Drafting:
    """A server in this process, on a real socket."""

    def __init__(self, model: Path, port: int = 0, key: str | None = None, seats: int = 3) -> None:
        keys = [] if key is None else [digest_of(key.encode())]
        self.service = Service("m", "m", GenerationOptions(), keys)
        self.host = open_host("m", str(model), EngineOptions(memory=2 * 10**9, context=300, batch=seats))
        self.service.drafts = self.host
        self._listening = listening("127.0.0.1", port, key is not None)
        listener, self.url = self._listening.__enter__()
        self._server = Server(self.service, 0.0, make=make_draft_app)
        self._thread = threading.Thread(target=self._server.run, args=([listener],))
        self._thread.start()
        wait_for(lambda: self._server.started)

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def end(self) -> None:
        self._server.force_exit = self._server.should_exit = True
        self._thread.join(WAIT)
        self._listening.__exit__(None, None, None)

    @contextmanager
    def socket(self, greets: bool = True) -> Iterator[ClientConnection]:
        url = self.url.replace("http", "ws") + DRAFT.path
        with connect(url, compression=None, max_size=2**20) as socket:
            if greets:
                socket.send(encoded(Apply(DRAFT_VERSION)))
                assert isinstance(heard(socket), Hired)
            yield socket


def heard(socket: ClientConnection) -> Any:
    frame = socket.recv(WAIT)
    assert isinstance(frame, bytes)
    return REPLIED.decode(frame)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("far") / "m", max_position_embeddings=2048)


@pytest.fixture(scope="module")
def drafting(model: Path) -> Iterator[Drafting]:
    running = Drafting(model)
    yield running
    running.end()


def load(model: Path, url: str | None, **options: Any) -> Engine:
    settings: dict[str, Any] = {"memory": "2GB", "context": 600, "resident_layers": 1, "draft_server": url}
    return edgespec.load(model, **(settings | options))


@pytest.fixture(scope="module")
def expected(model: Path) -> dict[float, list[int]]:
    with load(model, None, drafter="none") as engine:
        return {o.temperature: edgespec.generate(engine, PROMPT, o).tokens for o in (GREEDY, SAMPLED)}


def server_of(engine: Engine) -> DraftServer:
    (found,) = engine.resident
    assert isinstance(found, DraftServer)
    return found


@pytest.mark.parametrize("schedule", ["serial", "ssd", "mirror"])
def test_the_text_is_plain_decodings(
    schedule: str, model: Path, drafting: Drafting, expected: dict[float, list[int]]
) -> None:
    with load(model, drafting.url, schedule=schedule, drafter="remote") as engine:
        assert engine.drafters == ("remote",)
        for options in (GREEDY, SAMPLED):
            with engine.new_session(200, Fixed(BUDGET)) as session:
                said = list(session.generate(PROMPT, options))
            assert tokens_of(said) == expected[options.temperature]
            assert said[-1].stats.accepted > 5
        assert server_of(engine).latest.lost is None
    wait_for(lambda: drafting.host.taken == 0)


def test_a_server_that_ends_in_a_reply_costs_no_text_and_comes_back(
    model: Path, expected: dict[float, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "MOST_WAIT", 0.05)
    monkeypatch.setattr(servers, "FIRST_WAIT", 0.05)
    first, long = Drafting(model), GenerationOptions(max_tokens=24, ignore_eos=True)
    with load(model, first.url) as engine, engine.new_session(200, Fixed(BUDGET)) as session:
        said, server = [], server_of(engine)
        replies = session.generate(PROMPT, long)
        said += [next(replies) for _ in range(4)]
        first.end()
        said += list(replies)
        assert tokens_of(said) == expected[0.0]
        wait_for(lambda: server.latest.lost is not None)
        assert server.connection() is None
        second = Drafting(model, first.port)
        try:
            wait_for(lambda: server.connection() is not None)
            with engine.new_session(200, Fixed(BUDGET)) as other:
                again = list(other.generate(PROMPT, GREEDY))
            assert tokens_of(again) == expected[0.0]
            assert again[-1].stats.accepted > 5
            assert server.refused is None
        finally:
            second.end()


def test_a_lost_connection_is_made_anew_within_a_reply(
    model: Path, drafting: Drafting, expected: dict[float, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the conversation is told anew, from where it is."""
    with load(model, drafting.url, drafter="remote") as engine, engine.new_session(200) as session:
        server = server_of(engine)
        said = []
        for response in session.generate(PROMPT, GREEDY):
            said.append(response)
            if len(said) == 3:
                server.latest.lose("cut")
                server._connect()
                assert server.latest.lost is None
        assert tokens_of(said) == expected[0.0]
        assert server.latest.heard > server._began
        drafter = session.schedule.drafter  # type: ignore[attr-defined]
        assert isinstance(drafter, RemoteDrafter)
        assert drafter.worker is server.latest


def test_a_server_that_is_away_at_the_start_drafts_when_it_is_there(
    model: Path, expected: dict[float, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "MOST_WAIT", 0.05)
    monkeypatch.setattr(servers, "FIRST_WAIT", 0.05)
    before = Drafting(model)
    before.end()
    with (
        load(model, before.url, drafter="remote") as engine,
        engine.new_session(200, Fixed(BUDGET)) as session,
    ):
        assert "cannot be reached" in str(away(engine.resident))
        watch = Watch(engine)
        assert tokens_of(session.generate(PROMPT, GREEDY)) == expected[0.0]
        assert watch.warnings() == []  # it was said when the model was loaded
        there = Drafting(model, before.port)
        try:
            wait_for(lambda: server_of(engine).connection() is not None)
            said = list(session.generate(PROMPT, GREEDY))
            assert tokens_of(said) == expected[0.0]
            assert said[-1].stats.accepted > 5
            assert watch.warnings() == ["drafts come from the server again"]
        finally:
            there.end()
        wait_for(lambda: away(engine.resident) is not None)
        assert "no drafts from the server: " in watch.warnings()[0]


def test_one_that_turns_out_to_have_another_key_drafts_no_more(
    model: Path, expected: dict[float, list[int]]
) -> None:
    before = Drafting(model)
    before.end()
    with load(model, before.url, drafter="remote") as engine, engine.new_session(200) as session:
        locked = Drafting(model, before.port, key="secret")
        try:
            wait_for(lambda: server_of(engine).connection() is None and server_of(engine).refused is not None)
            said = list(session.generate(PROMPT, GREEDY))
        finally:
            locked.end()
        assert tokens_of(said) == expected[0.0]
        assert "key" in str(said[-1].stats.undrafted)


def test_metrics_and_health(model: Path, drafting: Drafting) -> None:
    with load(model, drafting.url, drafter="remote") as engine:
        edgespec.generate(engine, PROMPT, GREEDY)
        wait_for(lambda: drafting.host.taken == 0)
        for path, words in (("/health", "ok"), ("/metrics", "edgespec_conversations 0\n")):
            with urlopen(drafting.url + path, timeout=WAIT) as response:
                assert words in response.read().decode()
    told = draft_metrics(drafting.host)
    values = dict(line.split() for line in told.splitlines() if not line.startswith("#"))
    assert float(values["edgespec_draft_rounds_total"]) > 0
    assert float(values["edgespec_drafted_tokens_total"]) > 5
    assert float(values["edgespec_draft_seconds_total"]) > 0


def test_two_clients_at_once_and_a_third_without_room(
    model: Path, drafting: Drafting, expected: dict[float, list[int]]
) -> None:
    drafting.host.seats, before = 2, drafting.host.seats
    try:
        engines = [load(model, drafting.url, drafter="remote") for _ in range(3)]
        sessions = [engine.new_session(200, Fixed(BUDGET)) for engine in engines]
        said: list[Any] = [None] * 3

        def reply(index: int) -> None:
            said[index] = list(sessions[index].generate(PROMPT, GREEDY))

        for index in range(3):
            reply(index)
        in_threads([lambda i=i: reply(i) for i in range(2)])  # type: ignore[misc]
        assert [tokens_of(one) for one in said] == [expected[0.0]] * 3
        assert sorted(one[-1].stats.accepted > 0 for one in said) == [False, True, True]
        for engine in engines:
            engine.close()
    finally:
        drafting.host.seats = before
    wait_for(lambda: drafting.host.taken == 0)


OPEN = Open(1, 300, 64)
READ = Prefill(1, [1, 2], False, 0, 0.0, 1.0, 0, 0.0)
ROOT = RootPath([5], 0.0)
NONSENSE = {
    "no greeting": (False, [encoded(OPEN)]),
    "two greetings": (True, [encoded(Apply(DRAFT_VERSION))]),
    "garbage": (True, [b"\xc1\xff\x00"]),
    "nobody": (True, [encoded(READ)]),
    "twice": (True, [encoded(OPEN), encoded(OPEN)]),
    "large": (True, [encoded(Open(1, 301, 64))]),
    "unknown token": (True, [encoded(OPEN), encoded(Prefill(1, [2**30], False, 0, 0.0, 1.0, 0, 0.0))]),
    "long": (True, [encoded(OPEN), encoded(Prefill(1, [1] * 600, False, 0, 0.0, 1.0, 0, 0.0))]),
    "hot": (True, [encoded(OPEN), encoded(Prefill(1, [1], False, 0, float("nan"), 1.0, 0, 0.0))]),
    "unknown root": (True, [encoded(OPEN), encoded(READ), encoded(Commit(1, 1, 2**30, [3]))]),
    "infinite": (
        True,
        [encoded(OPEN), encoded(READ), encoded(Draft(1, 1, [RootPath([5], -float("inf"))], 4, 2, 2))],
    ),
    "much": (True, [encoded(OPEN), *[encoded(Commit(1, n, 1, [3] * 200)) for n in range(1, 4)]]),
}


@pytest.mark.parametrize("what", NONSENSE)
def test_nonsense_of_a_client_ends_its_connection_alone(what: str, drafting: Drafting) -> None:
    greets, frames = NONSENSE[what]
    with drafting.socket() as other, drafting.socket(greets) as socket:
        for frame in frames:
            socket.send(frame)
        answer = heard(socket)
        while not isinstance(answer, Declined):
            answer = heard(socket)
        assert answer.why == "nonsense"
        other.send(encoded(OPEN))
        other.send(encoded(READ))
        other.send(encoded(Draft(1, 9, [ROOT], 4, 2, 2**30)))
        while type(found := heard(other)).__name__ != "Trees":
            assert not isinstance(found, (Declined, NoRoom))
    wait_for(lambda: drafting.host.taken == 0)


def test_messages_that_wait_are_bounded_in_bytes(drafting: Drafting) -> None:
    said = list[bytes]()
    line = hosts.DraftLine(drafting.host, lambda frame, spare: said.append(frame), lambda: None)
    prompt = encoded(Prefill(1, [1] * 200_000, False, 0, 0.0, 1.0, 0, 0.0))
    with drafting.host.turns:  # so that nobody takes them
        for frame in (encoded(Apply(DRAFT_VERSION)), encoded(OPEN), *[prompt] * 12):
            line.hear(frame)
        answer = REPLIED.decode(said[-1])
    assert isinstance(answer, Declined)
    assert "bytes" in answer.words
    assert line.over
    wait_for(lambda: drafting.host.taken == 0)


def test_who_reads_nothing_is_gone(drafting: Drafting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft, "MOST_UNREAD_BYTES", -1)
    with drafting.socket(False) as socket:
        socket.send(encoded(Apply(DRAFT_VERSION)))
        with pytest.raises(ConnectionClosed):
            heard(socket)


def test_a_frame_that_is_too_long_and_another_version(drafting: Drafting) -> None:
    with drafting.socket(False) as socket:
        socket.send(encoded(Apply(DRAFT_VERSION + 1)))
        answer = heard(socket)
        assert isinstance(answer, Declined)
        assert answer.why == "version"
    with drafting.socket() as socket:
        socket.send(b"\x00" * (2**20 + 1))
        with pytest.raises(ConnectionClosed, match="1009"):
            heard(socket)


@pytest.mark.parametrize("answer", [b"\xc1garbage", b"\x00" * (2**18 + 1), encoded(NoRoom(1)), "text"])
def test_nonsense_of_a_server_costs_no_text(
    answer: bytes | str,
    model: Path,
    drafting: Drafting,
    expected: dict[float, list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is said after a greeting that is as it should be; or in its place."""
    monkeypatch.setattr(remote, "FAR", 0.05)
    greeting = [encoded(drafting.host.hired)] * 2

    def attend(socket: Any) -> None:
        socket.recv()
        socket.send(greeting.pop() if greeting else answer)
        for _ in socket:
            socket.send(answer)

    with serve_sockets(attend, "127.0.0.1", 0, compression=None) as liar:
        thread = threading.Thread(target=liar.serve_forever)
        thread.start()
        try:
            url = f"http://127.0.0.1:{liar.socket.getsockname()[1]}"
            with load(model, url, drafter="remote") as engine:
                assert edgespec.generate(engine, PROMPT, GREEDY).tokens == expected[0.0]
            with pytest.raises(ProtocolError):
                load(model, url)
        finally:
            liar.shutdown()
            thread.join(WAIT)


def test_a_silent_server_costs_no_text(
    model: Path, drafting: Drafting, expected: dict[float, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "FAR", 0.05)
    with load(model, drafting.url, drafter="remote") as engine:
        monkeypatch.setattr(hosts.DraftLine, "hear", lambda self, frame: time.sleep(0))
        assert edgespec.generate(engine, PROMPT, GREEDY).tokens == expected[0.0]


@pytest.mark.parametrize("schedule", ["serial", "ssd"])
def test_what_is_private_is_not_sent(
    schedule: str,
    model: Path,
    drafting: Drafting,
    expected: dict[float, list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told, hear = list[Any](), hosts.DraftLine.hear

    def listen(line: hosts.DraftLine, frame: bytes) -> None:
        told.append(ASKED.decode(frame))
        hear(line, frame)

    monkeypatch.setattr(hosts.DraftLine, "hear", listen)
    with (
        load(model, drafting.url, schedule=schedule, drafter="remote") as engine,
        engine.new_session(200, Fixed(BUDGET)) as session,
    ):
        said = list(session.generate(PROMPT, GREEDY, safe=20))
        assert tokens_of(said) == expected[0.0]
        assert said[-1].stats.drafted == 0
        again = list(session.generate(PROMPT, GREEDY))
        assert tokens_of(again) == expected[0.0]
        assert again[-1].stats.accepted > 5
        wait_for(lambda: any(isinstance(message, Commit) for message in told))
        prefill = next(place for place, message in enumerate(told) if isinstance(message, Prefill))
        # Close: of the test before, whose connection may end now.
        assert {type(message) for message in told[:prefill]} <= {Apply, Open, Cancel, Stop, Close}
        secret = [*PROMPT, *tokens_of(again), 151, 152, 153]
        list(session.generate(secret, GREEDY, safe=len(secret) - 3))
    wait_for(lambda: drafting.host.taken == 0)
    for message in told:
        assert getattr(message, "tokens", [])[-2:] != [152, 153]
    assert sum(isinstance(message, Prefill) for message in told) == 1


def test_what_is_refused_when_a_model_is_loaded(model: Path, drafting: Drafting, tmp_path: Path) -> None:
    locked = Drafting(model, key="secret")
    try:
        for text, error in (("other", RefusedError), ("ä", OptionError), ("secret", None)):
            (tmp_path / "key").write_text(text)
            if error is None:
                load(model, locked.url, draft_key_file=tmp_path / "key").close()
                continue
            with pytest.raises(error):
                load(model, locked.url, draft_key_file=tmp_path / "key")
        with pytest.raises(RefusedError, match="key"):
            load(model, locked.url)
    finally:
        locked.end()
    with pytest.raises(RefusedError, match="drafts nothing"):
        load(model, drafting.url + "/elsewhere")
    with pytest.raises(RefusedError, match="verifies nothing"):
        edgespec.connect(drafting.url + VERIFY.path)
    for url, options, words in (
        ("ftp://x", {}, r"^draft_server 'ftp://x' is no URL"),
        ("http://u:p@x", {}, "^draft_server: nobody uses the name or password"),
        ("http://x:1", {"draft_ca": "c"}, "^draft_ca changes nothing"),
        ("https://x:1", {"draft_ca": "nowhere"}, "^draft_ca 'nowhere' is no file"),
        ("https://x:1", {"draft_key_file": "nowhere"}, "^draft_key_file: nowhere is missing"),
        ("http://x:1", {"draft_key_file": tmp_path / "key"}, "unencrypted"),
    ):
        with pytest.raises(OptionError, match=words):
            load(model, url, **options)
    other = write_model(tmp_path / "other")
    words = json.loads((other / "tokenizer.json").read_text())
    vocabulary = words["model"]["vocab"]
    one, two = list(vocabulary)[-2:]
    vocabulary[one], vocabulary[two] = vocabulary[two], vocabulary[one]
    (other / "tokenizer.json").write_text(json.dumps(words))
    with pytest.raises(TokenizerError, match="another tokenizer"):
        load(other, drafting.url)
    with pytest.raises(BudgetError):
        open_host("m", str(model), EngineOptions(memory=10**8, batch=1))


def test_options_that_cannot_be() -> None:
    def asked(**options: Any) -> EngineOptions:
        return EngineOptions(draft_server="http://x:1", **options)

    assert choose_drafters(asked()) == ("ngram", "remote")
    for words, options in (
        ("would both draft", {"draft_model": "m"}),
        ("would both draft", {"adapters": "a"}),
        ("does not use the draft server", {"drafter": "ngram"}),
        ("drafts on its own machine", {"draft_worker": 1}),
        ("fan_out", {"fan_out": "uniform", "schedule": "ssd"}),
        ("one conversation at a time", {"batch": 2}),
    ):
        with pytest.raises(OptionError, match=words):
            check_options(asked(**options))
    with pytest.raises(OptionError, match="is for a draft server"):
        EngineOptions(draft_key_file="k")
    ratio = make_acceptance("ratio", GenerationOptions(temperature=1.0))
    with pytest.raises(OptionError, match="a draft server sends only"):
        check_acceptance(ratio, asked(), ("ngram", "remote"))
