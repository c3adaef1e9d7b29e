"""What a GGUF file says of itself, typed and bounded; and the parts of a split one. Needs no torch."""

from __future__ import annotations

import re
from math import inf
from pathlib import Path

import numpy as np

from edgespec.errors import CorruptFileError, ModelError, UnsupportedModelError
from edgespec.offload.chunks import TensorSource
from edgespec.runtimes.base import IntArray
from edgespec.runtimes.formats.gguf_file import GGUFFile, read_gguf_file


def read_gguf_parts(path: Path, foreign: bool = False) -> tuple[list[GGUFFile], dict[str, TensorSource]]:
    """A GGUF file, or all parts of a split one (give the first), and their tensors.

    foreign: see `read_gguf_file`. Raises as that, and ModelError for a part that is missing, CorruptFileError
    for parts that do not belong together.
    """
    first = read_gguf_file(path, foreign)
    parts = [first, *_other_parts(first, foreign)]
    stored: dict[str, TensorSource] = {}
    for part in parts:
        if twice := stored.keys() & part.tensors.keys():
            raise CorruptFileError(f"{part.path} repeats tensor {min(twice)!r} of an earlier part")
        stored.update(part.tensors)
    return parts, stored


def _other_parts(first: GGUFFile, foreign: bool) -> list[GGUFFile]:
    """The second and later files of a split model, whose names count up: -00002-of-00003.gguf."""
    meta = Metadata(first)
    count = meta.whole("split.count", default=1, limit=99_999)
    if count == 1:
        return []
    name = re.fullmatch(r"(.*)-(\d{5})-of-(\d{5})\.gguf", first.path.name)
    if (
        meta.whole("split.no", default=0, least=0) != 0
        or not name
        or int(name[2]) != 1
        or int(name[3]) != count
    ):
        raise ModelError(
            f"{first.path} is one of {count} parts; give the first, whose name ends -00001-of-{count:05}.gguf"
        )
    parts = []
    for number in range(2, count + 1):
        part = read_gguf_file(first.path.with_name(f"{name[1]}-{number:05}-of-{count:05}.gguf"), foreign)
        theirs = Metadata(part)
        if theirs.whole("split.no", least=0) != number - 1 or theirs.whole("split.count") != count:
            raise CorruptFileError(f"{part.path} is not part {number} of {count}, as its name says")
        parts.append(part)
    return parts


class Metadata:
    """Typed look-ups with bounds, under a common prefix."""

    def __init__(self, file: GGUFFile, prefix: str = "") -> None:
        self.file = file
        self.prefix = prefix

    def __contains__(self, key: str) -> bool:
        return self.prefix + key in self.file.metadata

    def _bad(self, key: str, expected: str) -> CorruptFileError:
        value = self.file.metadata.get(self.prefix + key)
        shown = "missing" if value is None else repr(value)[:100]
        return CorruptFileError(
            f"{self.file.path}: metadata {self.prefix}{key} is {shown}; expected {expected}"
        )

    def whole(self, key: str, default: int | None = None, least: int = 1, limit: int = 2**24) -> int:
        value = self.file.metadata.get(self.prefix + key, default)
        if type(value) is not int or not least <= value <= limit:
            raise self._bad(key, f"a whole number from {least} to {limit}")
        return value

    def uniform(self, key: str, default: int | None = None) -> int:
        """A whole number, or an array that repeats one for every layer."""
        value = self.file.metadata.get(self.prefix + key)
        if not isinstance(value, np.ndarray):
            return self.whole(key, default)
        if len(value) == 0 or value.dtype.kind not in "iu" or not 1 <= value[0] <= 2**24:
            raise self._bad(key, "whole numbers")
        if (value != value[0]).any():
            raise UnsupportedModelError(
                f"{self.file.path}: {self.prefix}{key} differs from layer to layer, which is not supported"
            )
        return int(value[0])

    def each(self, key: str, layers: int, default: IntArray | None = None) -> IntArray:
        """[layers] a whole number, or none, for every layer: from one for all, or an array."""
        value = self.file.metadata.get(self.prefix + key)
        if value is None and default is not None:
            return default
        if isinstance(value, np.ndarray):
            if value.shape != (layers,) or value.dtype.kind not in "iu" or not (value <= 2**24).all():
                raise self._bad(key, f"{layers} whole numbers")
            return np.maximum(value.astype(np.int64), 0)
        return np.full(layers, self.whole(key, least=0))

    def number(
        self, key: str, default: float | None = None, least: float = -inf, limit: float = inf
    ) -> float:
        value = self.file.metadata.get(self.prefix + key, default)
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not least <= value <= limit:
            raise self._bad(key, "a number" if limit == inf else f"a number from {least:g} to {limit:g}")
        return float(value)

    def true(self, key: str, default: bool) -> bool:
        value = self.file.metadata.get(self.prefix + key, default)
        if not isinstance(value, bool):
            raise self._bad(key, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        value = self.file.metadata.get(self.prefix + key, default)
        if not isinstance(value, str):
            raise self._bad(key, "text")
        return value
