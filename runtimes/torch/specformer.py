"""SpecFormer's module: all positions of a draft in one forward, from four of the target's hidden states.

SpecFormer (Shi et al., "Scaling LLM Speculative Decoding: Non-Autoregressive Forecasting in Large-Batch
Scenarios", Equations 8 to 10). With HS the target's states behind so many layers,

    I = x + Attention(x),   x = W_D GroupedRMSNorm(HS[0, L/2, L-1, L])     context: causal, over the text
    D = W_P RMSNorm(I) + b_P                                               [l_d, d]: a position each
    E = MLP(D + Attention(D))                                              draft: over the l_d positions alone
    logits of token t + 1 + j = head(norm(E_j)),  j = 1 ... l_d            the target's own norm and head

What stands at position t says what follows the token that the target itself has said behind t. The
context's K and V are as those of one more layer of the target; the draft's attention looks both ways, or
back alone (`causal`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

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
    SequenceAttention,
    Shapes,
    Width,
    add_parameters,
    attention_shapes,
    mlp_shapes,
    widened,
    within,
)

KIND = "specformer"
MOST_HOOKS = 4  # the paper's
MOST_LENGTH = 16  # positions of a draft
CHUNK = (
    3072  # positions whose drafts are attended to at a time in training, as in the paper: bounds temporaries
)


class SpecFormerShape(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """length: l_d, positions of a draft. hooks: layers of the target below each state, ascending; 0 = the
    embeddings. mlp: width of the MLP; None = the target's.

    For ablations (the paper's Table 4, and more): causal: the draft's attention looks back alone; projected:
    False = positions differ by their bias alone, without W_P; attention: False = the draft has none.
    """

    length: Annotated[int, msgspec.Meta(ge=1, le=MOST_LENGTH)]
    hooks: Annotated[tuple[int, ...], msgspec.Meta(min_length=1, max_length=MOST_HOOKS)]
    causal: bool = False
    projected: bool = True
    attention: bool = True
    mlp: Width | None = None


def hooks_of(layers: int) -> tuple[int, ...]:
    """The paper's: HS[0], HS[L/2], HS[L-1], HS[L]. Raises ValueError for a target of too few layers."""
    if layers < 3:
        raise ValueError(f"the target has {layers} layers; SpecFormer reads four states of 3 or more")
    return 0, layers // 2, layers - 1, layers


class DraftAttention(SequenceAttention):
    """Over the positions of each draft, and of no other."""

    def __init__(self, config: ModelConfig, causal: bool, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(config, dtype, device)
        self.causal = causal

    def forward(self, drafts: Tensor) -> Tensor:
        """[n, l_d, d] -> [n, l_d, d], of any n: chunk by chunk. Differentiable."""
        return torch.cat([self.attend(chunk, self.causal) for chunk in torch.split(drafts, CHUNK)])

    @torch.inference_mode()
    def run(self, drafts: Tensor) -> Tensor:
        """[n, l_d, d] -> [n, l_d, d], of the parameters' type."""
        x = dispatch.rms_norm(drafts.flatten(0, 1), self.input_norm, self.config.norm_eps)
        qkv = self.times(x, True, "q_proj", "k_proj", "v_proj")
        attended = self.mixed([part.view(*drafts.shape[:2], -1) for part in qkv], None, None, self.causal)
        [out] = self.times(attended.flatten(0, 1), True, "o_proj")
        return drafts + out.view_as(drafts)


class SpecFormer(Multiplying):
    """See the module. `final_norm` [d] is the target's own, no parameter of this one."""

    hook_norm: nn.Parameter  # [hooks, d]
    down: nn.Parameter  # [d, hooks * d]
    position_norm: nn.Parameter  # [d]
    position_proj: nn.Parameter | None  # [l_d * d, d]
    position_bias: nn.Parameter  # [l_d * d]: the positional embedding

    def __init__(
        self,
        config: ModelConfig,
        shape: SpecFormerShape,
        final_norm: Tensor,
        dtype: torch.dtype = torch.float32,
        device: torch.device = CPU,
    ) -> None:
        super().__init__()
        self.config, self.shape, self.final_norm = config, shape, final_norm
        add_parameters(self, _own_shapes(config, shape), dtype, device)
        self.context = CausalAttention(config, config.window(config.layers - 1), dtype, device)
        self.draft = DraftAttention(config, shape.causal, dtype, device) if shape.attention else None
        self.mlp = GatedMLP(widened(config, shape.mlp), dtype, device)
        if not shape.projected:
            self.register_parameter("position_proj", None)

    @torch.inference_mode()
    def fuse(self, states: Tensor, exact: bool) -> Tensor:
        """Hidden states of n positions [n, hooks, d], of the parameters' type -> x [n, d]."""
        normed = dispatch.grouped_rms_norm(states, self.hook_norm, self.config.norm_eps)
        [fused] = self.times(normed.flatten(1), exact, "down")
        return fused

    @torch.inference_mode()
    def run(self, fused: Tensor, rows: Rows) -> Tensor:
        """The context: x [n, d] -> I [n, d]. `rows` are rows of caches that `context.new_cache` made."""
        return self.context.run(fused, rows)

    @torch.inference_mode()
    def say(self, context: Tensor) -> Tensor:
        """I of n texts [n, d] -> their drafts [n, l_d, d], normed: what the head multiplies. One forward for
        all of them."""
        n, d = context.shape
        x = dispatch.rms_norm(context, self.position_norm, self.config.norm_eps)
        if self.position_proj is None:
            drafts = x.repeat(1, self.shape.length) + self.position_bias
        else:
            [projected] = self.times(x, True, "position_proj")
            drafts = projected + self.position_bias
        drafts = drafts.view(n, self.shape.length, d)
        attended = drafts if self.draft is None else self.draft.run(drafts)
        said = dispatch.rms_norm(self.mlp.run(attended.flatten(0, 1)), self.final_norm, self.config.norm_eps)
        return said.view(n, self.shape.length, d)

    def forward(self, states: Tensor, chosen: Tensor) -> Tensor:
        """Hidden states of sequences [b, t, hooks, d], and which of their n positions draft, [b, t] bool ->
        what these say, normed, [n, l_d, d]. Differentiable; computes in the type of `states`."""
        dtype, c = states.dtype, self.config
        normed = rms_norm(states, self.hook_norm.to(dtype), c.norm_eps)
        context = self.context(F.linear(normed.flatten(2), self.down.to(dtype)))[chosen]
        x = rms_norm(context, self.position_norm.to(dtype), c.norm_eps)
        bias = self.position_bias.to(dtype)
        if self.position_proj is None:
            drafts = x.repeat(1, self.shape.length) + bias
        else:
            drafts = F.linear(x, self.position_proj.to(dtype), bias)
        drafts = drafts.view(len(x), self.shape.length, -1)
        said = self.mlp(drafts if self.draft is None else self.draft(drafts))
        return rms_norm(said, self.final_norm.to(dtype), c.norm_eps)


def _own_shapes(config: ModelConfig, shape: SpecFormerShape) -> Shapes:
    d, length, hooks = config.hidden_size, shape.length, len(shape.hooks)
    shapes: Shapes = {"hook_norm": (hooks, d), "down": (d, hooks * d), "position_norm": (d,)}
    if shape.projected:
        shapes["position_proj"] = (length * d, d)
    return shapes | {"position_bias": (length * d,)}


def specformer_shapes(config: ModelConfig, shape: SpecFormerShape) -> Mapping[str, tuple[int, ...]]:
    """See `trained_files.Shapes`."""
    hooks = shape.hooks
    if sorted(set(hooks)) != list(hooks) or hooks[0] < 0 or hooks[-1] > config.layers:
        raise ValueError(
            f"hooks {list(hooks)} are not ascending states of a target of {config.layers} layers, 0 to "
            f"{config.layers}"
        )
    attention = attention_shapes(config)
    parts = within("context", attention) | within("mlp", mlp_shapes(widened(config, shape.mlp)))
    if shape.attention:
        parts |= within("draft", attention)
    return _own_shapes(config, shape) | parts
