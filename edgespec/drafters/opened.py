"""A draft model that a worker process has open, and how conversations draft with it. Needs no torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from edgespec.devices.probe import peak_memory
from edgespec.drafters.channel import Load
from edgespec.drafters.model import ModelDrafter
from edgespec.progress import LoadCallback
from edgespec.runtimes.base import DraftRuntime


@dataclass(frozen=True)
class Opened:
    """An open model. runtime: opens a conversation of so many positions with it. placement, peak: see
    `channel.Ready`. drafts: what drafts with such a runtime, for a vocabulary of so many tokens."""

    runtime: Callable[[int], DraftRuntime]
    placement: str = ""
    drafts: Callable[[Any, int], ModelDrafter] = ModelDrafter
    peak: Callable[[], int] = peak_memory

    def drafter(self, capacity: int, vocabulary: int) -> ModelDrafter:
        """For a conversation of so many positions."""
        return self.drafts(self.runtime(capacity), vocabulary)


OpenModel = Callable[[Load, LoadCallback], Opened]
"""Read a model's weights, telling bytes."""
