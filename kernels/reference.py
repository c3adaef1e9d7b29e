"""Operations in plain torch, on any device: the definition that every faster kernel is compared with."""

from __future__ import annotations

import torch
from torch import Tensor

AT_ONCE = 64  # rows of SwiGLU: a tree's


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / rms(x) * weight over the last axis, in fp32 inside; [..., d] -> [..., d]."""
    scaled = x.float()
    scaled = scaled * torch.rsqrt(scaled.square().mean(-1, keepdim=True) + eps)
    return weight * scaled.to(x.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """Rotary embedding of [n, heads, head_dim] by per-row angles, cos and sin [n, 1, head_dim / 2].

    The pairs are (i, i + head_dim/2), or (2i, 2i + 1) when `interleaved` (GGUF's llama layout).
    """
    if interleaved:
        a, b = x[..., 0::2], x[..., 1::2]
        return torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up, elementwise.

    Spelt out because torch's fused silu computes the elements left over by its vector loop with another
    exponential, and which elements those are depends on how many rows share the call. A few rows at a time:
    all fp32 numbers of a prompt's block are tens of megabytes.
    """
    out = torch.empty_like(gate)
    for part, some, other in zip(*(torch.split(x, AT_ONCE) for x in (out, gate, up)), strict=True):
        x = some.float()
        denominator = torch.neg(x).exp_().add_(1)
        part.copy_(torch.div(x, denominator, out=denominator)).mul_(other)
    return out


class Mask:
    """Which keys a query row sees, `visible` [b or 1, h or 1, m or 1, t] bool; made once a pass, used by all
    its layers."""

    def __init__(self, visible: Tensor) -> None:
        self.visible = visible
        seen = visible.any(-1)
        self.blind = None if bool(seen.all()) else ~seen  # rows that see no key: [b or 1, h or 1, m or 1]
        self._biases: dict[torch.dtype, Tensor] = {}

    def bias(self, dtype: torch.dtype) -> Tensor:
        """0 where visible, -inf elsewhere."""
        if dtype not in self._biases:
            zeros = torch.zeros(self.visible.shape, dtype=dtype, device=self.visible.device)
            self._biases[dtype] = zeros.masked_fill_(~self.visible, -torch.inf)
        return self._biases[dtype]


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Mask | None, scale: float) -> tuple[Tensor, Tensor]:
    """Softmax attention of each (batch, head) over its own keys, with the log-sum-exp to merge blocks by.

    q [b, h, m, e], k and v [b, h, t, e] -> out [b, h, m, e], lse [b, h, m] fp32. A row that sees no key
    gives out 0 and lse -inf.
    """
    scores = torch.matmul(q.float(), k.float().transpose(-1, -2)) * scale
    if mask is not None:
        scores = scores + mask.bias(scores.dtype)
    top = scores.amax(-1, keepdim=True)
    weights = torch.exp(scores - top.clamp(min=torch.finfo(torch.float32).min))
    total = weights.sum(-1, keepdim=True)
    out = torch.matmul(weights, v.float()) / total.clamp(min=torch.finfo(torch.float32).tiny)
    lse = top[..., 0] + torch.log(total[..., 0])
    return out.to(q.dtype), torch.where(total[..., 0] > 0, lse, -torch.inf)


def linear(x: Tensor, numbers: Tensor, scale: Tensor) -> Tensor:
    """x [n, k] @ (numbers [m, k] int8 * scale [m] fp32)^T -> [n, m] fp64: low-bit weights, unrounded."""
    return (x.double() @ numbers.double().t()) * scale.double()
