"""Sizes of the low-bit formats that `quantize` defines, and of rows in any encoding. Needs no torch."""

from __future__ import annotations

from edgespec.kernels.gguf_blocks import BLOCKS, row_bytes

GROUP = 64  # neighbouring columns that share one int4 multiplier


def padded_columns(k: int) -> int:
    """Columns that an int4 row of k weights is stored with: the next multiple of GROUP."""
    return -(-k // GROUP) * GROUP


def int4_row_bytes(k: int) -> int:
    """Bytes of an int4 row of k weights: two to a byte, one multiplier a group, a multiple of 8."""
    columns = padded_columns(k)
    return -(-(columns // 2 + columns // GROUP) // 8) * 8


def stored_row_bytes(encoding: str, columns: int) -> int:
    """Bytes of a row of so many weights in any encoding. Raises ValueError for an unknown one, or broken
    blocks."""
    if encoding == "I8":
        return columns
    if encoding == "U8":
        return int4_row_bytes(columns)
    if encoding not in BLOCKS:
        raise ValueError(f"encoding {encoding!r} is unknown")
    return row_bytes(encoding, columns)
