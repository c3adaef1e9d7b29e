"""What a client that drafts and a server that verifies say to each other. Needs no torch; docs/split.md.

    client   Hello ─ TakeSeat ────────── Manner ─ Upload ────────── Judge ───────── Judge ─── ...
    server     └ Welcome └ Seated                  └ Still ─ Uploaded └ Judged        └ Behind ...

A frame is one message of a transport that keeps messages whole (WebSocket): msgpack, an array with a number
for the kind first. Whatever is not a *body* (token ids, nodes, activations) takes at most 64 bytes of the
frames of a round. Requests name their session, a round number, and the conversation that they go on from, by
length and hash: so a server that has lost or never heard some of it says where it is (`Behind`), one that is
asked again for what it has done says it again, and nothing is judged behind another text than the client's.

Neither end believes the other: a frame is bounded before it is looked at, a message by its type, what it says
by what was asked.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta

from edgespec.config import GenerationOptions
from edgespec.core.acceptance import Acceptance, make_acceptance
from edgespec.errors import OptionError, ProtocolError
from edgespec.runtimes.base import TREE_ROWS
from edgespec.values import MOST

VERSION = 6
FRAME_BYTES = 2**20  # of any frame
SEAT_BYTES = 16  # of a session's id: a secret, and random
HASH_BYTES = 8  # XXH3-64 of the conversation so far, `split.transcript`
POSITIONS = 2**24  # of a conversation, at most: a client has memory for what it believes
MOST_TOKENS = 2**17  # in one frame: the rest of a longer prompt is a frame of its own
STILL_SECONDS = 0.2  # a server that has not answered says that it is there
# Of what is long, `TokenizerPart` and `Recalled`, so many frames are under way at once, until they are
# `Heard`, and of the latter so long: an answer behind them is late by 0.07 s at 4 Mbit/s.
AT_ONCE, RECALLED_BYTES = 4, 2**13

Natural = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Hash = Annotated[bytes, Meta(min_length=HASH_BYTES, max_length=HASH_BYTES)]
SeatId = Annotated[bytes, Meta(min_length=SEAT_BYTES, max_length=SEAT_BYTES)]
Known = Annotated[int, Meta(ge=-1, le=2**31 - 1)]
Body = Annotated[bytes, Meta(max_length=FRAME_BYTES)]
Words = Annotated[str, Meta(max_length=1000)]
Name = Annotated[str, Meta(max_length=200)]

JUDGES = ("greedy", "sample", "typical")  # `ratio` weighs distributions that do not cross the wire
# "taken": another connection goes on with the session. "full" and "closing" pass: a client may ask again.
Why = Literal["version", "full", "nonsense", "failed", "closing", "taken"]
PASSING = frozenset({"full", "closing"})


class Told(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """A message; tagged by a number, as `tag=` says."""


# What a client says.


class Hello(Told, tag=0):
    """The first frame of a connection, the same in all versions of the protocol: which one is spoken."""

    version: Natural


class TakeSeat(Told, tag=1):
    """A conversation of up to so many positions: a new one, or the one of this id, which may have been
    dropped meanwhile. `Seated` will be the answer."""

    seat: Annotated[bytes, Meta(max_length=SEAT_BYTES)]
    context: Count


class Manner(Told, tag=2):
    """How tokens are chosen from now on; the numbers are those of `GenerationOptions`. Has no answer."""

    judge: Annotated[int, Meta(ge=0, lt=len(JUDGES))]
    temperature: float
    top_p: float
    top_k: Natural
    min_p: float
    seed: Annotated[int, Meta(ge=0, le=MOST)]


class Upload(Told, tag=3):
    """These tokens follow the first `committed`; `Uploaded` will be the answer, or `Behind`. draws: it is to
    say what comes next. packed: the body is compressed (`split.payload`). known: the client has the vectors
    of so many tokens (`split.recall`); -1 = it wants none."""

    seat: SeatId
    round: Natural
    committed: Natural
    hash: Hash
    known: Known
    draws: bool
    packed: bool
    tokens: Body


class Judge(Told, tag=4):
    """A tree behind the first `committed` tokens, which `root` follows; `Judged` will be the answer, or
    `Behind`. nodes: 4 bytes each, without the root; known: as of `Upload`."""

    seat: SeatId
    round: Natural
    committed: Natural
    hash: Hash
    known: Known
    root: Natural
    nodes: Annotated[bytes, Meta(max_length=4 * (TREE_ROWS - 1))]


class LeaveSeat(Told, tag=5):
    """The conversation is over: its memory is free."""

    seat: SeatId


class AskTokenizer(Told, tag=6):
    """The model's tokenizer, please: `TokenizerPart`s will be the answer."""


class Heard(Told, tag=7):
    """A `TokenizerPart` has come, or a `Recalled`."""


class GiveUp(Told, tag=8):
    """Nobody waits for this round any more. Has no answer, and the round has none."""

    seat: SeatId
    round: Natural


# What a server says.


class Welcome(Told, tag=32):
    """The answer to `Hello`. nodes: of the largest tree, the root included; context: of a conversation, at
    most; tokenizer: XXH3-128 of what `AskTokenizer` gives; weights: of the model's, as
    `runtimes.formats.describe` has it; memory: of the network that makes `Recalled`, b"" = there is none;
    width: numbers of a token."""

    version: Natural
    model: Name
    vocabulary: Annotated[int, Meta(ge=1, lt=2**24)]
    eos: Annotated[list[Natural], Meta(max_length=1000)]
    context: Annotated[int, Meta(ge=1, le=POSITIONS)]
    layers: Count
    nodes: Annotated[int, Meta(ge=1, le=TREE_ROWS)]
    tokenizer: Annotated[bytes, Meta(min_length=16, max_length=16)]
    weights: Annotated[bytes, Meta(min_length=16, max_length=16)]
    memory: Annotated[bytes, Meta(max_length=16)] = b""
    width: Annotated[int, Meta(ge=0, le=2**16)] = 0


class Seated(Told, tag=33):
    """The answer to `TakeSeat`."""

    seat: SeatId


class Uploaded(Told, tag=34):
    """So many tokens are committed, with this hash; and what comes next, -1 = nobody asked."""

    round: Natural
    committed: Natural
    hash: Hash
    token: Annotated[int, Meta(ge=-1, le=2**31 - 1)]


class Judged(Told, tag=35):
    """What became of a tree: 3 bytes a token, the accepted ones and then the bonus token. committed, hash:
    with the root and the accepted ones."""

    round: Natural
    committed: Natural
    hash: Hash
    tokens: Annotated[bytes, Meta(min_length=3, max_length=3 * TREE_ROWS)]


class Behind(Told, tag=36):
    """What was asked goes on from what this server does not have: it has so much, with this hash."""

    round: Natural
    committed: Natural
    hash: Hash


class Still(Told, tag=37):
    """At work on this round; 0 = on what is asked before a round, or on the passes that it waits for."""

    round: Natural


class TokenizerPart(Told, tag=38):
    """Some bytes of it; `left` follow."""

    left: Natural
    data: Body


class Recalled(Told, tag=40):
    """What the client's drafter attends to, of the committed tokens `start` to `stop`; behind the answer to
    the round."""

    round: Natural
    start: Natural
    stop: Natural
    packed: bool
    vectors: Body


class Refusal(Told, tag=39):
    """It will not be done. seconds: after which to ask again, where that is of use."""

    why: Why
    words: Words
    seconds: Annotated[float, Meta(ge=0, le=1e6)] = 0.0


Request = Hello | TakeSeat | Manner | Upload | Judge | LeaveSeat | AskTokenizer | Heard | GiveUp
Answer = Welcome | Seated | Uploaded | Judged | Behind | Still | TokenizerPart | Recalled | Refusal

REQUESTS: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
ANSWERS: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)
_ENCODER = msgspec.msgpack.Encoder()

M = TypeVar("M", Request, Answer)


def written(message: Told) -> bytes:
    """The frame of a message."""
    return _ENCODER.encode(message)


def read(frame: bytes, kinds: msgspec.msgpack.Decoder[M]) -> M:
    """The message of a frame. Raises ProtocolError."""
    if len(frame) > FRAME_BYTES:
        raise ProtocolError(f"a frame has {len(frame)} bytes; {FRAME_BYTES} are the most")
    try:
        return kinds.decode(frame)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:  # ValueError: not UTF-8
        raise ProtocolError(f"a frame is no message: {error}") from None


def as_manner(options: GenerationOptions, judge: str) -> Manner:
    """How a reply's tokens are chosen. Raises OptionError for an acceptance that no server can do."""
    if judge not in JUDGES:
        raise OptionError(
            f"acceptance {judge} weighs the distributions that drafts were drawn from, which stay on the "
            "client; use acceptance=sample",
            "acceptance",
        )
    o = options
    return Manner(JUDGES.index(judge), o.temperature, o.top_p, o.top_k, o.min_p, o.seed)


def as_options(manner: Manner) -> tuple[GenerationOptions, Acceptance]:
    """What a server does by it. Raises ProtocolError for what no client's options can be."""
    m = manner
    try:
        options = GenerationOptions(
            temperature=m.temperature, top_p=m.top_p, top_k=m.top_k, min_p=m.min_p, seed=m.seed
        )
        return options, make_acceptance(JUDGES[m.judge], options)
    except OptionError as error:
        raise ProtocolError(f"a reply cannot be made so: {error}") from None
