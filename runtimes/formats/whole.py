"""A directory that is written whole or not at all, by one process at a time. Needs no torch."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Set
from contextlib import contextmanager, suppress
from pathlib import Path

from edgespec.devices.files import held, sync_path
from edgespec.errors import OptionError, StorageError
from edgespec.offload.plan.ledger import gigabytes


def check_new(out: Path) -> None:
    """Raises OptionError where `out` is there and not an empty directory."""
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise OptionError(f"{out} is there already and not empty; choose another directory, or remove it")


@contextmanager
def new_directory(out: Path, names: Set[str], nbytes: int) -> Iterator[Path]:
    """An empty directory to write to, which becomes `out` at the end.

    names: of what will lie in it; what a killed process left under these names is removed. nbytes: that it
    will take. Raises as `check_new`, and StorageError where there is no room, another process writes there or
    writing fails.
    """
    out = Path(os.path.abspath(out))
    check_new(out)
    work = out.with_name(out.name + ".partial")
    try:
        if work.exists() and (not work.is_dir() or {path.name for path in work.iterdir()} - names):
            raise StorageError(f"{work} is in the way and was not left by an export; remove it")
        work.mkdir(parents=True, exist_ok=True)
        with held(work):
            try:
                _clear(work)
                if (free := shutil.disk_usage(work).free) < nbytes:
                    raise StorageError(
                        f"exporting needs {gigabytes(nbytes)} on the disk of {work.parent}, which has "
                        f"{gigabytes(free)} free; free {gigabytes(nbytes - free)} or choose another directory"
                    )
                yield work
                for path in sorted(work.rglob("*"), reverse=True):  # what is in a folder before it
                    sync_path(path)
                sync_path(work)
                if out.is_dir():
                    out.rmdir()
                os.rename(work, out)
                sync_path(out.parent)
            except BaseException:
                with suppress(OSError):
                    shutil.rmtree(work)
                raise
    except BlockingIOError:
        raise StorageError(f"another process is exporting to {out}; wait for it, or choose another") from None
    except OSError as error:
        raise StorageError(f"exporting to {out} failed: {error.strerror or error}") from None


def _clear(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
