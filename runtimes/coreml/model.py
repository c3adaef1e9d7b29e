"""An exported model that Core ML has open, shared by conversations. Needs no torch.

NOT RUN on a Mac yet. On Linux the tests put an interpreter of the program in Core ML's place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from edgespec.errors import ModelError
from edgespec.runtimes.config import EMBEDDING
from edgespec.runtimes.coreml.directory import (
    HOST,
    PACKAGE,
    ROPE,
    CoreMLExported,
    function_names,
    keep_name,
)
from edgespec.runtimes.coreml.graph import head_parts
from edgespec.runtimes.coreml.package import check_here, runtime
from edgespec.runtimes.exported.host import (
    PassRows,
    mask_name,
    mask_of,
    mask_windows,
    rotation_of,
    states_of,
)

Half = NDArray[np.float16]


class Function(Protocol):
    """A package's function, open: coremltools' `MLModel`."""

    def predict(self, data: dict[str, Half], state: Any = None) -> Mapping[str, Half]:
        """Outputs by name. state: of this or another function with the same states; None = it has none."""

    def make_state(self) -> Any:
        """Zeros."""


def open_function(package: Path, name: str) -> Function:
    """A package's function, on the Neural Engine where that takes it, else the CPU. Raises DeviceError where
    there is no Core ML, MissingExtraError, ModelError where it refuses the package."""
    check_here()
    ct = runtime()
    try:
        model = ct.models.MLModel(str(package), function_name=name, compute_units=ct.ComputeUnit.CPU_AND_NE)
    except Exception as error:  # of its own
        raise ModelError(f"Core ML cannot open {package}: {str(error)[:500]}") from None
    return cast(Function, model)


class CoreMLModel:
    """See `exported.draft.OpenModel`."""

    def __init__(
        self, exported: CoreMLExported, open_part: Callable[[Path, str], Function] = open_function
    ) -> None:
        """Raises as `open_part`."""
        self.path, self.config, self.shapes = exported.path, exported.config, exported.shapes
        self.positions, rows = exported.manifest.positions, exported.manifest.rows
        package = self.path / PACKAGE
        self._buckets = {n: [open_part(package, name) for name in function_names(n)] for n in rows}
        self._keep = open_part(package, keep_name(rows[-1])) if self.shapes.kept else None
        (_, place), (_, angles) = exported.host[EMBEDDING], exported.host[ROPE]
        shape = self.config.vocab_size, self.config.hidden_size
        self._embedding = np.memmap(self.path / HOST, "<f2", "r", place, shape)
        mapped = np.memmap(self.path / HOST, "<f4", "r", angles, (self.config.head_dim // 2,))
        self._angles = np.array(mapped)
        self._windows = mask_windows(self.config)

    @property
    def layers(self) -> Function:
        """What passes of drafting run."""
        return self._buckets[min(self._buckets)][0]

    @property
    def most_rows(self) -> int:
        """See `exported.draft.OpenModel`."""
        return max(self._buckets)

    def new_cache(self, positions: int) -> NDArray[Any]:
        """See `exported.draft.OpenModel`; positions lie behind one another, as Core ML reads them."""
        shape = self.config.kv_heads, self.config.head_dim, positions
        made: NDArray[Any] = np.zeros(shape, dtype=np.float16).transpose(0, 2, 1)
        return made

    def run(
        self,
        tokens: Sequence[int],
        rows: PassRows,
        cache: Sequence[NDArray[Any]],
        kept: int = 0,
        state: Any = None,
    ) -> NDArray[Any]:
        """See `exported.draft.OpenModel`. kept: positions that are in `state`, of a model that has some; what
        lies behind them in the cache is handed over."""
        n = len(tokens)
        count, (layers, _) = self._bucket(n)
        states = {"hidden": states_of(self._embedding, tokens)} | rotation_of(self._angles, rows.positions)
        inputs = {name: _turned(array, count) for name, array in states.items()}
        inputs["hidden"] = inputs["hidden"].swapaxes(1, 2)  # channels first
        held = self._apart(rows, kept)
        for window in self._windows:
            mask = mask_of(window, held, self.positions, count)
            inputs[mask_name(window)] = mask.astype(np.float16)[None, None]
        for name, part in zip(self.shapes.caches, cache, strict=True):
            inputs[name] = _handed(part[:, kept : kept + self.shapes.handed])
        outputs = layers.predict(inputs, state)
        normed: NDArray[Any] = outputs["normed"][0, :, 0, :n].T
        self._check(normed, "layers")
        for name, part in zip(self.shapes.caches, cache, strict=True):
            new = outputs[f"new_{name}"]  # [1, kv, hd, T]
            part[:, rows.place : rows.place + n] = new[0, :, :, :n].transpose(0, 2, 1)
        return normed

    def _apart(self, rows: PassRows, kept: int) -> PassRows:
        """The same of a cache of which so much is in states: what rows see is there, and behind all the room
        that states have."""
        if not self.shapes.kept:
            return rows
        columns = np.arange(rows.place)
        columns[kept:] += self.shapes.kept - kept
        seen = np.zeros((len(rows.seen), self.positions), dtype=np.bool_)
        keys = np.zeros(self.positions, dtype=np.int64)
        seen[:, columns], keys[columns] = rows.seen, rows.keys
        return replace(rows, seen=seen, keys=keys)

    def new_state(self) -> Any:
        """A conversation's states. Raises ModelError where Core ML has none."""
        assert self._keep is not None
        try:
            return self._keep.make_state()
        except Exception as error:  # of its own
            raise ModelError(
                f"Core ML cannot open {self.path}: {str(error)[:500]}; export the model without stateful="
            ) from None

    def keep(self, cache: Sequence[NDArray[Any]], first: int, last: int, state: Any) -> None:
        """Put the cache's positions from `first` to `last` into the states, a pass of the largest size at
        most."""
        assert self._keep is not None
        inputs = {}
        for name, part in zip(self.shapes.caches, cache, strict=True):
            rows = np.zeros((*part.shape[::2], self.most_rows), dtype=np.float16)  # [kv, hd, T]
            rows[:, :, : last - first] = part[:, first:last].transpose(0, 2, 1)
            inputs[name] = rows[None]
        places = np.zeros((self.most_rows, self.shapes.kept), dtype=np.float16)
        places[np.arange(last - first), np.arange(first, last)] = 1
        inputs["places"], inputs["rest"] = places[None, None], 1 - places.sum(0)[None, None, None]
        self._keep.predict(inputs, state)

    def head(self, normed: NDArray[Any], logits: NDArray[np.float32]) -> None:
        """See `exported.draft.OpenModel`."""
        n = len(normed)
        rows, (_, head) = self._bucket(n)
        outputs = head.predict({"normed": _turned(normed, rows).swapaxes(1, 2)})
        parts = [outputs[f"logits_{index}"][0, :, 0, :n] for index in range(head_parts(self.config))]
        logits[:] = np.concatenate(parts).T
        self._check(logits, "LM head")

    def _check(self, outputs: NDArray[Any], part: str) -> None:
        if not np.isfinite(outputs).all():
            raise ModelError(
                f"{self.path}: the {part}'s outputs are not finite numbers; use engine=onnx, which need not "
                "compute in fp16"
            )

    def _bucket(self, n: int) -> tuple[int, list[Function]]:
        """The smallest that has room for n rows."""
        return next((rows, parts) for rows, parts in self._buckets.items() if rows >= n)


def model_bytes(exported: CoreMLExported, context: int, slots: int) -> int:
    """Bytes of an open model with one conversation of any `context`: its shapes are static.

    Functions share the package's weights, which are mapped; what of them the Neural Engine keeps in memory of
    its own is not known here.
    """
    config, rows, positions = exported.config, exported.manifest.rows, exported.manifest.positions
    states = rows[-1] * (8 * config.hidden_size + 4 * config.intermediate_size + 2 * config.vocab_size)
    seen = positions * rows[-1] * (config.heads + 2)
    return exported.nbytes + config.kv_bytes(exported.cached, 2) + 4 * (states + seen)


def _handed(part: NDArray[Any]) -> Half:
    """Of one cache [kv, C, hd], as Core ML reads it: [1, kv, hd, C]."""
    return np.ascontiguousarray(part.transpose(0, 2, 1))[None]


def _turned(array: NDArray[Any], rows: int) -> Half:
    """[n, c] -> [1, 1, c, rows], zeros behind n."""
    made = np.zeros((1, 1, array.shape[1], rows), dtype=np.float16)
    made[0, 0, :, : len(array)] = array.T
    return made
