"""An interpreter of Core ML's ML programs in numpy, for what `runtimes.coreml.graph` writes.

It reads a package as it lies on the disk, and computes in fp32 with numbers rounded to fp16 after each
operation.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def functions_of(package: Path) -> dict[str, Any]:
    import coremltools
    from coremltools.converters.mil.frontend.milproto.load import load

    spec = coremltools.utils.load_spec(str(package))
    weights = str(package / "Data" / "com.apple.CoreML" / "weights")
    program = load(spec, spec.specificationVersion, weights)
    return dict(program.functions)


class Interpreted:
    """See `runtimes.coreml.model.Function`."""

    def __init__(self, function: Any) -> None:
        self.function = function
        self.inputs = {name: var for name, var in function.inputs.items() if not is_state(var)}

    def make_state(self) -> dict[str, Array]:
        states = {name: var for name, var in self.function.inputs.items() if is_state(var)}
        return {n: np.zeros(var.sym_type.wrapped_type().get_shape(), np.float32) for n, var in states.items()}

    def predict(self, data: dict[str, Array], state: dict[str, Array] | None = None) -> dict[str, Array]:
        values: dict[str, Any] = {}
        assert data.keys() == self.inputs.keys()
        for key, var in self.inputs.items():
            assert data[key].dtype == np.float16
            assert data[key].shape == tuple(var.shape), key
            values[key] = data[key].astype(np.float32)

        def value(var: Any) -> Any:
            if isinstance(var, (list, tuple)):
                return [value(each) for each in var]
            if var.name in values:
                return values[var.name]
            return var.val.astype(np.float32) if getattr(var.val, "dtype", None) == np.float16 else var.val

        for op in self.function.operations:
            if op.op_type == "const":
                continue
            if op.op_type == "read_state":
                assert state is not None
                found = state[op.input.name]
            elif op.op_type == "coreml_update_state":
                assert state is not None
                found = state[op.state.name] = value(op.value)
            else:
                given = {key: value(var) for key, var in op.inputs.items() if var is not None}
                found = _OPERATIONS[op.op_type](**given)
            for var, made in zip(op.outputs, found if isinstance(found, list) else [found], strict=True):
                assert made.shape == tuple(var.shape), (op.op_type, made.shape, var.shape)
                values[var.name] = made.astype(np.float16).astype(np.float32)
        return {var.name: values[var.name].astype(np.float16) for var in self.function.outputs}


def is_state(var: Any) -> bool:
    from coremltools.converters.mil.mil import types

    return bool(types.is_state(var.sym_type))


def interpreter(package: Path, name: str) -> Interpreted:
    """In the place of `runtimes.coreml.model.open_function`."""
    return Interpreted(functions_of(package)[name])


def _matmul(x: Array, y: Array, transpose_x: bool = False, transpose_y: bool = False) -> Array:
    return (x.swapaxes(-1, -2) if transpose_x else x) @ (y.swapaxes(-1, -2) if transpose_y else y)


def _conv(x: Array, weight: Array, bias: Array | float = 0.0, **how: Any) -> Array:
    assert weight.shape[2:] == (1, 1)
    assert how.get("groups", 1) == 1
    out = np.einsum("oi,bixt->boxt", weight[:, :, 0, 0], x)
    return out + np.reshape(bias, (1, -1, 1, 1))


def _softmax(x: Array, axis: int) -> Array:
    raised = np.exp(x - x.max(axis=axis, keepdims=True))
    return raised / raised.sum(axis=axis, keepdims=True)


def _split(
    x: Array, axis: int, num_splits: int | None = None, split_sizes: Array | None = None
) -> list[Array]:
    places = num_splits if split_sizes is None else np.cumsum(split_sizes)[:-1]
    assert places is not None
    return np.split(x, places, axis=axis)


_OPERATIONS: dict[str, Callable[..., Any]] = {
    "abs": lambda x: np.abs(x),
    "add": lambda x, y: x + y,
    "concat": lambda values, axis, interleave=False: np.concatenate(values, axis=axis),
    "constexpr_blockwise_shift_scale": lambda data, scale: data * scale,
    "conv": _conv,
    "identity": lambda x: x,
    "matmul": _matmul,
    "maximum": lambda x, y: np.maximum(x, y),
    "mul": lambda x, y: x * y,
    "real_div": lambda x, y: x / y,
    "reduce_max": lambda x, axes, keep_dims: x.max(axis=tuple(axes), keepdims=bool(keep_dims)),
    "reduce_mean": lambda x, axes, keep_dims: x.mean(axis=tuple(axes), keepdims=bool(keep_dims)),
    "reshape": lambda x, shape: x.reshape(tuple(shape)),
    "rsqrt": lambda x, epsilon=0.0: 1 / np.sqrt(x),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "softmax": _softmax,
    "split": _split,
    "square": lambda x: x * x,
}
