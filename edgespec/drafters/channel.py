"""What a target and the process that drafts for it say to each other, and how that lies on a pipe. No torch.

    target   Load ──────── Open ─ Prefill ─ Draft ─────── Stop ─ GoAhead ······ Stop ─ Commit ──── Draft
    worker    └ Loading, Ready                └ Trees ─┘           └ Beat, Beat ...      └ Committed ─┘

Under schedule mirror Expect follows GoAhead, and Hear comes when the target's early exit has spoken.

Token ids and log-probabilities, and the numbers that choose tokens at random; never text, weights or logits.
A frame is its length (4 bytes, little-endian) and msgpack. Neither end believes the other: a length is
bounded before anything is allocated, a message by its type, and a tree by what was asked.
"""

from __future__ import annotations

from typing import Annotated, BinaryIO, TypeVar

import msgspec
from msgspec import Meta

from edgespec.config import MOST_KAPPA, MOST_THREADS
from edgespec.runtimes.base import TREE_ROWS
from edgespec.values import MOST

REQUEST_BYTES = 2**26  # of a frame to the worker: a prompt of 13 million tokens
ANSWER_BYTES = 2**18  # of a frame from it: as many of the largest trees as there may be
ROOTS = 64

Natural = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Tokens = Annotated[list[Natural], Meta(min_length=1)]
Parents = Annotated[list[Annotated[int, Meta(ge=-1, lt=TREE_ROWS)]], Meta(min_length=1, max_length=TREE_ROWS)]
Logprob = Annotated[float, Meta(le=0)]
Words = Annotated[str, Meta(max_length=2000)]


class Nonsense(Exception):
    """The other end said what it may not say."""


class Gone(Nonsense):
    """Nobody is there any more."""


class Sent(msgspec.Struct, tag=True, array_like=True, forbid_unknown_fields=True):
    """A message; tagged by its name."""


class Tree(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """See `core.tree.TokenTree`."""

    tokens: Annotated[Tokens, Meta(max_length=TREE_ROWS)]
    parents: Parents
    logprobs: Annotated[list[Logprob], Meta(min_length=1, max_length=TREE_ROWS)]
    run: Annotated[list[bool], Meta(max_length=TREE_ROWS)] | None = None


class RootPath(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """See `drafters.base.Root`."""

    path: Tokens
    logprob: Logprob


class Load(Sent):
    """Read the weights of the model in this directory or file, and compute with so many threads. provider: of
    an engine that has several. adapters: the directory of what was trained for the model, and drafts."""

    model: Annotated[str, Meta(min_length=1)]
    threads: Annotated[int, Meta(ge=1, le=MOST_THREADS)]
    provider: Annotated[str, Meta(max_length=100)] = ""
    adapters: str = ""


class Open(Sent):
    """A conversation begins, of so many positions; no token is beyond the target's vocabulary."""

    seat: Natural
    capacity: Natural
    vocabulary: Annotated[int, Meta(ge=1, le=2**31 - 1)]


class Close(Sent):
    """A conversation is over: its memory is free."""

    seat: Natural


class Prefill(Sent):
    """A reply to these tokens begins. keyed: see `core.schedule.Context`; the rest: `GenerationOptions`."""

    seat: Natural
    tokens: list[Natural]
    keyed: bool
    seed: Annotated[int, Meta(ge=0, le=MOST)]
    temperature: float
    top_p: float
    top_k: Natural
    min_p: float


class Draft(Sent):
    """A tree for each root, please: `Trees` will be the answer."""

    seat: Natural
    question: Natural
    roots: Annotated[list[RootPath], Meta(min_length=1, max_length=ROOTS)]
    nodes: Annotated[int, Meta(ge=1, le=TREE_ROWS)]
    depth: Natural
    passes: Natural
    price: Annotated[float, Meta(ge=0)] = 0.0  # see `core.schedule.TreeBudget`


class GoAhead(Sent):
    """This tree is being verified: draft below its outcomes, as deep as that, until the next message. nodes:
    of the next tree, at most."""

    seat: Natural
    tree: Tree
    nodes: Annotated[int, Meta(ge=1, le=TREE_ROWS)]
    depth: Natural


class Expect(Sent):
    """The target's early exit will speak of that tree: leave room for what only it thinks of."""

    seat: Natural


class Named(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """What somebody thinks follows a node of a tree."""

    node: Annotated[int, Meta(ge=0, lt=TREE_ROWS)]
    tokens: Annotated[list[Natural], Meta(max_length=MOST_KAPPA)]
    logprobs: Annotated[list[Logprob], Meta(max_length=MOST_KAPPA)]


class Hear(Sent):
    """Mirror-SD's token channel: what the target's early exit says of the tree that is being verified."""

    seat: Natural
    said: Annotated[list[Named], Meta(max_length=TREE_ROWS)]


class Stop(Sent):
    """The round is over: keep what was drafted."""

    seat: Natural


class Cancel(Sent):
    """The round is over: drop what was drafted."""

    seat: Natural


class Commit(Sent):
    """The root and all but the last of the tokens behind it are committed; `Committed` will be the answer."""

    seat: Natural
    question: Natural
    root: Natural
    tokens: Tokens


class Loading(Sent):
    """So many bytes more were read. compiling, functions: the function of that number is compiled now, of so
    many, and nothing may be said before that has ended; 0 = nothing is compiled."""

    nbytes: Annotated[int, Meta(ge=0, le=2**48)]
    compiling: Annotated[int, Meta(ge=0, le=2**16)] = 0
    functions: Annotated[int, Meta(ge=0, le=2**16)] = 0


class Ready(Sent):
    """The model is open. peak: bytes, the most that this process, and what it has started, has taken.
    placement: what runs where, in words, where an engine has several providers."""

    peak: Annotated[int, Meta(ge=0, le=2**48)]
    placement: Words = ""


class Beat(Sent):
    """At work: on this question, or on something else (0). nodes: drafted since the last `GoAhead`; seconds:
    of drafting ahead since then, or since the last `Hear`."""

    seat: Natural
    question: Natural
    nodes: Natural
    seconds: Annotated[float, Meta(ge=0, le=1e9)] = 0.0


class Worked(Sent):
    """A round is over, after so many microseconds: one that was asked for, or `ahead`. nodes: of it."""

    seat: Natural
    ahead: bool
    nodes: Natural
    micros: Annotated[int, Meta(ge=0, le=2**48)]


class Trees(Sent):
    """The answer to `Draft`: one for each root."""

    question: Natural
    trees: Annotated[list[Tree], Meta(min_length=1, max_length=ROOTS)]


class Committed(Sent):
    """The answer to `Commit`. prepared: something was drafted below the outcome; peak: as of `Ready`."""

    question: Natural
    prepared: bool
    peak: Annotated[int, Meta(ge=0, le=2**48)]


class Failed(Sent):
    """The worker cannot go on, because of this error, and ends."""

    kind: Annotated[str, Meta(max_length=100)]
    words: Words


Request = Load | Open | Close | Prefill | Draft | GoAhead | Expect | Hear | Stop | Cancel | Commit
Answer = Loading | Ready | Beat | Worked | Trees | Committed | Failed

REQUESTS: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
ANSWERS: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)
_ENCODER = msgspec.msgpack.Encoder()

M = TypeVar("M")


def encoded(message: Sent) -> bytes:
    return _ENCODER.encode(message)


def decoded(data: bytes, kinds: msgspec.msgpack.Decoder[M]) -> M:
    """Raises Nonsense."""
    try:
        return kinds.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:  # ValueError: not UTF-8
        raise Nonsense(str(error)) from None


def with_length(data: bytes) -> bytes:
    return len(data).to_bytes(4, "little") + data


def frame(message: Sent) -> bytes:
    return with_length(encoded(message))


def read_frame(pipe: BinaryIO, kinds: msgspec.msgpack.Decoder[M], most: int) -> M | None:
    """The next message, which is waited for; None = the other end is gone. Raises Nonsense."""
    head = pipe.read(4)
    length = int.from_bytes(head, "little")
    if len(head) < 4:
        return None
    if length > most:
        raise Nonsense(f"a message of {length} bytes, where {most} are the most")
    data = pipe.read(length)
    if len(data) < length:
        return None  # it died while it spoke
    return decoded(data, kinds)
