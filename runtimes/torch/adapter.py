"""The adapter that turns the residual stream after a few layers into the target's next-token prediction.

The architecture is Kangaroo's (Liu et al. 2024, arXiv 2404.18911, section 3.1), as CATS uses it for its draft
and its shallow verification (arXiv 2605.11186, section 4): with x the raw hidden state after `depth` layers,

    y = x + Attention(RMSNorm(x));    logits = LM head(RMSNorm'(y))

Attention has the target's head counts and rotary embedding and no biases; there is no MLP. The LM head is
the target's own; both norms are the adapter's. The output at position t predicts token t + 1.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from edgespec.kernels import dispatch
from edgespec.kernels.reference import rms_norm
from edgespec.runtimes.config import ModelConfig
from edgespec.runtimes.rows import Rows
from edgespec.runtimes.torch.blocks import (
    CPU,
    CausalAttention,
    Shapes,
    add_parameters,
    attention_cache_bytes,
    attention_shapes,
    fill_randomly,
)
from edgespec.runtimes.torch.trained_files import parameter_bytes


class Adapter(CausalAttention):
    """One adapter behind `depth` layers of the target described by `config`.

    `forward` trains it, on whole sequences; `run` uses it, on a pass's rows with a KV cache of its own. Both
    compute the same function. Parameters start uninitialised: `initialise` or load them.
    """

    norm: nn.Parameter  # [d]

    def __init__(
        self, config: ModelConfig, depth: int, dtype: torch.dtype = torch.float32, device: torch.device = CPU
    ) -> None:
        """depth: layers of the target below the adapter, 1 to layers - 1. dtype: of the parameters."""
        # It reaches as far back as the layer it follows.
        super().__init__(config, config.window(depth - 1), dtype, device)
        self.depth = depth
        add_parameters(self, {"norm": (config.hidden_size,)}, dtype, device)

    @torch.no_grad()
    def initialise(self, final_norm: Tensor, generator: torch.Generator) -> None:
        """Start as the target's own early exit: attention adds nothing yet, `norm` is the target's last."""
        self.input_norm.fill_(1.0)
        for matrix in (self.q_proj, self.k_proj, self.v_proj):
            fill_randomly(matrix, generator)
        self.o_proj.zero_()
        self.norm.copy_(final_norm)

    @property
    def nbytes(self) -> int:
        """Bytes of the parameters."""
        return sum(p.nbytes for p in self.parameters())

    @torch.inference_mode()
    def run(self, hidden: Tensor, rows: Rows) -> Tensor:
        """Hidden states after `depth` layers [n, d] -> normed [n, d], what the LM head multiplies.

        `rows` are rows of caches that `new_cache` made; their slots get this adapter's K and V. `hidden` has
        the parameters' type.
        """
        return dispatch.rms_norm(super().run(hidden, rows), self.norm, self.config.norm_eps)

    def forward(self, hidden: Tensor) -> Tensor:
        """Hidden states after `depth` layers of sequences from position 0 on, [b, t, d] -> normed [b, t, d].

        Differentiable. Computes in the type of `hidden`, whatever the parameters' own. Causal, so what lies
        behind a shorter sequence's end does not reach it.
        """
        return rms_norm(super().forward(hidden), self.norm.to(hidden.dtype), self.config.norm_eps)


def parameter_shapes(config: ModelConfig) -> Shapes:
    """Shape of each parameter of an adapter of this target, by name."""
    return attention_shapes(config) | {"norm": (config.hidden_size,)}


def adapter_bytes(config: ModelConfig, dtype: torch.dtype) -> int:
    """Bytes of one adapter's parameters."""
    return parameter_bytes(parameter_shapes(config), dtype.itemsize)


def adapter_cache_bytes(config: ModelConfig, context: int, slots: int, dtype: torch.dtype) -> int:
    """Bytes of one adapter's KV cache for one conversation."""
    return attention_cache_bytes(config, context, slots, dtype.itemsize)
