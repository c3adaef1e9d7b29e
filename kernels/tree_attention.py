"""Attention of trees' rows by the compiled kernel (native/attention.inc): each row over its own past.

Nothing is gathered: a row's keys are read where they lie. For 64 rows of a 7B shape torch's kernel, which
wants each row's keys side by side, took 0.7 to 1 s a pass, most of it copying; this takes 0.13 (2 cores). A
row's bits depend on the keys and values of its positions, and on nothing else. So rows of several
conversations, each with a cache of its own, are one call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgespec.kernels import compiled
from edgespec.kernels.compiled import SOURCES
from edgespec.kernels.scratch import at_hand, scratch

BLOCK = 64  # positions that are met at a time: native.h's KEYS
GROUP = 32  # query heads that one head of keys may have: native.h's QUERIES

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


class Past(NamedTuple):
    """Rows of one cache, and where their keys lie in every layer.

    prefix: keys and values [layers, kv_heads, at least `shared`, e], of which all rows see the first `shared`
        positions, a multiple of BLOCK.
    own: the same [.., places, e], of which those `behind` follow the prefix.
    place: [n, span] which of these is a row's position `shared` + i; up to the row's own, `positions` [n].
    """

    prefix: tuple[Tensor, Tensor]
    own: tuple[Tensor, Tensor]
    behind: range
    shared: int
    place: NDArray[np.int32]
    positions: NDArray[np.int64]


class TreeAttention:
    """The rows of a pass, cache by cache."""

    def __init__(self, pasts: Sequence[Past]) -> None:
        self.pasts = list(pasts)  # whose arrays are read
        k = self.pasts[0].prefix[0]
        self.dtype, self.kv_heads, self.e = k.dtype, k.shape[1], k.shape[3]
        self.most_heads = GROUP * self.kv_heads
        size = k.element_size()
        self._calls = calls = np.zeros(len(self.pasts), dtype=_ATTENTION)
        calls["type"], calls["kv_heads"], calls["e"] = SOURCES[k.dtype], self.kv_heads, self.e
        calls["scale"] = self.e**-0.5
        calls["n"], calls["span"] = np.array([past.place.shape for past in self.pasts]).T
        calls["place"] = [past.place.ctypes.data for past in self.pasts]
        calls["position"] = [past.positions.ctypes.data for past in self.pasts]
        calls["shared"] = [past.shared for past in self.pasts]
        calls["own"] = [len(past.behind) for past in self.pasts]
        self.n = int(calls["n"].sum())
        self._before = np.cumsum(calls["n"]) - calls["n"]  # rows of the caches before each
        self._check_positions()
        lie = []
        for past in self.pasts:
            own = self._where(past.own)
            lie.append((own if past.prefix[0] is past.own[0] else self._where(past.prefix), own))
        prefix, own = np.array(lie, dtype=np.int64).transpose(1, 2, 0)  # [4, caches] each
        calls["head_stride"], calls["own_stride"] = prefix[3], own[3]
        own[:2] += np.array([past.behind.start * self.e * size for past in self.pasts])
        self._starts = np.concatenate([prefix[:2], own[:2]])  # [4, caches] addresses in the first layer,
        self._steps = np.stack([prefix[2], prefix[2], own[2], own[2]]) * size  # and bytes from layer to layer

    def _check_positions(self) -> None:
        """Whatever lies where a row is to look, and to store its own, is its cache's."""
        calls = self._calls
        for past in self.pasts:
            place, positions = past.place, past.positions
            assert place.dtype == np.int32
            assert positions.dtype == np.int64
            assert place.flags.c_contiguous
            assert positions.flags.c_contiguous
            assert len(place) == len(positions)
            assert past.shared % BLOCK == 0
            assert past.shared <= past.prefix[0].shape[2]
            assert 0 <= past.behind.start <= past.behind.stop <= past.own[0].shape[2]
        behind = np.concatenate([past.positions for past in self.pasts]) - np.repeat(
            calls["shared"], calls["n"]
        )
        assert behind.min() >= 0
        assert np.all(behind < np.repeat(calls["span"], calls["n"]))
        ends = np.cumsum([past.place.size for past in self.pasts])
        places = np.concatenate([past.place.ravel() for past in self.pasts])
        assert np.all(
            np.maximum.reduceat(places, ends - [past.place.size for past in self.pasts]) < calls["own"]
        )

    def _where(self, kv: tuple[Tensor, Tensor]) -> tuple[int, int, int, int]:
        """Addresses of keys and values, and numbers from layer to layer and from head to head."""
        k, v = kv
        layer, head, *rest = strides = k.stride()
        assert v.stride() == strides
        assert rest == [self.e, 1]
        assert k.dtype == v.dtype == self.dtype
        assert k.shape[1::2] == (self.kv_heads, self.e)
        return k.data_ptr(), v.data_ptr(), layer, head

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
