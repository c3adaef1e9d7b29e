"""Write a random-weight checkpoint of a real model's shape, without ever holding the model.

    python -m benchmarks.models.make_model 7b               # Hugging Face directory, bf16, 13.5 GB
    python -m benchmarks.models.make_model 7b --gguf        # and an F16 GGUF of the same weights beside it
    python -m benchmarks.models.make_model 70b --layers 4   # the first four layers of a 70B shape

Weights are slices of one block of normal numbers, each tensor from its own place in it: as random as a
benchmark needs, at the speed of the disk. Scales are those of real initialisation (std 0.02, residual
projections divided by sqrt(2 * layers)), so activations stay finite.
"""

from __future__ import annotations

import argparse
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.models.checkpoint import made_whole, write_checkpoint
from benchmarks.models.shapes import SHAPES, Shape, get_shape, models_dir
from benchmarks.models.tokenizer import write_tokenizer

BLOCK, SMALL_BLOCK = 2**26 - 5, 2**20 - 3  # numbers; primes, so that rows of a repeated block never line up
DTYPES = {"bf16": "bfloat16", "fp16": "float16"}

Bits = NDArray[np.uint16]


class Weights:
    """The bytes of any tensor of a shape, in slices."""

    def __init__(self, shape: Shape, dtype: str, seed: int) -> None:
        self.dtype = dtype
        self.seed = seed
        self.length = BLOCK if shape.parameters() > BLOCK else SMALL_BLOCK
        normal = np.random.default_rng(seed).standard_normal(self.length, dtype=np.float32)
        self.block = self.encode(normal * np.float32(0.02))
        self.residual = self.encode(normal * np.float32(0.02 / (2 * shape.layers) ** 0.5))

    def encode(self, x: NDArray[np.float32]) -> Bits:
        if self.dtype == "fp16":
            return x.astype(np.float16).view(np.uint16)
        bits = x.view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)  # rounded to nearest even

    def slices(self, name: str, shape: tuple[int, ...]) -> Iterator[Bits]:
        """Consecutive parts of the tensor, flattened."""
        if len(shape) == 1:
            yield self.encode(np.ones(shape, dtype=np.float32))
            return
        block = self.residual if name.endswith(("o_proj.weight", "down_proj.weight")) else self.block
        at = zlib.crc32(f"{self.seed} {name}".encode()) % self.length
        left = shape[0] * shape[1]
        while left:
            part = block[at : at + left]
            yield part
            left -= len(part)
            at = 0


def make_model(directory: Path, shape: Shape, dtype: str = "bf16", seed: int = 0) -> None:
    """Write the checkpoint to `directory`; it appears there only when it is complete."""
    weights = Weights(shape, dtype, seed)

    def make(partial: Path) -> None:
        partial.mkdir()
        write_checkpoint(partial, shape, shape.hf_config(DTYPES[dtype]), weights.slices)
        write_tokenizer(partial, shape.vocab, shape.context)

    made_whole(directory, 2 * shape.parameters(), make)


def ensure_model(name: str, layers: int | None = None, dtype: str = "bf16") -> Path:
    """The made model's directory, such as models/70b-4layers-bf16, made now if it is not there."""
    directory = models_dir() / (f"{name}-{layers}layers-{dtype}" if layers else f"{name}-{dtype}")
    if not directory.exists():
        make_model(directory, get_shape(name, layers), dtype)
    return directory


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("--layers", type=int, help="only this many layers")
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--gguf", action="store_true", help="also write an F16 GGUF of the same weights")
    args = parser.parse_args()
    directory = ensure_model(args.shape, args.layers, args.dtype)
    print(directory)
    if args.gguf:
        from benchmarks.models.make_gguf import ensure_gguf

        print(ensure_gguf(directory, fp16=True))


if __name__ == "__main__":
    main()
