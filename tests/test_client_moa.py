"""A MoA drafter over the link: its halves are one network, what it attends to follows the text, and neither
end believes the other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import tracemalloc
import zlib
from collections import deque
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import edgespec
from edgespec.config import EngineOptions, GenerationOptions
from edgespec.control.fixed import Fixed
from edgespec.core.schedule import TreeBudget
from edgespec.core.trace import Cycle, Trace
from edgespec.core.tree import TokenTree
from edgespec.engine import Engine
from edgespec.errors import CorruptFileError, EdgeSpecError, ModelError, OptionError, ProtocolError
from edgespec.models.client_half import export_client
from edgespec.response import whole
from edgespec.runtimes.formats.describe import describe_model
from edgespec.runtimes.formats.moa_client import read_client
from edgespec.runtimes.formats.moa_sizes import KIND, MoaSizes
from edgespec.runtimes.portable.moa import PortableMoa, PortableMoaDraft
from edgespec.runtimes.torch.moa_draft import LocalMemory
from edgespec.runtimes.torch.moa_memory import OWNER
from edgespec.runtimes.torch.trained_files import save_module
from edgespec.split import recall as split_recall
from edgespec.split import seat as split_seat
from edgespec.split.client import RemoteEngine
from edgespec.split.host import Host
from edgespec.split.options import ConnectOptions
from edgespec.split.payload import pack_vectors, vector_bytes
from edgespec.split.protocol import ANSWERS, Judged, Recalled, read
from edgespec.split.recall import Recollection
from edgespec.split.seat import RemoteSeat
from edgespec.split.session import RemoteSession
from tests.moa import random_moa, write_moa
from tests.split_ends import Caller, Running, Served, Wire, Wires, listening
from tests.test_cascade import quiet_model
from tests.test_moa import finish, open_pair
from tests.test_session import prompt_of, write_model
from tests.test_split_websocket import BARRED

ROOT = Path(__file__).resolve().parent.parent
REPLY = GenerationOptions(max_tokens=40, ignore_eos=True)
PROMPT = prompt_of(7) * 5
CONTEXT = 300
BUDGET = TreeBudget(16, 5, 5)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine may be busy: vectors that come later than drafts are waited for."""
    monkeypatch.setattr(split_seat, "RECALL", 10.0)


def with_halves(folder: Path, target_layers: int = 0, **changes: Any) -> Path:
    """A model, with trained adapters in `moa` beside it, and their client's half in `client`."""
    path = quiet_model(folder / "m", max_position_embeddings=2048, **changes)
    write_moa(path, folder / "moa", target_layers=target_layers)
    export_client(path, folder / "moa", folder / "client")
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_halves(tmp_path_factory.mktemp("client"), torch_dtype="bfloat16")


@pytest.fixture(scope="module")
def engine(model: Path) -> Iterator[Engine]:
    options: dict[str, Any] = {"memory": "2GB", "context": 900, "drafter": "none"}
    with edgespec.load(model, client_adapters=str(model.parent / "moa"), **options) as engine:
        yield engine


@pytest.fixture(scope="module")
def expected(engine: Engine) -> list[int]:
    return edgespec.generate(engine, PROMPT, REPLY).tokens


@pytest.fixture(scope="module")
def together(model: Path, expected: list[int]) -> int:
    """Drafts that are accepted where the whole network is beside the target."""
    adapters = str(model.parent / "moa")
    options: dict[str, Any] = {"memory": "2GB", "context": 900, "drafter": "moa", "adapters": adapters}
    with edgespec.load(model, **options) as engine, engine.new_session(CONTEXT, Fixed(BUDGET)) as session:
        reply = whole(session.generate(PROMPT, REPLY))
    assert reply.tokens == expected
    assert reply.stats.accepted >= 5
    return reply.stats.accepted


# The two halves


@pytest.mark.parametrize("changes", [{}, {"tie_word_embeddings": True}], ids=["head", "tied"])
def test_the_halves_are_the_network(tmp_path: Path, changes: dict[str, Any]) -> None:
    files = describe_model(write_model(tmp_path / "m", **changes))
    sizes = MoaSizes((2, 1, 2), (24, 40, 48))
    target, ours, moa, tokens = open_pair(files, torch.float32, 40, sizes)
    save_module(tmp_path / "moa", KIND, sizes, moa, files, {}, torch.float32)
    export_client(files.path, tmp_path / "moa", tmp_path / "client")
    manifest, tensors = read_client(tmp_path / "client")
    recollection = Recollection(manifest.config.width)
    cache = ours.source.cache  # type: ignore[attr-defined]
    recollection.put(LocalMemory(moa, cache).vectors(0, 25).numpy())
    theirs = PortableMoaDraft(PortableMoa(manifest.config, tensors), sizes, recollection, 300, 64)
    ours.source = _Half(ours.source, recollection)

    def same(tokens: list[int], parents: list[int]) -> None:
        found, wanted = (finish(draft.begin(tokens, parents)) for draft in (theirs, ours))
        assert np.abs(found - wanted).max() < 2e-3 * np.abs(wanted).max()

    for draft in (ours, theirs):
        assert [*draft.prefill(tokens[:-1])][-1] == 39
    same([tokens[-1], 3, 4], [-1, 0, 0])
    same([5, 6, 7], [1, 2, 3])
    recollection.put(LocalMemory(moa, cache).vectors(25, 39).numpy())
    for draft in (ours, theirs):
        draft.commit([0, 1], [3])  # node 3 hangs behind node 1: it stays, as slot 0
    same([9, 8], [0, -1])
    for draft in (ours, theirs):
        draft.truncate(20)
    recollection.truncate(20, 0)
    same([1, 2], [-1, 0])
    assert (theirs.length, theirs.memory.length) == (20, 20)
    del target


class _Half:
    """As much of a memory as has come."""

    def __init__(self, memory: Any, come: Recollection) -> None:
        self.memory, self.come = memory, come

    @property
    def length(self) -> int:
        return self.come.length

    def vectors(self, start: int, stop: int) -> torch.Tensor:
        found: torch.Tensor = self.memory.vectors(start, stop)
        return found


def test_a_drafter_in_its_first_words_attends_to_nothing(tmp_path: Path) -> None:
    files = describe_model(write_model(tmp_path / "m"))
    sizes = MoaSizes((2, 2, 2), (24, 40, 48))
    moa = random_moa(files, sizes)
    save_module(tmp_path / "moa", KIND, sizes, moa, files, {}, torch.float32)
    export_client(files.path, tmp_path / "moa", tmp_path / "client")
    manifest, tensors = read_client(tmp_path / "client")
    none = Recollection(manifest.config.width)
    theirs = PortableMoaDraft(PortableMoa(manifest.config, tensors), sizes, none, 300, 64)
    assert finish(theirs.begin([1, 2], [-1, 0])).shape == (2, files.config.vocab_size)


def test_a_pass_allocates_nothing_of_the_texts_length(tmp_path: Path) -> None:
    """Neither what is drafted and committed, nor vectors that come, have what is here copied."""
    files = describe_model(write_model(tmp_path / "m"))
    sizes, length = MoaSizes((2, 2, 2), (24, 40, 48)), 5000
    save_module(tmp_path / "moa", KIND, sizes, random_moa(files, sizes), files, {}, torch.float32)
    export_client(files.path, tmp_path / "moa", tmp_path / "client")
    manifest, tensors = read_client(tmp_path / "client")
    vectors = np.ones((length + 2, manifest.config.width), np.float32)
    recollection = Recollection(manifest.config.width)
    recollection.put(vectors[:length])
    draft = PortableMoaDraft(PortableMoa(manifest.config, tensors), sizes, recollection, 6000, 64)
    list(draft.prefill([1] * length))
    finish(draft.begin([1], [-1]))
    tracemalloc.start()
    try:
        finish(draft.begin([2, 3], [0, 0]))
        draft.commit([0, 1], [])
        recollection.put(vectors[length:])
        finish(draft.begin([4, 5], [-1, 0]))
        draft.truncate(length)
        finish(draft.begin([4], [-1]))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    keys = 4 * length * 2 * manifest.config.head_dim  # bytes, of one attention
    assert peak < keys


# Over the link


@pytest.mark.parametrize("schedule", ["serial", "ssd"])
@pytest.mark.parametrize("drafter", ["moa", "moa+ngram"])
def test_text_is_the_servers_and_drafts_are_accepted(
    engine: Engine,
    model: Path,
    expected: list[int],
    together: int,
    drafter: str,
    schedule: str,
    patient: None,
) -> None:
    with Running(engine) as running, listening(running.host) as url:
        far = edgespec.connect(url, drafter=drafter, adapters=str(model.parent / "client"), schedule=schedule)
        with far, far.new_session(CONTEXT, Fixed(BUDGET)) as session:
            for prompt, tokens in ((PROMPT, expected), (PROMPT[:9], None), (PROMPT, expected)):
                reply = whole(session.generate(prompt, REPLY))
                assert tokens is None or reply.tokens == tokens
                assert reply.verified
                assert session.cache.recollection is not None
                assert _behind(session) <= 2, "the last rounds have no drafts, and do not wait"
            # As where both halves are in one process, but for the 8 bits of what is attended to.
            assert abs(reply.stats.accepted - together) <= 3


@pytest.mark.parametrize("budget", [BUDGET, TreeBudget(1, 0, 0)])
def test_who_drafts_nothing_does_not_wait_for_what_drafts_attend_to(
    engine: Engine, model: Path, expected: list[int], monkeypatch: pytest.MonkeyPatch, budget: TreeBudget
) -> None:
    waits = list[int]()
    wait = RemoteSeat._recollect

    def counted(seat: RemoteSeat) -> Generator[None, None, None]:
        waits.append(seat.rounds)
        yield from wait(seat)

    monkeypatch.setattr(RemoteSeat, "_recollect", counted)
    with Running(engine) as running:
        adapters = str(model.parent / "client")
        options = EngineOptions(drafter="moa", adapters=adapters)
        far = RemoteEngine(Wires(running.host), "the server", ConnectOptions(), options)
        with far, far.new_session(CONTEXT, Fixed(budget)) as session:
            assert whole(session.generate(PROMPT, REPLY)).tokens == expected
    assert waits[0] == 1, "the prompt's are waited for"
    assert (len(waits) > 1) == (budget is BUDGET)


def test_the_wait_for_what_drafts_attend_to_is_their_price(
    engine: Engine, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the controller thinks them cheap: over a near link replies with them took three times as long."""
    wait = RemoteSeat._recollect

    def slow(seat: RemoteSeat) -> Generator[None, None, None]:
        until = time.monotonic() + 0.05
        while time.monotonic() < until:
            yield
        yield from wait(seat)

    monkeypatch.setattr(RemoteSeat, "_recollect", slow)
    cycles = list[Cycle]()
    with Running(engine) as running:
        options = EngineOptions(drafter="moa", adapters=str(model.parent / "client"))
        far = RemoteEngine(Wires(running.host), "the server", ConnectOptions(), options)
        with far, far.new_session(CONTEXT, Fixed(BUDGET), Trace(cycles.append)) as session:
            whole(session.generate(PROMPT, GenerationOptions(max_tokens=12, ignore_eos=True)))
    drafted = [cycle for cycle in cycles if len(cycle.tree) > 1]
    assert drafted
    assert all(cycle.verify_seconds >= 0.05 for cycle in drafted)


CLIENT = """
import json, sys
class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {barred!r}:
            raise ImportError(name + " is not there")
sys.meta_path.insert(0, Nothing())
import edgespec
from edgespec.control.fixed import Fixed
from edgespec.core.schedule import TreeBudget
from edgespec.core.trace import Cycle, Trace
from edgespec.response import whole
with edgespec.connect({url!r}, drafter="moa", adapters={adapters!r}) as engine:
    with engine.new_session(controller=Fixed(TreeBudget(16, 5, 5))) as session:
        options = edgespec.GenerationOptions(max_tokens=40, ignore_eos=True)
        reply = whole(session.generate({prompt!r}, options))
print(json.dumps([reply.tokens, reply.stats.accepted]))
"""


def test_a_client_without_torch_drafts_with_it(engine: Engine, model: Path, expected: list[int]) -> None:
    with Running(engine) as running, listening(running.host) as url:
        code = CLIENT.format(barred=BARRED, url=url, prompt=PROMPT, adapters=str(model.parent / "client"))
        run = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            cwd=ROOT,
            env=os.environ,
            check=False,
        )
    assert run.returncode == 0, run.stderr
    tokens, accepted = json.loads(run.stdout)
    assert tokens == expected
    assert accepted >= 5


def test_the_text_goes_on_by_it_alone_and_is_made_again(
    engine: Engine, model: Path, expected: list[int]
) -> None:
    with Running(engine) as running:
        wires = Wires(running.host)
        options = EngineOptions(drafter="moa", adapters=str(model.parent / "client"))
        far = RemoteEngine(wires, "the server", ConnectOptions(wait=60, alone=6), options)
        with far, far.new_session(CONTEXT, Fixed(BUDGET)) as session:
            steps, unverified = [], 0
            for step in session.generate(PROMPT, REPLY):
                steps.append(step)
                unverified += not step.verified
                if len(steps) == 10:
                    wires.cut()
                if unverified == 6:
                    wires.down = False
            assert unverified >= 6
            reply = whole(steps)
            assert (reply.tokens, reply.verified) == (expected, True)
            assert _behind(session) <= 2, "the last rounds have no drafts, and do not wait"


def _behind(session: RemoteSession) -> int:
    """Tokens of which the drafter has no vectors."""
    assert session.cache.recollection is not None
    return len(session.cache.transcript) - session.cache.recollection.length


def test_more_than_was_committed_is_not_recalled(engine: Engine, model: Path) -> None:
    """Whatever context the server says that it has: a frame of some kB would unpack to gigabytes."""
    with Running(engine) as running:
        options = EngineOptions(drafter="moa", adapters=str(model.parent / "client"))
        far = RemoteEngine(Wires(running.host), "the server", ConnectOptions(), options)
        with far, far.new_session(CONTEXT) as session:
            whole(session.generate(PROMPT, REPLY))
            seat, recollection = session.cache, session.cache.recollection
            assert recollection is not None
            recollection.truncate(10, seat.rounds - 1)
            length, token = len(seat.transcript), vector_bytes(1, recollection.width)
            beyond = pack_vectors(np.zeros((length - 9, recollection.width), dtype=np.float32))

            def hear(start: int, stop: int, body: bytes) -> None:
                seat._heard(Recalled(seat.rounds, start, stop, True, zlib.compress(body)))

            with pytest.raises(ProtocolError, match=f"tokens 10 to {length + 1}, of {length}"):
                hear(10, length + 1, beyond)
            with pytest.raises(ProtocolError, match="more than the"):
                hear(10, length, beyond)
            hear(10, 20, beyond[: 10 * token])
            assert recollection.length == 20
            seat._agreed = 0
            with pytest.raises(ProtocolError, match=f"tokens 20 to {length}, of 0"):
                hear(20, length, beyond)


@pytest.fixture
def caller(engine: Engine) -> Iterator[Caller]:
    """A client with a session."""
    served = Served(engine)
    caller = Caller(served)
    caller.sit(CONTEXT)
    yield caller
    served.host.close()
    served.run()


def test_a_rounds_bytes_are_those_of_the_paper(engine: Engine, caller: Caller) -> None:
    """Table 7: 2 A E_kv (TLI + 1), and 2 bytes a vector."""
    caller.recalled = 0
    frames: list[bytes] = []
    hear = caller.line._send
    caller.line._send = lambda frame: (frames.append(frame), hear(frame))[1]  # type: ignore[assignment]
    caller.say(caller.upload(PROMPT))
    e_kv = engine.config.kv_size
    kinds = [type(read(frame, ANSWERS)).__name__ for frame in frames]
    assert kinds == ["Uploaded", "Recalled"], "tokens come before what is attended to"
    recalled = read(frames[1], ANSWERS)
    assert isinstance(recalled, Recalled)
    plain = zlib.decompress(recalled.vectors) if recalled.packed else recalled.vectors
    assert len(plain) == len(PROMPT) * (2 * e_kv + 2)
    assert len(frames[1]) - len(recalled.vectors) <= 64

    first = read(frames[0], ANSWERS).token  # type: ignore[union-attr]
    caller.text.extend(PROMPT)
    caller.recalled = len(PROMPT)
    frames.clear()
    caller.say(caller.judge(TokenTree.root(first)))
    judged, recalled = (read(frame, ANSWERS) for frame in frames)
    assert isinstance(judged, Judged)
    assert isinstance(recalled, Recalled)
    assert recalled.start == len(PROMPT)
    body = zlib.decompress(recalled.vectors) if recalled.packed else recalled.vectors
    assert len(body) == vector_bytes(1, 2 * e_kv)


def test_an_answer_that_was_lost_is_recalled_again(caller: Caller) -> None:
    caller.recalled = 0
    request = caller.upload(PROMPT)
    caller.say(request)
    first = [*caller.heard]
    caller.say(request)
    assert caller.heard == first
    assert [type(a).__name__ for a in first] == ["Uploaded", "Recalled"]


def test_who_attends_to_nothing_is_sent_nothing(caller: Caller) -> None:
    caller.say(caller.upload(PROMPT))
    assert [type(a).__name__ for a in caller.heard] == ["Uploaded"]


class SlowWire(Wire):
    """Bytes come from the server at its wires' `rate`, one behind the other."""

    def __init__(self, wires: SlowWires) -> None:
        self.rate, self.free = wires.rate, 0.0
        self.coming = deque[tuple[float, bytes]]()
        super().__init__(wires)

    def _arrive(self, frame: bytes) -> None:
        if isinstance(answer := read(frame, ANSWERS), Recalled):
            self.wires.recalled += range(answer.start, answer.stop)  # type: ignore[attr-defined]
        self.free = max(time.monotonic(), self.free) + len(frame) / self.rate
        self.coming.append((self.free, frame))

    def receive(self, timeout: float) -> bytes | None:
        until = time.monotonic() + timeout
        while True:
            while self.coming and self.coming[0][0] <= time.monotonic():
                self.heard.put(self.coming.popleft()[1])
            if (frame := super().receive(0)) is not None or time.monotonic() >= until:
                return frame
            time.sleep(0.002)


class SlowWires(Wires):
    rate = 1e9

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self.recalled: list[int] = []  # tokens, as their vectors were sent

    def __call__(self) -> SlowWire:
        self.made.append(SlowWire(self))
        return self.made[-1]  # type: ignore[return-value]


def test_answers_do_not_wait_behind_a_prompts_vectors(
    engine: Engine, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a large model on a slow link, whose prompt's vectors take seconds to come."""
    monkeypatch.setattr(split_recall, "RECALLED_BYTES", 400)
    prompt = prompt_of(7) * 30
    expected = edgespec.generate(engine, prompt, REPLY).tokens
    with Running(engine) as running:
        wires = SlowWires(running.host)
        told = EngineOptions(drafter="moa+ngram", adapters=str(model.parent / "client"))
        with (
            RemoteEngine(wires, "the server", ConnectOptions(wait=5.0), told) as remote,
            remote.new_session(600) as session,
        ):
            memory = engine.memory
            assert memory is not None
            made = len(wires.made)
            for wire in wires.made:
                wire.rate = vector_bytes(len(prompt), memory.width) / 2.5  # type: ignore[attr-defined]
            reply = whole(session.generate(prompt, REPLY))
            assert reply.tokens == expected
            assert reply.stats.lost == 0, "a round was taken for lost that waited behind vectors"
            assert len(wires.made) == made
            seat = session.cache
            assert isinstance(seat, RemoteSeat)
            assert seat.recollection is not None
            assert seat.recollection.length > 20
            assert len(wires.recalled) == len(set(wires.recalled)), "vectors were sent twice"


# Neither end believes the other


def test_a_server_without_the_other_half_is_told_so(model: Path, tmp_path: Path) -> None:
    client = str(model.parent / "client")
    other = tmp_path / "other"
    write_moa(model, other, noise=0.2)
    for adapters, said in ((None, "client_adapters="), (str(other), "other half of another network")):
        options: dict[str, Any] = {"memory": "2GB", "context": 900, "drafter": "none"}
        with (
            edgespec.load(model, client_adapters=adapters, **options) as engine,
            Running(engine) as running,
            listening(running.host) as url,
            pytest.raises(OptionError, match=said),
        ):
            edgespec.connect(url, drafter="moa", adapters=client)


def test_its_memory_is_in_the_servers_ledger(engine: Engine) -> None:
    assert engine.plan.owners[OWNER] > 0


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        ({"network": "x"}, CorruptFileError, "not a sound manifest"),
        ({"file": "../moa/moa.safetensors"}, CorruptFileError, "not a file beside it"),
        ({"kind": "cascade"}, CorruptFileError, "not a sound manifest"),
        ({"config": {"hidden_size": 2**30}}, CorruptFileError, "not a sound manifest"),
        ({"config": {"hidden_size": 65}}, CorruptFileError, "should be"),
        ({"config": {"kv_heads": 3}}, CorruptFileError, "do not divide"),
        ({"sizes": {"target_layers": 1}}, CorruptFileError, "says otherwise"),
        ({"extra": 1}, CorruptFileError, "not a sound manifest"),
    ],
)
def test_hostile_files_are_refused(
    model: Path, tmp_path: Path, change: dict[str, Any], error: type[EdgeSpecError], said: str
) -> None:
    client = model.parent / "client"
    manifest = json.loads((client / "client.json").read_text())
    for name, value in change.items():
        manifest[name] = {**manifest[name], **value} if isinstance(value, dict) else value
    (tmp_path / "client.json").write_text(json.dumps(manifest))
    (tmp_path / "client.safetensors").write_bytes((client / "client.safetensors").read_bytes())
    with pytest.raises(error, match=said):
        read_client(tmp_path)


def test_files_that_are_cut_short_or_missing(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="export_client"):
        read_client(model.parent / "moa")
    client = model.parent / "client"
    (tmp_path / "client.json").write_bytes((client / "client.json").read_bytes())
    (tmp_path / "client.safetensors").write_bytes((client / "client.safetensors").read_bytes()[:-100])
    with pytest.raises(EdgeSpecError):
        read_client(tmp_path)


def test_nan_ends_its_drafting_and_not_the_reply(
    engine: Engine, model: Path, tmp_path: Path, expected: list[int]
) -> None:
    client = model.parent / "client"
    tensors = load_file(client / "client.safetensors")
    tensors["to_memory.o_proj"][:] = torch.nan
    (tmp_path / "client.json").write_bytes((client / "client.json").read_bytes())
    save_file(tensors, tmp_path / "client.safetensors")
    with (
        Running(engine) as running,
        listening(running.host) as url,
        edgespec.connect(url, drafter="moa", adapters=str(tmp_path)) as far,
        far.new_session(CONTEXT, Fixed(BUDGET)) as session,
    ):
        reply = whole(session.generate(PROMPT, REPLY))
    assert reply.tokens == expected
    assert reply.stats.accepted == 0
