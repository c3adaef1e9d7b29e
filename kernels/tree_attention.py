"""Attention of trees' rows by the compiled kernel (native/attention.inc): each row over its own past.

Nothing is gathered: a row's keys are read where they lie. For 64 rows of a 7B shape torch's kernel, which
wants each row's keys side by side, took 0.7 to 1 s a pass, most of it copying; this takes 0.13 (2 cores). A
row's bits depend on the keys and values of its positions, and on nothing else. So rows of several
conversations, each with a cache of its own, are one call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgespec.kernels import compiled
from edgespec.kernels.compiled import SOURCES
from edgespec.kernels.scratch import at_hand, scratch

BLOCK = 64  # positions that are met at a time: native.h's KEYS
_GROUP = 32  # query heads that one head of keys may have: native.h's QUERIES

# native.h's Attention; addresses as numbers, so that a column of them is moved from layer to layer at once.
_ATTENTION = np.dtype(
    [
        ("type", "i4"), ("q", "i8"), ("out", "i8"),
        ("n", "i8"), ("heads", "i8"), ("kv_heads", "i8"), ("e", "i8"), ("q_stride", "i8"),
        ("k", "i8"), ("v", "i8"), ("head_stride", "i8"), ("shared", "i8"),
        ("own_k", "i8"), ("own_v", "i8"), ("own_stride", "i8"), ("own", "i8"),
        ("new_k", "i8"), ("new_v", "i8"), ("new_stride", "i8"),
        ("place", "i8"), ("span", "i8"), ("position", "i8"), ("window", "i8"), ("first", "i8"),
        ("scale", "f4"),
    ],
    align=True,
)  # fmt: skip


def suits(kv: Tensor) -> bool:
    """Whether these keys or values are a CPU's, of a type that the library knows, and it is there."""
    return kv.is_cpu and kv.dtype in SOURCES and compiled.library() is not None


@dataclass(frozen=True, eq=False)
class Past:
    """Rows of one cache, and where their keys lie in every layer.

    prefix: keys and values [layers, kv_heads, at least `shared`, e], of which all rows see the first `shared`
        positions, a multiple of BLOCK.
    own: the same [.., places, e] behind them.
    place: [n, span] which of `own` is a row's position `shared` + i; up to the row's own, `positions` [n].
    """

    prefix: tuple[Tensor, Tensor]
    own: tuple[Tensor, Tensor]
    shared: int
    place: NDArray[np.int32]
    positions: NDArray[np.int64]

    def __post_init__(self) -> None:
        assert self.shared % BLOCK == 0
        assert all(kv.stride()[2:] == (kv.shape[3], 1) for kv in (*self.prefix, *self.own))
        assert self.prefix[0].stride() == self.prefix[1].stride()
        assert self.own[0].stride() == self.own[1].stride()
        assert self.place.flags.c_contiguous
        assert self.positions.flags.c_contiguous
        assert int(self.positions.min()) - self.shared >= 0
        assert int(self.positions.max()) < self.shared + self.place.shape[1]


class TreeAttention:
    """The rows of a pass, cache by cache."""

    def __init__(self, pasts: Sequence[Past]) -> None:
        self.pasts = list(pasts)  # whose arrays are read
        k = self.pasts[0].prefix[0]
        self.dtype, self.kv_heads, self.e = k.dtype, k.shape[1], k.shape[3]
        assert all(past.prefix[0].dtype == k.dtype for past in pasts)
        assert all(past.prefix[0].shape[1::2] == k.shape[1::2] for past in pasts)
        self.most_heads = _GROUP * self.kv_heads
        size = k.element_size()
        self._calls = calls = np.zeros(len(self.pasts), dtype=_ATTENTION)
        calls["type"], calls["kv_heads"], calls["e"] = SOURCES[k.dtype], self.kv_heads, self.e
        calls["scale"] = self.e**-0.5
        for name, values in (
            ("n", [len(past.place) for past in self.pasts]),
            ("head_stride", [past.prefix[0].stride(1) for past in self.pasts]),
            ("shared", [past.shared for past in self.pasts]),
            ("own_stride", [past.own[0].stride(1) for past in self.pasts]),
            ("own", [past.own[0].shape[2] for past in self.pasts]),
            ("place", [past.place.ctypes.data for past in self.pasts]),
            ("span", [past.place.shape[1] for past in self.pasts]),
            ("position", [past.positions.ctypes.data for past in self.pasts]),
        ):
            calls[name] = values
        self._starts = np.array(  # [4, caches] addresses in the first layer,
            [[kv.data_ptr() for kv in (*past.prefix, *past.own)] for past in self.pasts], dtype=np.int64
        ).T
        strides = [[kv.stride(0) * size for kv in (*past.prefix, *past.own)] for past in self.pasts]
        self._steps = np.array(strides, dtype=np.int64).T  # and bytes from layer to layer
        self._before = np.cumsum(calls["n"]) - calls["n"]  # rows of the caches before each
        self.n = int(calls["n"].sum())

    def tables(self) -> tuple[NDArray[np.void], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """For `layer.LayerPass`: the calls, [caches] rows before each, and [4, caches] addresses of keys and
        values, the prefix's and the own ones, in the first layer, and bytes from layer to layer."""
        starts, steps = np.ascontiguousarray(self._starts), np.ascontiguousarray(self._steps)
        return self._calls, self._before, starts, steps

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, window: int | None) -> Tensor:
        """q [n, heads, e] -> [n, heads * e]. k, v [n, kv_heads, e], the rows' own, are stored first."""
        library = compiled.library()
        assert library is not None
        n, heads, e = q.shape
        assert q.dtype == k.dtype == v.dtype == self.dtype
        assert (n, e) == (self.n, self.e)
        assert k.shape == v.shape == (n, self.kv_heads, e)
        assert heads <= self.most_heads
        q, k, v = (_by_rows(each) for each in (q, k, v))
        if k.stride(0) != v.stride(0):
            k, v = k.contiguous(), v.contiguous()
        out = torch.empty((n, heads * e), dtype=q.dtype)
        calls, size = self._calls, q.element_size()
        calls["heads"], calls["q_stride"], calls["new_stride"] = heads, q.stride(0), k.stride(0)
        calls["window"] = window or 0
        calls["q"] = q.data_ptr() + self._before * (q.stride(0) * size)
        calls["out"] = out.data_ptr() + self._before * (heads * e * size)
        calls["new_k"] = k.data_ptr() + self._before * (k.stride(0) * size)
        calls["new_v"] = v.data_ptr() + self._before * (k.stride(0) * size)
        calls["k"], calls["v"], calls["own_k"], calls["own_v"] = self._starts + layer * self._steps
        room, threads = at_hand("attention"), torch.get_num_threads()
        where, count, have = calls.ctypes.data, len(calls), room.numel()
        if (needed := library.es_attend(where, count, threads, room.data_ptr(), have)) > have:
            more = scratch("attention", (needed,), torch.uint8)
            library.es_attend(where, count, threads, more.data_ptr(), needed)
        return out


def _by_rows(x: Tensor) -> Tensor:
    """[n, heads, e], the heads of a row side by side."""
    return x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous()
