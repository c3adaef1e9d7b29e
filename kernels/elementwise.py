"""RMS norms, rotary embedding and SwiGLU by the compiled kernels (native/elementwise.c).

One call does what takes torch five to eight operations, 9 of a 1b model's 70 ms a token (Q4_K_M, 2 cores). A
row's bits depend on nothing but the row. Norms and SwiGLU may differ from `reference.py`, whose sum and
exponential are torch's, in the last place; rotation does not.
"""

from __future__ import annotations

import torch
from torch import Tensor

from edgespec.kernels import compiled
from edgespec.kernels.compiled import SOURCES

# Between two calls matrices pass through the caches, so that a function of torch's takes some 3 microseconds
# here, not 0.1, and the result's memory 17: as few as possible are called.
_FEW = 16384  # numbers, for which the compiled code takes one thread anyway


def suits(x: Tensor, y: Tensor) -> bool:
    """Whether the library is there, and these tensors are a CPU's, of one type that it knows."""
    return (
        x.is_cpu and y.is_cpu and x.dtype == y.dtype and x.dtype in SOURCES and compiled.library() is not None
    )


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`reference.rms_norm`; [..., d] -> [..., d]."""
    return _norm(x.contiguous(), None, weight.contiguous(), eps)


def add_norm(x: Tensor, added: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x + added, which may be in the place of `added`, and its `rms_norm`; [..., d] each."""
    assert x.shape == added.shape
    assert added.dtype == x.dtype
    total = added.contiguous()
    return total, _norm(x.contiguous(), total, weight.contiguous(), eps)


def _norm(x: Tensor, added: Tensor | None, weight: Tensor, eps: float) -> Tensor:
    library = compiled.library()
    assert library is not None
    numbers, d = x.numel(), weight.numel()
    assert d == x.shape[-1]
    out = torch.empty_like(x)
    library.es_norm(
        SOURCES[x.dtype], x.data_ptr(), None if added is None else added.data_ptr(), weight.data_ptr(), eps,
        out.data_ptr(), numbers // max(d, 1), d, 1 if numbers <= _FEW else torch.get_num_threads(),
    )  # fmt: skip
    return out


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """`reference.swiglu` of [n, f]."""
    library = compiled.library()
    assert library is not None
    n, f = gate.shape
    assert up.shape == (n, f)
    gate, up = _rows(gate), _rows(up)
    out = torch.empty((n, f), dtype=gate.dtype)
    library.es_swiglu(
        SOURCES[gate.dtype], gate.data_ptr(), gate.stride(0), up.data_ptr(), up.stride(0), out.data_ptr(),
        n, f, 1 if n * f <= _FEW else torch.get_num_threads(),
    )  # fmt: skip
    return out


def rotate(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> tuple[Tensor, Tensor]:
    """`reference.rotate` of q and k [n, heads, head_dim], in place where a row's heads lie in one piece."""
    library = compiled.library()
    assert library is not None
    n, q_heads, e = q.shape
    k_heads = k.shape[1]
    assert k.shape == (n, k_heads, e)
    assert cos.shape == sin.shape == (n, 1, e // 2)
    assert cos.dtype == sin.dtype
    assert e % 2 == 0
    q, k, cos, sin = _heads(q), _heads(k), cos.contiguous(), sin.contiguous()
    library.es_rotate(
        SOURCES[q.dtype], interleaved, q.data_ptr(), q.stride(0), q_heads, k.data_ptr(), k.stride(0), k_heads,
        cos.data_ptr(), sin.data_ptr(), n, e // 2, torch.get_num_threads(),
    )  # fmt: skip
    return q, k


def _rows(x: Tensor) -> Tensor:
    """[n, d] whose rows lie in one piece each."""
    return x if x.stride(1) == 1 else x.contiguous()


def _heads(x: Tensor) -> Tensor:
    """[n, heads, e] whose rows lie in one piece each."""
    return x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous()
