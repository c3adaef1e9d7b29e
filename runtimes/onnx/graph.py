"""The ONNX graphs of a decoder: layers, LM head, lookahead streams. Needs neither torch nor `onnx`.

    layers   hidden [T, d], cos and sin [T, head_dim], mask [heads / kv_heads * T, C + T],
             keys.i and values.i [kv_heads, C, head_dim]  ->  normed [T, d], new_keys.i, new_values.i
    head     normed [T, d]  ->  logits [T, V]
    before   as layers, of those that streams do not go through; gives states [T, d], which are not normed
    streams  states [T, d]  ->  streams [T * gamma, d], which go through `layers` behind the T rows

The cache is read only: T new rows attend to its C positions and to one another as the mask says, their keys
and values come out, and the host puts them where it wants. So going back is a smaller number, and branches
share a call. Heads that share keys are stacked above one another, row for row of the mask. Whatever depends
on a position (rotation, mask) or on a token (its embedding) is made by the host.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from edgespec.offload.chunks import SCALE
from edgespec.runtimes.config import FINAL_NORM, HEAD, ModelConfig
from edgespec.runtimes.exported.host import mask_name, mask_windows
from edgespec.runtimes.onnx import proto
from edgespec.runtimes.onnx.layout import STREAM_BIAS, STREAM_PROJ, ZERO, Stored, head_name

OPSET, IR_VERSION = 17, 8
LOW = 254.0  # units of the low digit in one of the high one's: halves are 127
TINY = 1e-30  # a unit, at least: rows of zeros have one, too
ONE_DIGIT = ("gate_proj", "up_proj", HEAD.removesuffix(".weight"))
"""Matrices whose inputs are one byte a number in int8; others have two, as what comes out of attention and
of the MLP's product has a few large numbers. These are more than half of a model. Of the demo model's next
tokens of README.md 94.9 % are the bf16 model's own; 92.9 % with one byte everywhere, 95.9 % with two."""


class GraphBuilder:
    """A graph under way; operations return the name of what they give."""

    def __init__(self, precision: str, file: str, weights: Mapping[str, Stored]) -> None:
        """`weights`: what lies in `file`, by canonical name; int8 matrices as `layout.quantise` makes
        them."""
        self.precision, self.file, self.weights = precision, file, weights
        self.encoding = "F16" if precision == "fp16" else "F32"  # of states
        self.nodes: list[bytes] = []
        self.tensors: dict[str, bytes] = {}
        self.inputs: list[bytes] = []
        self.outputs: list[bytes] = []
        self._digits: dict[tuple[str, bool], tuple[str, str]] = {}  # what matrices of one input share

    def input(self, name: str, shape: Sequence[int | str]) -> str:
        self.inputs.append(proto.value(name, self.encoding, shape))
        return name

    def output(self, value: str, name: str, shape: Sequence[int | str], encoding: str | None = None) -> None:
        self.nodes.append(proto.node("Identity", [value], [name], name, {}))
        self.outputs.append(proto.value(name, encoding or self.encoding, shape))

    def op(self, kind: str, *inputs: str, **attributes: proto.Attribute) -> str:
        return self.ops(kind, *inputs, count=1, **attributes)[0]

    def ops(self, kind: str, *inputs: str, count: int, **attributes: proto.Attribute) -> list[str]:
        """An operation of several outputs."""
        name = f"{kind}_{len(self.nodes)}"
        outputs = [f"{name}.{i}" for i in range(count)]
        self.nodes.append(proto.node(kind, inputs, outputs, name, attributes))
        return outputs

    def ints(self, *values: int) -> str:
        """A constant [len(values)]."""
        name = "ints_" + "_".join(map(str, values))
        raw = np.array(values, dtype="<i8").tobytes()
        self.tensors.setdefault(name, proto.constant(name, "I64", [len(values)], raw))
        return name

    def number(self, value: float, encoding: str | None = None) -> str:
        """A constant [], of the states' type if no other is named."""
        encoding = encoding or self.encoding
        name = f"number_{value}_{encoding}"
        raw = np.array(value, dtype="<f2" if encoding == "F16" else "<f4").tobytes()
        self.tensors.setdefault(name, proto.constant(name, encoding, [], raw))
        return name

    def weight(self, name: str) -> str:
        """A tensor of the weights' file."""
        stored = self.weights[name]
        about = stored.encoding, stored.shape, self.file, stored.offset, stored.nbytes
        self.tensors.setdefault(name, proto.external(name, *about))
        return name

    def linear(self, x: str, name: str) -> str:
        """x [T, in] by a matrix [out, in], and its bias if there is one."""
        matrix, bias = f"{name}.weight", f"{name}.bias"
        extra = [self.weight(bias)] if bias in self.weights else []
        if self.precision != "int8":
            return self.op("Gemm", x, self.weight(matrix), *extra, transB=1)
        two, zero = not name.endswith(ONE_DIGIT), self.byte(ZERO)
        digits, unit = self.digits(x, two)
        sums = self.op("MatMulInteger", digits, self.weight(matrix), zero, zero)  # int32
        product = self.op("Cast", sums, to=proto.FLOAT)
        if two:
            high, low = self.ops("Split", product, count=2, axis=0)
            product = self.op("Add", high, self.op("Mul", low, self.number(1 / LOW)))
        product = self.op("Mul", self.op("Mul", product, unit), self.weight(matrix + SCALE))
        return self.op("Add", product, *extra) if extra else product

    def digits(self, x: str, two: bool) -> tuple[str, str]:
        """x [T, in] as bytes around `ZERO`, and the unit of each row, [T, 1], so that no row is another's
        business. With two digits the bytes are [2 T, in], of which the last T, for what the first ones leave
        over, count a `LOW`th."""
        if (x, two) not in self._digits:
            most = self.op("ReduceMax", self.op("Abs", x), axes=[-1], keepdims=1)
            unit = self.op("Max", self.op("Mul", most, self.number(1 / 127)), self.number(TINY))
            found = self.op("Div", x, unit)
            if two:
                high = self.op("Round", found)
                low = self.op("Mul", self.op("Sub", found, high), self.number(LOW))
                found = self.op("Concat", high, low, axis=0)
            self._digits[x, two] = self.op("QuantizeLinear", found, self.number(1.0), self.byte(ZERO)), unit
        return self._digits[x, two]

    def byte(self, value: int) -> str:
        """A constant [], of int8 matrices' type."""
        name = f"byte_{value}"
        self.tensors.setdefault(name, proto.constant(name, "U8", [], bytes([value])))
        return name

    def norm(self, x: str, name: str, eps: float) -> str:
        """RMSNorm over the last axis, in fp32: squares of large states are beyond fp16."""
        half = self.encoding == "F16"
        wide = self.op("Cast", x, to=proto.FLOAT) if half else x
        square = self.op("Pow", wide, self.number(2.0, "F32"))
        mean = self.op("ReduceMean", square, axes=[-1], keepdims=1)
        scaled = self.op("Div", wide, self.op("Sqrt", self.op("Add", mean, self.number(eps, "F32"))))
        narrow = self.op("Cast", scaled, to=proto.FLOAT16) if half else scaled
        return self.op("Mul", narrow, self.weight(name))

    def model(self, name: str) -> bytes:
        inside = self.nodes, self.tensors.values(), self.inputs, self.outputs
        return proto.model(name, *inside, IR_VERSION, OPSET)


def layers_graph(
    config: ModelConfig,
    build: GraphBuilder,
    rows: int | None = None,
    positions: int | None = None,
    layers: range | None = None,
) -> bytes:
    """These layers, or all, and behind the last of all its norm, for T = `rows` and C = `positions`; None =
    for any."""
    layers = range(config.layers) if layers is None else layers
    t, c = rows or "T", positions or "C"
    group, hd, kv = config.heads // config.kv_heads, config.head_dim, config.kv_heads
    hidden = build.input("hidden", [t, config.hidden_size])
    cos, sin = (build.op("Unsqueeze", build.input(n, [t, hd]), build.ints(1)) for n in ("cos", "sin"))
    seen = [rows * group if rows else "G", rows + positions if rows and positions else "S"]
    masks = {window: build.input(mask_name(window), seen) for window in mask_windows(config)}
    parts = None if rows is None or positions is None else build.ints(positions, rows)
    for layer in layers:
        p = f"model.layers.{layer}."
        keys, values = (build.input(f"{n}.{layer}", [kv, c, hd]) for n in ("keys", "values"))
        if parts is None:
            lengths = build.op("Shape", keys, start=1, end=2), build.op("Shape", hidden, start=0, end=1)
            parts = build.op("Concat", *lengths, axis=0)

        def linear(x: str, name: str, p: str = p) -> str:
            return build.linear(x, p + name)

        x = build.norm(hidden, p + "input_layernorm.weight", config.norm_eps)
        heads = []
        for name, count in (("q", config.heads), ("k", kv)):
            head = build.op("Reshape", linear(x, f"self_attn.{name}_proj"), build.ints(-1, count, hd))
            if config.qk_norm:
                head = build.norm(head, f"{p}self_attn.{name}_norm.weight", config.norm_eps)
            heads.append(_rotated(build, head, cos, sin, hd))
        q, k = heads
        v = build.op("Reshape", linear(x, "self_attn.v_proj"), build.ints(-1, kv, hd))
        k, v = (build.op("Transpose", part, perm=[1, 0, 2]) for part in (k, v))  # [kv, T, hd]
        build.output(k, f"new_keys.{layer}", [kv, t, hd])
        build.output(v, f"new_values.{layer}", [kv, t, hd])
        q = build.op("Mul", q, build.number(hd**-0.5))
        q = build.op("Reshape", q, build.ints(-1, kv, group, hd))
        q = build.op("Reshape", build.op("Transpose", q, perm=[1, 2, 0, 3]), build.ints(kv, -1, hd))
        mask = masks[config.window(layer)]
        mixed = _attention(build, q, (keys, k), (values, v), mask, parts)  # [kv, group * T, hd]
        mixed = build.op(
            "Transpose", build.op("Reshape", mixed, build.ints(kv, group, -1, hd)), perm=[2, 0, 1, 3]
        )
        mixed = build.op("Reshape", mixed, build.ints(-1, config.q_size))
        hidden = build.op("Add", hidden, linear(mixed, "self_attn.o_proj"))
        x = build.norm(hidden, p + "post_attention_layernorm.weight", config.norm_eps)
        gate = linear(x, "mlp.gate_proj")
        gate = build.op("Mul", gate, build.op("Sigmoid", gate))
        up = build.op("Mul", gate, linear(x, "mlp.up_proj"))
        hidden = build.op("Add", hidden, linear(up, "mlp.down_proj"))
    if layers.stop < config.layers:
        build.output(hidden, "states", [t, config.hidden_size])
        return build.model("before")
    build.output(build.norm(hidden, FINAL_NORM, config.norm_eps), "normed", [t, config.hidden_size])
    return build.model("layers")


def streams_graph(config: ModelConfig, build: GraphBuilder, streams: int, rows: int | None = None) -> bytes:
    """As `streams` lookahead streams of each of T = `rows` rows begin; None = for any."""
    d = config.hidden_size
    begun = build.linear(build.input("states", [rows or "T", d]), STREAM_PROJ.removesuffix(".weight"))
    begun = build.op("Add", build.op("Unsqueeze", begun, build.ints(1)), build.weight(STREAM_BIAS))
    begun = build.op("Reshape", begun, build.ints(-1, d))
    build.output(begun, "streams", [rows * streams if rows else "S", d])
    return build.model("streams")


def head_graph(config: ModelConfig, build: GraphBuilder, rows: int | None = None) -> bytes:
    """The LM head, for T = `rows`; None = for any."""
    t = rows or "T"
    matrix = head_name(build.weights).removesuffix(".weight")
    logits = build.linear(build.input("normed", [t, config.hidden_size]), matrix)
    if build.encoding == "F16":
        logits = build.op("Cast", logits, to=proto.FLOAT)
    build.output(logits, "logits", [t, config.vocab_size], "F32")
    return build.model("head")


def _rotated(build: GraphBuilder, x: str, cos: str, sin: str, head_dim: int) -> str:
    """x [T, heads, head_dim] by its rows' angles; the first half of `sin` is negative."""
    halves = build.ops("Split", x, build.ints(head_dim // 2, head_dim // 2), count=2, axis=-1)
    swapped = build.op("Concat", *reversed(halves), axis=-1)
    return build.op("Add", build.op("Mul", x, cos), build.op("Mul", swapped, sin))


def _attention(
    build: GraphBuilder, q: str, keys: tuple[str, str], values: tuple[str, str], mask: str, parts: str
) -> str:
    """Of q [kv_heads, group * T, head_dim] to what is cached and to what is new, of lengths `parts`: only
    scores are put together, as the cache would be copied."""
    scores = [build.op("MatMul", q, build.op("Transpose", part, perm=[0, 2, 1])) for part in keys]
    weights = build.op("Softmax", build.op("Add", build.op("Concat", *scores, axis=-1), mask), axis=-1)
    shares = build.ops("Split", weights, parts, count=2, axis=-1)
    return build.op("Add", *(build.op("MatMul", w, v) for w, v in zip(shares, values, strict=True)))
