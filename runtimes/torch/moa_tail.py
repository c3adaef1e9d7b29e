"""The target's last layers over a MoA drafter's states: target layer inference (Zimmer et al. 2024, 3.2).

Drafts attend there to the target's own keys and values of what is committed, and to those that their own
states give, which lie in an overlay of the conversation's cache: slots numbered as the drafter's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from edgespec.runtimes.base import KVCache
from edgespec.runtimes.rows import Rows
from edgespec.runtimes.torch.target import Prepared, TorchTarget


class Tail:
    """One conversation's; `cache` is its own, the target's. The layers are in memory."""

    def __init__(self, target: TorchTarget[Any], cache: KVCache, layers: int, rows: int) -> None:
        """layers: how many. rows: uncommitted ones."""
        self.target, self.cache, self.rows = target, cache, rows
        last = target.config.layers
        self.layers = range(last - layers, last)
        self.overlay = cache.overlay(rows)

    def begin(self, parents: Sequence[int], length: int) -> Prepared:
        """A pass over new slots, behind `length` committed positions."""
        if not len(self.overlay.parents) and self.overlay.length != length:
            self.overlay.truncate(length)
        return self.target.prepare(Rows.append(self.overlay, parents))

    def run(self, index: int, hidden: Tensor, shared: Prepared) -> Tensor:
        """[n, d] -> [n, d]."""
        return self.target.run_resident_layer(index, hidden, shared)

    def commit(self, path: Sequence[int], keep: Sequence[int]) -> None:
        self.overlay.commit(path, keep)

    def truncate(self, length: int) -> None:
        self.overlay.truncate(min(length, self.cache.length))
