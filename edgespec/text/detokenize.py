"""Tokens to text while they arrive. Needs no torch.

A tokenizer's decoder is a chain of steps over all tokens at once; here each step is a small machine that
takes one piece at a time, so that a token costs the same however long the reply is. The pieces together are
exactly what decoding all tokens at once gives. No piece holds part of a character.

`tokenizers.decoders.DecodeStream` is not used: it has no end, so a reply that stops inside a character (or on
bytes that are none) would lose what it holds back, and its text would not be that of all tokens at once.
"""

from __future__ import annotations

from collections.abc import Sequence

from edgespec.text.decoding import decoder_steps
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
        self._steps = decoder_steps(tokenizer.decoder, continues)
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
