"""An exported speculative streaming drafter that ONNX Runtime has open. Needs no torch.

before    the layers that streams do not go through: rows of tokens
streams   what each of these rows begins its lookahead streams with
layers    the others: rows of tokens, and behind them those of their streams; norm
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgespec.runtimes.exported.host import PassRows, states_of
from edgespec.runtimes.onnx.directory import Exported
from edgespec.runtimes.onnx.model import STEP_ROWS, OnnxModel, padded


class OnnxStreams(OnnxModel):
    """See `exported.streams.StreamedModel`."""

    def __init__(self, exported: Exported, provider: str = "cpu", threads: int = 1) -> None:
        """Raises as `OnnxModel`."""
        super().__init__(exported, provider, threads)
        self.streams, self._before = exported.streams, exported.design.before

    @property
    def most_rows(self) -> int:
        first = self._graphs["streams"][-1][0] or STEP_ROWS
        return min(first, super().most_rows)

    @property
    def most_streamed(self) -> int | None:
        """See `exported.streams.StreamedModel`."""
        bucket = self._graphs["layers"][-1][0]
        return bucket and min(bucket // (1 + self.streams), self.most_rows)

    def run(self, tokens: Sequence[int], rows: PassRows, cache: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """See `exported.draft.OpenModel`."""
        hidden = self._main(tokens, rows, cache)
        return self._through("layers", hidden, rows, cache[2 * self._before :], len(tokens))

    def run_streams(
        self, tokens: Sequence[int], rows: PassRows, cache: Sequence[NDArray[Any]]
    ) -> NDArray[Any]:
        """See `exported.streams.StreamedModel`."""
        hidden = self._main(tokens, rows, cache)
        n, gamma = len(tokens), self.streams
        hidden = np.concatenate([hidden, self._begun(hidden)])
        beyond = (rows.positions[:, None] + 1 + np.arange(gamma)).ravel()
        sees = np.concatenate([rows.seen, np.repeat(rows.seen, gamma, axis=0)])
        own = np.kron(np.eye(n, dtype=np.bool_), np.tri(gamma, dtype=np.bool_))
        among = np.zeros((len(hidden), len(hidden)), dtype=np.bool_)
        among[:n, :n], among[n:, :n], among[n:, n:] = rows.among, np.repeat(rows.among, gamma, axis=0), own
        wide = PassRows(np.concatenate([rows.positions, beyond]), sees, rows.keys, among)
        return self._through("layers", hidden, wide, cache[2 * self._before :], n)

    def _main(self, tokens: Sequence[int], rows: PassRows, cache: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """States [n, d] of tokens, as streams begin."""
        states = states_of(self._embedding, tokens)
        if not self._before:
            return states
        return self._through("before", states, rows, cache[: 2 * self._before], len(tokens))

    def _begun(self, states: NDArray[Any]) -> NDArray[Any]:
        """[n, d] -> [n gamma, d]"""
        n, (bucket, graph) = len(states), self._graph("streams", len(states))
        rows = bucket or n
        out = np.empty((rows * self.streams, states.shape[1]), dtype=self.dtype)
        graph.run({"states": padded(states.astype(self.dtype), rows)}, {"streams": out})
        return out[: n * self.streams]
