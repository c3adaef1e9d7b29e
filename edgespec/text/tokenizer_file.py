"""tokenizer.json from strangers, bounded before the `tokenizers` library reads it. Needs no torch.

What the library does to a text is a chain of steps that the file describes; a file of some bytes can tell it
to make thirty characters of each, six times in a row. Here each step's growth is bounded by what it can do in
the worst case, and a chain by the product.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from edgespec.errors import TokenizerError
from edgespec.text.charsmap import longest_replacement

MAX_BYTES = 128 * 2**20  # of any file; 256k tokens with merges take about 35 MB
MAX_BYTES_PER_ROW = 512  # of the model's embedding; known files have at most 140, some MB aside
MAX_CHAIN_BYTES = 2**20  # of the description of a chain of steps; a Precompiled map takes 400 KB
MAX_ADDED_BYTES = 4 * 2**20  # of the table of added tokens; Gemma 3 has 6,000, in 1.3 MB
MAX_UNIGRAM_CHARACTERS = 16  # of pieces, a row: the library keeps each character in a table of its own
MAX_GROWTH = (
    1000  # of a text before it is cut into tokens; Qwen's chain has 15, XLNet's, the widest known, 972
)
MAX_DECODED_GROWTH = 4  # of a token's text
MAX_TEXT = 64 * 2**20  # characters of a text in the worst case
OWN_GROWTH = 15  # of the chains that are made here, for GGUF files: NFC, then bytes
_DEPTH = 8  # of Sequence in Sequence


class _TokenizerFile(msgspec.Struct):
    """The members that are looked at; the others are the library's to judge."""

    model: msgspec.Raw = msgspec.Raw(b"null")
    normalizer: msgspec.Raw = msgspec.Raw(b"null")
    pre_tokenizer: msgspec.Raw = msgspec.Raw(b"null")
    post_processor: msgspec.Raw = msgspec.Raw(b"null")
    decoder: msgspec.Raw = msgspec.Raw(b"null")
    added_tokens: msgspec.Raw = msgspec.Raw(b"null")


class _Kind(msgspec.Struct):
    type: str | None = None


class _Unigram(msgspec.Struct):
    vocab: list[tuple[str, float]]


def check_tokenizer_file(raw: bytes, path: Path, rows: int | None = None) -> int:
    """The growth of a text, at most, that this tokenizer.json describes; `rows` are the model's embedding's.

    Raises TokenizerError when a part is larger than a model's tokenizer has, or when the steps together may
    make far more of a text than there was.
    """
    if rows is not None and len(raw) > 2**22 + MAX_BYTES_PER_ROW * rows:
        raise TokenizerError(f"{path} has {len(raw)} bytes, more than the model's {rows} tokens can need")
    try:
        file = msgspec.json.decode(raw, type=_TokenizerFile)
        kind = msgspec.json.decode(file.model, type=_Kind | None)
        if kind is not None and kind.type == "Unigram":
            pieces = msgspec.json.decode(file.model, type=_Unigram).vocab
            most = MAX_UNIGRAM_CHARACTERS * (len(pieces) if rows is None else rows) + 2**16
            if sum(len(piece) for piece, _ in pieces) > most:
                raise TokenizerError(f"{path}: the pieces of its Unigram model have over {most} characters")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TokenizerError(
            f"{path} is not a tokenizer that can be used: {error}; download it again"
        ) from None
    if (nbytes := memoryview(file.added_tokens).nbytes) > MAX_ADDED_BYTES:
        raise TokenizerError(
            f"{path}: its added tokens take {nbytes} bytes; at most {MAX_ADDED_BYTES} are read"
        )
    growth = 1
    for name in ("normalizer", "pre_tokenizer", "post_processor"):
        growth *= _growth_of(getattr(file, name), name, path)
    for found, most, what in (
        (growth, MAX_GROWTH, "a text"),
        (_growth_of(file.decoder, "decoder", path), MAX_DECODED_GROWTH, "a token's text"),
    ):
        if found > most:
            raise TokenizerError(
                f"{path} may make {what} {found} times as long; at most {most} times is accepted: use the "
                "tokenizer files that came with the model"
            )
    return growth


def check_length(characters: int, growth: int) -> None:
    """Raises TokenizerError for a text that might pass MAX_TEXT while it is cut into tokens."""
    if characters * growth > MAX_TEXT:
        raise TokenizerError(
            f"a text of {characters} characters may become {growth} times as long in this model's tokenizer; "
            f"at most {MAX_TEXT} are made: shorten it"
        )


def _growth_of(raw: msgspec.Raw, name: str, path: Path) -> int:
    if (nbytes := memoryview(raw).nbytes) > MAX_CHAIN_BYTES:
        raise TokenizerError(f"{path}: its {name} takes {nbytes} bytes; at most {MAX_CHAIN_BYTES} are read")
    try:
        return _growth(msgspec.json.decode(raw), before=name in ("normalizer", "pre_tokenizer"))
    except (TypeError, LookupError, ValueError, AttributeError, StopIteration, RecursionError) as error:
        fact = f"{type(error).__name__}: {error}"
        raise TokenizerError(f"{path}: its {name} is not one that can be used ({fact[:200]})") from None


def _growth(step: Any, before: bool, depth: int = 0) -> int:
    """How many characters one may become in a step, in the worst case; `before` it is a token.

    Raises KeyError and the like for a step that is not known, or not described.
    """
    if step is None:
        return 1
    if step["type"] == "Sequence":
        if depth == _DEPTH:
            raise ValueError(f"it nests more than {_DEPTH} deep")
        members = next(
            step[k] for k in ("normalizers", "pretokenizers", "processors", "decoders") if k in step
        )
        growth = 1
        for member in members:
            growth = min(growth * _growth(member, before, depth + 1), 10**12)
        return growth
    if not before and step["type"] in ("ByteLevel", "Metaspace"):
        return 1
    return _STEPS[step["type"]](step)


def _replaced(step: dict[str, Any]) -> int:
    """A pattern may match one character, or nothing, before each of them and at the end."""
    pattern, content = step["pattern"].get("String"), step["content"]
    return max(1, -(-len(content) // len(pattern))) if pattern else 1 + 2 * len(content)


def _precompiled(step: dict[str, Any]) -> int:
    try:
        charsmap = base64.b64decode(step["precompiled_charsmap"], validate=True)
    except binascii.Error as error:
        raise ValueError(f"its map is not base64: {error}") from None
    return longest_replacement(charsmap)


def _template(step: dict[str, Any]) -> int:
    """Special tokens around a text; a text that is written twice is twice as long."""
    return max(1, sum("Sequence" in part for part in step["single"]))


def _factor(growth: int) -> Callable[[dict[str, Any]], int]:
    return lambda step: growth


_STEPS: dict[str, Callable[[dict[str, Any]], int]] = {
    # Normalizers. What Unicode allows: U+FDFA has 18 characters in NFKD, U+0390 three, U+1F82 four.
    "NFC": _factor(3),
    "NFD": _factor(4),
    "NFKC": _factor(18),
    "NFKD": _factor(18),
    "Lowercase": _factor(3),
    "BertNormalizer": _factor(36),  # spaces around Chinese characters, NFD, lower case
    "Prepend": lambda step: 1 + len(step["prepend"]),
    "Precompiled": _precompiled,
    # Each of at most four bytes as a character of its own; with a space, or its mark, in front.
    "ByteLevel": _factor(5),
    "Metaspace": lambda step: 1 + len(step["replacement"]),
    "TemplateProcessing": _template,
    "Replace": _replaced,
}
_LEFT = (
    "StripAccents Strip Nmt BertPreTokenizer CharDelimiterSplit Whitespace WhitespaceSplit Split Punctuation"
)
_LEFT += " Digits UnicodeScripts FixedLength RobertaProcessing BertProcessing ByteFallback Fuse WordPiece"
_STEPS |= dict.fromkeys([*_LEFT.split(), "BPEDecoder", "CTC"], _factor(1))
