"""The draft runtime of a Core ML model whose states have the beginning of a conversation. Needs no torch.

    host's cache    committed prefix ················· | slots | room
    states          kept prefix ······ |
    a pass                             | what is handed over |

The host has all of the cache, as without states, so to go back, to keep a branch and to run several is what
it is there. States have a copy of its first positions, which are committed: what lies behind them is handed
over in each pass. When that gets longer than the model takes, more of what is committed is put into them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgespec.runtimes.base import IntArray
from edgespec.runtimes.coreml.model import CoreMLModel
from edgespec.runtimes.exported.draft import ExportedDraft, Run


class StatefulDraft(ExportedDraft):
    """See `runtimes.base.DraftRuntime`."""

    def __init__(self, model: CoreMLModel, capacity: int, rows: int) -> None:
        """As `ExportedDraft`, with no more slots than the model takes in a pass. Raises ModelError where Core
        ML has no states."""
        assert rows <= model.shapes.handed
        super().__init__(model, capacity, rows)
        self.stateful, self._state, self._kept = model, model.new_state(), 0

    def truncate(self, length: int) -> None:
        super().truncate(length)
        self._kept = min(self._kept, length)  # what is behind is not looked at, and overwritten

    def _run(
        self, tokens: Sequence[int], depths: IntArray, sees: NDArray[np.bool_], run: Run | None = None
    ) -> NDArray[Any]:
        place, model = self.length + sees.shape[1] - len(tokens), self.stateful
        while place - self._kept > model.shapes.handed:
            last = min(self.length, self._kept + model.most_rows, model.shapes.kept)
            model.keep(self._cache, self._kept, last, self._state)
            self._kept = last
        return super()._run(tokens, depths, sees, partial(model.run, kept=self._kept, state=self._state))
