"""Training a SpecFormer drafter: cross-entropy to the data's own tokens, position by position.

SpecFormer, Equation 6b: the mean over positions t and j = 1 ... l_d of -log P(x_{t+1+j} | x_1 ... x_t). The
tokens are to be the target's own (`generate=`, "Self Distillation"): on another's text it learns another's.

The vocabulary is large, so no two positions' logits exist at once ("Intra-batch Gradient Accumulation"): each
position's are made, a block of rows at a time, and their gradient goes to that position's states; what is
below the head goes backward once, for all positions together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from edgespec.config import EngineOptions
from edgespec.errors import OptionError
from edgespec.progress import ProgressCallback
from edgespec.runtimes.formats.describe import ModelFiles
from edgespec.runtimes.torch.blocks import fill_randomly
from edgespec.runtimes.torch.specformer import (
    HOOKS,
    KIND,
    SpecFormer,
    SpecFormerShape,
    hooks_of,
    specformer_shapes,
)
from edgespec.runtimes.torch.trained_files import describe_module, parameter_bytes, save_module
from edgespec.training.corpus import Sample, corpus_digest
from edgespec.training.held_out import Agreement
from edgespec.training.losses import BLOCK_BYTES, BLOCK_ROWS, name_tokens
from edgespec.training.options import SpecFormerOptions
from edgespec.training.run import train_drafter
from edgespec.training.target import KERNELS_BYTES, FrozenTarget, pass_bytes
from edgespec.training.trainer import Loss, Report


class SpecFormerRecipe:
    """See `training.run.Recipe`."""

    def __init__(self, files: ModelFiles, options: SpecFormerOptions) -> None:
        """Raises OptionError for hooks that the target has not, or another shape than that of a drafter to
        begin with; as `describe_module` for that."""
        self.files = files
        try:
            hooks = options.hooks or hooks_of(files.config.layers)
            self.shape = SpecFormerShape(options.positions, tuple(hooks), options.causal)
            specformer_shapes(files.config, self.shape)
        except ValueError as error:
            raise OptionError(f"hooks: {error}", "hooks") from None
        self.first = None
        if options.from_ is not None:
            first = describe_module(options.from_, KIND, SpecFormerShape, specformer_shapes, files, False)
            if first.shape != self.shape:
                raise OptionError(f"{options.from_} has {first.shape}, not {self.shape}; train anew")
            self.first = first

    @property
    def depths(self) -> Sequence[int]:
        return self.shape.hooks

    @property
    def identity(self) -> Mapping[str, Any]:
        first = None if self.first is None else corpus_digest([self.first.path])
        return {"drafter": KIND, "shape": repr(self.shape), "first": first}

    def nbytes(self, rows: int) -> int:
        c, e, length = self.files.config, self.files.dtype.itemsize, self.shape.length
        parameters = parameter_bytes(specformer_shapes(c, self.shape), 4)
        states = 4 * parameters + parameters // 2  # masters, gradients, two moments; the cast copies
        context = (16 + 14 * e + 2 * HOOKS * e) * c.hidden_size + 2 * e * (c.q_size + 2 * c.kv_size)
        draft = (
            (16 + 12 * e) * c.hidden_size + 6 * e * c.intermediate_size + 2 * e * (c.q_size + 2 * c.kv_size)
        )
        logits = BLOCK_ROWS * c.vocab_size * BLOCK_BYTES
        widest = max(pass_bytes(self.files, rows, HOOKS), rows * (context + length * draft))
        return states + widest + logits + KERNELS_BYTES

    def begin(
        self, target: FrozenTarget, generator: torch.Generator, device: torch.device
    ) -> SpecFormerPupil:
        module = SpecFormer(self.files.config, self.shape, target.final_norm.float(), device=device)
        if self.first is not None:
            self.first.read(module)
            module.requires_grad_(True)
        else:
            initialise(module, generator)
        return SpecFormerPupil(target, module, self)


@torch.no_grad()
def initialise(module: SpecFormer, generator: torch.Generator) -> None:
    """Begin as the target's own last state at every position: what is added to it adds nothing yet."""
    d = module.config.hidden_size
    for name, parameter in module.named_parameters():
        if name.endswith("norm"):
            parameter.fill_(1.0)
        elif name.endswith(("o_proj", "down_proj", "bias")):
            parameter.zero_()
        else:
            fill_randomly(parameter, generator)
    module.down.mul_(0.1)
    module.down[:, -d:].diagonal().add_(1.0)
    module.position_proj.mul_(0.1)
    for position in module.position_proj.view(-1, d, d):
        position.diagonal().add_(1.0)


class SpecFormerPupil:
    """See `training.run.Pupil`."""

    def __init__(self, target: FrozenTarget, module: SpecFormer, recipe: SpecFormerRecipe) -> None:
        self.target, self.module, self.recipe = target, module, recipe

    @property
    def groups(self) -> list[list[nn.Parameter]]:
        return [list(self.module.parameters())]

    def loss(self, module: nn.Module, samples: Sequence[Sample]) -> Loss:
        drafts, labels = self._drafts(module, samples)
        total, _ = name_tokens(self.target.head, drafts, labels)
        count = int((labels >= 0).sum())
        return Loss({KIND: total}, max(1, count), sum(len(s.tokens) for s in samples))

    def evaluate(self, module: nn.Module, held_out: Sequence[Sequence[Sample]]) -> dict[str, Any]:
        found = Agreement(self.recipe.shape.length)
        for samples in held_out:
            drafts, labels = self._drafts(module, samples)
            total, hits = name_tokens(self.target.head, drafts, labels)
            counts = np.cumsum([stop - start for s in samples for start, stop in s.spans])[:-1]
            texts = [by_draft(text) for text in np.split(hits.cpu().numpy(), counts)]
            found.add(texts, float(total) / self.recipe.shape.length)
        return {KIND: found.result()}

    def _drafts(self, module: nn.Module, samples: Sequence[Sample]) -> tuple[Tensor, Tensor]:
        """What is said at n positions, [n, l_d, d], and the tokens that come there, [n, l_d]; -1 behind a
        reply's end."""
        features = self.target(samples)
        states = torch.stack([features.hidden[hook] for hook in self.recipe.shape.hooks], 2)
        labels = next_tokens(samples, self.recipe.shape.length).to(states.device)
        return module(states, features.supervised), labels

    def save(self, out: Path, facts: Mapping[str, Mapping[str, Any]], dtype: torch.dtype) -> None:
        save_module(out, KIND, self.recipe.shape, self.module, self.recipe.files, facts[KIND], dtype)


def by_draft(hits: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Whether what each position of a reply says of the tokens behind the next is so, [n, l_d], as
    `Agreement.add` takes it: by draft, and by the token that it is for, [l_d, n - 1]."""
    n, length = hits.shape
    found = np.zeros((length, n - 1), np.bool_)
    for draft in range(min(length, n - 1)):
        found[draft, draft:] = hits[: n - 1 - draft, draft]
    return found


def next_tokens(samples: Sequence[Sample], length: int) -> Tensor:
    """[n, length] for each position t at which a reply's token comes next (as `Features.supervised` has
    them): tokens t + 2 ... t + 1 + length, as far as they are of the same reply; then -1."""
    rows = []
    for sample in samples:
        for start, stop in sample.spans:
            reply = np.asarray([*sample.tokens[start:stop], *[-1] * length])
            rows += [reply[i + 1 : i + 1 + length] for i in range(stop - start)]
    return torch.from_numpy(np.stack(rows))


def train_specformer(
    model: str | Path,
    data: str | Path,
    out: str | Path,
    options: SpecFormerOptions | None = None,
    engine: EngineOptions | None = None,
    *,
    report: Callable[[Report], None] = lambda report: None,
    progress: ProgressCallback | None = None,
    stop_after: int | None = None,
) -> None:
    """Train a SpecFormer drafter for a model from the text in `data`, and keep it in `out`; see
    `training.run.train_drafter`, which it raises as. OptionError too for hooks that the target has not."""
    options = options or SpecFormerOptions()

    def make(files: ModelFiles) -> SpecFormerRecipe:
        return SpecFormerRecipe(files, options)

    engine = engine or EngineOptions()
    train_drafter(model, data, out, options, engine, make, report, progress, stop_after)
