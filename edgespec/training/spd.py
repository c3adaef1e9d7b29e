"""Training an SPD drafter: as a streaming drafter, but from scratch, as Mirror-SD has it (section 3.3)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from edgespec.config import EngineOptions
from edgespec.errors import OptionError
from edgespec.progress import ProgressCallback
from edgespec.runtimes.formats.describe import ModelFiles
from edgespec.runtimes.torch.blocks import fill_randomly
from edgespec.runtimes.torch.spd import ENTRIES, KIND, Spd, SpdShape
from edgespec.runtimes.torch.streaming import streaming_shapes
from edgespec.training.one_module import ModuleRecipe
from edgespec.training.options import SpdOptions
from edgespec.training.run import train_drafter
from edgespec.training.streaming import StreamingPupil, StreamingRecipe, initialise_rest
from edgespec.training.target import FrozenTarget, element
from edgespec.training.trainer import Report


class SpdRecipe(StreamingRecipe):
    """See `training.run.Recipe`."""

    shape: SpdShape

    def __init__(self, files: ModelFiles, options: SpdOptions) -> None:
        """Raises OptionError for a segment without layers and tracks that have no equal shards, and as
        `ModuleRecipe` for a drafter to begin with."""
        layers = options.layers or max(2, round(files.config.layers / 5))
        second = options.stream_layers or (layers + 1) // 2
        shape = SpdShape(layers, options.streams, second, options.mlp, tracks=options.tracks)
        try:
            shape.parameters(files.config)
        except ValueError as error:
            raise OptionError(str(error)) from None
        ModuleRecipe.__init__(self, files, KIND, shape, streaming_shapes, (0,), options.from_)

    def nbytes(self, rows: int) -> int:
        """Beside the layers', what tracks begin segments with."""
        c, e, s = self.files.config, element(self.files), self.shape
        return super().nbytes(rows) + rows * (2 + s.streams) * (12 + 6 * e) * c.hidden_size

    def begin(self, target: FrozenTarget, generator: torch.Generator, device: torch.device) -> StreamingPupil:
        module = Spd(self.files.config, self.shape, device=device)
        self.fill(module, lambda: initialise(module, target, generator))
        return StreamingPupil(target, module, self)


@torch.no_grad()
def initialise(module: Spd, target: FrozenTarget, generator: torch.Generator) -> None:
    """Begin as what the target's norm and head say of the embedding alone: to that, nothing adds yet."""
    for name, parameter in module.named_parameters():
        if name.endswith("norm"):
            parameter.fill_(1.0)
        elif name.endswith(("o_proj", "down_proj", *ENTRIES)):
            parameter.zero_()
        else:
            fill_randomly(parameter, generator)
    initialise_rest(module, target, generator)


def train_spd(
    model: str | Path,
    data: str | Path,
    out: str | Path,
    options: SpdOptions | None = None,
    engine: EngineOptions | None = None,
    *,
    report: Callable[[Report], None] = lambda report: None,
    progress: ProgressCallback | None = None,
    stop_after: int | None = None,
) -> None:
    """Train an SPD drafter for a model from the text in `data`, and keep it in `out`; see
    `training.run.train_drafter`, which it raises as. OptionError too for segments and tracks that cannot
    be."""
    given = options or SpdOptions()
    train_drafter(model, data, out, given, engine, SpdRecipe, report, progress, stop_after)
