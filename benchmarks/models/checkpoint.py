"""Hugging Face directories, written shard by shard: one in memory at a time, nothing in the page cache."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from benchmarks.models.shapes import Shape
from benchmarks.page_cache import drop_caches

SHARD_BYTES = 10**9

Dims = tuple[int, ...]


def write_checkpoint(
    directory: Path, shape: Shape, config: dict[str, Any], tensor: Callable[[str, Dims], Tensor]
) -> None:
    """Write `config` and every tensor of the shape to the empty `directory`."""
    width = getattr(torch, config["torch_dtype"]).itemsize
    shards = _shards(shape, width)
    index: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        file = (
            f"model-{number:05}-of-{len(shards):05}.safetensors" if len(shards) > 1 else "model.safetensors"
        )
        save_file(
            {name: tensor(name, dims) for name, dims in shard.items()}, directory / file, {"format": "pt"}
        )
        drop_caches([directory / file])
        index |= dict.fromkeys(shard, file)
    if len(shards) > 1:
        table = {"metadata": {"total_size": width * shape.parameters()}, "weight_map": index}
        (directory / "model.safetensors.index.json").write_text(json.dumps(table, indent=1))
    (directory / "config.json").write_text(json.dumps(config, indent=1))


def _shards(shape: Shape, width: int) -> list[dict[str, Dims]]:
    """Tensors of each shard file, at most SHARD_BYTES each, in the layers' order; `width` bytes a number."""
    shards: list[dict[str, Dims]] = [{}]
    size = 0
    for name, dims in shape.matrices():
        nbytes = width * prod(dims)
        if shards[-1] and size + nbytes > SHARD_BYTES:
            shards.append({})
            size = 0
        shards[-1][name] = dims
        size += nbytes
    return shards


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
