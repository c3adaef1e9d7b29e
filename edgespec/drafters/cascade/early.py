"""A trained adapter as the target's early exit, for schedules that ask one: its files, and it when open."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgespec.drafters.cascade.exits import AdapterExit
from edgespec.drafters.substitute import torch_target
from edgespec.errors import OptionError
from edgespec.offload.plan.needs import Extras
from edgespec.runtimes.base import TREE_ROWS, DraftPass, KVCache
from edgespec.runtimes.formats.describe import ModelFiles
from edgespec.runtimes.formats.needs import exit_bytes
from edgespec.runtimes.rows import Rows
from edgespec.runtimes.target import Target
from edgespec.runtimes.torch.adapter import Adapter, adapter_bytes, adapter_cache_bytes
from edgespec.runtimes.torch.adapter_files import AdapterFile, describe_adapters
from edgespec.runtimes.torch.trained_files import free_parameters


@dataclass(frozen=True)
class ExitFiles:
    """See `drafters.resident.ExitFound`."""

    files: ModelFiles
    adapter: AdapterFile

    @property
    def extras(self) -> Extras:
        return Extras({"early exit": self.nbytes})

    def nbytes(self, context: int) -> int:
        """Bytes of the adapter, with one conversation of `context` positions."""
        config, dtype = self.files.config, self.files.dtype
        states = TREE_ROWS * config.hidden_size * dtype.itemsize  # that wait to be followed
        own = adapter_bytes(config, dtype) + adapter_cache_bytes(config, context, TREE_ROWS, dtype)
        return own + states + exit_bytes(config, dtype.itemsize)

    @property
    def reads(self) -> int:
        return self.adapter.nbytes

    def open(self, target: Target, progress: Callable[[int], None]) -> AdapterExits:
        target = torch_target(target, "the early exit")
        adapter = self.adapter.open(self.files.config, self.files.dtype, target.device)
        progress(self.reads)
        return AdapterExits(target, adapter)


def find(directory: Path, files: ModelFiles, layer: int | None) -> ExitFiles:
    """The adapter behind `layer` layers; None: behind about half of them, the later of two.

    Raises OptionError when there is none behind that layer, and as `describe_adapters`.
    """
    adapters = describe_adapters(directory, files)
    if layer is None:
        half = files.config.layers / 2
        return ExitFiles(files, min(adapters, key=lambda a: (abs(a.depth - half), -a.depth)))
    for adapter in adapters:
        if adapter.depth == layer:
            return ExitFiles(files, adapter)
    depths = sorted({adapter.depth for adapter in adapters})
    raise OptionError(
        f"exit_layer is {layer}, and the adapters in {directory} lie behind {', '.join(map(str, depths))} "
        f"layers; use exit_layer={depths[-1]}, or leave adapters= out",
        "exit_layer",
    )


class AdapterExits:
    """See `drafters.resident.Exits`."""

    def __init__(self, target: Target, adapter: Adapter) -> None:
        self.target, self.adapter = target, adapter

    def exit(self, cache: KVCache) -> AdaptedExit:
        return AdaptedExit(self.target, cache, AdapterExit(self.target, self.adapter, cache.capacity))

    def close(self) -> None:
        free_parameters(self.adapter)


class AdaptedExit:
    """See `runtimes.target.EarlyExit`. `cache` is the conversation's own, the target's."""

    def __init__(self, target: Target, cache: KVCache, follower: AdapterExit) -> None:
        self.cache, self.follower, self.layers = cache, follower, follower.depth
        self.head = target.early_exit(self.layers, lambda normed: normed)
        self._seen: tuple[Tensor, Rows] | None = None  # of the tree under verification
        self._length = 0  # committed positions before it
        self._ran = False  # its nodes have slots in the adapter's cache

    @property
    def able(self) -> bool:
        return self.head.able and self.follower.length == self.cache.length

    def observe(self, hidden: Tensor, rows: Rows) -> None:
        self._length, self._ran = rows.caches[0].length, False
        self.follower.observe(hidden, rows.slots, self._length, rows.prefill)
        self._seen = None if rows.prefill else (hidden, rows)

    def begin(self, nodes: Sequence[int]) -> AdaptedPass:
        return AdaptedPass(self, nodes)

    def run(self) -> None:
        """The adapter, over the whole tree."""
        assert self._seen is not None
        (hidden, rows), self._seen = self._seen, None
        self.follower.flush()
        self._ran = True
        self.head.observe(self.follower.normed(hidden, rows), rows)

    def commit(self, path: Sequence[int]) -> None:
        self.follower.commit(self._length, path if self._ran else [], path)
        self._seen = None


class AdaptedPass:
    """See `runtimes.base.DraftPass`: the adapter, then the head's blocks."""

    def __init__(self, exit: AdaptedExit, nodes: Sequence[int]) -> None:
        self.exit, self.nodes = exit, nodes
        self._head: DraftPass | None = None

    @torch.inference_mode()
    def advance(self) -> bool:
        if self._head is None:
            self.exit.run()
            self._head = self.exit.head.begin(self.nodes)
            return False
        return self._head.advance()

    @property
    def logits(self) -> NDArray[np.float32]:
        assert self._head is not None
        return self._head.logits
