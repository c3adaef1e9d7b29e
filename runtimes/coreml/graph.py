"""The Core ML programs of a decoder, laid out for the Neural Engine. Needs coremltools, and no torch.

    layers_N   hidden [1, d, 1, T], cos and sin [1, 1, head_dim, T], mask [1, 1, T, C + T],
               keys_i and values_i [1, kv_heads, head_dim, C - S], states kept_keys_i and kept_values_i
               ->  normed [1, d, 1, T], new_keys_i and new_values_i [1, kv_heads, head_dim, T]
    head_N     normed [1, d, 1, T]  ->  logits_0, logits_1 ... [1, up to 16384, 1, T]
    keep_N     keys_i and values_i [1, kv_heads, head_dim, T], places [1, 1, T, S], rest [1, 1, 1, S], and the
               same states  ->  kept [1, 1, 1, S]

T = N rows, C positions, all numbers fp16. As in ONNX the cache is the host's and layers only read it; so that
not all of it has to be handed over in each pass, its first S positions may be in Core ML's states
[1, kv_heads, head_dim, S] (S = 0: there are none, and no `keep`). These only `keep` writes: row t to where
places[t] is 1, and what is elsewhere, where `rest` is 1, stays. (A slice at a place known only at run time is
what the Neural Engine's compiler fails on.)

Channels come first and rows last, and matrices are 1x1 convolutions, as Apple's recipe for transformers has
it (machinelearning.apple.com/research/neural-engine-transformers). Heads that share keys are told apart
before they are multiplied: q_proj's rows are put in order of their place in the group, so that no key is
repeated, and o_proj's columns likewise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce
from math import sqrt
from typing import Any, Literal

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
        *("abs", "add", "concat", "const", "constexpr_blockwise_shift_scale", "conv", "identity", "matmul"),
        *("maximum", "mul", "read_state", "real_div", "reduce_max", "reduce_mean", "reshape", "rsqrt"),
        *("silu", "softmax", "split", "square", "write_state"),
    )
)

Precision = Literal["fp16", "int8"]


@dataclass(frozen=True)
class Shapes:
    """Of a model: positions C, of which the first `kept` S are in states. precision: of matrices."""

    config: ModelConfig
    positions: int
    kept: int = 0
    precision: Precision = "fp16"

    @property
    def handed(self) -> int:
        """Positions whose keys and values are handed over in each pass."""
        return self.positions - self.kept

    @property
    def caches(self) -> list[str]:
        """Of a pass, in the host's order."""
        return [f"{part}_{layer}" for layer in range(self.config.layers) for part in ("keys", "values")]

    def cache(self, positions: int) -> tuple[int, ...]:
        """Of keys, or values, of one layer."""
        return 1, self.config.kv_heads, self.config.head_dim, positions


class Builder:
    """A function under way."""

    def __init__(self, read: Read, shapes: Shapes) -> None:
        from coremltools.converters.mil.mil import Builder as mb

        self.mb: Any = mb
        self.read, self.config, self.precision = read, shapes.config, shapes.precision

    def bias(self, name: str, biased: bool) -> NDArray[np.float16] | None:
        return self.read(name).astype(np.float16) if biased else None

    def linear(self, x: Any, matrix: NDArray[Any], bias: NDArray[Any] | None = None, **named: str) -> Any:
        """x [1, in, 1, T] by a matrix [out, in]."""
        if self.precision == "int8":
            data, scale = quantise(matrix)
            shaped = {"data": data[:, :, None, None], "scale": scale[:, :, None, None]}
            weight = self.mb.constexpr_blockwise_shift_scale(**shaped)
        else:
            weight = matrix.astype(np.float16)[:, :, None, None]
        extra = {} if bias is None else {"bias": bias}
        return self.mb.conv(x=x, weight=weight, **extra, **named)

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


def quantise(matrix: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float16]]:
    """[out, in] as bytes, and each row's unit, [out, 1]: the Neural Engine takes one for each channel."""
    units = (np.abs(matrix).max(axis=1, keepdims=True) / 127).astype(np.float16)
    # What has no unit in fp16 is 0.
    numbers = np.divide(matrix, units, out=np.zeros_like(matrix), where=units > 0, dtype=np.float32)
    return np.clip(np.rint(numbers), -127, 127).astype(np.int8), units


def layers_program(shapes: Shapes, read: Read, rows: int) -> Any:
    """All layers and the last norm, as a MIL program."""
    config = shapes.config
    inputs: dict[str, tuple[int, ...]] = {
        "hidden": (1, config.hidden_size, 1, rows),
        "cos": (1, 1, config.head_dim, rows),
        "sin": (1, 1, config.head_dim, rows),
    }
    seen = shapes.positions + rows
    inputs |= {mask_name(window): (1, 1, rows, seen) for window in mask_windows(config)}
    inputs |= dict.fromkeys(shapes.caches, shapes.cache(shapes.handed))
    return _program(inputs, shapes, lambda given: _layers(Builder(read, shapes), given, rows, shapes))


def _layers(build: Builder, inputs: dict[str, Any], rows: int, shapes: Shapes) -> list[Any]:
    mb, config, read, outputs = build.mb, build.config, build.read, []
    lengths = [shapes.kept, shapes.handed, rows][shapes.kept == 0 :]
    kv, hd, group = config.kv_heads, config.head_dim, config.heads // config.kv_heads
    hidden, angles = inputs["hidden"], (inputs["cos"], inputs["sin"])
    # Place in the group first, then the key-value head: [kv, group, hd] -> [group, kv, hd].
    order = np.arange(config.q_size).reshape(kv, group, hd).swapaxes(0, 1).reshape(-1)

    def behind(name: str, new: Any) -> list[Any]:
        """The cache, and behind it what is new."""
        kept = [mb.read_state(input=inputs[f"kept_{name}"])] if shapes.kept else []
        return [*kept, inputs[name], new]

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
        keys, values = behind(f"keys_{layer}", made["k"]), behind(f"values_{layer}", made["v"])
        mask, mixed = inputs[mask_name(config.window(layer))], []
        for part in mb.split(x=q, num_splits=group, axis=1) if group > 1 else [q]:  # [1, kv, hd, T] each
            scores = mb.concat(values=[mb.matmul(x=part, y=k, transpose_x=True) for k in keys], axis=3)
            weights = mb.softmax(x=mb.add(x=scores, y=mask), axis=3)
            shares = mb.split(x=weights, split_sizes=lengths, axis=3)
            sums = [mb.matmul(x=v, y=w, transpose_y=True) for w, v in zip(shares, values, strict=True)]
            mixed.append(reduce(lambda x, y: mb.add(x=x, y=y), sums))
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


def head_program(shapes: Shapes, read: Read, rows: int) -> Any:
    """The LM head, as a MIL program."""
    config = shapes.config
    matrix = read(EMBEDDING if config.tied_head else HEAD)

    def parts(inputs: dict[str, Any]) -> list[Any]:
        build = Builder(read, shapes)
        return [
            build.linear(inputs["normed"], matrix[start : start + HEAD_ROWS], name=f"logits_{index}")
            for index, start in enumerate(range(0, config.vocab_size, HEAD_ROWS))
        ]

    return _program({"normed": (1, config.hidden_size, 1, rows)}, replace(shapes, kept=0), parts)


def head_parts(config: ModelConfig) -> int:
    """Outputs of the LM head."""
    return -(-config.vocab_size // HEAD_ROWS)


def keep_program(shapes: Shapes, rows: int) -> Any:
    """What puts `rows` rows of all layers into the states, as a MIL program."""
    kept, width = shapes.kept, shapes.config.kv_heads * shapes.config.head_dim
    inputs = dict.fromkeys(shapes.caches, shapes.cache(rows))
    inputs |= {"places": (1, 1, rows, kept), "rest": (1, 1, 1, kept)}

    def parts(given: dict[str, Any]) -> list[Any]:
        from coremltools.converters.mil.mil import Builder as mb

        for name in shapes.caches:
            state, new = given[f"kept_{name}"], mb.reshape(x=given[name], shape=[1, 1, width, rows])
            placed = mb.reshape(x=mb.matmul(x=new, y=given["places"]), shape=shapes.cache(kept))
            before = mb.mul(x=mb.read_state(input=state), y=given["rest"])
            mb.coreml_update_state(state=state, value=mb.add(x=before, y=placed))
        return [mb.identity(x=given["rest"], name="kept")]  # a function has an output

    return _program(inputs, shapes, parts)


def _program(
    shapes: dict[str, tuple[int, ...]], model: Shapes, build: Callable[[dict[str, Any]], list[Any]]
) -> Any:
    """A function of inputs of these shapes, and of the model's states."""
    ct = runtime()
    from coremltools.converters.mil.mil import Builder as mb
    from coremltools.converters.mil.mil import Function, Program, types

    inputs = {name: mb.placeholder(shape=shape, dtype=types.fp16) for name, shape in shapes.items()}
    if model.kept:
        held = model.cache(model.kept)
        inputs |= {f"kept_{name}": mb.state_tensor_placeholder(held, types.fp16) for name in model.caches}
    with Function(inputs, opset_version=ct.target.iOS18) as function:
        function.set_outputs(build(dict(function.inputs)))
    program = Program()
    program.add_function("main", function)
    return program
