"""A model's tokenizer and chat templates, as a server sends them: a client needs no file of the model.

Needs no torch."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Annotated

import msgspec
import xxhash
from msgspec import Meta

from edgespec.errors import ProtocolError
from edgespec.split.payload import unsqueeze
from edgespec.split.protocol import Natural
from edgespec.text.tokenizer import Tokenizer, read_backend
from edgespec.text.tokenizer_file import MAX_BYTES

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
