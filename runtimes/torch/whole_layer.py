"""Layers in one call, where all that a pass needs of them is in memory and the compiled kernels know it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import Tensor

from edgespec.kernels.layer import LayerPass, LayerShape, WholeLayer
from edgespec.kernels.matmul import Together
from edgespec.runtimes.config import ModelConfig
from edgespec.runtimes.torch.attention import AttentionPlan

# Products with weights in one call, in which nothing hears that a reply is to end: 0.15 s in bf16 on two
# cores, and what attention takes. Fewer rows than FEW count as so many: their time is memory's. So 8 may go
# through 16 layers of a 7B model at once, and 64 through 2.
AT_ONCE, FEW = 2.6e10, 8

PRODUCTS = (  # matrices of a layer that the same rows are multiplied with
    ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    ("self_attn.o_proj",),
    ("mlp.gate_proj", "mlp.up_proj"),
    ("mlp.down_proj",),
)
VECTORS = {  # layer.WholeLayer's names
    "input_norm": "input_layernorm.weight",
    "q_norm": "self_attn.q_norm.weight",
    "k_norm": "self_attn.k_norm.weight",
    "after_norm": "post_attention_layernorm.weight",
    "q_bias": "self_attn.q_proj.bias",
    "k_bias": "self_attn.k_proj.bias",
    "v_bias": "self_attn.v_proj.bias",
    "o_bias": "self_attn.o_proj.bias",
    "gate_bias": "mlp.gate_proj.bias",
    "up_bias": "mlp.up_proj.bias",
    "down_bias": "mlp.down_proj.bias",
}


def whole_pass(
    attention: AttentionPlan, config: ModelConfig, most: int, cos: Tensor, sin: Tensor
) -> LayerPass | None:
    """For a pass of trees alone, which the compiled kernel attends for, of at most as many rows as have room
    (`runtimes.formats.passes.scratch_bytes`)."""
    trees = attention.compiled
    if trees is None or attention.trees < len(attention.parts) or config.heads > trees.most_heads:
        return None
    if trees.n > most:
        return None
    return LayerPass(trees, cos, sin)


def whole_layers(
    layers: Iterable[int], rows: int, config: ModelConfig, together: Together, small: Mapping[str, Tensor]
) -> list[WholeLayer]:
    """Those from the first on whose matrices are all among those of `together`; as many as one call may take
    of so many rows."""
    found, products = list[WholeLayer](), 0
    for index in layers:
        if index not in together.layers:
            together.layers[index] = _made(index, config, together, small)
        if (layer := together.layers[index]) is None:
            break
        products += max(rows, FEW) * layer.weights
        if found and products > AT_ONCE:
            break
        found.append(layer)
    return found


def _made(
    index: int, config: ModelConfig, together: Together, small: Mapping[str, Tensor]
) -> WholeLayer | None:
    name = f"model.layers.{index}."
    products = [together.made(tuple(name + matrix for matrix in matrices)) for matrices in PRODUCTS]
    found = [product for product in products if product is not None]
    if len(found) < len(products):
        return None
    vectors = {own: small[name + theirs] for own, theirs in VECTORS.items() if name + theirs in small}
    shape = LayerShape(
        config.hidden_size, config.heads, config.kv_heads, config.head_dim, config.intermediate_size,
        config.rope.interleaved, config.window(index), config.norm_eps,
    )  # fmt: skip
    return WholeLayer(found, vectors, shape)
