"""Training a speculative streaming drafter: a future n-gram objective, without heads of its own.

Mirror-SD (section 3.2), after Bhendawade et al. 2024, Equation 5: with the main stream's cross-entropy to
what follows t, a share of each lookahead stream's to what follows t + j. What follows is the target's own
distribution there, behind the text's tokens: over texts, that comes to what may follow t + j whatever lies
between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from edgespec.config import EngineOptions
from edgespec.errors import OptionError
from edgespec.progress import ProgressCallback
from edgespec.runtimes.formats.describe import ModelFiles
from edgespec.runtimes.torch.blocks import fill_randomly
from edgespec.runtimes.torch.streaming import (
    KIND,
    DraftLayer,
    Streaming,
    StreamingShape,
    streaming_shapes,
)
from edgespec.training.corpus import Sample
from edgespec.training.eagle import copy_layer
from edgespec.training.held_out import Agreement
from edgespec.training.losses import BLOCK_BYTES, BLOCK_ROWS, distill, full_kl
from edgespec.training.one_module import ModulePupil, ModuleRecipe
from edgespec.training.options import StreamingOptions
from edgespec.training.run import train_drafter
from edgespec.training.target import KERNELS_BYTES, Features, FrozenTarget, element, pass_bytes
from edgespec.training.trainer import Loss, Report

FADING = 0.5  # a stream's weight over that of the one before it; the main stream's is 1


class StreamingRecipe(ModuleRecipe[StreamingShape]):
    """See `training.run.Recipe`."""

    def __init__(self, files: ModelFiles, options: StreamingOptions) -> None:
        """Raises OptionError for more layers than the target has, or than the drafter has for its streams,
        and as `ModuleRecipe` for a drafter to begin with."""
        most = files.config.layers
        layers = options.layers or max(1, round(most / 5))
        if layers > most:
            raise OptionError(f"layers is {layers}; the model has {most}, which they begin as", "layers")
        through = options.stream_layers or (layers + 1) // 2
        if through > layers:
            raise OptionError(f"stream_layers is {through}; the drafter has {layers}", "stream_layers")
        shape = StreamingShape(layers, options.streams, through, options.mlp)
        super().__init__(files, KIND, shape, streaming_shapes, (0,), options.from_)

    def nbytes(self, rows: int) -> int:
        c, e, s = self.files.config, element(self.files), self.shape
        own = s.layer(c)
        layer = (
            (12 + 12 * e) * own.hidden_size
            + 6 * e * own.intermediate_size
            + 2 * e * (own.q_size + 2 * own.kv_size)
        )
        through = s.layers + s.streams * s.stream_layers  # layers that a position goes through, times streams
        through *= s.cached(c).layers // s.layers
        logits = BLOCK_ROWS * c.vocab_size * BLOCK_BYTES
        seen = (rows * (1 + s.streams)) ** 2 * 5 if s.streams else 0  # the mask, when a pass is one sequence
        widest = max(pass_bytes(self.files, rows, 1), rows * layer * through + seen)
        return self.state_bytes + widest + logits + KERNELS_BYTES

    def begin(self, target: FrozenTarget, generator: torch.Generator, device: torch.device) -> StreamingPupil:
        module = Streaming(self.files.config, self.shape, device=device)
        self.fill(module, lambda: initialise(module, target, generator))
        return StreamingPupil(target, module, self)


@torch.no_grad()
def initialise(module: Streaming, target: FrozenTarget, generator: torch.Generator) -> None:
    """Begin as layers of the target, spread evenly from first to last, and streams as the main one."""
    chosen = np.linspace(0, target.target.config.layers - 1, len(module.layers)).round().astype(int)
    for layer, origin in zip(module.layers, chosen.tolist(), strict=True):
        assert isinstance(layer, DraftLayer)
        copy_layer(layer.attention, layer.mlp, target, origin, generator)
    initialise_rest(module, target, generator)


@torch.no_grad()
def initialise_rest(module: Streaming, target: FrozenTarget, generator: torch.Generator) -> None:
    """What is of no layer."""
    module.norm.copy_(target.final_norm)
    if module.shape.streams:
        fill_randomly(module.stream_proj, generator)
        module.stream_proj.mul_(0.1).diagonal().add_(1.0)
        module.stream_bias.copy_(torch.randn(module.stream_bias.shape, generator=generator) * 0.1)


class StreamingPupil(ModulePupil[Streaming, StreamingShape]):
    """See `training.run.Pupil`."""

    def loss(self, module: nn.Module, samples: Sequence[Sample], done: float) -> Loss:
        drafted, wanted = self._drafted(module, samples)
        losses: dict[str, Tensor] = {}
        for name, (rows, said) in drafted.items():
            value = said.sum()  # nothing, where no reply of these is as long
            if len(rows):
                value = distill(self.target.head, wanted[rows], {name: said}, full_kl)[0][name]
            losses[name] = value * FADING ** len(losses)
        return Loss(losses, len(wanted), sum(len(s.tokens) for s in samples))

    def evaluate(self, module: nn.Module, held_out: Sequence[Sequence[Sample]]) -> dict[str, Any]:
        """The main stream, as if each token of a chain took a step: `streams` has how often each lookahead
        stream says the target's token."""
        found = Agreement()
        right = np.zeros((2, self.recipe.shape.streams), np.int64)  # those that agree, and all
        for samples in held_out:
            drafted, wanted = self._drafted(module, samples)
            for stream, (name, (rows, said)) in enumerate(drafted.items()):
                if not len(rows):
                    continue
                sums, agree = distill(self.target.head, wanted[rows], {name: said}, full_kl)
                hits = agree[name].cpu().numpy()
                if stream:
                    right[:, stream - 1] += hits.sum(), len(hits)
                    continue
                counts = np.cumsum([stop - start for s in samples for start, stop in s.spans])[:-1]
                parts: list[Any] = np.split(hits, counts)
                found.add(parts, float(sums[name]))
        share = right[0] / np.maximum(right[1], 1)
        return {self.recipe.kind: found.result() | {"streams": [round(float(x), 4) for x in share]}}

    def _drafted(
        self, module: nn.Module, samples: Sequence[Sample]
    ) -> tuple[dict[str, tuple[Tensor, Tensor]], Tensor]:
        """By stream, which of the n supervised positions it names [m], and what it says of them [m, d]; and
        what is wanted at each, [n, d]. Stream j names what follows j behind it, in the same reply."""
        features: Features = self.target(samples)
        said = module(features.hidden[0])  # [b, 1 + gamma, t, d]
        sequence, place = torch.nonzero(features.supervised, as_tuple=True)  # [n] each
        first = torch.from_numpy(np.concatenate([_from_first(s) for s in samples])).to(place.device)
        drafted = {}
        for stream in range(said.shape[1]):
            rows = torch.nonzero(first >= stream)[:, 0]
            name = f"stream-{stream}" if stream else "main"
            drafted[name] = rows, said[sequence[rows], stream, place[rows] - stream]
        return drafted, features.final


def _from_first(sample: Sample) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Of each supervised position, how many such lie before it in the same reply."""
    return np.concatenate([np.arange(stop - start) for start, stop in sample.spans])


def train_streaming(
    model: str | Path,
    data: str | Path,
    out: str | Path,
    options: StreamingOptions | None = None,
    engine: EngineOptions | None = None,
    *,
    report: Callable[[Report], None] = lambda report: None,
    progress: ProgressCallback | None = None,
    stop_after: int | None = None,
) -> None:
    """Train a speculative streaming drafter for a model from the text in `data`, and keep it in `out`; see
    `training.run.train_drafter`, which it raises as. OptionError too for layers that cannot be."""
    given = options or StreamingOptions()
    train_drafter(model, data, out, given, engine, StreamingRecipe, report, progress, stop_after)
