"""The sizes of a Mixture-of-Attentions drafter for one target, and what follows from them. Needs no torch."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import msgspec

from edgespec.errors import OptionError
from edgespec.runtimes.config import ModelConfig
from edgespec.runtimes.formats.needs import cache_bytes

KIND = "moa"  # as directories of adapters say
WIDEST = 2**20  # of an MLP
ATTENTIONS = ("over_layers", "over_tokens", "to_memory")
Three = tuple[int, int, int]


class MoaSizes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a network of one target may have more or less of; (over layers, over tokens, to memory) each.

    kv_heads: heads of keys and values. mlp: widths of the MLPs. layer_attention: False = the last layer's
    keys and values alone (for the paper's ablation "-LSA", which takes the last layer's output).
    target_layers: the target's last ones that drafts go through, too (TLI); what is drafted is then the state
    before them.
    """

    kv_heads: Three
    mlp: Three
    layer_attention: bool = True
    target_layers: int = 0

    def check(self, config: ModelConfig) -> None:
        """Raises ValueError for sizes that cannot be of this target's network."""
        for name, heads, kv in zip(ATTENTIONS, query_heads(config), self.kv_heads, strict=True):
            if not 1 <= kv <= heads or heads % kv:
                raise ValueError(
                    f"{kv} heads of keys cannot serve the {heads} heads of the attention "
                    f"{name.replace('_', ' ')}; use a number that divides these"
                )
        if not 0 <= self.target_layers < config.layers:
            raise ValueError(
                f"drafts cannot go through {self.target_layers} of the target's {config.layers} layers"
            )
        if wrong := [width for width in self.mlp if not 1 <= width <= WIDEST]:
            raise ValueError(f"an MLP cannot be {wrong[0]} wide; use 1 to {WIDEST}")


def choose_sizes(
    config: ModelConfig,
    kv_heads: tuple[int, ...] = (),
    mlp: tuple[int, ...] = (),
    layer_attention: bool = True,
    target_layers: int = 0,
) -> MoaSizes:
    """What is not given (empty) is in proportion to the target as the paper's MLPs are (Table 6).

    Raises OptionError for sizes that cannot be.
    """
    d = config.hidden_size
    usual = 3 * memory_width(config), max(1, d // 8), max(1, 7 * d // 4)
    sizes = MoaSizes(
        _three("kv_heads", kv_heads or (config.kv_heads,) * 3),
        _three("mlp", mlp or usual),
        layer_attention,
        target_layers,
    )
    try:
        sizes.check(config)
    except ValueError as error:
        raise OptionError(str(error)) from None
    return sizes


def _three(name: str, values: tuple[int, ...]) -> Three:
    if len(values) != 3:
        raise OptionError(
            f"{name} has {len(values)} numbers; give three, of the attention over layers, over tokens and to "
            "memory",
            name,
        )
    return values[0], values[1], values[2]


def memory_width(config: ModelConfig) -> int:
    """Of a memory vector: the keys and values that one layer has of a token."""
    return 2 * config.kv_size


def query_heads(config: ModelConfig) -> Three:
    """Of the three attentions, each head of the target's own size."""
    return 2 * config.kv_heads, config.heads, config.heads


def parameter_shapes(config: ModelConfig, sizes: MoaSizes) -> dict[str, tuple[int, ...]]:
    """Shape of each parameter, by name. Raises ValueError for sizes that cannot be of this target."""
    sizes.check(config)
    d, width, e = config.hidden_size, memory_width(config), config.head_dim
    shapes: dict[str, tuple[int, ...]] = {"projection": (d, width), "projection_bias": (d,)}
    if not sizes.target_layers:
        shapes["norm"] = (d,)  # else the target's own comes last
    layers = zip(ATTENTIONS, (width, d, d), query_heads(config), sizes.kv_heads, sizes.mlp, strict=True)
    for name, w, heads, kv, mlp in layers:
        if name == "over_layers" and not sizes.layer_attention:
            continue
        own: dict[str, tuple[int, ...]] = {
            "input_norm": (w,), "q_proj": (heads * e, w), "k_proj": (kv * e, w), "v_proj": (kv * e, w),
            "o_proj": (w, heads * e), "post_norm": (w,), "gate_proj": (mlp, w), "up_proj": (mlp, w),
            "down_proj": (w, mlp),
        }  # fmt: skip
        shapes |= {f"{name}.{parameter}": shape for parameter, shape in own.items()}
    return shapes


def parameters(config: ModelConfig, sizes: MoaSizes) -> int:
    """How many numbers are trained."""
    return sum(prod(shape) for shape in parameter_shapes(config, sizes).values())


def drafting_parameters(config: ModelConfig, sizes: MoaSizes) -> int:
    """How many of them a pass of drafting reads: what comes before the memory is done once a token."""
    shapes = parameter_shapes(config, sizes)
    return sum(prod(s) for n, s in shapes.items() if n.startswith(ATTENTIONS[1:]) or n == "norm")


def cache_configs(config: ModelConfig, sizes: MoaSizes) -> tuple[ModelConfig, ModelConfig]:
    """The target's config as the KV caches over tokens and to memory see it: one layer."""
    tokens, memory = (replace(config, layers=1, windows=(), kv_heads=n) for n in sizes.kv_heads[1:])
    return tokens, memory


def conversation_bytes(config: ModelConfig, sizes: MoaSizes, context: int, rows: int, element: int) -> int:
    """Bytes of one conversation's keys and values, of tokens (with `rows` uncommitted) and of memory."""
    tokens, memory = cache_configs(config, sizes)
    return cache_bytes(tokens, context, rows, element) + cache_bytes(memory, context, 0, element)
