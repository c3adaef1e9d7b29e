"""The adapter that turns the residual stream after a few layers into the target's next-token prediction.

The architecture is Kangaroo's (Liu et al. 2024, arXiv 2404.18911, section 3.1), as CATS uses it for its draft
and its shallow verification (arXiv 2605.11186, section 4): with x the raw hidden state after `depth` layers,

    y = x + Attention(RMSNorm(x));    logits = LM head(RMSNorm'(y))

Attention has the target's head counts and rotary embedding and no biases; there is no MLP. The LM head is
the target's own; both norms are the adapter's. The output at position t predicts token t + 1.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edgespec.kernels import dispatch
from edgespec.kernels.matmul import Block, linear
from edgespec.kernels.reference import rms_norm, rotate
from edgespec.runtimes.base import Rows
from edgespec.runtimes.config import ModelConfig
from edgespec.runtimes.formats.needs import cache_bytes
from edgespec.runtimes.torch.attention import AttentionPlan
from edgespec.runtimes.torch.kv_cache import TorchKVCache
from edgespec.runtimes.torch.rope import RopeTable

CPU = torch.device("cpu")
_ENCODINGS = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}


class Adapter(nn.Module):
    """One adapter behind `depth` layers of the target described by `config`.

    `forward` trains it, on whole sequences; `run` uses it, on a pass's rows with a KV cache of its own. Both
    compute the same function. Parameters start uninitialised: `initialise` or load them.
    """

    def __init__(
        self, config: ModelConfig, depth: int, dtype: torch.dtype = torch.float32, device: torch.device = CPU
    ) -> None:
        """depth: layers of the target below the adapter, 1 to layers - 1. dtype: of the parameters."""
        super().__init__()
        self.config = adapter_config(config)
        self.depth = depth
        self.window = config.window(depth - 1)  # reaches as far back as the layer it follows
        self.rope = RopeTable(config.rope, config.head_dim, device)
        for name, shape in parameter_shapes(config).items():
            self.register_parameter(name, nn.Parameter(torch.empty(shape, dtype=dtype, device=device)))

    input_norm: nn.Parameter  # [d]
    q_proj: nn.Parameter  # [heads * head_dim, d]
    k_proj: nn.Parameter  # [kv_heads * head_dim, d]
    v_proj: nn.Parameter  # [kv_heads * head_dim, d]
    o_proj: nn.Parameter  # [d, heads * head_dim]
    norm: nn.Parameter  # [d]

    @torch.no_grad()
    def initialise(self, final_norm: Tensor, generator: torch.Generator) -> None:
        """Start as the target's own early exit: attention adds nothing yet, `norm` is the target's last."""
        self.input_norm.fill_(1.0)
        for matrix in (self.q_proj, self.k_proj, self.v_proj):
            noise = torch.randn(matrix.shape, generator=generator) * self.config.hidden_size**-0.5
            matrix.copy_(noise)
        self.o_proj.zero_()
        self.norm.copy_(final_norm)

    @property
    def nbytes(self) -> int:
        """Bytes of the parameters."""
        return sum(p.nbytes for p in self.parameters())

    def new_cache(self, context: int, slots: int) -> TorchKVCache:
        """A cache of one layer, for `context` committed positions and `slots` uncommitted rows."""
        dtype, device = self.norm.dtype, self.norm.device
        return TorchKVCache(self.config, context, slots, dtype, device)

    @torch.inference_mode()
    def run(self, hidden: Tensor, rows: Rows) -> Tensor:
        """Hidden states after `depth` layers [n, d] -> normed [n, d], what the LM head multiplies.

        `rows` are rows of caches that `new_cache` made; their slots get this adapter's K and V. `hidden` has
        the parameters' type.
        """
        n, c = len(hidden), self.config
        attention = AttentionPlan(rows, hidden.device)
        cos, sin = self.rope(rows.positions)
        angles = cos[:, None].to(hidden.dtype), sin[:, None].to(hidden.dtype)  # [n, 1, head_dim / 2]

        def project(weight: Tensor, x: Tensor) -> Tensor:
            out, inner = weight.shape
            block = Block(_ENCODINGS[weight.dtype], weight, scale=None, rows=out, inner=inner)
            return linear(x, block, not rows.prefill)

        x = dispatch.rms_norm(hidden, self.input_norm, c.norm_eps)
        q = project(self.q_proj, x).view(n, c.heads, c.head_dim)
        k = project(self.k_proj, x).view(n, c.kv_heads, c.head_dim)
        q, k = dispatch.rotate(q, k, *angles, c.rope.interleaved)
        v = project(self.v_proj, x).view(n, c.kv_heads, c.head_dim)
        y = hidden + project(self.o_proj, attention(0, q, k, v, self.window))
        return dispatch.rms_norm(y, self.norm, c.norm_eps)

    def forward(self, hidden: Tensor) -> Tensor:
        """Hidden states after `depth` layers of sequences from position 0 on, [b, t, d] -> normed [b, t, d].

        Differentiable. Computes in the type of `hidden`, whatever the parameters' own. Causal, so what lies
        behind a shorter sequence's end does not reach it.
        """
        b, t, _ = hidden.shape
        c, dtype = self.config, hidden.dtype
        cos, sin = self.rope(np.arange(t))
        angles = cos[:, None].to(dtype), sin[:, None].to(dtype)  # [t, 1, head_dim / 2]
        x = rms_norm(hidden, self.input_norm.to(dtype), c.norm_eps)
        q = F.linear(x, self.q_proj.to(dtype)).view(b, t, c.heads, c.head_dim)
        k = F.linear(x, self.k_proj.to(dtype)).view(b, t, c.kv_heads, c.head_dim)
        v = F.linear(x, self.v_proj.to(dtype)).view(b, t, c.kv_heads, c.head_dim)
        q, k = rotate(q, *angles, c.rope.interleaved), rotate(k, *angles, c.rope.interleaved)
        mask = None
        if self.window is not None and self.window < t:
            place = torch.arange(t, device=hidden.device)
            mask = (place <= place[:, None]) & (place > place[:, None] - self.window)
        out = F.scaled_dot_product_attention(
            q.transpose(1, 2),
            k.transpose(1, 2),
            v.transpose(1, 2),
            attn_mask=mask,
            is_causal=mask is None,
            enable_gqa=c.heads > c.kv_heads,
        )  # [b, heads, t, head_dim]
        y = hidden + F.linear(out.transpose(1, 2).flatten(2), self.o_proj.to(dtype))
        return rms_norm(y, self.norm.to(dtype), c.norm_eps)


def adapter_config(config: ModelConfig) -> ModelConfig:
    """The target's config as an adapter's KV cache sees it: one layer."""
    return replace(config, layers=1, windows=())


def parameter_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Shape of each parameter of an adapter of this target, by name."""
    d, q, kv = config.hidden_size, config.q_size, config.kv_size
    return {
        "input_norm": (d,),
        "q_proj": (q, d),
        "k_proj": (kv, d),
        "v_proj": (kv, d),
        "o_proj": (d, q),
        "norm": (d,),
    }


def adapter_bytes(config: ModelConfig, dtype: torch.dtype) -> int:
    """Bytes of one adapter's parameters."""
    return sum(torch.Size(shape).numel() for shape in parameter_shapes(config).values()) * dtype.itemsize


def adapter_cache_bytes(config: ModelConfig, context: int, slots: int, dtype: torch.dtype) -> int:
    """Bytes of one adapter's KV cache for one conversation."""
    return cache_bytes(adapter_config(config), context, slots, dtype.itemsize)
