"""An exported model that ONNX Runtime has open, shared by conversations. Needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgespec.errors import ModelError
from edgespec.runtimes.base import IntArray
from edgespec.runtimes.config import EMBEDDING
from edgespec.runtimes.exported.host import mask_name, mask_of, mask_windows, states_of
from edgespec.runtimes.onnx.directory import WEIGHTS, Exported
from edgespec.runtimes.onnx.layout import ROPE
from edgespec.runtimes.onnx.sessions import Assignment, OpenGraph

STEP_ROWS = 64  # that graphs for any number run at a time: milliseconds
_DTYPES: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2")}


@dataclass(frozen=True)
class _Bucket:
    """Graphs for passes of so many rows; None = of any number."""

    rows: int | None
    layers: OpenGraph
    head: OpenGraph


class OnnxModel:
    """The open graphs of a model, and what the host does for them: embedding, angles, masks."""

    def __init__(self, exported: Exported, provider: str = "cpu", threads: int = 1) -> None:
        """Raises CorruptFileError for graphs that are not ours, and as `sessions.OpenGraph`."""
        self.path, self.config = exported.path, exported.config
        self.positions = exported.manifest.positions  # of a cache; 0 = any
        self.dtype = _DTYPES["F16" if exported.manifest.precision == "fp16" else "F32"]  # of states
        self.placement = Assignment()
        self._buckets = list[_Bucket]()
        for rows in exported.buckets:
            graphs = [OpenGraph(raw, self.path, provider, threads) for raw in exported.graphs(rows)]
            self.placement = sum((graph.placement for graph in graphs), self.placement)
            self._buckets.append(_Bucket(rows, *graphs))
        self._embedding = self._mapped(exported, EMBEDDING)
        self._angles = np.array(self._mapped(exported, ROPE))
        self._windows = mask_windows(self.config)

    def _mapped(self, exported: Exported, name: str) -> NDArray[Any]:
        """A tensor of the weights' file, of which only what is used is read."""
        stored, path = exported.weights[name], self.path / WEIGHTS
        return np.memmap(path, _DTYPES[stored.encoding], "r", stored.offset, stored.shape)

    @property
    def most_rows(self) -> int:
        """See `exported.draft.OpenModel`."""
        return self._buckets[-1].rows or STEP_ROWS

    def new_cache(self, positions: int) -> NDArray[Any]:
        """See `exported.draft.OpenModel`."""
        return np.zeros((self.config.kv_heads, positions, self.config.head_dim), dtype=self.dtype)

    def run(
        self,
        tokens: Sequence[int],
        positions: IntArray,
        seen: tuple[NDArray[np.bool_], IntArray],
        among: NDArray[np.bool_],
        cache: Sequence[NDArray[Any]],
        place: int,
    ) -> NDArray[Any]:
        """See `exported.draft.OpenModel`."""
        n, bucket = len(tokens), self._bucket(len(tokens))
        rows, held = bucket.rows or n, cache[0].shape[1]
        inputs = self._states(tokens, positions, rows)
        for window in self._windows:
            mask = mask_of(window, positions, seen, among, held, rows).astype(self.dtype)
            inputs[mask_name(window)] = np.tile(mask, (self.config.heads // self.config.kv_heads, 1))
        normed = np.empty((rows, self.config.hidden_size), dtype=self.dtype)
        outputs = {"normed": normed}
        for index, part in enumerate(cache):
            name = f"{'values' if index % 2 else 'keys'}.{index // 2}"
            inputs[name] = part
            outputs[f"new_{name}"] = np.empty((part.shape[0], rows, part.shape[2]), dtype=self.dtype)
        bucket.layers.run(inputs, outputs)
        self._check(normed[:n], "layers")
        for part, new in zip(cache, list(outputs.values())[1:], strict=True):
            part[:, place : place + n] = new[:, :n]
        return normed[:n]

    def head(self, normed: NDArray[Any], logits: NDArray[np.float32]) -> None:
        """See `exported.draft.OpenModel`."""
        n, bucket = len(normed), self._bucket(len(normed))
        rows = bucket.rows or n
        out = logits if rows == n else np.empty((rows, logits.shape[1]), dtype=np.float32)
        bucket.head.run({"normed": _padded(normed, rows)}, {"logits": out})
        if out is not logits:
            logits[:] = out[:n]
        self._check(logits, "LM head")

    def _check(self, outputs: NDArray[Any], part: str) -> None:
        if not np.isfinite(outputs).all():
            raise ModelError(
                f"{self.path}: the {part}'s outputs are not finite numbers; export the model again, and at "
                "fp32 if this is fp16"
            )

    def _states(self, tokens: Sequence[int], positions: IntArray, rows: int) -> dict[str, NDArray[Any]]:
        """Embeddings [rows, d] and angles [rows, head_dim] of n tokens, and zeros behind."""
        found = states_of(self._embedding, self._angles, tokens, positions)
        return {name: _padded(array.astype(self.dtype), rows) for name, array in found.items()}

    def _bucket(self, n: int) -> _Bucket:
        """The smallest that has room for n rows."""
        return next(bucket for bucket in self._buckets if bucket.rows is None or bucket.rows >= n)


def model_bytes(exported: Exported, context: int, slots: int) -> int:
    """Bytes of an open model with one conversation of `context` positions and so many slots.

    ONNX Runtime arranges matrices anew in memory of its own, one after the other, for each graph.
    """
    config, rows = exported.config, exported.manifest.rows[-1:] or [STEP_ROWS]
    largest = max(stored.nbytes for stored in exported.weights.values())
    graphs = len(exported.buckets)
    copies = 1 + 2 * graphs if exported.manifest.precision == "fp16" else graphs  # a CPU computes with fp32
    positions = exported.manifest.positions or min(context, config.max_context) + slots
    seen = positions * rows[0] * (config.heads + 2 * config.heads // config.kv_heads)
    states = rows[0] * (8 * config.hidden_size + 4 * config.intermediate_size + config.vocab_size)
    kv = config.kv_bytes(positions, exported.element) * 3 // 2  # where it grows there are two
    return copies * exported.nbytes + largest + kv + 4 * (seen + states)


def _padded(rows: NDArray[Any], count: int) -> NDArray[Any]:
    """[n, ...] -> [count, ...], contiguous."""
    if len(rows) == count:
        return np.ascontiguousarray(rows)
    return np.concatenate([rows, np.zeros((count - len(rows), *rows.shape[1:]), dtype=rows.dtype)])
