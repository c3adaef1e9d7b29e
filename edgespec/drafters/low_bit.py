"""What a low-bit copy of the target needs beside it, by its sizes alone. Needs no torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from edgespec.drafters.forest import kept_bytes
from edgespec.offload.chunks import Chunk
from edgespec.offload.plan.needs import Extras, StandIn
from edgespec.runtimes.base import TREE_ROWS
from edgespec.runtimes.config import ModelConfig
from edgespec.runtimes.formats.needs import overlay_bytes

USUAL_STEPS = 8  # of drafting, in a cycle
OVERLAY_ROWS = 2 * TREE_ROWS  # slots for a tree, and for what is drafted while it is verified
# Nodes of a pass in the target's waits, where depth counts more than before a pass: where one of four takes
# 1.9 times as long as one of one, and of eight 2.6 times, 2, 4 and 8 gave 4.16, 4.17 and 3.98 x plain
# decoding's speed; if 1.3 and 1.6, 4 and 8 gave 4.43 and 4.31.
AHEAD_ROWS = 4


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
    the target verifies, what chains are drawn from, and the logits of a pass, which are there when the
    target's own activations are. (Before a verification they have the room of these.)"""
    beside = {"draft overlay": overlay_bytes(config, OVERLAY_ROWS, element)}
    if prepares:
        beside["drawn drafts"] = kept_bytes(OVERLAY_ROWS, config.vocab_size)
        beside["draft logits"] = AHEAD_ROWS * config.vocab_size * 4  # fp32
    return Extras(stand_in=replace(stand_in(nbytes), beside=beside))
