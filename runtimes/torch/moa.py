"""The network of the Mixture-of-Attentions drafter (Zimmer et al. 2024, arXiv 2410.03804, section 3, Fig. 1).

It sees the target's whole state, the keys and values of all layers, and drafts several tokens from it before
there is another:

    keys and values of L layers ── attention over layers, mean ──► memory, a vector a token
                                                                     │ projection
    embedded tokens ── causal attention over tokens ──► attention to memory ──► norm ── the target's LM head

Each attention is a whole decoder layer, with norms and an MLP. What comes before the memory is done once for
each token that the target has committed, by whoever holds its keys and values; the rest where drafts are
made (Fig. 3). The target's embedding and head are shared and frozen. Of the official code this differs in
having a norm of its own before the head, which starts as the target's: see `docs/training.md`.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edgespec.kernels import dispatch, reference
from edgespec.kernels.matmul import Block, linear
from edgespec.runtimes.base import IntArray, KVCache
from edgespec.runtimes.config import ModelConfig, Rope
from edgespec.runtimes.formats.moa_sizes import ATTENTIONS, MoaSizes, cache_configs, parameter_shapes
from edgespec.runtimes.torch.kv_cache import TorchKVCache
from edgespec.runtimes.torch.rope import RopeTable

CPU = torch.device("cpu")
_ENCODINGS = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}


class MoaLayer(nn.Module):
    """A decoder layer's parameters, without biases, and what is done before and after its attention."""

    def __init__(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        head_dim: int,
        eps: float,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        super().__init__()
        self.head_dim, self.eps = head_dim, eps
        _register(self, shapes, dtype, device)

    input_norm: nn.Parameter  # [w]
    q_proj: nn.Parameter  # [heads * head_dim, w]
    k_proj: nn.Parameter  # [kv_heads * head_dim, w]
    v_proj: nn.Parameter  # [kv_heads * head_dim, w]
    o_proj: nn.Parameter  # [w, heads * head_dim]
    post_norm: nn.Parameter  # [w]
    gate_proj: nn.Parameter  # [f, w]
    up_proj: nn.Parameter  # [f, w]
    down_proj: nn.Parameter  # [w, f]

    @torch.no_grad()
    def initialise(self, generator: torch.Generator) -> None:
        """It starts by adding nothing to what passes through."""
        for name, parameter in self.named_parameters():
            if name.endswith("norm"):
                parameter.fill_(1.0)
            elif name in ("o_proj", "down_proj"):
                parameter.zero_()
            else:
                randomise(parameter, generator)

    def normed(self, x: Tensor) -> Tensor:
        """[..., width] -> the same."""
        return norm(x, self.input_norm, self.eps, self.training)

    def heads(self, x: Tensor, *names: str) -> list[Tensor]:
        """Normed [..., width] times the matrices called `names` -> [..., heads, head_dim] each."""
        products = (times(x, getattr(self, name), self.training) for name in names)
        return [product.view(*product.shape[:-1], -1, self.head_dim) for product in products]

    def after(self, x: Tensor, attended: Tensor) -> Tensor:
        """The layer's output from its input and what its attention gave, [..., heads * head_dim]."""
        y = x + times(attended, self.o_proj, self.training)
        z = norm(y, self.post_norm, self.eps, self.training)
        gate, up = (times(z, w, self.training) for w in (self.gate_proj, self.up_proj))
        return y + times(F.silu(gate) * up, self.down_proj, self.training)


class Moa(nn.Module):
    """The network for one target. Parameters start uninitialised: `initialise` or load them.

    In training mode it computes in the type of its inputs, whatever the parameters' own, and has gradients;
    in use (`eval`) inputs have the parameters' type. Both are the same function.
    """

    def __init__(
        self,
        config: ModelConfig,
        sizes: MoaSizes,
        dtype: torch.dtype = torch.float32,
        device: torch.device = CPU,
    ) -> None:
        """dtype: of the parameters. `sizes` must be sound for the target (`MoaSizes.check`)."""
        super().__init__()
        self.config, self.sizes = config, sizes
        e, shapes = config.head_dim, parameter_shapes(config, sizes)
        _register(self, {name: shape for name, shape in shapes.items() if "." not in name}, dtype, device)
        for layer in ATTENTIONS:
            own = {n.removeprefix(layer + "."): s for n, s in shapes.items() if n.startswith(layer + ".")}
            self.add_module(layer, MoaLayer(own, e, config.norm_eps, dtype, device) if own else None)
        if "norm" not in shapes:
            self.register_parameter("norm", None)
        self.rope = RopeTable(config.rope, e, device)
        self._layer_angles = RopeTable(Rope(), e, device)(np.arange(config.layers))  # [L, e / 2] each

    over_layers: MoaLayer | None
    over_tokens: MoaLayer
    to_memory: MoaLayer
    projection: nn.Parameter  # [d, 2 E_kv]
    projection_bias: nn.Parameter  # [d]
    norm: nn.Parameter | None  # [d]; None where the target's last layers follow

    @torch.no_grad()
    def initialise(self, final_norm: Tensor, generator: torch.Generator) -> None:
        """`final_norm`: the target's, [d]."""
        for layer in (self.over_layers, self.over_tokens, self.to_memory):
            if layer is not None:
                layer.initialise(generator)
        randomise(self.projection, generator)
        self.projection_bias.zero_()
        if self.norm is not None:
            self.norm.copy_(final_norm)

    def summary(self, states: Tensor) -> Tensor:
        """The memory of tokens, each for itself, [n, 2 E_kv], from the target's keys (after RoPE) and values
        in all layers, [n, L, 2 E_kv], in the order of `token_states`. Attention over layers is bidirectional,
        with rotary positions by their numbers; without it, the last layer's are the memory."""
        layer = self.over_layers
        if layer is None:
            return states[:, -1]
        cos, sin = (a[:, None].to(states.dtype) for a in self._layer_angles)
        q, k, v = layer.heads(layer.normed(states), "q_proj", "k_proj", "v_proj")  # [n, L, heads, e]
        q, k = (reference.rotate(x, cos, sin, interleaved=False) for x in (q, k))
        return layer.after(states, attention(q, k, v, None)).mean(1)

    def recalled(self, memory: Tensor, positions: IntArray) -> tuple[Tensor, Tensor]:
        """Keys and values that drafts attend to, [..., kv_heads, e] each, from the memory [..., 2 E_kv] of
        tokens at `positions` (of its last but one dimension)."""
        layer = self.to_memory
        projected = times(memory, self.projection, self.training)
        x = layer.normed(projected + self.projection_bias.to(projected.dtype))
        k, v = layer.heads(x, "k_proj", "v_proj")
        return self._rotated(k, positions), v

    def followed(self, embedded: Tensor, positions: IntArray) -> tuple[Tensor, Tensor]:
        """Keys and values [..., kv_heads, e] of the attention over tokens, from embedded tokens [..., d]."""
        layer = self.over_tokens
        k, v = layer.heads(layer.normed(embedded), "k_proj", "v_proj")
        return self._rotated(k, positions), v

    def token_queries(self, embedded: Tensor, positions: IntArray) -> Tensor:
        """Of the attention over tokens, [..., heads, e]."""
        [q] = self.over_tokens.heads(self.over_tokens.normed(embedded), "q_proj")
        return self._rotated(q, positions)

    def memory_queries(self, x: Tensor, positions: IntArray) -> Tensor:
        """Of the attention to memory, [..., heads, e], from what the attention over tokens gave [..., d]."""
        [q] = self.to_memory.heads(self.to_memory.normed(x), "q_proj")
        return self._rotated(q, positions)

    def output(self, x: Tensor) -> Tensor:
        """What the target's LM head multiplies, [..., d], from what the attention to memory gave; the state
        before the target's last layers where drafts go through these."""
        return x if self.norm is None else norm(x, self.norm, self.config.norm_eps, self.training)

    def _rotated(self, x: Tensor, positions: IntArray) -> Tensor:
        cos, sin = self.rope(positions.ravel())
        cos, sin = (a.view(*positions.shape, 1, -1).to(x.dtype) for a in (cos, sin))
        return reference.rotate(x, cos, sin, self.config.rope.interleaved)

    def forward(
        self, embedded: Tensor, memory: Tensor, asked: IntArray, until: IntArray, since: IntArray
    ) -> Tensor:
        """What is drafted behind some positions of whole sequences: normed states [b, s, d].

        embedded: the tokens [b, t, d]. memory: of all of them, [b, t, 2 E_kv].
        asked: [b, s] positions. until: [b, s] how many tokens' memory each may see (the T-step-bounded mask).
        since: [b, s] the first token that each sees itself, at most the asked one.
        """
        device, places = embedded.device, np.arange(embedded.shape[1])
        at = torch.from_numpy(asked).to(device)
        x = embedded.gather(1, at[..., None].expand(-1, -1, embedded.shape[2]))  # [b, s, d]
        keys = torch.arange(embedded.shape[1], device=device)
        first = torch.from_numpy(since).to(device)[..., None]
        earlier = (keys <= at[..., None]) & (keys >= first)  # [b, s, t]
        k, v = self.followed(embedded, places)
        x = self.over_tokens.after(x, attention(self.token_queries(x, asked), k, v, earlier))
        known = keys < torch.from_numpy(until).to(device)[..., None]
        k, v = self.recalled(memory, places)
        none = ~known.any(-1, keepdim=True)  # such a row sees all for now: softmax over nothing is NaN
        attended = attention(self.memory_queries(x, asked), k, v, known | none)
        x = self.to_memory.after(x, attended.masked_fill(none, 0))
        return self.output(x)

    def new_caches(self, context: int, slots: int) -> tuple[TorchKVCache, TorchKVCache]:
        """For one conversation: what is followed, with `slots` uncommitted rows, and what is recalled."""
        dtype, device = self.projection.dtype, self.projection.device
        tokens, memory = cache_configs(self.config, self.sizes)
        return (
            TorchKVCache(tokens, context, slots, dtype, device),
            TorchKVCache(memory, context, 0, dtype, device),
        )


def token_states(keys: Tensor, values: Tensor) -> Tensor:
    """Keys and values [L, kv_heads, n, e] of n tokens -> [n, L, 2 E_kv]: head by head, its key and value."""
    return torch.cat((keys, values), -1).permute(2, 0, 1, 3).flatten(2)


def committed_states(cache: KVCache, start: int, stop: int) -> Tensor:
    """What all layers have of these tokens, as `token_states`: [n, L, 2 E_kv]."""
    assert isinstance(cache, TorchKVCache)
    keys, values = (kv[:, :, start:stop] for kv in cache.prefix)
    return token_states(keys, values)


def written_states(cache: KVCache, layer: int) -> Tensor:
    """What one layer has written for all slots of a cache, as `token_states`: [n, 1, 2 E_kv]."""
    assert isinstance(cache, TorchKVCache)
    places = cache.places(np.arange(len(cache.parents)))
    return token_states(*(kv[layer : layer + 1, :, places] for kv in (cache.k, cache.v)))


def attention(q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None) -> Tensor:
    """q [b, s, heads, e] over k, v [b, t, kv_heads, e], where `visible` [b, s, t] (None: everywhere)
    -> [b, s, heads * e]."""
    out = F.scaled_dot_product_attention(
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        attn_mask=None if visible is None else visible[:, None],
        enable_gqa=q.shape[2] > k.shape[2],
    )
    return out.transpose(1, 2).flatten(2)


def norm(x: Tensor, weight: Tensor, eps: float, training: bool) -> Tensor:
    """RMSNorm over the last axis."""
    if training:
        return reference.rms_norm(x, weight.to(x.dtype), eps)
    return dispatch.rms_norm(x.flatten(0, -2), weight, eps).view(x.shape)


def times(x: Tensor, weight: Tensor, training: bool) -> Tensor:
    """x [..., in] @ weight [out, in]^T -> [..., out]; in use by the kernels that the target has."""
    if training:
        return F.linear(x, weight.to(x.dtype))
    out, inner = weight.shape
    block = Block(_ENCODINGS[weight.dtype], weight, scale=None, rows=out, inner=inner)
    return linear(x.flatten(0, -2), block, exact=False).view(*x.shape[:-1], out)


@torch.no_grad()
def randomise(matrix: Tensor, generator: torch.Generator) -> None:
    """Normal numbers that keep the size of what is multiplied."""
    matrix.copy_(torch.randn(matrix.shape, generator=generator) * matrix.shape[1] ** -0.5)


def _register(
    module: nn.Module, shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype, device: torch.device
) -> None:
    for name, shape in shapes.items():
        module.register_parameter(name, nn.Parameter(torch.empty(shape, dtype=dtype, device=device)))
