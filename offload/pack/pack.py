"""Writing a packed copy of a model.

Everything is written to `DIR.partial`, which becomes `DIR` by a rename when all of it is on the disk. After a
kill the same command goes on behind the last unit that the journal has.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import xxhash

from edgespec.devices.files import held, sync_path
from edgespec.errors import OptionError, StorageError
from edgespec.offload.chunk_store import is_store
from edgespec.offload.chunks import StreamOrder
from edgespec.offload.manifest import FORMAT, MANIFEST, TARGET, Manifest, encode
from edgespec.offload.pack.journal import JOURNAL, Journal, journal_key
from edgespec.offload.pack.layout import FILE_BYTES, Layout, lay_out
from edgespec.offload.pack.units import write_units
from edgespec.offload.pack.verify import verify
from edgespec.offload.plan.ledger import gigabytes

__all__ = ["PRECISIONS", "pack", "verify"]

PRECISIONS = ("source", "bf16", "int8", "int4")


def pack(
    order: StreamOrder,
    out_dir: Path,
    *,
    precision: str,
    config: Mapping[str, Any],
    source: str,
    source_digest: str,
    beside: Mapping[str, bytes] | None = None,
    progress: Callable[[int, int], None] | None = None,
    notify: Callable[[str], None] | None = None,
    file_bytes: int = FILE_BYTES,
    also: int = 0,
) -> None:
    """Write `order` at `precision` to the new directory `out_dir`, or go on with an unfinished one.

    Args:
        config: kept for `open_store`; its "dtype" becomes "bfloat16" unless the precision is "source".
        source, source_digest: what is packed; another digest or precision starts an unfinished pack again.
        beside: small files to put into the directory, by name.
        progress: called with (bytes done, bytes in all).
        notify: called with a sentence for the user.
        also: bytes that the disk must have room for beside this copy, for what is packed next.

    Raises OptionError (unknown precision, `out_dir` is not empty), StorageError (too little space, named
    before anything is read; a disk that fails or fills), CorruptFileError (a source file is truncated),
    ModelError (a weight that cannot be quantised).
    """
    check_precision(precision)
    out_dir = Path(out_dir).absolute()
    beside = dict(beside or {})
    layout = lay_out(order, precision, file_bytes=file_bytes)
    if reserved := {MANIFEST, JOURNAL, *(file.name for file in layout.files)} & set(beside):
        raise ValueError(f"{min(reserved)} cannot be put beside the weights")
    config = dict(config) if precision == "source" else {**config, "dtype": "bfloat16"}
    work = out_dir.with_name(out_dir.name + ".partial")
    try:
        if _is_finished(out_dir):
            return
        work.mkdir(parents=True, exist_ok=True)
        with held(work):
            journal = _resume(work, _key(layout, source_digest), layout, notify or (lambda _: None))
            _check_space(work, journal, layout.nbytes + sum(map(len, beside.values())) + also)
            write_units(layout, work, journal, progress or (lambda done, total: None))
            weights = layout.weight_set(journal.digests)
            manifest = Manifest(
                edgespec=FORMAT,
                source=source,
                source_digest=source_digest,
                config=config,
                beside=sorted(beside),
                files=list(layout.files),
                sets={TARGET: weights},
            )
            for name, content in {**beside, MANIFEST: encode(manifest)}.items():
                (work / name).write_bytes(content)
                sync_path(work / name)
            sync_path(work)
            if out_dir.is_dir():
                out_dir.rmdir()  # empty, see _is_finished
            os.rename(work, out_dir)
            sync_path(out_dir.parent)
            (out_dir / JOURNAL).unlink()
    except OSError as error:
        raise _failed(work, layout, error) from error


def check_precision(precision: str) -> None:
    """Raises OptionError for an unknown one."""
    if precision not in PRECISIONS:
        raise OptionError(f"precision {precision!r} is unknown; choose from {', '.join(PRECISIONS)}")


def _is_finished(out_dir: Path) -> bool:
    """Whether only the very last step, removing the journal, was missing. Raises OptionError, OSError."""
    if not out_dir.exists():
        return False
    if is_store(out_dir) and (out_dir / JOURNAL).is_file():
        (out_dir / JOURNAL).unlink()
        return True
    if is_store(out_dir):
        raise OptionError(f"{out_dir} holds a packed model already; remove it or choose another directory")
    if not out_dir.is_dir() or any(out_dir.iterdir()):
        raise OptionError(f"{out_dir} exists and is not an empty directory; choose another one")
    return False


def _failed(work: Path, layout: Layout, error: OSError) -> StorageError:
    """What to tell the user; only what was begun can be gone on with."""
    if isinstance(error, BlockingIOError):
        return StorageError(f"another process is packing into {work}; wait for it or stop it")
    if error.errno == errno.ENOSPC:
        return StorageError(
            f"the disk of {work} is full ({gigabytes(layout.nbytes)} are needed in all); free some "
            "space and pack again, it goes on where it stopped"
        )
    begun = False
    with contextlib.suppress(OSError):
        begun = journal_key(work) is not None
    denied = error.errno in (errno.EACCES, errno.EPERM, errno.EROFS)
    if not denied and not os.path.isdir(
        work
    ):  # among the system's own, behind a file, a name that is too long
        return StorageError(f"{work} cannot be made ({error.strerror}); choose another directory")
    mend = "check its permissions" if denied else "check the disk"
    then = "packing again then goes on from here" if begun else "or choose another directory"
    return StorageError(f"packing to {work} failed: {error}; {mend}, {then}")


def _key(layout: Layout, source_digest: str) -> str:
    digest = xxhash.xxh3_128(f"{FORMAT} {source_digest} {layout.precision}".encode())
    for header in layout.headers:
        digest.update(header)
    return digest.hexdigest()


def _resume(work: Path, key: str, layout: Layout, notify: Callable[[str], None]) -> Journal:
    """The journal of what is done already; a directory left by another pack is emptied."""
    old = journal_key(work)
    if old is None and any(work.iterdir()):
        raise StorageError(f"{work} is in the way and was not left by a pack; remove it")
    if old != key:
        if old:
            notify(f"{work.name} was left by a pack of another source or precision; starting again")
        for path in sorted(work.iterdir(), key=lambda path: path.name == JOURNAL):
            path.unlink()  # the journal last: until then the directory is known as ours
    journal = Journal(work, key)
    sizes = [p.stat().st_size if (p := work / f.name).is_file() else 0 for f in layout.files]
    for unit in layout.units[: len(journal.digests)]:
        if unit.offset + unit.nbytes > sizes[unit.file]:
            journal.keep(unit.index)
            break
    if journal.digests:
        done = sum(unit.nbytes for unit in layout.units[: len(journal.digests)])
        notify(f"going on with {work.name}: {gigabytes(done)} of {gigabytes(layout.nbytes)} are done")
    return journal


def _check_space(work: Path, journal: Journal, nbytes: int) -> None:
    present = sum(path.stat().st_size for path in work.iterdir())
    needed = nbytes + 2**20 - present  # the manifest has a few hundred bytes a chunk
    free = shutil.disk_usage(work).free
    if needed <= free:
        return
    if not journal.digests:  # leave nothing behind
        for path in sorted(work.iterdir(), key=lambda path: path == journal.path):  # the journal last
            path.unlink()
        work.rmdir()
    raise StorageError(
        f"packing needs {gigabytes(needed)} on the disk of {work.parent}, which has {gigabytes(free)} free; "
        f"free {gigabytes(needed - free)} or choose another directory"
    )
