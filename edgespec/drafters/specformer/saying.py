"""What drafts say: a SpecFormer module's forward for several of them, while it is under way."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgespec.errors import ModelError
from edgespec.runtimes.torch.exit import HeadPass


@dataclass
class Forward:
    """Under way for n drafts of `length` positions. A part is a block of the head."""

    head: HeadPass  # of rows [n * length]
    sound: list[bool]  # [n] a draft's states are finite numbers
    length: int
    over: bool = False

    def advance(self) -> bool:
        self.over = self.over or self.head.advance()
        return self.over


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
    def logits(self) -> NDArray[np.float32]:
        """[l_d, V] what the draft's positions say."""
        start = self.place * self.forward.length
        return self.forward.head.logits[start : start + self.forward.length]
