"""The files that `edgespec tune` writes: refused before any work where they cannot or must not be, then
written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from edgespec.config import EngineOptions
from edgespec.devices.files import replacing
from edgespec.errors import OptionError, StorageError

OURS = (".html", ".htm", ".png", ".toml")  # of an earlier run, which may lie in the model's folder


def check_files(files: dict[str, Path | None], model: str, engine: EngineOptions) -> None:
    """files: by option. Raises OptionError for one in no folder, one named twice, and one of the model's."""
    taken: dict[str, str] = {}
    for option, path in files.items():
        if path is None:
            continue
        folder = os.path.realpath(path.absolute().parent)
        if not os.path.isdir(folder):
            raise OptionError(f"{option} {path}: there is no folder {folder}; make it first", option)
        if os.path.isdir(path):
            raise OptionError(f"{option} {path} is a folder; name a file in it", option)
        if not os.access(folder, os.W_OK):
            raise OptionError(f"{option} {path}: {folder} may not be written in; name another folder", option)
        where = os.path.join(folder, path.name)
        if where in taken:
            raise OptionError(f"{option} {path} is named for {taken[where]}= too; name two files", option)
        taken[where] = option
        for source in filter(None, (model, engine.draft_model, engine.adapters)):
            if _belongs(where, str(source)):
                raise OptionError(
                    f"{option} {path} would overwrite a file of {source}; name another file", option
                )


def _belongs(where: str, source: str) -> bool:
    """It is a model's file, or one that lies in a model's folder and is not of our kinds."""
    root = os.path.realpath(source)
    names = (where, os.path.realpath(where))  # what links lead to is meant too
    if not os.path.exists(where) or not os.path.exists(root):
        return False
    if os.path.isdir(root):
        inside = any(os.path.commonpath((root, name)) == root for name in names)
        return inside and not where.lower().endswith(OURS)
    # Parts of one file ("-00001-of-00003.gguf") lie beside each other.
    beside = os.path.dirname(root) == os.path.dirname(where)
    return root in names or (beside and Path(where).suffix == Path(root).suffix)


@contextmanager
def written(path: Path) -> Iterator[Path]:
    """Where to write what will be at `path`. Raises StorageError."""
    try:
        with replacing(path) as temporary:
            yield temporary
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror}") from None
