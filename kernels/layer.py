"""Decoder layers whose matrices all stay in memory, several in one call (native/layer.c).

Of a 1b model's time at 4 bits Python takes a fifth where a layer's ten functions are called one by one, and
1 % where layers are: weights have driven what it needs out of the caches. The bits are the same.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from edgespec.kernels import compiled
from edgespec.kernels.compiled import SOURCES, Matrices
from edgespec.kernels.scratch import at_hand, scratch
from edgespec.kernels.tree_attention import TreeAttention

_P, _N = ctypes.c_void_p, ctypes.c_int64
NORMS = ("input_norm", "q_norm", "k_norm", "after_norm")
BIASES = ("q_bias", "k_bias", "v_bias", "o_bias", "gate_bias", "up_bias", "down_bias")


class _Product(ctypes.Structure):
    """layer.c's Product."""

    _fields_ = (("blocks", _P), ("count", _N), ("columns", _N))


class _Layer(ctypes.Structure):
    """layer.c's Layer."""

    _fields_ = (
        ("qkv", _Product), ("o", _Product), ("gate_up", _Product), ("down", _Product),
        *((name, _P) for name in NORMS + BIASES),
        ("d", _N), ("heads", _N), ("kv_heads", _N), ("e", _N), ("inner", _N),
        ("interleaved", _N), ("window", _N), ("eps", ctypes.c_double),
    )  # fmt: skip


class _Pass(ctypes.Structure):
    """layer.c's Pass."""

    _fields_ = (
        ("type", _N), ("n", _N), ("threads", _N), ("cos", _P), ("sin", _P), ("trees", _P), ("count", _N),
        ("before", _P), ("starts", _P), ("steps", _P),
    )  # fmt: skip


@dataclass(frozen=True)
class LayerShape:
    """d: of a row; inner: the MLP's width; window: positions that are attended to, None = all."""

    d: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    interleaved: bool
    window: int | None
    eps: float


class LayerPass:
    """What all layers of a pass share: rows of trees, and their cosines and sines [n, 1, head_dim / 2]."""

    def __init__(self, attention: TreeAttention, cos: Tensor, sin: Tensor) -> None:
        assert cos.shape == sin.shape == (attention.n, 1, attention.e // 2)
        assert cos.dtype == sin.dtype == attention.dtype
        self.attention = attention
        self.angles = cos.contiguous(), sin.contiguous()
        cos, sin = self.angles
        calls, before, starts, steps = attention.tables()
        self._tables = calls, before, starts, steps  # whose addresses follow
        self.described = _Pass(
            SOURCES[cos.dtype], attention.n, 1, cos.data_ptr(), sin.data_ptr(), calls.ctypes.data, len(calls),
            before.ctypes.data, starts.ctypes.data, steps.ctypes.data,
        )  # fmt: skip


class WholeLayer:
    """One layer's matrices and vectors."""

    def __init__(
        self, products: Sequence[Matrices], vectors: Mapping[str, Tensor], shape: LayerShape
    ) -> None:
        """products: q, k and v; o; gate and up; down. vectors: by the names in NORMS and BIASES, those that
        there are, of one type."""
        q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        d, f = shape.d, shape.inner
        assert [each.rows for each in products] == [[q, kv, kv], [d], [f, f], [d]]
        assert [each.columns for each in products] == [d, q, d, f]
        self.shape, self.products = shape, list(products)
        self.weights = sum(sum(each.rows) * each.columns for each in products)
        self.vectors = {name: vector.contiguous() for name, vector in vectors.items()}
        (self.dtype,) = {vector.dtype for vector in vectors.values()}
        e, names = shape.head_dim, NORMS + BIASES
        lengths = dict(zip(names, (d, e, e, d, q, kv, kv, d, f, f, d), strict=True))
        assert all(vector.shape == (lengths[name],) for name, vector in vectors.items())
        described = [
            _Product(ctypes.addressof(each.described), len(each.places), each.columns) for each in products
        ]
        addresses = [self.vectors[name].data_ptr() if name in vectors else None for name in names]
        self.described = _Layer(
            *described, *addresses, d, shape.heads, shape.kv_heads, shape.head_dim, f, shape.interleaved,
            shape.window or 0, shape.eps,
        )  # fmt: skip


def run_layers(layers: Sequence[WholeLayer], first: int, hidden: Tensor, shared: LayerPass) -> Tensor:
    """[n, d] -> [n, d], one after the other, as layers `first` and on of the rows' caches, where their keys
    and values are put."""
    library = compiled.library()
    assert library is not None
    assert layers
    attention = shared.attention
    for layer in layers:
        assert hidden.shape == (attention.n, layer.shape.d)
        assert hidden.dtype == attention.dtype == layer.dtype
        assert (attention.kv_heads, attention.e) == (layer.shape.kv_heads, layer.shape.head_dim)
    hidden = hidden.contiguous()
    out = torch.empty_like(hidden)
    spare = torch.empty_like(hidden) if len(layers) > 1 else out
    shared.described.threads = torch.get_num_threads()
    these = (_P * len(layers))(*(ctypes.addressof(layer.described) for layer in layers))
    call = (
        ctypes.addressof(these), len(layers), ctypes.addressof(shared.described), first,
        hidden.data_ptr(), out.data_ptr(), spare.data_ptr(),
    )  # fmt: skip
    room = at_hand("matmul")
    have = room.numel()
    while (needed := library.es_layers(*call, room.data_ptr(), have)) > have:
        room, have = scratch("matmul", (needed,), torch.uint8), needed  # it went as far as there was room
    return out
