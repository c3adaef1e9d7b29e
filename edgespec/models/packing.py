"""Packing a model by its name: resolve, read headers, write a directory with its tokenizer beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from edgespec.errors import OptionError
from edgespec.models.hub import resolve_model
from edgespec.models.options import PackOptions
from edgespec.offload.chunk_store import is_store, open_store
from edgespec.offload.pack.layout import lay_out
from edgespec.offload.pack.pack import pack, verify
from edgespec.offload.plan.ledger import gigabytes
from edgespec.progress import Progress, ProgressCallback
from edgespec.runtimes.formats.checkpoint import read_checkpoint
from edgespec.runtimes.formats.gguf import read_gguf
from edgespec.runtimes.formats.packed import SUBSTITUTE


def pack_model(
    model: str,
    out: str | Path,
    precision: str | None = None,
    substitute: str | None = None,
    progress: ProgressCallback | None = None,
    notify: Callable[[str], None] | None = None,
) -> None:
    """Write a packed copy of `model` (directory, hub id or GGUF file) to the directory `out`.

    precision, substitute: as `PackOptions` has them; the low-bit copy goes into `out/substitute`, and when
        `out` holds the same model already, nothing else is written.

    Streaming (at most 1 GB of memory), atomic, and resumable by the same call.

    Raises OptionError (unknown precision, `model` is packed already, `out` is in its directory, is not empty,
    or holds another model or precision), ModelError, StorageError (too little space, named before anything
    is written).
    """
    PackOptions(precision, substitute)
    out = Path(out)
    path = resolve_model(model, progress)
    if is_store(path):
        raise OptionError(f"{path} is packed already; pack the checkpoint or GGUF file it was made from")
    if path.is_dir() and out.resolve().is_relative_to(path.resolve()):
        raise OptionError(f"{out} is in the directory of the model that is packed; choose one outside {path}")
    checkpoint = read_gguf(path) if path.is_file() else read_checkpoint(path)

    def write(directory: Path, precision: str, beside: Mapping[str, bytes], also: int = 0) -> None:
        pack(
            checkpoint.order,
            directory,
            precision=precision,
            config=checkpoint.config.to_dict(),
            source=str(path),
            source_digest=checkpoint.digest,
            beside=beside,
            progress=_stage("pack", progress),
            notify=notify,
            also=also,
        )

    if substitute is None:
        write(out, precision or "source", checkpoint.companions())
        return
    if is_store(out):
        precision = _precision_of(out, checkpoint.digest, precision)
    copy = lay_out(checkpoint.order, substitute)
    if copy.nbytes >= (own := lay_out(checkpoint.order, precision or "source").nbytes):
        smaller = "" if substitute == "int4" else ", or try int4"
        raise OptionError(
            f"an {substitute} substitute has {gigabytes(copy.nbytes)}, and the model's own weights have "
            f"{gigabytes(own)}: it cannot stand in for them; leave substitute= out{smaller}"
        )
    if not is_store(out):
        write(out, precision or "source", checkpoint.companions(), also=copy.nbytes)
    write(out / SUBSTITUTE, substitute, {})


def _precision_of(out: Path, digest: str, precision: str | None) -> str:
    """Of a packed directory. Raises OptionError when it holds another model, or not `precision`."""
    there = open_store(out)
    if there.source_digest != digest:
        raise OptionError(f"{out} holds another model ({there.source}); choose another directory")
    if precision not in (None, there.table.precision):
        raise OptionError(
            f"{out} holds {there.table.precision} weights, not {precision}; leave precision= out"
        )
    return there.table.precision


def verify_store(directory: str | Path, progress: ProgressCallback | None = None) -> None:
    """Read a packed directory again, and the substitute in it, and compare every checksum.

    Raises CorruptFileError, naming the file and the chunk, at the first that differs.
    """
    directory = Path(directory)
    verify(directory, _stage("verify", progress))
    if is_store(directory / SUBSTITUTE):
        verify(directory / SUBSTITUTE, _stage("verify", progress))


def _stage(name: str, progress: ProgressCallback | None) -> Callable[[int, int], None] | None:
    if progress is None:
        return None
    return lambda done, total: progress(Progress(name, done, total, "bytes"))
