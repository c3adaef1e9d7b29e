"""The weights of an exported model: one safetensors file, which the graphs point into. Needs no torch.

rope            F32 [head_dim / 2]      angles a position
embedding       F32 or F16 [V, d]       read by the host, a row a token
X.weight        F32 or F16 [out, in]    matrices; but not a head that is the embedding
  of int8       U8 [in, out] around `ZERO`, and X.weight_scale F32 [out]
  stream_proj.weight [d, d], with stream_bias F32 or F16 [gamma, d]: of lookahead streams, if there are any
X.bias, norms   F32 or F16              vectors
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from edgespec.errors import UnsupportedModelError
from edgespec.offload.chunks import SCALE
from edgespec.offload.safetensors_header import DTYPE_BYTES
from edgespec.runtimes.config import EMBEDDING, FINAL_NORM, HEAD, ModelConfig

ROPE = "rope"
STREAM_PROJ, STREAM_BIAS = "stream_proj.weight", "stream_bias"
ZERO = 128  # the byte that means 0
WIDEST = 2**31 // 127**2  # numbers of a row of int8 matrices: sums of their products are int32


@dataclass(frozen=True)
class Stored:
    """A tensor of the weights' file: its encoding and shape, and where its bytes lie in the file."""

    encoding: str
    shape: tuple[int, ...]
    offset: int = 0

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * DTYPE_BYTES[self.encoding]


def stored_tensors(
    config: ModelConfig, precision: str, streams: int = 0
) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Encoding and shape of every tensor, by name, in the file's order; with so many lookahead streams.
    Raises UnsupportedModelError for matrices too wide for int8."""
    plain = "F16" if precision == "fp16" else "F32"
    tied = config.tied_head and precision != "int8"
    found: dict[str, tuple[str, tuple[int, ...]]] = {ROPE: ("F32", (config.head_dim // 2,))}
    found[EMBEDDING] = ("F32" if precision == "fp32" else "F16", (config.vocab_size, config.hidden_size))
    for layer in range(config.layers):
        for name, shape in config.matrix_shapes(layer).items():
            found |= _matrix(name, shape, precision, plain)
        found |= {name: (plain, shape) for name, shape in config.vector_shapes(layer).items()}
    if streams:
        found |= _matrix(STREAM_PROJ, (config.hidden_size, config.hidden_size), precision, plain)
        found[STREAM_BIAS] = (plain, (streams, config.hidden_size))
    found[FINAL_NORM] = (plain, (config.hidden_size,))
    if not tied:
        found |= _matrix(HEAD, (config.vocab_size, config.hidden_size), precision, plain)
    return found


def _matrix(
    name: str, shape: tuple[int, int], precision: str, plain: str
) -> dict[str, tuple[str, tuple[int, ...]]]:
    if precision != "int8":
        return {name: (plain, shape)}
    if shape[1] > WIDEST:
        raise UnsupportedModelError(
            f"{name} has {shape[1]} numbers a row, of which int8 adds up {WIDEST} at most; export at fp16 or "
            "fp32"
        )
    return {name: ("U8", shape[::-1]), name + SCALE: ("F32", shape[:1])}


def quantise(matrix: NDArray[np.float32]) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """[out, in] as bytes [in, out] around `ZERO`, and what the unit of each output is, [out]."""
    scales = np.abs(matrix).max(axis=1) / 127
    units = np.where(scales > 0, scales, 1)[:, None]
    return (np.rint(matrix / units) + ZERO).astype(np.uint8).T, scales.astype(np.float32)


def head_name(weights: Mapping[str, Stored]) -> str:
    """The LM head's matrix: its own, or the embedding."""
    return HEAD if HEAD in weights else EMBEDDING
