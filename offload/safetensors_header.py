"""The header of a safetensors file: read as hostile input, and written.

    8 bytes: header length N, little-endian | N bytes: JSON {name: {dtype, shape, data_offsets}} | data

`data_offsets` count from the data's first byte. The format demands that the tensors cover the data without
overlap or gap, and so does `read_header`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgespec.errors import CorruptFileError, ModelError, StorageError, UnsupportedModelError
from edgespec.offload.chunks import PAGE, TensorSource
from edgespec.offload.strict_json import parse_object

HEADER_LIMIT = 25 * 10**6  # bytes; 10,000 layers need half of it (the format's own limit is 100 MB)

DTYPE_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
    "I16": 2, "U16": 2, "F16": 2, "BF16": 2,
    "I32": 4, "U32": 4, "F32": 4,
    "I64": 8, "U64": 8, "F64": 8, "C64": 8,
}  # fmt: skip


def read_header(path: Path) -> tuple[dict[str, TensorSource], bytes]:
    """The tensors of one safetensors file by name, and the header's bytes.

    Every byte range lies within the file and holds exactly its tensor. Raises ModelError when the file is
    missing, CorruptFileError when it is truncated or its header is not sound, UnsupportedModelError for an
    unknown dtype, StorageError when it cannot be read.
    """
    if not path.is_file():  # nor a pipe that would never end
        raise ModelError(f"{path} is missing; fetch the model again")
    try:
        with open(path, "rb") as file:
            size = path.stat().st_size
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or not 2 <= length <= size - 8:
                raise CorruptFileError(
                    f"{path} is truncated or not a safetensors file: its header should take {length} bytes, "
                    f"the file has {size}; fetch it again"
                )
            if length > HEADER_LIMIT:
                raise CorruptFileError(
                    f"{path}: a header of {length} bytes is past the limit of {HEADER_LIMIT}"
                )
            raw = file.read(length)
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}") from None
    if len(raw) != length or not raw.startswith(b"{"):
        raise CorruptFileError(f"{path}: the header does not begin as JSON does; fetch the file again")
    table = parse_object(raw, f"the header of {path}")
    table.pop("__metadata__", None)
    start = 8 + length
    tensors = {name: _tensor(path, start, name, entry) for name, entry in table.items()}
    _check_cover(path, start, size, tensors)
    return tensors, raw


def _tensor(path: Path, start: int, name: str, entry: Any) -> TensorSource:
    where = f"{path}: tensor {name[:200]!r}"
    if not isinstance(entry, dict):
        raise CorruptFileError(f"{where} is not described by a JSON object")
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
        raise UnsupportedModelError(f"{where} has the unknown dtype {str(dtype)[:40]!r}")
    if not isinstance(shape, list) or len(shape) > 16 or not all(map(_natural, shape)):
        raise CorruptFileError(f"{where} has the shape {str(shape)[:100]}")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_natural, offsets)):
        raise CorruptFileError(f"{where} has the data_offsets {str(offsets)[:100]}")
    nbytes = DTYPE_BYTES[dtype]
    for n in shape:
        nbytes *= n
    begin, end = offsets
    if end - begin != nbytes:
        raise CorruptFileError(
            f"{where} ({dtype} {shape}) needs {nbytes} bytes, its data_offsets {offsets} span {end - begin}"
        )
    return TensorSource(name, dtype, tuple(shape), path, start + begin, nbytes)


def _natural(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _check_cover(path: Path, start: int, size: int, tensors: dict[str, TensorSource]) -> None:
    place, previous = start, "the header"
    for tensor in sorted(tensors.values(), key=lambda t: (t.offset, t.nbytes)):
        if tensor.offset != place:
            fault = "overlaps" if tensor.offset < place else "leaves a gap after"
            raise CorruptFileError(f"{path}: tensor {tensor.name[:200]!r} {fault} {previous[:200]!r}")
        place, previous = tensor.offset + tensor.nbytes, tensor.name
    if place != size:
        fault = "is truncated" if place > size else "has bytes that belong to no tensor"
        raise CorruptFileError(f"{path} {fault}: it should have {place} bytes and has {size}; fetch it again")


@dataclass(frozen=True, slots=True)
class HeaderEntry:
    """One tensor to be written: `nbytes` bytes at `offset` of the data."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


def build_header(entries: Iterable[HeaderEntry]) -> bytes:
    """The first bytes of a safetensors file, padded with spaces to whole pages, where data begins."""
    table = {
        e.name: {"dtype": e.dtype, "shape": e.shape, "data_offsets": [e.offset, e.offset + e.nbytes]}
        for e in entries
    }
    text = json.dumps(table, separators=(",", ":")).encode()
    padded = text.ljust(-(-(8 + len(text)) // PAGE) * PAGE - 8)
    return len(padded).to_bytes(8, "little") + padded
