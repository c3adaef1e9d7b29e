"""Hugging Face directories, written part by part: no whole tensor in memory, nothing in the page cache."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterable
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

from benchmarks.models.shapes import Shape

SHARD_BYTES = 5 * 10**9
FLUSH_BYTES = 256 * 2**20
ENCODINGS = {"bfloat16": ("BF16", 2), "float16": ("F16", 2), "float32": ("F32", 4)}  # and bytes of a number

Dims = tuple[int, ...]


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


def write_checkpoint(
    directory: Path, shape: Shape, config: dict[str, Any], blocks: Callable[[str, Dims], Iterable[Any]]
) -> None:
    """Write `config` and every tensor of the shape to the empty `directory`; `blocks` are a tensor's
    consecutive parts, as buffers."""
    encoding, width = ENCODINGS[config["torch_dtype"]]
    parts = _shards(shape, width)
    index: dict[str, str] = {}
    for number, part in enumerate(parts, 1):
        file = "model.safetensors" if len(parts) == 1 else f"model-{number:05}-of-{len(parts):05}.safetensors"
        tensors = dict(sorted(part.items()))  # by name, as the library writes them
        index |= dict.fromkeys(tensors, file)
        with FlushedFile(directory / file) as out:
            out.write(_header(tensors, encoding, width))
            for name, dims in tensors.items():
                for block in blocks(name, dims):
                    out.write(block)
    if len(parts) > 1:
        table = {"metadata": {"total_size": width * shape.parameters()}, "weight_map": index}
        (directory / "model.safetensors.index.json").write_text(json.dumps(table, indent=1))
    (directory / "config.json").write_text(json.dumps(config, indent=1))


def made_whole(directory: Path, nbytes: int, make: Callable[[Path], None]) -> None:
    """Have `make` write a directory or file of `nbytes` bytes; it appears when complete. Prints its rate.

    Raises SystemExit when the disk is too full.
    """
    partial = directory.with_name(directory.name + ".partial")
    directory.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(partial, ignore_errors=True)
    free = shutil.disk_usage(directory.parent).free
    if free < nbytes * 1.02:
        raise SystemExit(f"{directory} needs {nbytes / 1e9:.1f} GB; the disk has {free / 1e9:.1f} GB free")
    began = time.perf_counter()
    make(partial)
    partial.rename(directory)
    seconds = time.perf_counter() - began
    rate = f"{nbytes / 1e9:.2f} GB in {seconds:.0f} s ({nbytes / seconds / 1e9:.2f} GB/s)"
    print(f"{directory}: {rate}", flush=True)


def _shards(shape: Shape, width: int) -> list[dict[str, Dims]]:
    """Tensors of each shard file, at most SHARD_BYTES each, in the layers' order; `width` bytes a number."""
    parts: list[dict[str, Dims]] = [{}]
    size = 0
    for name, dims in shape.matrices():
        nbytes = width * prod(dims)
        if parts[-1] and size + nbytes > SHARD_BYTES:
            parts.append({})
            size = 0
        parts[-1][name] = dims
        size += nbytes
    return parts


def _header(tensors: dict[str, Dims], encoding: str, width: int) -> bytes:
    """The 8-byte length and the JSON table, laid out as the safetensors library does (padded to 8 bytes)."""
    table: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, dims in tensors.items():
        stop = at + width * prod(dims)
        table[name] = {"dtype": encoding, "shape": list(dims), "data_offsets": [at, stop]}
        at = stop
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
