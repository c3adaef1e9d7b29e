"""The Core ML programs of a decoder, laid out for the Neural Engine. Needs coremltools, and no torch.

    layers_N   hidden [1, d, 1, T], cos and sin [1, 1, head_dim, T], mask [1, 1, T, C + T],
               keys_i and values_i [1, kv_heads, head_dim, C]
               ->  normed [1, d, 1, T], new_keys_i and new_values_i [1, kv_heads, head_dim, T]
    head_N     normed [1, d, 1, T]  ->  logits_0, logits_1 ... [1, up to 16384, 1, T]

T = N rows, C positions, all numbers fp16. As in ONNX the cache is read only and the host's. Channels come
first and rows last, and matrices are 1x1 convolutions, as Apple's recipe for transformers has it
(machinelearning.apple.com/research/neural-engine-transformers). Heads that share keys are told apart before
they are multiplied: q_proj's rows are put in order of their place in the group, so that no key is repeated,
and o_proj's columns likewise.
"""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgespec.runtimes.config import EMBEDDING, FINAL_NORM, HEAD, ModelConfig
from edgespec.runtimes.coreml.package import runtime
from edgespec.runtimes.exported.host import mask_name, mask_windows

HEAD_ROWS = 16384  # of a convolution: a dimension of the Neural Engine's is no larger
SMALL = 1e-3  # a row's largest number is taken to be at least that: of padding it is 0

Read = Callable[[str], NDArray[np.float32]]
"""A tensor by canonical name."""

# All that the programs do; the Neural Engine takes each.
OPERATIONS = frozenset(
    (
        *("abs", "add", "concat", "const", "conv", "identity", "matmul", "maximum", "mul", "real_div"),
        *("reduce_max", "reduce_mean", "reshape", "rsqrt", "silu", "softmax", "split", "square"),
    )
)


class Builder:
    """A function under way."""

    def __init__(self, read: Read, config: ModelConfig) -> None:
        from coremltools.converters.mil.mil import Builder as mb

        self.mb: Any = mb
        self.read, self.config = read, config

    def bias(self, name: str, biased: bool) -> NDArray[np.float16] | None:
        return self.read(name).astype(np.float16) if biased else None

    def linear(self, x: Any, matrix: NDArray[Any], bias: NDArray[Any] | None) -> Any:
        """x [1, in, 1, T] by a matrix [out, in]."""
        weight = matrix.astype(np.float16)[:, :, None, None]
        return (
            self.mb.conv(x=x, weight=weight) if bias is None else self.mb.conv(x=x, weight=weight, bias=bias)
        )

    def norm(self, x: Any, name: str, axis: int) -> Any:
        """RMSNorm over an axis of [1, ., ., T]. The row's largest number is divided by first: squares of
        large states are beyond fp16."""
        mb, eps = self.mb, np.float16(sqrt(self.config.norm_eps))
        largest = mb.maximum(x=mb.reduce_max(x=mb.abs(x=x), axes=[axis], keep_dims=True), y=np.float16(SMALL))
        scaled = mb.real_div(x=x, y=largest)
        mean = mb.reduce_mean(x=mb.square(x=scaled), axes=[axis], keep_dims=True)
        least = mb.square(x=mb.real_div(x=eps, y=largest))
        weight = self.read(name).astype(np.float16).reshape([-1 if i == axis else 1 for i in range(4)])
        return mb.mul(x=mb.mul(x=scaled, y=mb.rsqrt(x=mb.add(x=mean, y=least))), y=weight)

    def rotated(self, x: Any, cos: Any, sin: Any) -> Any:
        """x [1, heads, head_dim, T] by its rows' angles; the first half of `sin` is negative."""
        first, second = self.mb.split(x=x, num_splits=2, axis=2)
        swapped = self.mb.concat(values=[second, first], axis=2)
        return self.mb.add(x=self.mb.mul(x=x, y=cos), y=self.mb.mul(x=swapped, y=sin))


def layers_program(config: ModelConfig, read: Read, rows: int, positions: int) -> Any:
    """All layers and the last norm, as a MIL program."""
    kv, hd = config.kv_heads, config.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "hidden": (1, config.hidden_size, 1, rows),
        "cos": (1, 1, hd, rows),
        "sin": (1, 1, hd, rows),
    }
    shapes |= {mask_name(window): (1, 1, rows, positions + rows) for window in mask_windows(config)}
    cache = [f"{part}_{layer}" for layer in range(config.layers) for part in ("keys", "values")]
    shapes |= dict.fromkeys(cache, (1, kv, hd, positions))
    return _program(shapes, lambda inputs: _layers(Builder(read, config), inputs, rows, positions))


def _layers(build: Builder, inputs: dict[str, Any], rows: int, positions: int) -> list[Any]:
    mb, config, read, outputs = build.mb, build.config, build.read, []
    kv, hd, group = config.kv_heads, config.head_dim, config.heads // config.kv_heads
    hidden, angles = inputs["hidden"], (inputs["cos"], inputs["sin"])
    # Place in the group first, then the key-value head: [kv, group, hd] -> [group, kv, hd].
    order = np.arange(config.q_size).reshape(kv, group, hd).swapaxes(0, 1).reshape(-1)
    for layer in range(config.layers):
        p = f"model.layers.{layer}."
        x = build.norm(hidden, p + "input_layernorm.weight", 1)
        made = {}
        for part, heads in (("q", config.heads), ("k", kv), ("v", kv)):
            name = f"{p}self_attn.{part}_proj"
            matrix, bias = read(name + ".weight"), build.bias(name + ".bias", config.qkv_bias)
            if part == "q":
                matrix, bias = matrix[order], None if bias is None else bias[order]
            made[part] = mb.reshape(x=build.linear(x, matrix, bias), shape=[1, heads, hd, rows])
            if part != "v":
                if config.qk_norm:
                    made[part] = build.norm(made[part], f"{p}self_attn.{part}_norm.weight", 2)
                made[part] = build.rotated(made[part], *angles)
        outputs.append(mb.identity(x=made["k"], name=f"new_keys_{layer}"))
        outputs.append(mb.identity(x=made["v"], name=f"new_values_{layer}"))
        q = mb.mul(x=made["q"], y=np.float16(hd**-0.5))
        keys, values = (inputs[f"keys_{layer}"], made["k"]), (inputs[f"values_{layer}"], made["v"])
        mask, mixed = inputs[mask_name(config.window(layer))], []
        for part in mb.split(x=q, num_splits=group, axis=1) if group > 1 else [q]:  # [1, kv, hd, T] each
            scores = mb.concat(values=[mb.matmul(x=part, y=k, transpose_x=True) for k in keys], axis=3)
            weights = mb.softmax(x=mb.add(x=scores, y=mask), axis=3)
            shares = mb.split(x=weights, split_sizes=[positions, rows], axis=3)
            sums = [mb.matmul(x=v, y=w, transpose_y=True) for w, v in zip(shares, values, strict=True)]
            mixed.append(mb.add(x=sums[0], y=sums[1]))
        whole = mb.concat(values=mixed, axis=1) if group > 1 else mixed[0]
        whole = mb.reshape(x=whole, shape=[1, config.q_size, 1, rows])
        name = p + "self_attn.o_proj"
        o = build.linear(whole, read(name + ".weight")[:, order], build.bias(name + ".bias", config.o_bias))
        hidden = mb.add(x=hidden, y=o)
        x = build.norm(hidden, p + "post_attention_layernorm.weight", 1)
        gate, up = (
            build.linear(
                x, read(f"{p}mlp.{n}_proj.weight"), build.bias(f"{p}mlp.{n}_proj.bias", config.mlp_bias)
            )
            for n in ("gate", "up")
        )
        product, name = mb.mul(x=mb.silu(x=gate), y=up), p + "mlp.down_proj"
        down = build.linear(product, read(name + ".weight"), build.bias(name + ".bias", config.mlp_bias))
        hidden = mb.add(x=hidden, y=down)
    return [mb.identity(x=build.norm(hidden, FINAL_NORM, 1), name="normed"), *outputs]


def head_program(config: ModelConfig, read: Read, rows: int) -> Any:
    """The LM head, as a MIL program."""
    matrix = read(EMBEDDING if config.tied_head else HEAD)

    def parts(inputs: dict[str, Any]) -> list[Any]:
        build = Builder(read, config)
        return [
            build.mb.conv(
                x=inputs["normed"],
                weight=matrix[start : start + HEAD_ROWS].astype(np.float16)[:, :, None, None],
                name=f"logits_{index}",
            )
            for index, start in enumerate(range(0, config.vocab_size, HEAD_ROWS))
        ]

    return _program({"normed": (1, config.hidden_size, 1, rows)}, parts)


def head_parts(config: ModelConfig) -> int:
    """Outputs of the LM head."""
    return -(-config.vocab_size // HEAD_ROWS)


def _program(shapes: dict[str, tuple[int, ...]], build: Callable[[dict[str, Any]], list[Any]]) -> Any:
    ct = runtime()
    from coremltools.converters.mil.mil import Builder as mb
    from coremltools.converters.mil.mil import Function, Program, types

    inputs = {name: mb.placeholder(shape=shape, dtype=types.fp16) for name, shape in shapes.items()}
    with Function(inputs, opset_version=ct.target.iOS18) as function:
        function.set_outputs(build(dict(function.inputs)))
    program = Program()
    program.add_function("main", function)
    return program
