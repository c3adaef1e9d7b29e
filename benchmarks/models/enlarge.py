"""One matrix of a small model inside a bigger one: where its rows and columns lie, what fills the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from benchmarks.models.shapes import Shape
from edgespec.kernels.low_bit import GROUP
from edgespec.runtimes.config import ModelConfig

# What an added row or column holds: zeros, filler, or (rows only) filler but zeros in real columns.
ZERO, FILLED, SILENT = -1, -2, -3
POOL = 2**20 - 3  # numbers that filler repeats; a prime, so that rows never line up


@dataclass(frozen=True)
class Spread:
    """For each row (or column) of the big matrix: the small one's, or what is added."""

    places: Tensor  # [n] int64

    @staticmethod
    def first(small: int, big: int, added: int) -> Spread:
        """The real ones, then what is added."""
        places = torch.full((big,), added)
        places[:small] = torch.arange(small)
        return Spread(places)

    def all(self, added: int) -> Spread:
        """As many, none of them real."""
        return Spread(torch.full_like(self.places, added))


@dataclass
class Matrix:
    """The big matrix.

    An element is the small matrix's where its row and its column are real; 0 where either is `ZERO`, or
    the row is `SILENT` and the column real; filler elsewhere.
    """

    weights: Tensor  # [n, k], the small matrix
    rows: Spread
    columns: Spread
    generator: torch.Generator
    last_columns: tuple[Sequence[float], Sequence[float]] | None = None  # of real rows, of added ones
    pool: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.pool = filler(self.weights.flatten(), POOL, self.generator)
        self.at = int(torch.randint(POOL, (), generator=self.generator))
        self.real_columns = (self.columns.places >= 0).nonzero()[:, 0]
        self.zero_columns = (self.columns.places == ZERO).nonzero()[:, 0]

    def whole(self) -> Tensor:
        """[big rows, big columns]"""
        places = self.rows.places
        width = len(self.columns.places)
        out = self._filler(len(places) * width).view(len(places), width)
        out[places == ZERO] = 0
        silent = (places == SILENT).nonzero()
        out[silent, self.real_columns] = 0
        real = (places >= 0).nonzero()[:, 0]
        if len(real):
            own = self.weights[places[real]]  # [r, k]
            # Groups of the row's own numbers, so that it gets no scale that it would not have alone.
            groups = torch.randint(POOL, (len(real), -(-width // GROUP)), generator=self.generator)
            choice = (groups[:, :, None] * GROUP + torch.arange(GROUP)).flatten(1) % own.shape[1]
            rows = own.gather(1, choice[:, :width])
            rows[:, self.real_columns] = own[:, self.columns.places[self.real_columns]]
            out[real] = rows
        out[:, self.zero_columns] = 0
        if self.last_columns:
            of_real, of_added = (torch.tensor(values, dtype=out.dtype) for values in self.last_columns)
            out[:, -len(of_real) :] = torch.where((places >= 0)[:, None], of_real, of_added)
        return out

    def _filler(self, count: int) -> Tensor:
        left = count - (POOL - self.at)
        return torch.cat([self.pool[self.at :], *[self.pool] * (-(-left // POOL))])[:count]


def filler(numbers: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """[n] -> [count] of them, drawn at random."""
    return numbers[torch.randint(len(numbers), (count,), generator=generator)]


@dataclass(frozen=True)
class HeadMaps:
    """Rows of q, k and v, and columns of o."""

    q: Spread
    k: Spread
    v: Spread
    o: Spread


def head_maps(small: ModelConfig, big: Shape) -> HeadMaps:
    """Where the heads lie. Scores get nothing from added dimensions because q is 0 there."""
    e, wide = small.head_dim, big.head_dim
    step = wide // e
    shared, sharing = small.heads // small.kv_heads, big.heads // big.kv_heads
    copies = -(-shared // sharing)  # of each key-value head
    used = small.kv_heads * copies
    turned = torch.arange(e // 2) * step  # rotary pairs (i, i + half a head)
    turned = torch.cat([turned, turned + wide // 2])
    straight = torch.arange(e)  # v and o are not turned: neighbours stay neighbours

    q = torch.full((big.heads, wide), FILLED)
    k = torch.full((big.kv_heads, wide), FILLED)
    v = torch.full((big.kv_heads, wide), ZERO)
    o = torch.full((big.heads, wide), FILLED)
    for place in range(used):
        ours, copy = divmod(place, copies)
        theirs = place * big.kv_heads // used
        k[theirs, turned] = ours * e + straight
        v[theirs, straight] = ours * e + straight
        o[theirs * sharing : (theirs + 1) * sharing, :e] = ZERO  # added heads here read real values
        first = ours * shared + copy * sharing
        for i, head in enumerate(range(first, min(first + sharing, (ours + 1) * shared))):
            q[theirs * sharing + i] = ZERO
            q[theirs * sharing + i, turned] = head * e + straight
            o[theirs * sharing + i, straight] = head * e + straight
    return HeadMaps(*(Spread(m.flatten()) for m in (q, k, v, o)))


@dataclass(frozen=True)
class Guard:
    """Two constant residual channels that refuse the added tokens.

    Every embedding has `constant` there, no layer reads or changes it, and the mean square it adds is taken
    off epsilon: nothing else notices. Behind the final norm, whose two weights are opposite, they hold
    n, -n with n = 32 / rms(hidden) > 0. An added token's head row has (-B, B) there: its logit is about
    -2 B n = -2,000,000 / rms(hidden). A real token's has two equal numbers (0, or the constants themselves
    where the head is tied), which cancel.
    """

    constant: tuple[float, float]
    norm: tuple[float, float]
    eps: float
    refusal: tuple[float, float] = (-32768.0, 32768.0)

    @staticmethod
    def of(small: ModelConfig, big: Shape, dtype: torch.dtype) -> Guard:
        d, eps = small.hidden_size, small.norm_eps
        a = float(torch.tensor((d * eps / 4) ** 0.5, dtype=dtype))  # half of epsilon's share
        weight = 32 / (a * (big.hidden / d) ** 0.5)
        return Guard((a, a), (weight, -weight), (d * eps - 2 * a * a) / big.hidden)
