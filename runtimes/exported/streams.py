"""The draft runtime of an exported speculative streaming drafter, with one conversation's cache. No torch.

Its cache has keys and values of the main stream alone: those of lookahead streams are not kept, as no later
row sees them. See `runtimes.torch.streaming`, and `streaming_draft` for torch's.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from edgespec.runtimes.exported.draft import ExportedDraft, ExportedDraftPass, OpenModel
from edgespec.runtimes.exported.host import PassRows


class StreamedModel(OpenModel, Protocol):
    """One that has lookahead streams, so many of each row."""

    streams: int

    @property
    def most_streamed(self) -> int | None:
        """Rows of one call that may have streams; None = all."""

    def run_streams(
        self, tokens: Sequence[int], rows: PassRows, cache: Sequence[NDArray[Any]]
    ) -> NDArray[Any]:
        """As `run`, and behind these states those of the streams: [n + n gamma, d]."""


class ExportedStreams(ExportedDraft):
    """See `drafters.streaming.drafter.StreamingRuntime`."""

    def __init__(self, model: StreamedModel, capacity: int, rows: int, width: int) -> None:
        """As `ExportedDraft`. A pass over up to `width` slots has streams, one over more goes without."""
        super().__init__(model, capacity, rows)
        self.streamed, self.width = model, width
        self.streams = self.most_streams = model.streams
        self._latest: weakref.ref[ExportedStreamsPass] | None = None

    @property
    def beyond(self) -> NDArray[np.float32]:
        """See `drafters.streaming.growth.StreamingGrower`; as long as somebody has that pass."""
        under_way = self._latest and self._latest()
        return under_way.beyond if under_way else np.empty((0, 0, 0), np.float32)

    def begin(self, tokens: Sequence[int], parents: Sequence[int]) -> ExportedDraftPass:
        made = super().begin(tokens, parents)
        if not self.streams or len(tokens) > self.width:
            self._latest = None
            return made
        under_way = ExportedStreamsPass(self, tokens, made.first)
        self._latest = weakref.ref(under_way)
        return under_way

    def step_streams(self, tokens: Sequence[int], first: int) -> NDArray[Any]:
        """As `step`, with streams behind: [n + n gamma, d]."""
        last = first + len(tokens)
        depths, sees = self._depths[first:last], self._sees[first:last, :last]
        return self._run(tokens, depths, sees, self.streamed.run_streams)


class ExportedStreamsPass(ExportedDraftPass):
    """See `runtimes.base.DraftPass`: a part is a call of the largest size that has streams."""

    def __init__(self, draft: ExportedStreams, tokens: Sequence[int], first: int) -> None:
        self.own, n, vocabulary = draft, len(tokens), draft.model.config.vocab_size
        super().__init__(draft, tokens, first)
        self._said = np.empty((n + n * draft.streams, vocabulary), dtype=np.float32)
        self._logits = self._said[:n]
        self.beyond = self._said[n:].reshape(n, draft.streams, vocabulary)

    def advance(self) -> bool:
        model, n = self.own.streamed, len(self.tokens)
        part = self.tokens[self.done : self.done + (model.most_streamed or n)]
        place = slice(self.done, self.done + len(part))
        normed = self.own.step_streams(part, self.first + self.done)
        if len(part) == n:  # the head is read once for all
            model.head(normed, self._said)
        else:
            model.head(normed[: len(part)], self._logits[place])
            beyond = np.empty((len(normed) - len(part), self._said.shape[1]), dtype=np.float32)
            model.head(normed[len(part) :], beyond)
            self.beyond[place] = beyond.reshape(self.beyond[place].shape)
        self.done += len(part)
        return self.done == n
