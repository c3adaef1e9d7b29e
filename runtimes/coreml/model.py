"""An exported model that Core ML has open, shared by conversations. Needs no torch.

NOT RUN on a Mac yet. On Linux the tests put an interpreter of the program in Core ML's place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgespec.errors import ModelError
from edgespec.runtimes.base import IntArray
from edgespec.runtimes.config import EMBEDDING
from edgespec.runtimes.coreml.directory import HOST, PACKAGE, ROPE, CoreMLExported, function_names
from edgespec.runtimes.coreml.graph import head_parts
from edgespec.runtimes.coreml.package import check_here, runtime
from edgespec.runtimes.exported.host import mask_name, mask_of, mask_windows, rotation_of, states_of

Half = NDArray[np.float16]
Predict = Callable[[dict[str, Half]], Mapping[str, Half]]
"""Outputs of a function by name."""


def open_function(package: Path, name: str) -> Predict:
    """A package's function, on the Neural Engine where that takes it, else the CPU. Raises DeviceError where
    there is no Core ML, MissingExtraError, ModelError where it refuses the package."""
    check_here()
    ct = runtime()
    try:
        model = ct.models.MLModel(str(package), function_name=name, compute_units=ct.ComputeUnit.CPU_AND_NE)
    except Exception as error:  # of its own
        raise ModelError(f"Core ML cannot open {package}: {str(error)[:500]}") from None
    predict: Predict = model.predict
    return predict


class CoreMLModel:
    """See `exported.draft.OpenModel`."""

    def __init__(
        self, exported: CoreMLExported, open_part: Callable[[Path, str], Predict] = open_function
    ) -> None:
        """Raises as `open_part`."""
        self.path, self.config = exported.path, exported.config
        self.positions = exported.manifest.positions
        self._buckets = {
            rows: [open_part(self.path / PACKAGE, name) for name in function_names(rows)]
            for rows in exported.manifest.rows
        }
        (_, place), (_, angles) = exported.host[EMBEDDING], exported.host[ROPE]
        shape = self.config.vocab_size, self.config.hidden_size
        self._embedding = np.memmap(self.path / HOST, "<f2", "r", place, shape)
        mapped = np.memmap(self.path / HOST, "<f4", "r", angles, (self.config.head_dim // 2,))
        self._angles = np.array(mapped)
        self._windows = mask_windows(self.config)

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
        positions: IntArray,
        seen: tuple[NDArray[np.bool_], IntArray],
        among: NDArray[np.bool_],
        cache: Sequence[NDArray[Any]],
        place: int,
    ) -> NDArray[Any]:
        """See `exported.draft.OpenModel`."""
        n = len(tokens)
        rows, (layers, _) = self._bucket(n)
        states = {"hidden": states_of(self._embedding, tokens)} | rotation_of(self._angles, positions)
        inputs = {name: _turned(array, rows) for name, array in states.items()}
        inputs["hidden"] = inputs["hidden"].swapaxes(1, 2)  # channels first
        for window in self._windows:
            mask = mask_of(window, positions, seen, among, self.positions, rows)
            inputs[mask_name(window)] = mask.astype(np.float16)[None, None]
        for index, part in enumerate(cache):
            inputs[f"{'values' if index % 2 else 'keys'}_{index // 2}"] = part.transpose(0, 2, 1)[None]
        outputs = layers(inputs)
        normed: NDArray[Any] = outputs["normed"][0, :, 0, :n].T
        self._check(normed, "layers")
        for index, part in enumerate(cache):
            new = outputs[f"new_{'values' if index % 2 else 'keys'}_{index // 2}"]  # [1, kv, hd, T]
            part[:, place : place + n] = new[0, :, :, :n].transpose(0, 2, 1)
        return normed

    def head(self, normed: NDArray[Any], logits: NDArray[np.float32]) -> None:
        """See `exported.draft.OpenModel`."""
        n = len(normed)
        rows, (_, head) = self._bucket(n)
        outputs = head({"normed": _turned(normed, rows).swapaxes(1, 2)})
        parts = [outputs[f"logits_{index}"][0, :, 0, :n] for index in range(head_parts(self.config))]
        logits[:] = np.concatenate(parts).T
        self._check(logits, "LM head")

    def _check(self, outputs: NDArray[Any], part: str) -> None:
        if not np.isfinite(outputs).all():
            raise ModelError(
                f"{self.path}: the {part}'s outputs are not finite numbers; use engine=onnx, which need not "
                "compute in fp16"
            )

    def _bucket(self, n: int) -> tuple[int, list[Predict]]:
        """The smallest that has room for n rows."""
        return next((rows, parts) for rows, parts in self._buckets.items() if rows >= n)


def model_bytes(exported: CoreMLExported, context: int, slots: int) -> int:
    """Bytes of an open model with one conversation of any `context`: its shapes are static.

    Core ML compiles a package for each function; what of it the Neural Engine keeps is not known here.
    """
    config, rows, positions = exported.config, exported.manifest.rows, exported.manifest.positions
    states = rows[-1] * (8 * config.hidden_size + 4 * config.intermediate_size + 2 * config.vocab_size)
    seen = positions * rows[-1] * (config.heads + 2)
    return 2 * exported.nbytes + config.kv_bytes(positions, 2) + 4 * (states + seen)


def _turned(array: NDArray[Any], rows: int) -> Half:
    """[n, c] -> [1, 1, c, rows], zeros behind n."""
    made = np.zeros((1, 1, array.shape[1], rows), dtype=np.float16)
    made[0, 0, :, : len(array)] = array.T
    return made
