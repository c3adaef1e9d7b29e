"""How a cascade goes about it: chains or trees, and how often it looks through them."""

from __future__ import annotations

from dataclasses import dataclass

from edgespec.drafters.growth import MAX_PASSES


@dataclass(frozen=True)
class Variant:
    """How a cascade goes about it.

    branch: children proposed of a node; 1 drafts a chain.
    width: nodes that a step of drafting expands.
    round: most steps of drafting before a shallow verification; 0 = never verify (two stages: Kangaroo).
    after: steps of drafting behind the last shallow verification, on its corrections.
    stop: a round ends when the nodes it would expand are less likely than this to be on the accepted path.
    deep: draft with the shallow verifier's exit.
    """

    branch: int = 8
    width: int = 8
    round: int = 6
    after: int = 1
    stop: float = 0.1
    deep: bool = False

    def __post_init__(self) -> None:
        if self.deep and self.round:
            raise ValueError("the verifier's exit cannot draft and verify at once")


VARIANTS = {
    "kangaroo": Variant(branch=1, width=1, round=0, after=0),  # a chain from the draft's exit
    "kangaroo-tree": Variant(round=0, after=0),  # a tree from the draft's exit
    "chain": Variant(branch=1, width=1, round=MAX_PASSES, after=0),  # Algorithm 1: a chain, and corrections
    "tree": Variant(),  # the default
    "deep": Variant(branch=1, width=1, round=0, after=0, deep=True),  # a chain from the verifier's exit
    "deep-tree": Variant(round=0, after=0, deep=True),
}
