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

# By option: how its files begin, and a mark in their first HEAD bytes.
OURS = {
    "profile_out": (b"# Recommended settings", b"format = "),
    "html": (b"<!DOCTYPE html>", b"edgespec tune</title>"),
    "png": (b"\x89PNG", b"Software\0edgespec tune"),
}
SUFFIXES = (".html", ".htm", ".png", ".toml")  # of empty files that may be meant, where a model lies too
HEAD = 2**16


def check_files(files: dict[str, Path | None], model: str, engine: EngineOptions) -> None:
    """files: by option. Raises OptionError for one in no folder, one named twice, one of the model's, and one
    that is there already and was not written by an earlier run."""
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
        if not os.path.exists(where) or _is_ours(where, option):
            continue
        for source in filter(None, (model, engine.draft_model, engine.adapters)):
            if _belongs(where, str(source)):
                raise OptionError(
                    f"{option} {path} would overwrite a file of {source}; name another file", option
                )
        if not os.path.isfile(where) or os.path.getsize(where):
            raise OptionError(
                f"{option} {path} is there already, and is nothing that tune wrote for it; name another file",
                option,
            )


def _is_ours(where: str, option: str) -> bool:
    """By its content; an empty one by its name."""
    if not os.path.isfile(where):  # a pipe, a device
        return False
    try:
        with open(where, "rb") as file:
            head = file.read(HEAD)
    except OSError:
        return False
    begins, mark = OURS[option]
    return head.startswith(begins) and mark in head if head else where.lower().endswith(SUFFIXES)


def _belongs(where: str, source: str) -> bool:
    """It is a model's file, or lies in a model's folder."""
    root = os.path.realpath(source)
    names = (where, os.path.realpath(where))  # what links lead to is meant too
    if not os.path.exists(root):
        return False
    if os.path.isdir(root):
        return any(os.path.commonpath((root, name)) == root for name in names)
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
