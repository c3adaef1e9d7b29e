"""What the host does for a pass of an exported model: embeddings, angles, masks. Needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgespec.runtimes.base import IntArray
from edgespec.runtimes.config import ModelConfig

MASKED = -4e4  # added to a score that does not count: fp16 holds it


def mask_windows(config: ModelConfig) -> list[int | None]:
    """How far back layers attend: a mask for each; None = to all positions."""
    return sorted({config.window(layer) for layer in range(config.layers)}, key=lambda w: w or 0)


def mask_name(window: int | None) -> str:
    return "mask" if window is None else f"mask_{window}"


def mask_of(
    window: int | None,
    positions: IntArray,
    seen: tuple[NDArray[np.bool_], IntArray],
    among: NDArray[np.bool_],
    held: int,
    rows: int,
) -> NDArray[np.float32]:
    """[rows, held + rows], for n rows at absolute `positions`: 0 where they attend.

    seen: what they see of the cache's first m of `held` positions, [n, m], and the absolute positions [m] of
    what lies there. among: [n, n] what they see of one another.
    """
    n, mask = len(positions), np.full((rows, held + rows), MASKED, dtype=np.float32)
    for column, visible, keys in ((0, *seen), (held, among, positions)):
        if window is not None:
            visible = visible & (keys[None] > positions[:, None] - window)
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
