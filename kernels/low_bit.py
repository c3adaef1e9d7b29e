"""Sizes of the low-bit weight formats that `quantize` defines. Needs no torch."""

from __future__ import annotations

GROUP = 64  # neighbouring columns that share one int4 multiplier
DRAFT_ROWS = 16  # rows that int4 weights are arranged for drafting by


def padded_columns(k: int) -> int:
    """Columns that an int4 row of k weights is stored with: the next multiple of GROUP."""
    return -(-k // GROUP) * GROUP


def int4_row_bytes(k: int) -> int:
    """Bytes of an int4 row of k weights: two to a byte, one multiplier a group, a multiple of 8."""
    columns = padded_columns(k)
    return -(-(columns // 2 + columns // GROUP) // 8) * 8


def draft_bytes(rows: int, k: int) -> int:
    """Bytes of int4 rows of k weights, with their scales, in memory for drafting (`Block.for_drafting`)."""
    columns = padded_columns(k)
    arranged = rows % DRAFT_ROWS == 0
    return rows * (columns // 2 + 4 * columns // GROUP if arranged else int4_row_bytes(k) + 4)
