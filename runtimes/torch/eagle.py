"""The EAGLE drafter's module: the target's next feature, from its last one and the token that was said.

EAGLE (Li et al. 2024, arXiv 2401.15077, section 4.1). A *feature* f is the target's last hidden state behind
its final norm: what the LM head multiplies. With e the embedding of the token that was chosen behind f_t,

    x = W [f_t ; e_{t+1}];   y = MLP(x + Attention(x));   f'_{t+1} = norm(y);   logits_{t+2} = head(f'_{t+1})

one decoder layer with the target's head counts and rotary embedding. Norm and head are the
target's own, and frozen. f' stands for f where the target has not been yet: that is the autoregression.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edgespec.kernels import dispatch
from edgespec.kernels.reference import rms_norm
from edgespec.runtimes.config import ModelConfig
from edgespec.runtimes.rows import Rows
from edgespec.runtimes.torch.blocks import (
    CPU,
    CausalAttention,
    GatedMLP,
    Multiplying,
    Shapes,
    Width,
    add_parameters,
    attention_shapes,
    mlp_shapes,
    widened,
    within,
)

KIND = "eagle"


class EagleShape(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """mlp: width of its MLP; None = the target's. All other sizes are the target's."""

    mlp: Width | None = None


class Eagle(Multiplying):
    """See the module. `final_norm` [d] is the target's own, no parameter of this one."""

    fuse: nn.Parameter  # [d, 2 d]

    def __init__(
        self,
        config: ModelConfig,
        shape: EagleShape,
        final_norm: Tensor,
        dtype: torch.dtype = torch.float32,
        device: torch.device = CPU,
    ) -> None:
        super().__init__()
        self.config, self.final_norm = config, final_norm
        add_parameters(self, {"fuse": (config.hidden_size, 2 * config.hidden_size)}, dtype, device)
        self.attention = CausalAttention(config, config.window(config.layers - 1), dtype, device)
        self.mlp = GatedMLP(widened(config, shape.mlp), dtype, device)

    def feature(self, hidden: Tensor) -> Tensor:
        """The target's hidden states behind its last layer [..., d] -> features [..., d]."""
        return rms_norm(hidden, self.final_norm.to(hidden.dtype), self.config.norm_eps)

    @torch.inference_mode()
    def run(self, features: Tensor, embedded: Tensor, rows: Rows) -> Tensor:
        """f_t and e_{t+1}, [n, d] each of the parameters' type -> f'_{t+1} [n, d]. `rows` are rows of caches
        that `attention.new_cache` made."""
        x = self.attention.run(self._fused(features, embedded, not rows.prefill), rows)
        return dispatch.rms_norm(self.mlp.run(x), self.final_norm, self.config.norm_eps)

    @torch.inference_mode()
    def write(self, features: Tensor, embedded: Tensor, rows: Rows) -> None:
        """As `run`, for the K and V alone: of committed tokens, whose features are known. `rows`: of one
        cache."""
        self.attention.write(self._fused(features, embedded, False), rows)

    def _fused(self, features: Tensor, embedded: Tensor, exact: bool) -> Tensor:
        [fused] = self.times(torch.cat([features, embedded], -1), exact, "fuse")
        return fused

    def forward(self, features: Tensor, embedded: Tensor) -> Tensor:
        """f_t and e_{t+1} of sequences [b, t, d] each -> f'_{t+1} [b, t, d]. Differentiable; computes in the
        type of `features`."""
        x = F.linear(torch.cat([features, embedded], -1), self.fuse.to(features.dtype))
        return self.feature(self.mlp(self.attention(x)))


def eagle_shapes(config: ModelConfig, shape: EagleShape) -> Mapping[str, tuple[int, ...]]:
    """See `trained_files.Shapes`."""
    fuse: Shapes = {"fuse": (config.hidden_size, 2 * config.hidden_size)}
    mlp = mlp_shapes(widened(config, shape.mlp))
    return fuse | within("attention", attention_shapes(config)) | within("mlp", mlp)
