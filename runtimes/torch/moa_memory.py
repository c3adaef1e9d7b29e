"""The target's half of MoA drafters that are elsewhere: what they attend to, a vector a token; and where they
go through the target's last layers, what these have of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from edgespec.offload.digest import file_digest
from edgespec.offload.plan.needs import Extras
from edgespec.runtimes.base import KVCache
from edgespec.runtimes.formats.describe import ModelFiles
from edgespec.runtimes.formats.moa_client import check_told, told_width
from edgespec.runtimes.formats.moa_sizes import KIND, MoaSizes, memory_width, parameter_shapes, parameters
from edgespec.runtimes.torch.moa import Moa, committed_states
from edgespec.runtimes.torch.moa_draft import PART_ROWS
from edgespec.runtimes.torch.trained_files import ModuleFile, describe_module

OWNER = "memory for clients' drafters"


@dataclass(frozen=True)
class MoaMemoryFiles:
    """A trained network on disk, known by its headers, of which clients have the other half."""

    files: ModelFiles  # the target's
    file: ModuleFile[MoaSizes]

    @staticmethod
    def find(directory: str, files: ModelFiles) -> MoaMemoryFiles:
        """Raises as `describe_module`, and OptionError for more than can be sent."""
        module = describe_module(Path(directory), KIND, MoaSizes, parameter_shapes, files)
        check_told(memory_width(files.config), module.shape, Path(directory))
        return MoaMemoryFiles(files, module)

    @property
    def extras(self) -> Extras:
        config, sizes = self.files.config, self.file.shape
        part = max(PART_ROWS, config.layers) * (12 * memory_width(config) + 4 * sizes.mlp[0])
        nbytes = (parameters(config, sizes) + part) * self.files.element
        return Extras({OWNER: lambda context: nbytes})

    @property
    def reads(self) -> int:
        """Bytes that `open` reads."""
        return self.file.nbytes

    def open(self, device: torch.device, progress: Callable[[int], None]) -> MoaMemory:
        """Raises CorruptFileError and StorageError."""
        moa = Moa(self.files.config, self.file.shape, self.files.dtype, device).eval()
        self.file.read(moa)
        progress(self.file.nbytes)
        return MoaMemory(moa, bytes.fromhex(file_digest(self.file.path)))


class MoaMemory:
    """See `drafters.resident.Remembering`."""

    def __init__(self, moa: Moa, digest: bytes) -> None:
        self._moa, self.digest, self.each = moa, digest, memory_width(moa.config)
        self.width = told_width(self.each, moa.sizes)
        self.step = max(1, PART_ROWS // moa.config.layers)

    @torch.inference_mode()
    def vectors(self, spans: Sequence[tuple[KVCache, range]]) -> NDArray[np.float32]:
        states = torch.cat([committed_states(cache, span.start, span.stop) for cache, span in spans])
        last = states[:, self._moa.config.layers - self._moa.sizes.target_layers :]
        told = torch.cat([self._moa.summary(states), last.flatten(1)], dim=1)
        found: NDArray[np.float32] = told.float().cpu().numpy()
        return found
