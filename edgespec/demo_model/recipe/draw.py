"""What every part of the demo model's data generator draws with: a seeded source that knows the held-out split.

Two things are held out. *Phrasings*: each kind of question lists some that training never sees. *Arguments*:
a tenth of all argument combinations, chosen by a hash, never occurs in training with any phrasing.
"""

# ruff: noqa: E501 (tables of phrasings)

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Exchange:
    """One question and its reply. `exact`: the reply is the only right one (a story's is not)."""

    user: str
    reply: str
    category: str
    exact: bool = True


@dataclass(frozen=True)
class Split:
    """Which side of the split to draw from; training draws from neither held-out side."""

    unseen_arguments: bool = False
    unseen_phrasings: bool = False


TRAINING = Split()
HELD_OUT = Split(unseen_arguments=True, unseen_phrasings=True)

# Openers and closers are seen in training; they multiply the phrasings and change no answer.
_OPENERS = (
    "",
    "",
    "",
    "",
    "",
    "Please tell me: ",
    "Hey, ",
    "Hi! ",
    "Okay. ",
    "Tell me, ",
    "Quick question: ",
    "So, ",
)
_REQUESTS = ("", "", "", "", "Please ", "Can you ", "Could you please ", "Now ", "Can you please ", "Hey, ")


def is_held_out(key: str) -> bool:
    """Whether this argument combination belongs to the held-out tenth (CRC-32: the same on every machine)."""
    return zlib.crc32(key.encode()) % 10 == 0


class Draw:
    """A random source for one conversation."""

    def __init__(self, seed: str, split: Split = TRAINING) -> None:
        self.rng = random.Random(seed)  # a string seed is hashed by SHA-512: stable across Python versions
        self.split = split

    def pick(self, options: Sequence[T]) -> T:
        return options[self.rng.randrange(len(options))]

    def number(self, low: int, high: int) -> int:
        """Uniform in low..high, both included."""
        return low + self.rng.randrange(high - low + 1)

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def sample(self, options: Sequence[T], count: int) -> list[T]:
        return self.rng.sample(options, count)

    def phrase(self, seen: Sequence[str], unseen: Sequence[str]) -> str:
        return self.pick(unseen if self.split.unseen_phrasings else seen)

    def arguments(self, sampler: Callable[[], T], kind: str) -> T:
        """Draws until the combination lies on this split's side.

        A kind with few combinations may have none held out; then any is taken, and only the phrasing is
        unseen.
        """
        value = sampler()
        for _ in range(300):
            if is_held_out(f"{kind} {value}") == self.split.unseen_arguments:
                break
            value = sampler()
        return value

    def question(self, text: str, lower: bool = True) -> str:
        """`text` as people type it: an opener, a lost capital, a lost question mark."""
        opener = self.pick(_OPENERS)
        if opener.endswith((", ", ": ")):
            text = _uncapitalise(text)
        return self._loosen(opener + text, lower)

    def request(self, text: str, lower: bool = True) -> str:
        """An imperative as people type it."""
        opener = self.pick(_REQUESTS)
        if opener:
            text = opener + _uncapitalise(text)
            if opener.startswith(("Can", "Could")):
                text = text.rstrip(".") + "?"
        return self._loosen(text, lower)

    def _loosen(self, text: str, lower: bool) -> str:
        if self.chance(0.2):
            text = text.rstrip("?.!")
        if lower and self.chance(0.2):
            return text.lower()
        if self.chance(0.1):
            return _uncapitalise(text)
        return text


def _uncapitalise(text: str) -> str:
    first = text.split(" ", 1)[0]
    keep = first in ("I", "EdgeSpec") or first.startswith("I'") or not first[1:].islower()
    return text if keep and first != "A" else text[:1].lower() + text[1:]
