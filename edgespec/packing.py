"""Packing a model by its name: resolve, read headers, write a directory with its tokenizer beside it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from edgespec.errors import OptionError
from edgespec.hub import resolve_model
from edgespec.offload.chunk_store import is_store
from edgespec.offload.pack import pack, verify
from edgespec.progress import Progress, ProgressCallback
from edgespec.runtimes.torch.checkpoint import read_checkpoint
from edgespec.runtimes.torch.gguf import read_gguf


def pack_model(
    model: str,
    out: Path,
    precision: str = "source",
    progress: ProgressCallback | None = None,
    notify: Callable[[str], None] | None = None,
) -> None:
    """Write a packed copy of `model` (directory, hub id or GGUF file) at `precision` to the directory `out`.

    Streaming (at most 1 GB of memory), atomic, and resumable by the same call.

    Raises OptionError (unknown precision, `model` is packed already, `out` is not empty), ModelError,
    StorageError (too little space, named before anything is written).
    """
    path = resolve_model(model, progress)
    if is_store(path):
        raise OptionError(f"{path} is packed already; pack the checkpoint or GGUF file it was made from")
    checkpoint = read_gguf(path) if path.is_file() else read_checkpoint(path)
    pack(
        checkpoint.order,
        out,
        precision=precision,
        config=checkpoint.config.to_dict(),
        source=str(path),
        source_digest=checkpoint.digest,
        beside=checkpoint.companions(),
        progress=_stage("pack", progress),
        notify=notify,
    )


def verify_store(directory: Path, progress: ProgressCallback | None = None) -> None:
    """Read a packed directory again and compare every checksum.

    Raises CorruptFileError, naming the file and the chunk, at the first that differs.
    """
    verify(directory, _stage("verify", progress))


def _stage(name: str, progress: ProgressCallback | None) -> Callable[[int, int], None] | None:
    if progress is None:
        return None
    return lambda done, total: progress(Progress(name, done, total, "bytes"))
