"""The target's last layers over drafted states, as they run where drafts are made, with gradients.

A draft attends to the target's own keys and values of the tokens before its cycle, and to those of its
cycle's drafts, itself among them (Zimmer et al. 2024, section 3.2). The layers are frozen.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from edgespec.kernels.reference import rms_norm, rotate
from edgespec.runtimes.config import ModelConfig
from edgespec.runtimes.torch.moa import attention
from edgespec.runtimes.torch.rope import RopeTable
from edgespec.training.bounded import Questions
from edgespec.training.target import FrozenTarget, target_matrix

ATTENTION = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
MATRICES = (*ATTENTION, "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")


class LastLayers:
    """So many of them; copies of their matrices and biases, as drafters compute."""

    def __init__(self, frozen: FrozenTarget, layers: int) -> None:
        self.frozen, self.config = frozen, frozen.target.config
        self.layers = range(self.config.layers - layers, self.config.layers)
        self.rope = RopeTable(self.config.rope, self.config.head_dim, frozen.target.device)
        names = [f"model.layers.{layer}.{name}" for layer in self.layers for name in MATRICES]
        self.matrices = {
            name: target_matrix(frozen.target, name).to(frozen.dtype, copy=True) for name in names
        }
        small = frozen.target.weights.small
        self.biases = {
            name: small[f"{name}.bias"].to(frozen.dtype) for name in names if f"{name}.bias" in small
        }

    def __call__(self, x: Tensor, known: Tensor, asked: Questions) -> Tensor:
        """States before these layers [b, s, d], as `asked` of whole sequences, and what the target has of all
        tokens in all layers, [b, t, L, 2 E_kv] -> what the LM head multiplies, [b, s, d]."""
        place, until = (torch.from_numpy(a).to(x.device) for a in (asked.positions, asked.until))
        there = torch.from_numpy(asked.there).to(x.device)
        cos, sin = self.rope(asked.positions.ravel())
        angles = tuple(a.view(*place.shape, 1, -1).to(x.dtype) for a in (cos, sin))
        keys = torch.arange(known.shape[1], device=x.device)
        before = (keys < until[..., None]).expand(-1, -1, len(keys))  # [b, s, t]
        own = (place[:, None] <= place[..., None]) & (place[:, None] >= until[..., None]) & there[:, None]
        own = own | torch.eye(
            own.shape[1], dtype=torch.bool, device=x.device
        )  # what is not there sees itself
        distances = [place[..., None] - keys, place[..., None] - place[:, None]]
        for layer in self.layers:
            visible = [before, own]
            if (window := self.config.window(layer)) is not None:
                visible = [v & (far < window) for v, far in zip(visible, distances, strict=True)]
            x = self._layer(layer, x, known[:, :, layer], torch.cat(visible, -1), (angles[0], angles[1]))
        return rms_norm(x, self.frozen.final_norm, self.config.norm_eps)

    def _layer(
        self, layer: int, x: Tensor, known: Tensor, visible: Tensor, angles: tuple[Tensor, Tensor]
    ) -> Tensor:
        """known [b, t, 2 E_kv]; visible [b, s, t + s]."""
        c, name = self.config, f"model.layers.{layer}."
        small = self.frozen.target.weights.small

        def times(y: Tensor, matrix: str) -> Tensor:
            return F.linear(y, self.matrices[name + matrix], self.biases.get(name + matrix))

        z = rms_norm(x, small[name + "input_layernorm.weight"], c.norm_eps)
        q, k, v = (times(z, matrix).view(*x.shape[:2], -1, c.head_dim) for matrix in ATTENTION)
        if c.qk_norm:
            q, k = (
                rms_norm(y, small[f"{name}self_attn.{n}_norm.weight"], c.norm_eps)
                for n, y in (("q", q), ("k", k))
            )
        q, k = (rotate(y, *angles, c.rope.interleaved) for y in (q, k))
        theirs = known.view(*known.shape[:2], c.kv_heads, 2, c.head_dim)
        k, v = (torch.cat((theirs[..., i, :], y), 1) for i, y in enumerate((k, v)))
        x = x + times(attention(q, k, v, visible), "self_attn.o_proj")
        z = rms_norm(x, small[name + "post_attention_layernorm.weight"], c.norm_eps)
        return x + times(F.silu(times(z, "mlp.gate_proj")) * times(z, "mlp.up_proj"), "mlp.down_proj")


def last_layers_bytes(config: ModelConfig, layers: int, rows: int, element: int) -> int:
    """Memory of so many layers, and of a pass of so many rows through them, with what its gradient needs."""
    d, f = config.hidden_size, config.intermediate_size
    matrices = 2 * d * (config.q_size + config.kv_size) + 3 * d * f
    return layers * (matrices + rows * (8 * d + 4 * config.q_size + 8 * config.kv_size + 5 * f)) * element
