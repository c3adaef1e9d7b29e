"""A model's files, known by their headers: a packed directory, a GGUF file, a Hugging Face directory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import xxhash

from edgespec.errors import Call, OptionError
from edgespec.offload.chunk_store import in_place, is_store
from edgespec.offload.chunks import ChunkTable
from edgespec.runtimes.config import ModelConfig
from edgespec.runtimes.formats.checkpoint import read_checkpoint
from edgespec.runtimes.formats.exported import is_exported
from edgespec.runtimes.formats.gguf import read_gguf
from edgespec.runtimes.formats.packed import open_packed

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class ModelFiles:
    """A model on disk, known by its headers."""

    path: Path
    config: ModelConfig
    table: ChunkTable
    digest: str  # of the source's headers, config and a sample of its values
    source: str  # what it was packed from; else the path itself

    @property
    def identity(self) -> bytes:
        """XXH3-128 of what the weights are, by `digest`, and of how they are encoded: the same for a copy of
        the same values in another file."""
        precision = self.table.precision
        if precision == "source":
            precision = {"bfloat16": "bf16"}.get(self.config.dtype, precision)
        return xxhash.xxh3_128_digest(f"{self.digest} {precision}".encode())

    @property
    def activations(self) -> str:
        """The type of activations and the KV cache: the checkpoint's own; bf16 where weights were made
        smaller."""
        return "bfloat16" if self.table.precision in ("bf16", "int8", "int4") else self.config.dtype

    @property
    def element(self) -> int:
        """Bytes of a number of that type."""
        return 4 if self.activations == "float32" else 2

    @property
    def dtype(self) -> torch.dtype:
        """torch's own name for it."""
        import torch  # headers can be read, and files refused, without it

        dtype = getattr(torch, self.activations)
        assert isinstance(dtype, torch.dtype)
        return dtype


def describe_model(path: Path, precision: str | None = None) -> ModelFiles:
    """Read a model's config and headers: a packed directory, a GGUF file or a Hugging Face directory.

    Raises ModelError for files that are damaged or not supported, OptionError when the files do not hold
    `precision` (nothing is packed silently).
    """
    if is_exported(path):
        raise OptionError(f"{path} is a model that was exported to draft with; use it as draft_model=")
    if is_store(path):
        config, store = open_packed(path)
        files = ModelFiles(path, config, store.table, store.source_digest, store.source)
    else:
        checkpoint = read_gguf(path) if path.is_file() else read_checkpoint(path)
        table = in_place(checkpoint.order, str(path))
        files = ModelFiles(path, checkpoint.config, table, checkpoint.digest, str(path))
    own = {"bfloat16": "bf16"}.get(files.config.dtype) if files.table.precision == "source" else None
    if precision is not None and precision not in (files.table.precision, own):
        raise OptionError(
            f"{path} holds {files.table.precision} weights, not {precision}; make them and use DIR",
            hint=Call("pack_model", {"model": str(path), "out": "DIR", "precision": precision}),
        )
    return files
