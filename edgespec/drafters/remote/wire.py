"""What a target's process and a server that drafts for it say to each other. Needs no torch; docs/split.md.

    target   Apply ─ Open ─ Prefill ─ Draft ─────── Stop ─ GoAhead ······ Stop ─ Commit ──── Draft
    server     └ Hired        └ Beat ...  └ Trees ─┘          └ Beat, Beat ...      └ Committed ─┘

Frames are messages of a WebSocket of `split.address.DRAFT`, of at most `protocol.FRAME_BYTES`: msgpack,
as a worker's are (`drafters.channel`), with a greeting before them. Whatever is not answered is drafted
without: so a connection that is lost is made again, and conversations on it begin anew with their tokens.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from edgespec.drafters.channel import (
    Beat,
    Cancel,
    Close,
    Commit,
    Committed,
    Draft,
    Expect,
    GoAhead,
    Hear,
    Natural,
    Open,
    Prefill,
    Sent,
    Stop,
    Trees,
    Worked,
)
from edgespec.split.protocol import Name, Words

DRAFT_VERSION = 4
MOST_POSITIONS = 2**17  # of a conversation: 5 bytes a token, and its prompt is one frame

Reason = Literal["version", "full", "nonsense", "failed", "closing"]


class Apply(Sent):
    """The first frame of a connection, the same in all versions: which one is spoken."""

    version: Natural


class Hired(Sent):
    """The answer. vocabulary: as `drafters.vocabulary.vocabulary_digest` has it; positions: of a
    conversation, at most; nbytes: that a pass of the model reads."""

    model: Name
    vocabulary: Annotated[str, Meta(max_length=64)]
    positions: Annotated[int, Meta(ge=1, le=MOST_POSITIONS)]
    nbytes: Annotated[int, Meta(ge=0, le=2**48)]


class NoRoom(Sent):
    """All conversations that there is memory for are taken: nothing is drafted for this one."""

    seat: Natural


class Declined(Sent):
    """It will not be done, and the connection ends."""

    why: Reason
    words: Words


Asked = Apply | Open | Close | Prefill | Draft | GoAhead | Expect | Hear | Stop | Cancel | Commit
Replied = Hired | NoRoom | Declined | Beat | Worked | Trees | Committed

ASKED: msgspec.msgpack.Decoder[Asked] = msgspec.msgpack.Decoder(Asked)
REPLIED: msgspec.msgpack.Decoder[Replied] = msgspec.msgpack.Decoder(Replied)
