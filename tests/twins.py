"""Two runtimes of one draft model, asked the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgespec.runtimes.base import DraftRuntime


def run(runtime: DraftRuntime, tokens: Sequence[int], parents: Sequence[int]) -> NDArray[np.float32]:
    under_way = runtime.begin(tokens, parents)
    while not under_way.advance():
        pass
    return under_way.logits


class Twins:
    """They say the same but for `bound`, and hold as much. `most`: the largest logit yet."""

    def __init__(self, first: DraftRuntime, second: DraftRuntime, bound: float) -> None:
        self.both, self.bound, self.most = (first, second), bound, 0.0
        self.rng = np.random.default_rng(1)

    def ask(self, act: Callable[[DraftRuntime], Any]) -> None:
        expected, found = (act(runtime) for runtime in self.both)
        if isinstance(expected, np.ndarray):
            self.most = max(self.most, float(np.abs(expected).max()))
            assert np.abs(expected - found).max() < self.bound
        assert self.both[0].length == self.both[1].length

    def tree(self, n: int, first: int = 0) -> None:
        """So many nodes more below any of the `first` that are there."""
        tokens = self.rng.integers(3, 320, n).tolist()
        parents = [int(self.rng.integers(-1, first + i)) for i in range(n)]
        self.ask(lambda runtime: run(runtime, tokens, parents))

    def begin(self, prompt: int, nodes: int) -> None:
        """A prompt, trees of several roots, and what is kept below two outcomes: 3 slots of it stay."""
        tokens = self.rng.integers(3, 320, prompt).tolist()
        self.ask(lambda runtime: [*runtime.prefill(tokens)][-1])
        self.ask(lambda runtime: run(runtime, [7, 8, 9, 10, 11], [-1, 0, 0, -1, 3]))
        self.tree(nodes, first=5)
        self.ask(lambda runtime: runtime.commit([3, 4], []))
        self.ask(lambda runtime: run(runtime, [5, 6, 7, 8], [-1, 0, 1, 1]))
        self.ask(lambda runtime: runtime.commit([0], [1, 2, 3]))
