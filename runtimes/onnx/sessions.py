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
from edgespec.runtimes.onnx.providers import PROVIDERS, Provider, find_provider, runtime, session_options

Array = NDArray[np.generic]


@dataclass
class Assignment:
    """What runs where: by provider, operations, and, but for the CPU's, the partitions that they make up."""

    operations: Counter[str] = field(default_factory=Counter)
    partitions: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        named = {provider.official: name for name, provider in PROVIDERS.items()}
        parts = [
            f"{count} operations on {named.get(name, name)}"
            + (f" in {self.partitions[name]} partitions" if name in self.partitions else "")
            for name, count in self.operations.most_common()
        ]
        return f"ONNX Runtime runs {' and '.join(parts)}" if parts else ""

    def __add__(self, other: Assignment) -> Assignment:
        return Assignment(self.operations + other.operations, self.partitions + other.partitions)


class OpenGraph:
    """One graph."""

    def __init__(self, raw: bytes, folder: Path, provider: str, threads: int) -> None:
        """`raw`: a graph whose weights lie in `folder`.

        Raises OptionError, DeviceError and MissingExtraError as `find_provider`, and where the provider takes
        nothing of the graph; ModelError where ONNX Runtime refuses it.
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
            self._session = runtime().InferenceSession(raw, options, providers=asked)
        except Exception as error:  # its own classes, which derive from nothing of use
            raise ModelError(
                f"ONNX Runtime cannot open {folder} with {provider}: {str(error)[:500]}"
            ) from None
        self.placement = _placement(self._session)
        self._check(provider, wanted)

    def _check(self, name: str, provider: Provider) -> None:
        if name != "cpu" and not self.placement.operations:
            raise DeviceError(
                f"this ONNX Runtime ({runtime().__version__}) does not say what {name} takes of a model; "
                "install one of 1.24 or later"
            )
        ran = provider.official in (self.placement.operations or self._session.get_providers())
        if not ran:
            way = " (it takes static shapes only: export the model with rows= and positions=)"
            raise DeviceError(
                f"provider {name} takes none of the model's operations{way if provider.static else ''}; use "
                "draft_engine=onnx, which runs on the CPU"
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


def _placement(session: Any) -> Assignment:
    found = Assignment()
    tell = getattr(session, "get_provider_graph_assignment_info", None)  # of ONNX Runtime 1.24 and later
    subgraphs: Sequence[Any] = tell() if tell is not None else ()
    for subgraph in subgraphs:
        found.operations[subgraph.ep_name] += len(subgraph.get_nodes())
        if subgraph.ep_name != PROVIDERS["cpu"].official:
            found.partitions[subgraph.ep_name] += 1
    return found
