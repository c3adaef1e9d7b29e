"""How a speculative streaming drafter follows a conversation: as any small model, with its own trees. No
torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edgespec.core.schedule import Context, TreeBudget
from edgespec.core.tree import TokenTree
from edgespec.drafters.base import Drafting, DraftingAhead, Root
from edgespec.drafters.forest import Room
from edgespec.drafters.model import ModelDrafter
from edgespec.drafters.streaming.growth import StreamedAhead, StreamedTree
from edgespec.runtimes.base import DraftRuntime

NAMED_ROWS = 8  # nodes that a pass may take along


class StreamingRuntime(DraftRuntime, Protocol):
    """One whose model has lookahead streams.

    Attributes:
        streams: that speak in the passes that come, `most_streams` or none.
    """

    streams: int
    most_streams: int

    @property
    def beyond(self) -> NDArray[np.float32]:
        """See `growth.StreamingGrower`."""


class StreamingDrafter(ModelDrafter):
    """See `drafters.base.Drafter`. Under `ratio` its chains are drawn from the main stream, a token a pass:
    what streams name is none of its draws."""

    ahead_width = 16

    def __init__(self, runtime: StreamingRuntime, vocabulary: int, room: Room | None = None) -> None:
        super().__init__(runtime, vocabulary, room)
        self.streaming = runtime

    def prefill(self, context: Context) -> None:
        self.streaming.streams = 0 if context.drawn else self.streaming.most_streams
        super().prefill(context)

    def start(self, roots: Sequence[Root], budget: TreeBudget) -> Drafting:
        if self.context.drawn:
            return super().start(roots, budget)
        self.forest.renew()
        return StreamedTree(self, roots, self._fitting(budget, max(len(r.path) for r in roots)))

    def ahead(self, tree: TokenTree, budget: TreeBudget, fan_out: Sequence[int] = ()) -> DraftingAhead:
        if self.context.drawn or fan_out:
            return super().ahead(tree, budget, fan_out)
        self.forest.renew()
        return StreamedAhead(self, tree, self._fitting(budget, 1))

    @property
    def named(self) -> int:
        return NAMED_ROWS if self.streaming.streams else 0

    @property
    def beyond(self) -> NDArray[np.float32]:
        return self.streaming.beyond


STREAM_ROWS = StreamingDrafter.ahead_width + NAMED_ROWS  # of one pass with streams
