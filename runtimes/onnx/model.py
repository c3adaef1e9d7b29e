"""An exported model that ONNX Runtime has open, shared by conversations. Needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgespec.errors import ModelError
from edgespec.runtimes.config import EMBEDDING
from edgespec.runtimes.exported.host import (
    PassRows,
    mask_name,
    mask_of,
    mask_windows,
    rotation_of,
    states_of,
)
from edgespec.runtimes.onnx.design import WEIGHTS, Part
from edgespec.runtimes.onnx.directory import Exported
from edgespec.runtimes.onnx.layout import ROPE
from edgespec.runtimes.onnx.sessions import Assignment, OpenGraph

STEP_ROWS = 64  # that graphs for any number run at a time: milliseconds
_DTYPES: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2")}


class OnnxModel:
    """The open graphs of a model, and what the host does for them: embedding, angles, masks."""

    def __init__(self, exported: Exported, provider: str = "cpu", threads: int = 1) -> None:
        """Raises CorruptFileError for weights that are damaged and graphs that are not ours, ModelError for
        scales that are not finite, and as `sessions.OpenGraph`."""
        self.path, self.config = exported.path, exported.config
        self.positions = exported.manifest.positions  # of a cache; 0 = any
        self.dtype = _DTYPES["F16" if exported.manifest.precision == "fp16" else "F32"]  # of states
        self.placement = Assignment()
        # By part: for passes of so many rows, None = of any number.
        self._graphs: dict[Part, list[tuple[int | None, OpenGraph]]] = {}
        exported.check_weights()
        if exported.manifest.precision == "int8":
            self._check_vectors(exported)
        for part in exported.design.parts:
            graphs = self._graphs[part] = []
            for rows in exported.design.buckets(part):
                graphs.append((rows, OpenGraph(exported.graph(part, rows), self.path, provider, threads)))
                self.placement += graphs[-1][1].placement
        self._embedding = self._mapped(exported, EMBEDDING)
        self._angles = np.array(self._mapped(exported, ROPE))
        self._windows = mask_windows(self.config)

    def _mapped(self, exported: Exported, name: str) -> NDArray[Any]:
        """A tensor of the weights' file, of which only what is used is read."""
        stored, path = exported.weights[name], self.path / WEIGHTS
        return np.memmap(path, _DTYPES[stored.encoding], "r", stored.offset, stored.shape)

    def _check_vectors(self, exported: Exported) -> None:
        """Scales, norms and biases are finite: their outputs become bytes, which hide that they are not.

        Raises ModelError.
        """
        for name, stored in exported.weights.items():
            if (
                stored.encoding != "U8"
                and name != EMBEDDING
                and not np.isfinite(self._mapped(exported, name)).all()
            ):
                raise ModelError(
                    f"{self.path}: {name} has a number that is not finite; export the model again"
                )

    @property
    def most_rows(self) -> int:
        """See `exported.draft.OpenModel`."""
        return self._graphs["layers"][-1][0] or STEP_ROWS

    def new_cache(self, positions: int) -> NDArray[Any]:
        """See `exported.draft.OpenModel`."""
        return np.zeros((self.config.kv_heads, positions, self.config.head_dim), dtype=self.dtype)

    def run(self, tokens: Sequence[int], rows: PassRows, cache: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """See `exported.draft.OpenModel`."""
        return self._through("layers", states_of(self._embedding, tokens), rows, cache, len(tokens))

    def _through(
        self,
        part: Part,
        states: NDArray[Any],
        rows: PassRows,
        cache: Sequence[NDArray[Any]],
        kept: int,
    ) -> NDArray[Any]:
        """States [n, d] through the layers of a part, whose cache that is; keys and values of the first
        `kept` rows stay."""
        n, (bucket, graph) = len(states), self._graph(part, len(states))
        count, held, place = bucket or n, cache[0].shape[1], rows.place
        host = {"hidden": states} | rotation_of(self._angles, rows.positions)
        inputs = {name: padded(array.astype(self.dtype), count) for name, array in host.items()}
        for window in self._windows:
            mask = mask_of(window, rows, held, count).astype(self.dtype)
            inputs[mask_name(window)] = np.tile(mask, (self.config.heads // self.config.kv_heads, 1))
        out = np.empty((count, self.config.hidden_size), dtype=self.dtype)
        outputs = {"states" if part == "before" else "normed": out}
        first = 0 if part == "before" else self.config.layers - len(cache) // 2
        for index, kv in enumerate(cache):
            name = f"{'values' if index % 2 else 'keys'}.{first + index // 2}"
            inputs[name] = kv
            outputs[f"new_{name}"] = np.empty((kv.shape[0], count, kv.shape[2]), dtype=self.dtype)
        graph.run(inputs, outputs)
        self._check(out[:n], "layers")
        for kv, new in zip(cache, list(outputs.values())[1:], strict=True):
            kv[:, place : place + kept] = new[:, :kept]
        return out[:n]

    def head(self, normed: NDArray[Any], logits: NDArray[np.float32]) -> None:
        """See `exported.draft.OpenModel`."""
        n, (bucket, graph) = len(normed), self._graph("head", len(normed))
        rows = bucket or n
        out = logits if rows == n else np.empty((rows, logits.shape[1]), dtype=np.float32)
        graph.run({"normed": padded(normed, rows)}, {"logits": out})
        if out is not logits:
            logits[:] = out[:n]
        self._check(logits, "LM head")

    def _check(self, outputs: NDArray[Any], part: str) -> None:
        if not np.isfinite(outputs).all():
            raise ModelError(
                f"{self.path}: the {part}'s outputs are not finite numbers; export the model again, and at "
                "fp32 if this is fp16"
            )

    def _graph(self, part: Part, n: int) -> tuple[int | None, OpenGraph]:
        """The smallest that has room for n rows."""
        return next(found for found in self._graphs[part] if found[0] is None or found[0] >= n)


def model_bytes(exported: Exported, context: int, slots: int, widest: int = STEP_ROWS) -> int:
    """Bytes of an open model with one conversation of `context` positions and so many slots. widest: rows of
    the largest pass, of graphs for any number.

    ONNX Runtime arranges matrices anew in memory of its own, one after the other, for each graph.
    """
    config, buckets = exported.config, exported.design.buckets("layers")
    rows = buckets[-1] or widest
    largest = max(stored.nbytes for stored in exported.weights.values())
    graphs = len(buckets)
    copies = 1 + 2 * graphs if exported.manifest.precision == "fp16" else graphs  # a CPU computes with fp32
    positions = exported.manifest.positions or min(context, config.max_context) + slots
    seen = positions * rows * (config.heads + 2 * config.heads // config.kv_heads)
    states = rows * (8 * config.hidden_size + 4 * config.intermediate_size + config.vocab_size)
    kv = config.kv_bytes(positions, exported.element) * 3 // 2  # where it grows there are two
    return copies * exported.nbytes + largest + kv + 4 * (seen + states)


def padded(rows: NDArray[Any], count: int) -> NDArray[Any]:
    """[n, ...] -> [count, ...], contiguous."""
    if len(rows) == count:
        return np.ascontiguousarray(rows)
    return np.concatenate([rows, np.zeros((count - len(rows), *rows.shape[1:]), dtype=rows.dtype)])
