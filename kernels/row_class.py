"""How many rows may share a matmul without changing each other's bits.

torch (oneDNN, MKL) picks another algorithm, and with it other last bits, for another number of rows. Inside
one *row class* the bits agree. Speculative text can only equal plain text bit for bit if every pass stays
within one class, whatever the size of its tree. Classes differ by shape, type and machine, so they are
measured on the model's own shapes (docs/exactness.md).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from edgespec.kernels.cpu import multiply

COUNTS: tuple[int, ...] = (
    1,
    2,
    3,
    4,
    5,
    7,
    8,
    9,
    12,
    15,
    16,
    17,
    20,
    24,
    28,
    31,
    32,
    33,
    36,
    40,
    48,
    56,
    63,
    64,
)
COUNTS += (65, 80, 96, 100, 127, 128, 160, 192, 255, 256)
ENOUGH = 32  # a block this large is worth stopping at: beyond it AMX gains little, padding costs more


@dataclass(frozen=True)
class RowClass:
    """Matmuls of `pad` to `block` rows give each row the same bits."""

    pad: int
    block: int


# By shape, type and number of threads; whoever remembers classes may fill it.
KNOWN: dict[tuple[int, int, torch.dtype, int], RowClass] = {}


def row_class(out: int, inner: int, dtype: torch.dtype) -> RowClass:
    """The class for weights [out, inner]; measured when it is not known yet."""
    key = (out, inner, dtype, torch.get_num_threads())
    if key not in KNOWN:
        KNOWN[key] = measure(out, inner, dtype)
    return KNOWN[key]


def measure(out: int, inner: int, dtype: torch.dtype) -> RowClass:
    """The least padding that allows `ENOUGH` rows, else whichever allows the most rows."""
    best = RowClass(1, 1)
    results = _Results(out, inner, dtype)
    for pad in (1, 2, 4, 8, 16):
        block = pad
        for n in (c for c in COUNTS if c > pad):
            if not results.agree(n, pad):
                break
            block = n
        if block > best.block:
            best = RowClass(pad, block)
        if best.block >= ENOUGH:
            break
    return best


class _Results:
    """One row multiplied as all of `n` rows, for any n (every place counts: remainders are treated apart).

    The row is [a, shuffled a] and the weights [b, -shuffled b], so the exact result is 0 and what is left is
    rounding alone: any change in the order of the sums shows in nearly every element. (With plain random
    numbers rounding to bf16 hides the change in all but one of hundreds of elements.)
    """

    def __init__(self, out: int, inner: int, dtype: torch.dtype) -> None:
        generator = torch.Generator().manual_seed(0)
        half = inner // 2
        order = torch.randperm(half, generator=generator)
        b = torch.randn(min(out, 64), half, generator=generator).to(dtype)
        # Repeating a few rows is enough: the choice of algorithm depends on the shape, not the numbers.
        rows = F.pad(torch.cat([b, -b[:, order]], dim=1), (0, inner % 2))
        a = torch.randn(half, generator=generator).to(dtype)
        self.weight = rows.repeat(-(-out // 64), 1)[:out]  # [out, inner]
        self.row = F.pad(torch.cat([a, a[order]]), (0, inner % 2))  # [inner]
        self.known: dict[int, Tensor] = {}

    def __call__(self, n: int) -> Tensor:
        """[n, out], of which all rows should be equal."""
        if n not in self.known:
            self.known[n] = multiply(self.row.repeat(n, 1), self.weight)
        return self.known[n]

    def agree(self, n: int, m: int) -> bool:
        """Whether all rows of n and of m rows are equal."""
        first = self(m)[:1]
        return torch.equal(self(n), first.expand(n, -1)) and torch.equal(self(m), first.expand(m, -1))
