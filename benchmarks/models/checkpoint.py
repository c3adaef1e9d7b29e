"""Hugging Face directories, written shard by shard: one in memory at a time, nothing in the page cache."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import split_torch_state_dict_into_shards
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
    dtype = getattr(torch, config["torch_dtype"])
    empty = {name: torch.empty(dims, dtype=dtype, device="meta") for name, dims in shape.matrices()}
    split = split_torch_state_dict_into_shards(empty, max_shard_size=SHARD_BYTES)
    for file, names in split.filename_to_tensors.items():
        whole = {name: tensor(name, tuple(empty[name].shape)) for name in names}
        save_file(whole, directory / file, {"format": "pt"})
        drop_caches([directory / file])
    if split.is_sharded:
        index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))
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
