"""The GGUF container, versions 2 and 3: metadata and where each tensor's bytes are. Needs no torch.

    "GGUF", version u32, tensor count u64, metadata count u64
    metadata:  key string, type u32, value               strings are a u64 length and UTF-8 bytes
    tensors:   name string, dimensions u32, u64 each (the contiguous one first), type u32, offset u64
    data:      starts at the next multiple of general.alignment; offsets count from there

All of it is little-endian, and none of it is trusted: every length is compared with the bytes that are left
and with a bound of ours before anything is allocated.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, Union

import numpy as np
import xxhash
from numpy.typing import NDArray

from edgespec.errors import CorruptFileError, ModelError, StorageError, UnsupportedModelError
from edgespec.kernels.gguf_blocks import BLOCKS, BlockSize
from edgespec.offload.chunks import TensorSource

MAGIC = b"GGUF"
VERSIONS = (2, 3)
HEADER_LIMIT = 128 * 2**20  # bytes of metadata and tensor table; 256k tokens with merges take about 20 MB
VALUE_LIMIT = 2**22  # strings and arrays inside arrays, over the whole file
KEY_LIMIT = 2**16  # bytes, as the format says
NAME_LIMIT = 2**10  # bytes of a tensor's name; ggml allows 64
METADATA_LIMIT = 2**16  # keys
TENSOR_LIMIT = 2**17
DEPTH_LIMIT = 4  # arrays in arrays
ALIGNMENT_LIMIT = 2**20

Value = Union[int, float, bool, str, "NDArray[Any]", "list[Any]"]  # a list holds strings or arrays

_SCALARS = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
_BOOL, _STRING, _ARRAY = 7, 8, 9

# fmt: off
_ENCODINGS = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 11: "Q3_K", 12: "Q4_K",
    13: "Q5_K", 14: "Q6_K", 30: "BF16",
}
_FOREIGN = {  # that only llama.cpp multiplies: weights and bytes of a block
    10: ("Q2_K", 256, 84), 16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50), 20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136), 24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4),
    27: ("I64", 1, 8), 28: ("F64", 1, 8), 29: ("IQ1_M", 256, 56), 34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66), 39: ("MXFP4", 32, 17),
}
# fmt: on


@dataclass(frozen=True)
class GGUFFile:
    """One file's metadata and tensors, by GGUF's own names; shapes have the contiguous dimension last."""

    path: Path
    version: int
    metadata: dict[str, Value]
    tensors: dict[str, TensorSource]
    header_digest: bytes  # xxh3_128 of everything before the tensors' data


def read_gguf_file(path: Path, foreign: bool = False) -> GGUFFile:
    """Parse a file's header; reads no weights. foreign: tensors may be of types that only llama.cpp knows.

    Raises CorruptFileError for a file that is damaged, truncated or absurd, UnsupportedModelError for a
    version or tensor type that is not known, ModelError and StorageError when it cannot be read.
    """
    if not path.is_file():
        raise ModelError(f"{path} is not a file; give the path of a .gguf file")
    try:
        with path.open("rb") as stream:
            return _parse(path, stream, path.stat().st_size, foreign)
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error}") from None


def _parse(path: Path, stream: BinaryIO, size: int, foreign: bool) -> GGUFFile:
    reader = _GGUFReader(path, stream, size)
    if reader.take(4, "magic number") != MAGIC:
        raise CorruptFileError(f"{path} is not a GGUF file: it does not begin with the letters GGUF")
    version = reader.u32("version")
    if version & 0xFFFF == 0 and version:
        raise UnsupportedModelError(
            f"{path} is a big-endian GGUF file; only little-endian ones are supported"
        )
    if version not in VERSIONS:
        raise UnsupportedModelError(
            f"{path} is GGUF version {version}; supported are 2 and 3: convert it again"
        )
    tensor_count = reader.count("tensors", TENSOR_LIMIT)
    metadata_count = reader.count("metadata entries", METADATA_LIMIT)
    metadata: dict[str, Value] = {}
    for _ in range(metadata_count):
        key = reader.string("a metadata key", KEY_LIMIT)
        if key in metadata:
            raise reader.corrupt(f"metadata key {key!r} occurs twice")
        metadata[key] = reader.value(reader.u32(key), key)
    infos = [_tensor_info(reader, foreign) for _ in range(tensor_count)]
    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is not int or not 0 < alignment <= ALIGNMENT_LIMIT or alignment & (alignment - 1):
        raise reader.corrupt(
            f"general.alignment is {alignment!r}; expected a power of two up to {ALIGNMENT_LIMIT}"
        )
    start = -(-reader.position // alignment) * alignment
    tensors: dict[str, TensorSource] = {}
    for name, encoding, shape, offset, nbytes in infos:
        if name in tensors:
            raise reader.corrupt(f"tensor {name!r} occurs twice")
        if offset % alignment:
            raise reader.corrupt(f"tensor {name!r} is at offset {offset}, not a multiple of {alignment}")
        if start + offset + nbytes > size:
            raise reader.corrupt(f"tensor {name!r} ends at byte {start + offset + nbytes}; download it again")
        tensors[name] = TensorSource(name, encoding, shape, path, start + offset, nbytes)
    _refuse_overlaps(reader, tensors)
    return GGUFFile(path, version, metadata, tensors, reader.digest.digest())


def _tensor_info(reader: _GGUFReader, foreign: bool) -> tuple[str, str, tuple[int, ...], int, int]:
    """Name, encoding, shape, offset and bytes of the next tensor in the table."""
    name = reader.string("a tensor's name", NAME_LIMIT)
    dimensions = reader.u32(name)
    if not 1 <= dimensions <= 4:
        raise reader.corrupt(f"tensor {name!r} has {dimensions} dimensions; expected 1 to 4")
    shape = tuple(reader.u64(name) for _ in range(dimensions))[::-1]
    kind, offset = reader.u32(name), reader.u64(name)
    if kind in _ENCODINGS:
        encoding, block = _ENCODINGS[kind], BLOCKS[_ENCODINGS[kind]]
    elif foreign and kind in _FOREIGN:
        encoding, block = _FOREIGN[kind][0], BlockSize(*_FOREIGN[kind][1:])
    else:
        known = _FOREIGN[kind][0] if kind in _FOREIGN else f"number {kind}"
        raise UnsupportedModelError(
            f"{reader.path}: tensor {name!r} is of type {known}, which is not supported; "
            f"supported are {', '.join(BLOCKS)}: use for example the model's Q8_0, Q6_K or Q4_K_M file"
        )
    if 0 in shape:
        raise reader.corrupt(f"tensor {name!r} has no elements: its shape is {list(shape)}")
    if shape[-1] % block.elements:
        raise reader.corrupt(
            f"tensor {name!r} has rows of {shape[-1]}, not whole {encoding} blocks of {block.elements}"
        )
    return name, encoding, shape, offset, prod(shape) // block.elements * block.nbytes


def _refuse_overlaps(reader: _GGUFReader, tensors: dict[str, TensorSource]) -> None:
    ordered = sorted(tensors.values(), key=lambda t: t.offset)
    for before, after in pairwise(ordered):
        if before.offset + before.nbytes > after.offset:
            raise reader.corrupt(f"tensors {before.name!r} and {after.name!r} overlap")


class _GGUFReader:
    """Takes typed values off the front of a file, within what is left of it and of the header's bound."""

    def __init__(self, path: Path, stream: BinaryIO, size: int) -> None:
        self.path = path
        self.stream = stream
        self.size = size
        self.position = 0
        self.values = 0  # strings and nested arrays seen
        self.digest = xxhash.xxh3_128()

    def corrupt(self, fact: str) -> CorruptFileError:
        return CorruptFileError(f"{self.path} ({self.size} bytes) is corrupt: {fact}")

    def take(self, n: int, what: str) -> bytes:
        left = self.size - self.position
        if n > left:
            raise self.corrupt(f"{what} at byte {self.position} needs {n} bytes, and {left} are left")
        if self.position + n > HEADER_LIMIT:
            raise self.corrupt(f"its header, at {what}, passes {HEADER_LIMIT} bytes")
        data = self.stream.read(n)
        if len(data) != n:
            raise self.corrupt(f"it became shorter while {what} was read")
        self.position += n
        self.digest.update(data)
        return data

    def u32(self, what: str) -> int:
        return int.from_bytes(self.take(4, what), "little")

    def u64(self, what: str) -> int:
        return int.from_bytes(self.take(8, what), "little")

    def count(self, what: str, limit: int) -> int:
        n = self.u64(f"the number of {what}")
        if n > limit:
            raise self.corrupt(f"it claims {n} {what}; at most {limit} are accepted")
        return n

    def string(self, what: str, limit: int = HEADER_LIMIT) -> str:
        n = self.u64(what)
        if n > limit:
            raise self.corrupt(f"{what} claims a length of {n} bytes; at most {limit} are accepted")
        try:
            return self.take(n, what).decode("utf-8")
        except UnicodeDecodeError:
            raise self.corrupt(f"{what} is not valid UTF-8") from None

    def value(self, kind: int, key: str, depth: int = 0) -> Value:
        if kind in _SCALARS:
            dtype = np.dtype(_SCALARS[kind])
            scalar: Value = np.frombuffer(self.take(dtype.itemsize, key), dtype)[0].item()
            return scalar
        if kind == _BOOL:
            return bool(self._bools(1, key)[0])
        if kind == _STRING:
            return self.string(key)
        if kind == _ARRAY:
            return self._array(key, depth)
        raise self.corrupt(f"metadata {key!r} has the unknown type {kind}")

    def _array(self, key: str, depth: int) -> Value:
        if depth == DEPTH_LIMIT:
            raise self.corrupt(f"metadata {key!r} nests arrays more than {DEPTH_LIMIT} deep")
        kind = self.u32(key)
        n = self.u64(key)
        if kind in _SCALARS:
            dtype = np.dtype(_SCALARS[kind])
            return np.frombuffer(self.take(n * dtype.itemsize, key), dtype)
        if kind == _BOOL:
            return self._bools(n, key)
        if kind not in (_STRING, _ARRAY):
            raise self.corrupt(f"metadata {key!r} is an array of the unknown type {kind}")
        self.values += n
        if self.values > VALUE_LIMIT:
            raise self.corrupt(
                f"metadata {key!r} claims {n} elements; at most {VALUE_LIMIT} are accepted in all"
            )
        if kind == _STRING:
            return [self.string(key) for _ in range(n)]
        return [self._array(key, depth + 1) for _ in range(n)]

    def _bools(self, n: int, key: str) -> NDArray[np.bool_]:
        data = np.frombuffer(self.take(n, key), np.uint8)
        if (data > 1).any():
            raise self.corrupt(f"metadata {key!r} has a truth value other than 0 and 1")
        return data.astype(np.bool_)
