"""A graph that ONNX Runtime has open, with its inputs and outputs bound to numpy's memory. Needs no torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgespec.errors import DeviceError, ModelError
from edgespec.runtimes.onnx.providers import Provider, find_provider, runtime, session_options

Array = NDArray[np.generic]

MATRICES = frozenset(("Gemm", "MatMul", "MatMulInteger"))  # whose operations are nearly all of a model's work


@dataclass
class Assignment:
    """What runs where: by provider, as it was asked for, operations, and, but for the CPU's, the partitions
    that they make up. left: by kind, those that another provider was asked to run and the CPU does."""

    operations: Counter[str] = field(default_factory=Counter)
    partitions: Counter[str] = field(default_factory=Counter)
    left: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        parts = [
            f"{count} operations on {name}"
            + (f" in {self.partitions[name]} partitions" if name in self.partitions else "")
            for name, count in self.operations.most_common()
        ]
        kinds = ", ".join(f"{count} {kind}" for kind, count in self.left.most_common())
        left = f"; left to the CPU: {kinds}" if kinds else ""
        return f"ONNX Runtime runs {' and '.join(parts)}{left}" if parts else ""

    def __add__(self, other: Assignment) -> Assignment:
        operations, partitions = self.operations + other.operations, self.partitions + other.partitions
        return Assignment(operations, partitions, self.left + other.left)


class OpenGraph:
    """One graph."""

    def __init__(self, raw: bytes, folder: Path, provider: str, threads: int) -> None:
        """`raw`: a graph whose weights lie in `folder`.

        Raises OptionError, DeviceError and MissingExtraError as `find_provider`, and where the provider takes
        nothing of the graph, or leaves matrices to the CPU; ModelError where ONNX Runtime refuses it.
        """
        wanted = find_provider(provider)
        options = session_options(threads)
        options.add_session_config_entry(
            "session.model_external_initializers_file_folder_path", str(folder.resolve())
        )
        cpu = find_provider("cpu")
        asked: list[Any] = [(wanted.official, dict(wanted.options))]
        if wanted != cpu:
            asked.append(cpu.official)
        try:
            devices = wanted.devices()
            if devices:  # a plugin's, which is not asked for by name
                options.add_provider_for_devices(devices, dict(wanted.options))
            self._session = runtime().InferenceSession(raw, options, providers=None if devices else asked)
        except Exception as error:  # its own classes, which derive from nothing of use
            raise ModelError(
                f"ONNX Runtime cannot open {folder} with {provider}: {str(error)[:500]}"
            ) from None
        self.placement = _placement(self._session, {cpu.official: "cpu", wanted.official: provider})
        self._check(provider, wanted)

    def _check(self, name: str, provider: Provider) -> None:
        if name != "cpu" and not self.placement.operations:
            raise DeviceError(
                f"this ONNX Runtime ({runtime().__version__}) does not say what {name} takes of a model; "
                "install one of 1.24 or later"
            )
        if name != "cpu" and name not in self.placement.operations:
            way = " (it takes static shapes only: export the model with rows= and positions=)"
            raise DeviceError(
                f"provider {name} takes none of the model's operations{way if provider.static else ''}; use "
                "draft_engine=onnx, which runs on the CPU"
            )
        if matrices := {kind: n for kind, n in self.placement.left.items() if kind in MATRICES}:
            kinds = " and ".join(f"{n} {kind}" for kind, n in matrices.items())
            raise DeviceError(
                f"provider {name} leaves {kinds} of the model to the CPU, which is nearly all of its work; "
                "export the model with precision=fp16, or use draft_engine=onnx, which runs on the CPU"
            )

    def run(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> None:
        """Fills the arrays of `outputs`. All are contiguous, and of the graph's types and shapes. Any number
        of threads may at a time."""
        bind = self._session.io_binding()
        for name, array in inputs.items():
            bind.bind_input(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
        for name, array in outputs.items():
            bind.bind_output(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
        self._session.run_with_iobinding(bind)


def _placement(session: Any, names: Mapping[str, str]) -> Assignment:
    """names: of providers, by ONNX Runtime's."""
    found = Assignment()
    tell = getattr(session, "get_provider_graph_assignment_info", None)  # of ONNX Runtime 1.24 and later
    subgraphs: Sequence[Any] = tell() if tell is not None else ()
    for subgraph in subgraphs:
        name, nodes = names.get(subgraph.ep_name, subgraph.ep_name), subgraph.get_nodes()
        found.operations[name] += len(nodes)
        if name != "cpu":
            found.partitions[name] += 1
        elif len(names) > 1:  # another was asked
            found.left.update(node.op_type for node in nodes)
    return found
