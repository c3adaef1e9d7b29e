"""What the host does for a pass of an exported model: embeddings, angles, masks. Needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgespec.runtimes.base import IntArray
from edgespec.runtimes.config import ModelConfig

MASKED = -4e4  # added to a score that does not count: fp16 holds it


@dataclass(frozen=True)
class PassRows:
    """Rows of a pass, and what they attend to.

    positions: [n] absolute ones. seen: [n, m] what they see of the first m positions of a cache, in which
    `keys` [m], absolute positions, lie. among: [n, n] what they see of one another.
    """

    positions: IntArray
    seen: NDArray[np.bool_]
    keys: IntArray
    among: NDArray[np.bool_]

    @property
    def place(self) -> int:
        """In the cache, behind all that they see: theirs."""
        return len(self.keys)


def mask_windows(config: ModelConfig) -> list[int | None]:
    """How far back layers attend: a mask for each; None = to all positions."""
    return sorted({config.window(layer) for layer in range(config.layers)}, key=lambda w: w or 0)


def mask_name(window: int | None) -> str:
    return "mask" if window is None else f"mask_{window}"


def mask_of(window: int | None, rows: PassRows, held: int, count: int) -> NDArray[np.float32]:
    """[count, held + count], of a cache of `held` positions and padded rows: 0 where they attend."""
    n, mask = len(rows.positions), np.full((count, held + count), MASKED, dtype=np.float32)
    for column, visible, keys in ((0, rows.seen, rows.keys), (held, rows.among, rows.positions)):
        if window is not None:
            visible = visible & (keys[None] > rows.positions[:, None] - window)
        mask[:n, column : column + len(keys)][visible] = 0
    return mask


def states_of(embedding: NDArray[Any], tokens: Sequence[int]) -> NDArray[Any]:
    """[n, d]"""
    # Of padding, and of tokens that only a target has, any will do.
    return embedding[np.minimum(np.array(tokens, dtype=np.int64), len(embedding) - 1)]


def rotation_of(angles: NDArray[np.float32], positions: IntArray) -> dict[str, NDArray[np.float64]]:
    """cos and sin [n, head_dim], of which the first half of `sin` is negative."""
    turned = (positions.astype(np.float32)[:, None] * angles).astype(np.float64)
    cos, sin = np.cos(turned), np.sin(turned)
    return {"cos": np.concatenate([cos, cos], axis=1), "sin": np.concatenate([-sin, sin], axis=1)}
