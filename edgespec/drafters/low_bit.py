"""What a low-bit copy of the target needs beside it, by its sizes alone. Needs no torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from edgespec.drafters.drawn import kept_bytes
from edgespec.offload.chunks import Chunk
from edgespec.offload.plan.needs import Extras, StandIn
from edgespec.runtimes.base import TREE_ROWS
from edgespec.runtimes.config import ModelConfig
from edgespec.runtimes.formats.needs import overlay_bytes

USUAL_STEPS = 8  # of drafting, in a cycle
OVERLAY_ROWS = 2 * TREE_ROWS  # slots for a tree, and for what is drafted while it is verified


def stand_in(nbytes: Callable[[Chunk], int]) -> StandIn:
    """`nbytes`: of what stands for a chunk."""
    return StandIn(
        "substitute",
        nbytes,
        USUAL_STEPS,
        "drafts read the low-bit copy alone: quicker than the pinned layers as they are",
    )


def copy_extras(nbytes: Callable[[Chunk], int], config: ModelConfig, element: int, prepares: bool) -> Extras:
    """The copy, its drafts' own keys and values, of `element`-byte numbers, and, where it `prepares` while
    the target verifies, what chains are drawn from."""
    beside = {"draft overlay": overlay_bytes(config, OVERLAY_ROWS, element)}
    if prepares:
        beside["drawn drafts"] = kept_bytes(OVERLAY_ROWS, config.vocab_size)
    return Extras(stand_in=replace(stand_in(nbytes), beside=beside))
