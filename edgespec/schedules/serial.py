"""Draft, then verify, then draft again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgespec.acceptance import Outcome
from edgespec.runtimes.base import Rows
from edgespec.tree import TokenTree

if TYPE_CHECKING:
    from torch import Tensor


class Plain:
    """No drafting: every tree is its root alone."""

    def next_tree(self, root: int) -> TokenTree:
        return TokenTree.root(root)

    def settle(self, outcome: Outcome) -> None:
        pass

    def on_layer(self, index: int, hidden: Tensor, rows: Rows) -> None:
        pass

    def on_wait(self) -> bool:
        return False
