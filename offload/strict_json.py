"""JSON from strangers: bounded in size, depth and digits, no name twice.

Not by msgspec alone, which takes the last of two equal names and, untyped, numbers of any length.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from edgespec.devices.files import read_bounded
from edgespec.errors import CorruptFileError

T = TypeVar("T")

_DIGITS = 20  # of a whole number: 2^64 has 20


def read_object(path: Path, limit: int) -> dict[str, Any]:
    """The JSON object in a file of at most `limit` bytes.

    Raises ModelError when the file is missing, CorruptFileError when it is larger or not one JSON object,
    StorageError when it cannot be read.
    """
    return parse_object(read_bounded(path, limit), str(path))


def parse_object(raw: bytes, name: str) -> dict[str, Any]:
    """The JSON object in `raw`; `name` is what errors call it. Raises CorruptFileError."""
    try:
        value = json.loads(raw.decode("utf-8"), object_pairs_hook=_unique, parse_int=_whole)
    except RecursionError:
        raise CorruptFileError(f"{name} is not valid: it is nested too deeply") from None
    except ValueError as error:  # JSONDecodeError and UnicodeDecodeError are ValueErrors
        raise CorruptFileError(f"{name} is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise CorruptFileError(f"{name} holds a {type(value).__name__}, not a JSON object")
    return value


def parse_manifest(raw: bytes, path: Path, kind: type[T]) -> T:
    """What the manifest at `path` says, as a `kind`. Raises CorruptFileError."""
    parse_object(raw, str(path))  # names no key twice
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.MsgspecError as error:
        raise CorruptFileError(f"{path} is not a sound manifest: {error}") from None


def is_file_name(name: str) -> bool:
    """Whether `name` can only mean a file in the directory it is looked up in."""
    return name not in ("", ".", "..") and len(name) <= 255 and not set(name) & set("/\\:\0")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for key, value in pairs:
        if key in table:
            raise ValueError(f"{key[:200]!r} appears twice")
        table[key] = value
    return table


def _whole(digits: str) -> int:
    if len(digits) > _DIGITS:
        raise ValueError(f"a number has {len(digits)} digits")
    return int(digits)
