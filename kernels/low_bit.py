"""Sizes of the low-bit weight formats that `quantize` defines. Needs no torch."""

from __future__ import annotations

GROUP = 64  # neighbouring columns that share one int4 multiplier


def padded_columns(k: int) -> int:
    """Columns that an int4 row of k weights is stored with: the next multiple of GROUP."""
    return -(-k // GROUP) * GROUP


def int4_row_bytes(k: int) -> int:
    """Bytes of an int4 row of k weights: two to a byte, one multiplier a group, a multiple of 8."""
    columns = padded_columns(k)
    return -(-(columns // 2 + columns // GROUP) // 8) * 8
