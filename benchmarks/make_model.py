"""Write a random-weight checkpoint of a real model's shape, without ever holding the model.

    python benchmarks/make_model.py 7b                    # Hugging Face directory, bf16, 13.5 GB
    python benchmarks/make_model.py 7b --gguf             # and an F16 GGUF of the same weights beside it
    python benchmarks/make_model.py 70b --layers 4        # the first four layers of a 70B shape

Weights are slices of one block of normal numbers, each tensor from its own place in it: as random as a
benchmark needs, at the speed of the disk. Scales are those of real initialisation (std 0.02, residual
projections divided by sqrt(2 * layers)), so activations stay finite.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from shapes import SHAPES, Shape, get_shape, models_dir
from tokenizer import write_tokenizer

SHARD_BYTES = 5 * 10**9
BLOCK, SMALL_BLOCK = 2**26 - 5, 2**20 - 3  # numbers; primes, so that rows of a repeated block never line up
FLUSH_BYTES = 256 * 2**20
DTYPES = {"bf16": ("BF16", "bfloat16"), "fp16": ("F16", "float16")}

Bits = NDArray[np.uint16]


def bf16_bits(x: NDArray[np.float32]) -> Bits:
    """Round-to-nearest-even bf16, as raw bits."""
    u = x.view(np.uint32)
    return ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype(np.uint16)


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
        return bf16_bits(x) if self.dtype == "bf16" else x.astype(np.float16).view(np.uint16)

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


class FlushedFile:
    """Sequential writing that leaves nothing in the page cache."""

    def __init__(self, path: Path) -> None:
        self.file: BinaryIO = path.open("wb", buffering=0)
        self.written = self.flushed = 0

    def write(self, data: Any) -> None:
        view = memoryview(data).cast("B")
        for start in range(0, len(view), FLUSH_BYTES):
            part = view[start : start + FLUSH_BYTES]
            while part:
                part = part[self.file.write(part) :]
            self.written = self.file.tell()
            if self.written - self.flushed >= FLUSH_BYTES:
                self.flush()

    def flush(self) -> None:
        os.fdatasync(self.file.fileno())
        os.posix_fadvise(self.file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        self.flushed = self.written

    def __enter__(self) -> FlushedFile:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.flush()
        self.file.close()


def shards(shape: Shape, width: int = 2) -> list[dict[str, tuple[int, ...]]]:
    """Tensors of each shard file, at most SHARD_BYTES each, in the layers' order; `width` bytes a number."""
    parts: list[dict[str, tuple[int, ...]]] = [{}]
    size = 0
    for name, dims in shape.matrices():
        nbytes = width * int(np.prod(dims))
        if parts[-1] and size + nbytes > SHARD_BYTES:
            parts.append({})
            size = 0
        parts[-1][name] = dims
        size += nbytes
    return parts


def safetensors_header(tensors: dict[str, tuple[int, ...]], encoding: str, width: int = 2) -> bytes:
    """The 8-byte length and the JSON table, laid out as the safetensors library does (padded to 8 bytes)."""
    table: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, dims in tensors.items():
        stop = at + width * int(np.prod(dims))
        table[name] = {"dtype": encoding, "shape": list(dims), "data_offsets": [at, stop]}
        at = stop
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def make_model(directory: Path, shape: Shape, dtype: str = "bf16", seed: int = 0) -> None:
    """Write the checkpoint to `directory`; it appears there only when it is complete."""
    partial = directory.with_name(directory.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    encoding, torch_dtype = DTYPES[dtype]
    weights = Weights(shape, dtype, seed)
    parts = shards(shape)
    index: dict[str, str] = {}
    for number, part in enumerate(parts, 1):
        file = "model.safetensors" if len(parts) == 1 else f"model-{number:05}-of-{len(parts):05}.safetensors"
        tensors = dict(sorted(part.items()))  # by name, as the library writes them
        with FlushedFile(partial / file) as out:
            out.write(safetensors_header(tensors, encoding))
            for name, dims in tensors.items():
                index[name] = file
                for data in weights.slices(name, dims):
                    out.write(data)
    if len(parts) > 1:
        table = {"metadata": {"total_size": 2 * shape.parameters()}, "weight_map": index}
        (partial / "model.safetensors.index.json").write_text(json.dumps(table, indent=1))
    (partial / "config.json").write_text(json.dumps(shape.hf_config(torch_dtype), indent=1))
    write_tokenizer(partial, shape.vocab, shape.context)
    partial.rename(directory)


def model_path(name: str, layers: int | None, dtype: str) -> Path:
    """Where a made model lies, e.g. models/7b-bf16 or models/70b-4layers-bf16."""
    return models_dir() / (f"{name}-{layers}layers-{dtype}" if layers else f"{name}-{dtype}")


def ensure_model(name: str, layers: int | None = None, dtype: str = "bf16") -> Path:
    """The made model's directory, made now if it is not there."""
    directory = model_path(name, layers, dtype)
    if not directory.exists():
        shape = get_shape(name, layers)
        size = 2 * shape.parameters()
        directory.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(directory.parent).free
        if free < size * 1.02:
            raise SystemExit(f"{directory} needs {size / 1e9:.1f} GB; the disk has {free / 1e9:.1f} GB free")
        began = time.perf_counter()
        make_model(directory, shape, dtype)
        seconds = time.perf_counter() - began
        rate = size / seconds / 1e9
        print(f"{directory}: {size / 1e9:.2f} GB in {seconds:.0f} s ({rate:.2f} GB/s)", flush=True)
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
        from make_gguf import ensure_gguf

        print(ensure_gguf(directory, fp16=True))


if __name__ == "__main__":
    main()
