"""The messages of an ONNX file that are written here, as protocol buffers. Needs neither torch nor `onnx`.

Numbers of fields are those of onnx.proto. Same arguments, same bytes: what is written can be compared.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence

FLOAT, UINT8, INT64, FLOAT16 = 1, 2, 7, 10  # types of a tensor's elements
ELEMENTS = {"F32": FLOAT, "F16": FLOAT16, "U8": UINT8, "I64": INT64}  # by their names in safetensors
_EXTERNAL = 1  # the place of a tensor's data

Attribute = int | float | Sequence[int]


def node(
    kind: str,
    inputs: Iterable[str],
    outputs: Iterable[str],
    name: str,
    attributes: Mapping[str, Attribute],
) -> bytes:
    """An operation."""
    parts = [_texts(1, inputs), _texts(2, outputs), _texts(3, [name]), _texts(4, [kind])]
    parts += [_bytes(5, _attribute(key, value)) for key, value in attributes.items()]
    return b"".join(parts)


def constant(name: str, encoding: str, shape: Sequence[int], raw: bytes) -> bytes:
    """A tensor in the file itself, little-endian."""
    return _tensor(name, encoding, shape) + _bytes(9, raw)


def external(name: str, encoding: str, shape: Sequence[int], file: str, offset: int, nbytes: int) -> bytes:
    """A tensor whose `nbytes` bytes lie at `offset` of a file beside."""
    place = {"location": file, "offset": str(offset), "length": str(nbytes)}
    entries = [_bytes(13, _texts(1, [key]) + _texts(2, [value])) for key, value in place.items()]
    return b"".join([_tensor(name, encoding, shape), *entries, _number(14, _EXTERNAL)])


def value(name: str, encoding: str, shape: Sequence[int | str]) -> bytes:
    """What goes in or out; an axis is its length, or a name where that may differ."""
    axes = (_number(1, axis) if isinstance(axis, int) else _texts(2, [axis]) for axis in shape)
    tensor = _number(1, ELEMENTS[encoding]) + _bytes(2, b"".join(_bytes(1, axis) for axis in axes))
    return _texts(1, [name]) + _bytes(2, _bytes(1, tensor))


def model(
    name: str,
    nodes: Iterable[bytes],
    tensors: Iterable[bytes],
    inputs: Iterable[bytes],
    outputs: Iterable[bytes],
    ir_version: int,
    opset: int,
) -> bytes:
    """A whole file, of ONNX's own operations."""
    graph = [*(_bytes(1, n) for n in nodes), _texts(2, [name]), *(_bytes(5, t) for t in tensors)]
    graph += [*(_bytes(11, i) for i in inputs), *(_bytes(12, o) for o in outputs)]
    opsets = _bytes(8, _texts(1, [""]) + _number(2, opset))
    parts = [_number(1, ir_version), _texts(2, ["edgespec"]), _bytes(7, b"".join(graph)), opsets]
    return b"".join(parts)


def _tensor(name: str, encoding: str, shape: Sequence[int]) -> bytes:
    axes = b"".join(_number(1, axis) for axis in shape)
    return axes + _number(2, ELEMENTS[encoding]) + _texts(8, [name])


def _attribute(name: str, value: Attribute) -> bytes:
    named = _texts(1, [name])
    if isinstance(value, float):
        return named + _varint(2 << 3 | 5) + struct.pack("<f", value) + _number(20, 1)
    if isinstance(value, int):
        return named + _number(3, value) + _number(20, 2)
    return named + b"".join(_number(8, item) for item in value) + _number(20, 7)


def _texts(field: int, texts: Iterable[str]) -> bytes:
    return b"".join(_bytes(field, text.encode()) for text in texts)


def _bytes(field: int, data: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first; negative numbers as of 64 bits."""
    value &= 2**64 - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])
