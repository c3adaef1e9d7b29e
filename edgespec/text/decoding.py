"""A tokenizer's decoder as a chain of machines, each of which takes one piece at a time."""

from __future__ import annotations

import codecs
import json
import re
from typing import Any, Protocol

from edgespec.errors import TokenizerError


class Step(Protocol):
    """One step of a decoder: pieces in, pieces out."""

    def push(self, piece: str) -> list[str]: ...

    def close(self) -> list[str]: ...


def decoder_steps(decoder: dict[str, Any] | None, continues: bool = False) -> list[Step]:
    """The machines for a decoder as tokenizer.json describes it. Raises TokenizerError for unknown kinds."""
    if decoder is None:
        return [_Spaces(continues)]
    parts = decoder.get("decoders", []) if decoder.get("type") == "Sequence" else [decoder]
    built: list[Step] = []
    fused = False  # all tokens are one from here on
    for part in parts:
        kind = part.get("type")
        if kind == "ByteLevel":
            built.append(_ByteLevel())
            fused = True
        elif kind == "ByteFallback":
            built.append(_ByteFallback())
        elif kind == "Fuse":
            fused = True
        elif kind == "Metaspace" and not fused:
            never = part.get("prepend_scheme", "always") == "never" or not part.get("add_prefix_space", True)
            built.append(_Metaspace(part["replacement"], drop=not never and not continues))
        elif kind == "Replace" and not fused and "String" in part["pattern"]:
            built.append(_Replace(part["pattern"]["String"], part["content"]))
        elif kind == "Strip" and part["stop"] == 0 and fused:
            built.append(_StripStart(part["content"], 0 if continues else part["start"]))
        else:
            raise TokenizerError(
                f"the tokenizer's decoder {json.dumps(part)[:200]} is not supported; known are ByteLevel, "
                "ByteFallback, Metaspace, Fuse, Replace (of a string) and Strip (at the start, after Fuse)"
            )
    return built


# The bytes that GPT-2's byte-level alphabet shows as themselves; the others follow from U+0100 on.
_SHOWN = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_HIDDEN = [byte for byte in range(256) if byte not in _SHOWN]
_BYTES = {chr(byte): byte for byte in _SHOWN} | {chr(256 + i): byte for i, byte in enumerate(_HIDDEN)}


class _ByteLevel:
    """GPT-2's alphabet, one character a byte; a token outside it (an added one) stands for itself."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, piece: str) -> list[str]:
        try:
            data = bytes([_BYTES[character] for character in piece])
        except KeyError:
            data = piece.encode()
        return [self._decoder.decode(data)]

    def close(self) -> list[str]:
        return [self._decoder.decode(b"", final=True)]


class _ByteFallback:
    """`<0xE2>` tokens; a run of them is text if all of it is valid UTF-8, else one U+FFFD a byte.

    So a run is certain only when it has ended.
    """

    def __init__(self) -> None:
        self._run = bytearray()

    def push(self, piece: str) -> list[str]:
        if re.fullmatch(r"<0x[0-9A-Fa-f]{2}>", piece):
            self._run.append(int(piece[3:5], 16))
            return []
        return [*self.close(), piece]

    def close(self) -> list[str]:
        run, self._run = self._run, bytearray()
        try:
            return [run.decode()] if run else []
        except UnicodeDecodeError:
            return ["\ufffd"] * len(run)


class _Replace:
    def __init__(self, pattern: str, content: str) -> None:
        self._pattern, self._content = pattern, content

    def push(self, piece: str) -> list[str]:
        return [piece.replace(self._pattern, self._content)]

    def close(self) -> list[str]:
        return []


class _Metaspace:
    """U+2581 for a space; the first token's are dropped where encoding had put one in front."""

    def __init__(self, replacement: str, drop: bool) -> None:
        self._replacement, self._drop = replacement, drop

    def push(self, piece: str) -> list[str]:
        piece = piece.replace(self._replacement, "" if self._drop else " ")
        self._drop = False
        return [piece]

    def close(self) -> list[str]:
        return []


class _StripStart:
    """Drops up to `count` of one character at the beginning of the text."""

    def __init__(self, character: str, count: int) -> None:
        self._character, self._count = character, count

    def push(self, piece: str) -> list[str]:
        while self._count and piece:
            if not piece.startswith(self._character):
                self._count = 0
            else:
                piece, self._count = piece[1:], self._count - 1
        return [piece]

    def close(self) -> list[str]:
        return []


class _Spaces:
    """A tokenizer without a decoder: tokens are words."""

    def __init__(self, continues: bool) -> None:
        self._between = " " if continues else ""

    def push(self, piece: str) -> list[str]:
        piece, self._between = self._between + piece, " "
        return [piece]

    def close(self) -> list[str]:
        return []
