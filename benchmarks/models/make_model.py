"""Write a random-weight checkpoint of a real model's shape, without ever holding the model.

    python -m benchmarks.models.make_model 7b               # Hugging Face directory, bf16, 13.5 GB
    python -m benchmarks.models.make_model 70b --layers 4   # the first four layers of a 70B shape

Weights are slices of one block of normal numbers, each tensor from its own place in it: as random as a
benchmark needs, at the speed of the disk. Scales are those of real initialisation (std 0.02, residual
projections divided by sqrt(2 * layers)), so activations stay finite.
"""

from __future__ import annotations

import argparse
import zlib
from math import prod
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.models.checkpoint import made_whole, write_checkpoint
from benchmarks.models.shapes import SHAPES, Shape, get_shape, models_dir
from benchmarks.models.tokenizer import write_tokenizer

BLOCK, SMALL_BLOCK = 2**26 - 5, 2**20 - 3  # numbers; primes, so that rows of a repeated block never line up


class Weights:
    """Any tensor of a shape."""

    def __init__(self, shape: Shape) -> None:
        self.length = BLOCK if shape.parameters() > BLOCK else SMALL_BLOCK
        normal = torch.from_numpy(np.random.default_rng(0).standard_normal(self.length, dtype=np.float32))
        self.block = (normal * 0.02).bfloat16()
        self.residual = (normal * (0.02 / (2 * shape.layers) ** 0.5)).bfloat16()

    def tensor(self, name: str, dims: tuple[int, ...]) -> Tensor:
        if len(dims) == 1:
            return torch.ones(dims, dtype=torch.bfloat16)
        block = self.residual if name.endswith(("o_proj.weight", "down_proj.weight")) else self.block
        at = zlib.crc32(f"0 {name}".encode()) % self.length
        left = prod(dims) - (self.length - at)
        return torch.cat([block[at:], *[block] * (-(-left // self.length))])[: prod(dims)].view(dims)


def make_model(directory: Path, shape: Shape) -> None:
    """Write the checkpoint, bf16, to `directory`; it appears there only when it is complete."""
    weights = Weights(shape)

    def make(partial: Path) -> None:
        partial.mkdir()
        write_checkpoint(partial, shape, shape.hf_config("bfloat16"), weights.tensor)
        write_tokenizer(partial, shape.vocab, shape.context)

    made_whole(directory, 2 * shape.parameters(), make)


def ensure_model(name: str, layers: int | None = None) -> Path:
    """The made model's directory, such as models/70b-4layers-bf16, made now if it is not there."""
    directory = models_dir() / (f"{name}-{layers}layers-bf16" if layers else f"{name}-bf16")
    if not directory.exists():
        make_model(directory, get_shape(name, layers))
    return directory


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("--layers", type=int, help="only this many layers")
    args = parser.parse_args()
    print(ensure_model(args.shape, args.layers))


if __name__ == "__main__":
    main()
