"""A model's tokenizer and chat templates, as a server sends them: a client needs no file of the model.

Needs no torch."""

from __future__ import annotations

import time
import zlib
from pathlib import Path
from typing import Annotated

import msgspec
import xxhash
from msgspec import Meta

from edgespec.errors import LinkError, ProtocolError
from edgespec.split.link import OPEN_SECONDS, Link
from edgespec.split.payload import unsqueeze
from edgespec.split.protocol import AskTokenizer, Natural, TokenizerPart, written
from edgespec.text.tokenizer import Tokenizer, read_backend
from edgespec.text.tokenizer_file import MAX_BYTES

SLOWEST = 2**14  # bytes a second, at which a tokenizer must come
PACKED_BYTES = 2**26  # of what is sent; 256k tokens with merges are some 10 MB
TEMPLATES = 100

Templates = Annotated[dict[str, str], Meta(max_length=TEMPLATES)]


class Vocabulary(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """See `text.tokenizer.Tokenizer`; backend: as tokenizer.json has it."""

    backend: Annotated[bytes, Meta(max_length=MAX_BYTES)]
    bos: Natural | None
    eos: Annotated[list[Natural], Meta(max_length=1000)]
    templates: Templates
    names: Templates


def fetched_tokenizer(link: Link, rows: int, origin: str) -> Tokenizer:
    """The tokenizer of the server at the link's other end; rows, origin: see `unpacked_tokenizer`. Raises
    LinkError, and what that raises."""
    link.send(written(AskTokenizer()))
    parts, left, began = list[bytes](), PACKED_BYTES, time.monotonic()
    while left:
        part = link.receive(OPEN_SECONDS)
        patience = 2 * OPEN_SECONDS + sum(map(len, parts)) / SLOWEST
        if part is None or time.monotonic() - began > patience:
            raise LinkError(f"the server has not sent its tokenizer within {patience:.0f} s")
        if not isinstance(part, TokenizerPart) or not part.data or len(part.data) + part.left > left:
            raise ProtocolError("the server does not send its tokenizer as it was asked to")
        parts.append(part.data)
        left = part.left
    return unpacked_tokenizer(b"".join(parts), link.welcome.tokenizer, rows, origin)


def packed_tokenizer(tokenizer: Tokenizer) -> tuple[bytes, bytes]:
    """What is sent, and its XXH3-128."""
    template = tokenizer.template
    sources = template.sources if template.is_chat else {}
    about = tokenizer.bos, list(tokenizer.eos), sources, template.names
    packed = zlib.compress(msgspec.msgpack.encode(Vocabulary(tokenizer.backend.to_str().encode(), *about)))
    return packed, xxhash.xxh3_128_digest(packed)


def unpacked_tokenizer(packed: bytes, digest: bytes, rows: int, origin: str) -> Tokenizer:
    """The inverse, for a model with so many embedding rows; `origin` is for messages. Raises ProtocolError,
    and TokenizerError as `Tokenizer.from_directory`."""
    if xxhash.xxh3_128_digest(packed) != digest:
        raise ProtocolError(f"the tokenizer from {origin} is not the one that was announced")
    try:
        v = msgspec.msgpack.decode(unsqueeze(True, packed, 2 * MAX_BYTES), type=Vocabulary)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise ProtocolError(f"the tokenizer from {origin} is none: {error}") from None
    backend, growth = read_backend(v.backend, Path(origin), rows)
    tokenizer = Tokenizer(backend, v.bos, v.eos, v.templates, v.names, growth)
    tokenizer.check(rows)
    return tokenizer
