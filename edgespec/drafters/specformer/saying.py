"""What drafts say: a SpecFormer module's forward for several of them, while it is under way."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from edgespec.core.sampling import FloatArray, IntArray
from edgespec.drafters.continuations import likeliest, rows_at_once
from edgespec.drafters.growth import BRANCH
from edgespec.errors import ModelError
from edgespec.runtimes.torch.exit import HeadPass


@dataclass
class Forward:
    """Under way for n drafts of `length` positions. A part is a block of the head, or a look through some of
    its rows."""

    head: HeadPass  # of rows [n * length]
    sound: list[bool]  # [n] a draft's states are finite numbers
    length: int
    vocabulary: int
    over: bool = False
    tokens: IntArray = field(init=False)  # [n * length, BRANCH] the likeliest, as of `likeliest`,
    logprobs: FloatArray = field(init=False)  # of the first rows
    looked: int = field(default=0, init=False)  # through so many of them

    def __post_init__(self) -> None:
        shape = len(self.sound) * self.length, min(BRANCH, self.vocabulary)
        self.tokens, self.logprobs = np.zeros(shape, np.int64), np.zeros(shape)

    def advance(self) -> bool:
        self.over = self.over or self.head.advance()
        return self.over

    def look(self) -> None:
        """Through some more rows."""
        rows = slice(self.looked, self.looked + rows_at_once(self.vocabulary))
        logits = self.head.logits[rows, : self.vocabulary]
        self.tokens[rows], self.logprobs[rows] = likeliest(logits, BRANCH)
        self.looked += len(logits)


@dataclass(frozen=True)
class Saying:
    """One draft of a forward; whoever is first goes on with it for all."""

    forward: Forward
    place: int

    def advance(self) -> bool:
        """Do a part of it; True = the logits are there. Raises ModelError for NaN."""
        if not self.forward.sound[self.place]:
            raise ModelError("the SpecFormer drafter's states are not finite numbers; train it again")
        return self.forward.advance()

    @property
    def rows(self) -> slice:
        start = self.place * self.forward.length
        return slice(start, start + self.forward.length)

    @property
    def logits(self) -> NDArray[np.float32]:
        """[l_d, V] what the draft's positions say."""
        return self.forward.head.logits[self.rows, : self.forward.vocabulary]

    def likeliest(self) -> tuple[IntArray, FloatArray] | None:
        """[l_d, BRANCH] the tokens likeliest at each, as of `continuations.likeliest`. None: a part of the
        way to that is done, for all drafts of the forward, and it is to be asked again."""
        if self.forward.looked < self.rows.stop:
            self.forward.look()
            return None
        return self.forward.tokens[self.rows], self.forward.logprobs[self.rows]
