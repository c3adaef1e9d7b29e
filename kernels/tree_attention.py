"""Attention of a tree's rows by the compiled kernel (native/attention.inc): each row over its own past.

Nothing is gathered: a row's keys are read where they lie. For 64 rows of a 7B shape torch's kernel, which
wants each row's keys side by side, took 0.7 to 1 s a pass, most of it copying; this takes 0.13 (2 cores). A
row's bits depend on the keys and values of its positions, and on nothing else.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from edgespec.kernels import compiled
from edgespec.kernels.compiled import SOURCES
from edgespec.kernels.scratch import at_hand, scratch

BLOCK = 64  # positions that are met at a time: native.h's KEYS
_GROUP = 32  # query heads that one head of keys may have: native.h's QUERIES
_P, _N = ctypes.c_void_p, ctypes.c_int64


class _Attention(ctypes.Structure):
    """native.h's Attention."""

    _fields_ = (
        ("type", ctypes.c_int), ("q", _P), ("out", _P),
        ("n", _N), ("heads", _N), ("kv_heads", _N), ("e", _N), ("q_stride", _N),
        ("k", _P), ("v", _P), ("head_stride", _N), ("shared", _N),
        ("own_k", _P), ("own_v", _P), ("own_stride", _N), ("own", _N),
        ("place", _P), ("span", _N), ("position", _P), ("window", _N), ("scale", ctypes.c_float),
    )  # fmt: skip


def suits(kv: Tensor) -> bool:
    """Whether these keys or values are a CPU's, of a type that the library knows, and it is there."""
    return kv.is_cpu and kv.dtype in SOURCES and compiled.library() is not None


class TreeAttention:
    """A pass's rows, and where their keys lie in every layer.

    prefix: keys and values [layers, kv_heads, at least `shared`, e], of which all rows see the first `shared`
        positions, a multiple of BLOCK.
    own: the same [.., places, e] behind them.
    place: [n, span] which of `own` is a row's position `shared` + i; up to the row's own, `positions` [n].
    """

    def __init__(
        self,
        prefix: tuple[Tensor, Tensor],
        own: tuple[Tensor, Tensor],
        shared: int,
        place: Tensor,
        positions: Tensor,
    ) -> None:
        assert shared % BLOCK == 0
        assert all(kv.stride()[2:] == (kv.shape[3], 1) for kv in (*prefix, *own))
        self.prefix, self.own = prefix, own
        self.place = place.to(torch.int32).contiguous()
        self.positions = positions.to(torch.int64).contiguous()
        assert int(self.positions.min()) - shared >= 0
        assert int(self.positions.max()) < shared + place.shape[1]
        k, first = prefix[0], own[0]
        assert prefix[0].stride() == prefix[1].stride()
        assert own[0].stride() == own[1].stride()
        self.kv_heads, self.e = k.shape[1], k.shape[3]
        self.most_heads = _GROUP * self.kv_heads
        size = k.element_size()
        self._steps = k.stride(0) * size, first.stride(0) * size  # bytes from layer to layer
        self._starts = [kv.data_ptr() for kv in (*prefix, *own)]
        self._call = _Attention(
            type=SOURCES[k.dtype], n=len(place), kv_heads=self.kv_heads, e=self.e, head_stride=k.stride(1),
            shared=shared, own_stride=first.stride(1), own=first.shape[2], place=self.place.data_ptr(),
            span=place.shape[1], position=self.positions.data_ptr(), scale=self.e**-0.5,
        )  # fmt: skip

    def __call__(self, layer: int, q: Tensor, window: int | None) -> Tensor:
        """q [n, heads, e] -> [n, heads * e]."""
        library = compiled.library()
        assert library is not None
        n, heads, e = q.shape
        assert q.dtype == self.prefix[0].dtype
        assert (n, e) == (len(self.positions), self.e)
        assert heads <= self.most_heads
        if q.stride(2) != 1 or q.stride(1) != e:
            q = q.contiguous()
        out = torch.empty((n, heads * e), dtype=q.dtype)
        call, (step, own_step), (k, v, own_k, own_v) = self._call, self._steps, self._starts
        call.q, call.out, call.heads, call.q_stride = q.data_ptr(), out.data_ptr(), heads, q.stride(0)
        call.k, call.v = k + layer * step, v + layer * step
        call.own_k, call.own_v = own_k + layer * own_step, own_v + layer * own_step
        call.window = window or 0
        room, threads = at_hand("attention"), torch.get_num_threads()
        size = room.numel()
        if (needed := library.es_attend(ctypes.byref(call), threads, room.data_ptr(), size)) > size:
            more = scratch("attention", (needed,), torch.uint8)
            library.es_attend(ctypes.byref(call), threads, more.data_ptr(), needed)
        return out
