"""What trained drafters are built of: each part trains on whole sequences, and runs on rows of a pass.

`forward` is differentiable and computes in the type of its input, whatever the parameters' own; `run` has no
gradient and takes the kernels that the target takes. Both compute the same function. Attention has the
target's head counts and rotary embedding, the MLP its width; there are no biases. Parameters start
uninitialised.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated

import msgspec
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edgespec.kernels import dispatch
from edgespec.kernels.matmul import Block, Together, linear
from edgespec.kernels.reference import rms_norm, rotate
from edgespec.runtimes.base import IntArray
from edgespec.runtimes.config import ModelConfig
from edgespec.runtimes.formats.needs import cache_bytes
from edgespec.runtimes.rows import Rows
from edgespec.runtimes.torch.attention import AttentionPlan
from edgespec.runtimes.torch.kv_cache import TorchKVCache
from edgespec.runtimes.torch.rope import RopeTable

CPU = torch.device("cpu")
_ENCODINGS = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}

Shapes = dict[str, tuple[int, ...]]
Width = Annotated[int, msgspec.Meta(ge=1, le=2**20)]  # of an MLP, as a manifest may have it


class Multiplying(nn.Module):
    """Rows are multiplied with its parameters by the target's kernels."""

    def __init__(self) -> None:
        super().__init__()
        self._products: dict[tuple[str, ...], tuple[list[int], list[Block], Together]] = {}

    def times(self, x: Tensor, exact: bool, *names: str) -> list[Tensor]:
        """x [n, in] times the parameters called `names` [out, in], of x's type -> [n, out] each; in one call
        where the kernels do that."""
        weights = [getattr(self, name) for name in names]
        places = [weight.data_ptr() for weight in weights]
        known = self._products.get(names)
        if known is None or known[0] != places:  # parameters were moved since
            blocks = [_block(weight) for weight in weights]
            together = Together({name: [block] for name, block in zip(names, blocks, strict=True)})
            known = self._products[names] = places, blocks, together
        _, blocks, together = known
        if (matrices := together.call(names, x, exact)) is not None:
            return matrices.times(x, x.dtype)
        return [linear(x, block, exact) for block in blocks]


def _block(weight: Tensor) -> Block:
    out, inner = weight.shape
    return Block(_ENCODINGS[weight.dtype], weight, scale=None, rows=out, inner=inner)


def add_parameters(module: nn.Module, shapes: Shapes, dtype: torch.dtype, device: torch.device) -> None:
    """Uninitialised ones, by name."""
    for name, shape in shapes.items():
        module.register_parameter(name, nn.Parameter(torch.empty(shape, dtype=dtype, device=device)))


@torch.no_grad()
def fill_randomly(matrix: Tensor, generator: torch.Generator) -> None:
    """[out, in]: so that a product has the size of what is multiplied."""
    matrix.copy_(torch.randn(matrix.shape, generator=generator) * matrix.shape[-1] ** -0.5)


class SequenceAttention(Multiplying):
    """y = x + Attention(RMSNorm(x)), of whole sequences."""

    input_norm: nn.Parameter  # [d]
    q_proj: nn.Parameter  # [heads * head_dim, d]
    k_proj: nn.Parameter  # [kv_heads * head_dim, d]
    v_proj: nn.Parameter  # [kv_heads * head_dim, d]
    o_proj: nn.Parameter  # [d, heads * head_dim]

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> None:
        """config: the target's."""
        super().__init__()
        self.config = one_layer(config)
        self.rope = RopeTable(config.rope, config.head_dim, device)
        add_parameters(self, attention_shapes(config), dtype, device)

    def attend(
        self, hidden: Tensor, causal: bool, mask: Tensor | None = None, positions: IntArray | None = None
    ) -> Tensor:
        """Sequences from position 0 on, or at `positions` [t], [b, t, d] -> [b, t, d]; each sees all others,
        or itself and those before it (`causal`), or what `mask` [t, t] has. Differentiable."""
        dtype = hidden.dtype
        x = rms_norm(hidden, self.input_norm.to(dtype), self.config.norm_eps)
        qkv = [F.linear(x, matrix.to(dtype)) for matrix in (self.q_proj, self.k_proj, self.v_proj)]
        attended = self.mixed(qkv, positions, mask, causal and mask is None)
        return hidden + F.linear(attended, self.o_proj.to(dtype))

    def mixed(
        self, qkv: Sequence[Tensor], positions: IntArray | None, mask: Tensor | None, causal: bool
    ) -> Tensor:
        """q, k, v of sequences, [b, t, their heads * head_dim] -> [b, t, heads * head_dim]; what is seen as
        `attend` has it."""
        c, t = self.config, qkv[0].shape[1]
        cos, sin = self.rope(np.arange(t) if positions is None else positions)
        angles = cos[:, None].to(qkv[0].dtype), sin[:, None].to(qkv[0].dtype)  # [t, 1, head_dim / 2]
        q, k, v = (part.view(*part.shape[:2], -1, c.head_dim) for part in qkv)
        q, k = rotate(q, *angles, c.rope.interleaved), rotate(k, *angles, c.rope.interleaved)
        out = F.scaled_dot_product_attention(
            q.transpose(1, 2),
            k.transpose(1, 2),
            v.transpose(1, 2),
            attn_mask=mask,
            is_causal=causal,
            enable_gqa=c.heads > c.kv_heads,
        )  # [b, heads, t, head_dim]
        return out.transpose(1, 2).flatten(2)


class CausalAttention(SequenceAttention):
    """Each position to itself and those before it; also over rows of a pass, with a cache."""

    def __init__(
        self, config: ModelConfig, window: int | None, dtype: torch.dtype, device: torch.device
    ) -> None:
        """config: the target's. window: positions that each attends to, itself among them; None = all."""
        super().__init__(config, dtype, device)
        self.window = window

    def new_cache(self, context: int, slots: int) -> TorchKVCache:
        """A cache of one layer, for `context` committed positions and `slots` uncommitted rows."""
        return TorchKVCache(self.config, context, slots, self.input_norm.dtype, self.input_norm.device)

    def run(self, hidden: Tensor, rows: Rows) -> Tensor:
        """[n, d] -> [n, d], of the parameters' type. `rows` are rows of caches that `new_cache` made; their
        slots get this layer's K and V."""
        return self.run_layer(0, hidden, rows, AttentionPlan(rows, hidden.device))

    @torch.inference_mode()
    def run_layer(self, layer: int, hidden: Tensor, rows: Rows, attention: AttentionPlan) -> Tensor:
        """`run` as one layer of caches that have several, which share the plan of these rows."""
        n, c = len(hidden), self.config
        cos, sin = self._angles(rows, hidden)
        x = dispatch.rms_norm(hidden, self.input_norm, c.norm_eps)
        exact = not rows.prefill
        q, k, v = (
            part.view(n, -1, c.head_dim) for part in self.times(x, exact, "q_proj", "k_proj", "v_proj")
        )
        q, k = dispatch.rotate(q, k, cos, sin, c.rope.interleaved)
        [attended] = self.times(attention(layer, q, k, v, self.window), exact, "o_proj")
        return hidden + attended

    @torch.inference_mode()
    def write(self, hidden: Tensor, rows: Rows) -> None:
        """As `run`, for the K and V alone. `rows` are of one cache."""
        n, c = len(hidden), self.config
        x = dispatch.rms_norm(hidden, self.input_norm, c.norm_eps)
        k, v = (part.view(n, c.kv_heads, c.head_dim) for part in self.times(x, False, "k_proj", "v_proj"))
        (cache,) = rows.caches
        assert isinstance(cache, TorchKVCache)
        cache.write(0, cache.places(rows.slots), rotate(k, *self._angles(rows, k), c.rope.interleaved), v)

    def _angles(self, rows: Rows, like: Tensor) -> tuple[Tensor, Tensor]:
        """cos, sin [n, 1, head_dim / 2]."""
        cos, sin = self.rope(rows.positions)
        return cos[:, None].to(like.dtype), sin[:, None].to(like.dtype)

    def forward(self, hidden: Tensor) -> Tensor:
        """Sequences from position 0 on, [b, t, d] -> [b, t, d]. What lies behind a shorter sequence's end
        does not reach it."""
        t, mask = hidden.shape[1], None
        if self.window is not None and self.window < t:
            place = torch.arange(t, device=hidden.device)
            mask = (place <= place[:, None]) & (place > place[:, None] - self.window)
        return self.attend(hidden, True, mask)


class GatedMLP(Multiplying):
    """y = x + down(silu(gate(RMSNorm(x))) * up(RMSNorm(x)))."""

    input_norm: nn.Parameter  # [d]
    gate_proj: nn.Parameter  # [f, d]
    up_proj: nn.Parameter  # [f, d]
    down_proj: nn.Parameter  # [d, f]

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> None:
        """config: the target's."""
        super().__init__()
        self.eps = config.norm_eps
        add_parameters(self, mlp_shapes(config), dtype, device)

    @torch.inference_mode()
    def run(self, hidden: Tensor) -> Tensor:
        """[n, d] -> [n, d], of the parameters' type."""
        x = dispatch.rms_norm(hidden, self.input_norm, self.eps)
        gated = dispatch.swiglu(*self.times(x, True, "gate_proj", "up_proj"))
        [down] = self.times(gated, True, "down_proj")
        return hidden + down

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., d] -> [..., d]."""
        dtype = hidden.dtype
        x = rms_norm(hidden, self.input_norm.to(dtype), self.eps)
        gate, up = F.linear(x, self.gate_proj.to(dtype)), F.linear(x, self.up_proj.to(dtype))
        return hidden + F.linear(F.silu(gate) * up, self.down_proj.to(dtype))


def swiglu_bytes(e: int) -> int:
    """Of a row's gate, up and product, numbers of `e` bytes each, and what few rows take in fp32 meanwhile:
    x, unless it is so stored, and its denominator (`kernels.reference.swiglu`)."""
    return 3 * e + (8 if e < 4 else 4)


def one_layer(config: ModelConfig) -> ModelConfig:
    """The target's config as the cache of a `CausalAttention` sees it."""
    return replace(config, layers=1, windows=())


def attention_shapes(config: ModelConfig) -> Shapes:
    """Of a `CausalAttention` of this target."""
    d, q, kv = config.hidden_size, config.q_size, config.kv_size
    return {"input_norm": (d,), "q_proj": (q, d), "k_proj": (kv, d), "v_proj": (kv, d), "o_proj": (d, q)}


def widened(config: ModelConfig, width: int | None) -> ModelConfig:
    """The target's config with MLPs of this width; None = its own."""
    return config if width is None else replace(config, intermediate_size=width)


def mlp_shapes(config: ModelConfig) -> Shapes:
    """Of a `GatedMLP` of this target."""
    d, f = config.hidden_size, config.intermediate_size
    return {"input_norm": (d,), "gate_proj": (f, d), "up_proj": (f, d), "down_proj": (d, f)}


def within(name: str, shapes: Mapping[str, tuple[int, ...]]) -> Shapes:
    """The shapes of a part's parameters, as the whole that has it by this name calls them."""
    return {f"{name}.{own}": shape for own, shape in shapes.items()}


def attention_cache_bytes(config: ModelConfig, context: int, slots: int, element: int) -> int:
    """Bytes of a `CausalAttention`'s cache for one conversation, of `element`-byte numbers."""
    return cache_bytes(one_layer(config), context, slots, element)
