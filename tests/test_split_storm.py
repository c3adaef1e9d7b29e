"""Whatever a server says, a client ends in a documented way, and believes no more than it must."""

from __future__ import annotations

import gc
import threading
import time
import zlib
from collections import Counter, deque
from contextlib import ExitStack, suppress
from functools import partial
from itertools import cycle
from pathlib import Path

import numpy as np
import psutil
import pytest
import xxhash
from msgspec.structs import asdict, replace

import edgespec
from edgespec.config import EngineOptions, GenerationOptions
from edgespec.control.fixed import Fixed
from edgespec.core.schedule import TreeBudget
from edgespec.engine import Engine
from edgespec.errors import (
    ContextError,
    LinkError,
    OptionError,
    ProtocolError,
    RefusedError,
    TokenizerError,
)
from edgespec.split import connections, link, vocabulary
from edgespec.split.client import RemoteEngine
from edgespec.split.options import ConnectOptions
from edgespec.split.payload import pack_tokens, unpack_nodes, unpack_tokens, unsqueeze
from edgespec.split.protocol import (
    ANSWERS,
    REQUESTS,
    Answer,
    Behind,
    Judge,
    Judged,
    Refusal,
    Still,
    TokenizerPart,
    Told,
    Upload,
    Uploaded,
    Welcome,
    read,
    written,
)
from edgespec.split.session import RemoteSession
from edgespec.split.transcript import Transcript
from edgespec.split.vocabulary import packed_tokenizer
from tests.sessions import WAIT, in_threads, wait_for
from tests.split_ends import Running, Wire, Wires
from tests.test_client_moa import engine, with_halves
from tests.test_session import prompt_of
from tests.test_split_protocol import ANSWERED, mutated

__all__ = ["engine"]
PROMPT = prompt_of(7) * 5
CONTEXT, VOCABULARY = 120, 160
REPLIES = [
    GenerationOptions(max_tokens=30, ignore_eos=True),
    GenerationOptions(max_tokens=30, ignore_eos=True, temperature=0.8, top_k=20, seed=3),
]
OPENING = (LinkError, ProtocolError, RefusedError, OptionError, TokenizerError, ContextError)
REPLYING = (LinkError, ProtocolError, RefusedError)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # In fp32: text that the server reads again has the bits of text that it has judged (docs/exactness.md).
    return with_halves(tmp_path_factory.mktemp("storm"))


@pytest.fixture(scope="module")
def expected(engine: Engine) -> list[list[int]]:
    return [edgespec.generate(engine, PROMPT, options).tokens for options in REPLIES]


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is lost is missed at once: nothing takes its time here."""
    for module, name, seconds in (
        (link, "LEAST_PATIENCE", 0.1),
        (link, "LOST_PACKET", 0.05),
        (link, "FIRST_WAIT", 0.02),
        (connections, "FIRST_WAIT", 0.02),
        (link, "MOST_WAIT", 0.1),
        (link, "OPEN_SECONDS", 0.5),
        (vocabulary, "OPEN_SECONDS", 0.5),
    ):
        monkeypatch.setattr(module, name, seconds)


# What becomes of a server's frame on its way.


def number(rng: np.random.Generator, value: int) -> int:
    near = [value - 1, value + 1, value ^ 1 << int(rng.integers(24)), value // 2, -1, 0, 1, VOCABULARY]
    return int(rng.choice([*near, 2**31 - 1]))


def spoilt(rng: np.random.Generator, body: bytes) -> bytes:
    """Bits of it changed, or its length."""
    data = bytearray(body)
    place, kind = int(rng.integers(len(data) + 1)), int(rng.integers(5))
    if kind < 2:
        data[place : place + 1] = rng.bytes(1)
    elif kind == 2:  # as scales in float16: the largest, infinity, NaN, the least below 0
        place = 2 * int(rng.integers(4))
        data[place : place + 2] = [b"\xff\x7b", b"\0\x7c", b"\0\x7e", b"\1\x80"][int(rng.integers(4))]
    elif kind == 3:
        del data[place : place + int(rng.integers(1, 7))]
    else:
        data += data[-3 * int(rng.integers(1, 3)) :]
    return bytes(data)


def twisted(rng: np.random.Generator, message: Answer) -> Told:
    """One field of it has another value, mostly one of its type and size."""
    name, value = list(asdict(message).items())[int(rng.integers(len(asdict(message))))]
    changed: object = None
    if isinstance(value, bool):
        changed = not value
    elif isinstance(value, int):
        changed = number(rng, value)
    elif isinstance(value, bytes) and getattr(message, "packed", isinstance(message, TokenizerPart)):
        changed = zlib.compress(spoilt(rng, zlib.decompress(value)))
    elif isinstance(value, bytes):
        changed = spoilt(rng, value)
    return replace(message, **{name: changed})


def other(rng: np.random.Generator, message: Answer) -> Told:
    """Of another kind, about the same round of the same text."""
    about = [getattr(message, name, missing) for name, missing in (("round", 1), ("committed", 9))]
    known = (*about, getattr(message, "hash", bytes(8)))
    refusals = [Refusal(why, "no", 1e6) for why in ("full", "taken", "nonsense", "failed", "closing")]
    tokens = rng.integers(0, VOCABULARY, 4)
    kinds = [Behind(*known), Uploaded(*known, 5), Judged(*known, pack_tokens(tokens)), Still(about[0])]
    kinds += [Behind(about[0], 0, Transcript().hash()), TokenizerPart(3, b"123"), *refusals, *ANSWERED]
    return kinds[int(rng.integers(len(kinds)))]


def lie(rng: np.random.Generator, message: Answer, asked: Told | None, text: Transcript) -> Told:
    """All of it fits: other drafts were accepted, the next token is another. Or all but one token, which was
    not drafted and is accepted, or drafted, refused and said; or but the hash. text: that the question goes
    on from."""
    if isinstance(message, Uploaded):
        return replace(message, token=int(rng.integers(VOCABULARY)))
    if not isinstance(message, Judged) or not isinstance(asked, Judge):
        return twisted(rng, message)
    tree, node, said = unpack_nodes(asked.nodes, asked.root, VOCABULARY), 0, list[int]()
    while len(below := tree.children(node)) and rng.random() < 0.7:
        node = int(rng.choice(below))
        said.append(int(tree.tokens[node]))
    bonus, flaw = int(rng.integers(VOCABULARY)), rng.random()
    if flaw < 0.25:
        said.append(int(rng.integers(VOCABULARY)))
    elif flaw < 0.5 and len(below := tree.children(node)):
        bonus = int(tree.tokens[below[-1]])
    text = text.plus([asked.root + (0.5 < flaw < 0.6), *said])
    return Judged(message.round, len(text), text.hash(), pack_tokens([*said, bonus]))


class Storm(Wires):
    """Connections on which something becomes of a share (`rate`) of the server's frames."""

    def __init__(self, running: Running, engine: Engine, seed: int) -> None:
        super().__init__(running.host)
        self.rng, self.turn, self.rate = np.random.default_rng(seed), threading.Lock(), 0.0
        self.heard: list[tuple[Uploaded | Judged, Upload | Judge, bool]] = []  # True: as the server said it
        self.changed, self.ends = 0, Counter[str]()
        self._packed, _ = packed_tokenizer(engine.tokenizer)
        self._tokenizer: bytes | None = None  # in place of the server's, announced and sent

    def begin(self, rate: float) -> None:
        """For a new client."""
        self.rate = rate
        for past in (self.heard, self.frames, self.made):
            past.clear()
        change = [mutated, spoilt, None, None, None, None][int(self.rng.integers(6))]
        plain = zlib.decompress(self._packed)
        self._tokenizer = None if change is None else zlib.compress(change(self.rng, plain))

    def __call__(self) -> Wire:
        return StormyWire(self)

    def translated(self, message: Answer) -> Told:
        """Another tokenizer, or none, is announced, and then sent."""
        if self._tokenizer is not None and isinstance(message, Welcome):
            return replace(message, tokenizer=xxhash.xxh3_128_digest(self._tokenizer))
        if self._tokenizer is not None and isinstance(message, TokenizerPart):
            return TokenizerPart(0, self._tokenizer)
        return message


class StormyWire(Wire):
    def __init__(self, storm: Storm) -> None:
        self.storm = storm
        self.asked: dict[int, Upload | Judge] = {}  # by round
        self.older = deque[bytes](maxlen=8)
        super().__init__(storm)

    def send(self, frame: bytes) -> None:
        request = read(frame, REQUESTS)
        if isinstance(request, (Upload, Judge)):
            self.asked[request.round] = request
        super().send(frame)

    def _arrive(self, frame: bytes) -> None:
        storm = self.storm
        with storm.turn:
            message = read(frame, ANSWERS)
            self._note(frame, True)
            frames = [written(storm.translated(message))]
            if storm.rng.random() < storm.rate:
                storm.changed += 1
                frames = self._changed(storm.rng, frame, message)
                for made in frames:
                    self._note(made, False)
            self.older.append(frame)
        for made in frames:
            super()._arrive(made)

    def _note(self, frame: bytes, honest: bool) -> None:
        with suppress(ProtocolError):
            message = read(frame, ANSWERS)
            if isinstance(message, (Uploaded, Judged)) and message.round in self.asked:
                self.storm.heard.append((message, self.asked[message.round], honest))

    def _changed(self, rng: np.random.Generator, frame: bytes, message: Answer) -> list[bytes]:
        kind = int(rng.integers(6))
        if kind == 0:
            return [mutated(rng, frame)]
        if kind == 1:
            return [written(other(rng, message))]
        if kind == 2:  # lost, twice, late, or something else in its place
            past = self.older[int(rng.integers(len(self.older)))] if self.older else frame
            return [[], [frame, frame], [past, frame], [past], [frame, past]][int(rng.integers(5))]
        if kind < 5:  # or, of what nobody can lie about, a field
            text, asked, guest = Transcript(), self.asked.get(getattr(message, "round", 0)), self.line.guest
            if guest is not None and asked is not None:
                text.extend(guest.transcript.tokens(0, asked.committed))
            return [written(lie(rng, message, asked, text))]
        return [written(twisted(rng, message))]


def believable(
    answer: Uploaded | Judged, asked: Upload | Judge, text: Transcript
) -> tuple[int, list[int]] | None:
    """Where in the text its tokens are, and these: if a client that knows no better must believe it.

    A server may lie about two things. Which drafts it accepts: some of those that it was asked about, each
    behind the one before. And the bonus token, or the one behind a prompt: any of the vocabulary, but for
    drafts that it would have refused then. All else follows from these.
    """
    start = asked.committed
    if start > len(text) or text.hash(start) != asked.hash:
        return None  # asked for another reply
    before = text.tokens(0, start)
    longer = Transcript()
    if isinstance(answer, Uploaded) and isinstance(asked, Upload):
        longer.extend([*before, *unpack_tokens(unsqueeze(asked.packed, asked.tokens, 10**4), VOCABULARY)])
        told = [answer.token]
        fits = asked.draws and 0 <= answer.token < VOCABULARY
    elif isinstance(answer, Judged) and isinstance(asked, Judge) and len(answer.tokens) % 3 == 0:
        rows = np.frombuffer(answer.tokens, np.uint8).reshape(-1, 3).astype(int)
        told = (rows @ [1, 2**8, 2**16]).tolist()
        nodes = np.frombuffer(asked.nodes, np.uint8).reshape(-1, 4).astype(int)
        drafted = {(int(n[3]), int(n[:3] @ [1, 2**8, 2**16])): i + 1 for i, n in enumerate(nodes)}
        node: int | None = 0
        for token in told[:-1]:
            node = None if node is None else drafted.get((node, token))
        fits = node is not None and (node, told[-1]) not in drafted and told[-1] < VOCABULARY
        longer.extend([*before, asked.root, *told[:-1]])
        start += 1
    else:
        return None
    if not fits or (answer.committed, answer.hash) != (len(longer), longer.hash()):
        return None
    return len(longer) - len(told) + 1, told


def check(storm: Storm, said: list[tuple[int, bool]], truth: list[int], since: int) -> None:
    """Every token that is marked verified is what the server said behind the text so far, in a round behind
    `since`, or a lie that it may tell."""
    tokens = [token for token, verified in said if verified]
    assert [verified for _, verified in said[: len(tokens)]] == [True] * len(tokens), "nothing is hidden"
    whole, text = [*PROMPT, *tokens], Transcript()
    text.extend(whole)
    explained = {True: set[int](), False: set[int]()}
    for answer, asked, honest in storm.heard:
        at, told = (believable(answer, asked, text) if asked.round > since else None) or (0, [])
        right = (i for i in range(len(told)) if at + i < len(whole) and whole[at:][: i + 1] == told[: i + 1])
        explained[honest].update(at + i for i in right)
    places = set(range(len(PROMPT), len(whole)))
    assert places <= explained[True] | explained[False], f"nobody may say what is said: {whole}"
    if places <= explained[True]:
        assert tokens == truth[: len(tokens)]
    else:
        storm.ends["lied to"] += 1


def reply(storm: Storm, session: RemoteSession, place: int, truth: list[int]) -> None:
    said: list[tuple[int, bool]] = []
    began, end, since = time.monotonic(), None, session.rounds
    try:
        for step in session.generate(PROMPT, REPLIES[place]):
            if step.withdrawn is not None:
                del said[len(said) - step.withdrawn.tokens :]
            if step.token is not None:
                said.append((step.token, step.verified))
            end = step.finish_reason
        assert end == "length"
        assert len(said) == REPLIES[place].max_tokens
    except REPLYING as error:
        end = type(error).__name__
    assert time.monotonic() - began < WAIT / 4
    storm.ends[end] += 1
    with storm.turn:
        check(storm, said, truth, since)
        storm.heard.clear()


def live(storm: Storm, options: EngineOptions, expected: list[list[int]]) -> None:
    """A client connects, and has a few replies in one session."""
    with ExitStack() as stack:
        try:
            far = RemoteEngine(storm, "the server", ConnectOptions(wait=2.0, alone=3), options)
            session = stack.enter_context(far).new_session(CONTEXT, Fixed(TreeBudget(16, 5, 5)))
        except OPENING as error:
            storm.ends[f"opening: {type(error).__name__}"] += 1
            return
        for place in (0, 1, 0, 1):
            reply(storm, session, place, expected[place])


def blow(storm: Storm, options: EngineOptions, expected: list[list[int]], count: int) -> None:
    """Until so many frames more have come to harm."""
    rates, end = cycle((0.01, 0.1, 0.3)), storm.changed + count
    while storm.changed < end:
        storm.begin(next(rates))
        [error] = in_threads([partial(live, storm, options, expected)])
        if error is not None:
            raise error
    assert storm.ends["length"]
    assert storm.ends["ProtocolError"]


def drafting(model: Path, drafter: str) -> EngineOptions:
    return EngineOptions(drafter=drafter, adapters=str(model.parent / "client") if "moa" in drafter else None)


@pytest.mark.parametrize("drafter", ["ngram", "moa+ngram"])
def test_mutated_answers_in_live_sessions_are_errors_or_the_text(
    engine: Engine, model: Path, expected: list[list[int]], hasty: None, drafter: str
) -> None:
    with Running(engine) as running:
        blow(Storm(running, engine, 1), drafting(model, drafter), expected, 20)


def held(running: Running) -> tuple[int, int]:
    """Objects, and bytes, when nobody is served any more."""
    done = threading.Event()
    running.mail.put(lambda: [running.host.guests.drop(g) for g in [*running.host.guests]] and None)
    running.mail.put(done.set)
    assert done.wait(WAIT)
    wait_for(lambda: not [t for t in threading.enumerate() if t.name.startswith("edgespec ")])
    gc.collect()
    return len(gc.get_objects()), psutil.Process().memory_info().rss


@pytest.mark.slow
@pytest.mark.parametrize("drafter", ["ngram", "moa+ngram"])
def test_five_thousand_mutated_answers_leave_nothing_behind(
    engine: Engine, model: Path, expected: list[list[int]], hasty: None, drafter: str
) -> None:
    """With n-grams and with MoA, 10,000 together."""
    options = drafting(model, drafter)
    with Running(engine) as running:
        storm = Storm(running, engine, 2)
        blow(storm, options, expected, 1000)
        objects, rss = held(running)
        blow(storm, options, expected, 4000)
        more, grown = held(running)
    assert more < objects + 1000
    assert grown < rss + 2**24
    assert storm.ends["lied to"] > 50
