"""Tokens to text while they arrive. Needs no torch.

A tokenizer's decoder is a chain of steps over all tokens at once; here each step is a small machine that
takes one piece at a time, so that a token costs the same however long the reply is. The pieces together are
exactly what decoding all tokens at once gives. No piece holds part of a character.

`tokenizers.decoders.DecodeStream` is not used: it has no end, so a reply that stops inside a character (or on
bytes that are none) would lose what it holds back, and its text would not be that of all tokens at once.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from edgespec.errors import TokenizerError

if TYPE_CHECKING:
    from edgespec.text.tokenizer import Tokenizer


class Detokenizer:
    """Text of a reply, piece by piece, up to the first stop string.

    `add` returns what has become certain: characters that are complete and cannot belong to a stop string.
    `continues`: the reply goes on after other text, so the space before its first word is kept (decoders drop
    it at the very beginning of a text).
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = (), continues: bool = False) -> None:
        self._token = tokenizer.backend.id_to_token
        self._special = tokenizer.special
        self._steps = steps(tokenizer.decoder, continues)
        self._stops = _StopStrings(stop)
        self.stopped = False  # a stop string was met; nothing more will come

    def add(self, token: int) -> str:
        """The text that `token` completes; may be empty. Special tokens and unknown ids have none."""
        piece = None if token in self._special else self._token(token)
        if piece is None or self.stopped:
            return ""
        pieces = [piece]
        for step in self._steps:
            pieces = [out for piece in pieces for out in step.push(piece)]
        return self._release("".join(pieces))

    def finish(self) -> str:
        """The rest: an incomplete character, the beginning of a stop string that never came."""
        if self.stopped:
            return ""
        pieces: list[str] = []
        for step in self._steps:
            pieces = [out for piece in pieces for out in step.push(piece)] + step.close()
        return self._release("".join(pieces)) + self._stops.take()

    def _release(self, text: str) -> str:
        text, self.stopped = self._stops.push(text)
        return text


class _StopStrings:
    """Holds back the longest end of the text that a stop string begins with (Knuth-Morris-Pratt, one
    automaton a string). The string that is complete first ends the text, the longest of equals."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [(stop, _borders(stop)) for stop in stops]
        self._matched = [0] * len(stops)  # characters of each stop that the text ends with
        self._held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """What can be shown, and whether a stop string is complete (and cut off)."""
        if not self._stops:
            return text, False
        for end, character in enumerate(text, start=1):
            found = 0
            for i, (stop, borders) in enumerate(self._stops):
                matched = self._matched[i]
                while matched and stop[matched] != character:
                    matched = borders[matched - 1]
                matched += stop[matched] == character
                self._matched[i] = matched
                if matched == len(stop):
                    found = max(found, matched)
            if found:
                whole, self._held = self._held + text[:end], ""
                return whole[:-found], True
        whole = self._held + text
        keep = len(whole) - max(self._matched)
        self._held = whole[keep:]
        return whole[:keep], False

    def take(self) -> str:
        held, self._held = self._held, ""
        return held


def _borders(word: str) -> list[int]:
    """[len] length of the longest proper prefix of word[: i + 1] that is also its suffix."""
    borders, matched = [0] * len(word), 0
    for i in range(1, len(word)):
        while matched and word[i] != word[matched]:
            matched = borders[matched - 1]
        matched += word[i] == word[matched]
        borders[i] = matched
    return borders


class Step(Protocol):
    """One step of a decoder: pieces in, pieces out."""

    def push(self, piece: str) -> list[str]: ...

    def close(self) -> list[str]: ...


def steps(decoder: dict[str, Any] | None, continues: bool = False) -> list[Step]:
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
