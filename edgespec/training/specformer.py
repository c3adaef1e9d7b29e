"""Training a SpecFormer drafter: cross-entropy to the data's own tokens, position by position.

SpecFormer, Equation 6b: the mean over positions t and j = 1 ... l_d of -log P(x_{t+1+j} | x_1 ... x_t). The
tokens are to be the target's own (`generate=`, "Self Distillation"): on another's text it learns another's.

The vocabulary is large, so no two positions' logits exist at once ("Intra-batch Gradient Accumulation"): each
position's are made, a block of rows at a time, and their gradient goes to that position's states; what is
below the head goes backward once, for all positions together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from edgespec.runtimes.torch.blocks import fill_randomly, widened
from edgespec.runtimes.torch.specformer import (
    KIND,
    MOST_HOOKS,
    SpecFormer,
    SpecFormerShape,
    hooks_of,
    specformer_shapes,
)
from edgespec.training.corpus import Sample
from edgespec.training.held_out import Agreement
from edgespec.training.losses import BLOCK_BYTES, BLOCK_ROWS, name_tokens
from edgespec.training.one_module import ModulePupil, ModuleRecipe
from edgespec.training.options import SpecFormerOptions
from edgespec.training.run import train_drafter
from edgespec.training.target import KERNELS_BYTES, FrozenTarget, element, pass_bytes
from edgespec.training.trainer import Loss, Report


class SpecFormerRecipe(ModuleRecipe[SpecFormerShape]):
    """See `training.run.Recipe`."""

    def __init__(self, files: ModelFiles, options: SpecFormerOptions) -> None:
        """Raises OptionError for hooks that the target has not, and as `ModuleRecipe` for a drafter to begin
        with."""
        try:
            hooks = options.hooks or hooks_of(files.config.layers)
            if len(hooks) > MOST_HOOKS:
                raise ValueError(f"{len(hooks)} states are too many; {MOST_HOOKS} at most are read")
            shape = SpecFormerShape(
                options.positions,
                tuple(hooks),
                options.causal,
                options.positional,
                options.draft_attention,
                options.mlp,
            )
            specformer_shapes(files.config, shape)
        except ValueError as error:
            raise OptionError(f"hooks: {error}", "hooks") from None
        super().__init__(files, KIND, shape, specformer_shapes, shape.hooks, options.from_)

    def nbytes(self, rows: int) -> int:
        c, e, length = self.files.config, element(self.files), self.shape.length
        hooks, width = len(self.shape.hooks), widened(c, self.shape.mlp).intermediate_size
        context = (16 + 14 * e + 2 * hooks * e) * c.hidden_size + 2 * e * (c.q_size + 2 * c.kv_size)
        draft = (16 + 12 * e) * c.hidden_size + 6 * e * width + 2 * e * (c.q_size + 2 * c.kv_size)
        logits = BLOCK_ROWS * c.vocab_size * BLOCK_BYTES
        widest = max(pass_bytes(self.files, rows, hooks), rows * (context + length * draft))
        return self.state_bytes + widest + logits + KERNELS_BYTES

    def begin(
        self, target: FrozenTarget, generator: torch.Generator, device: torch.device
    ) -> SpecFormerPupil:
        module = SpecFormer(self.files.config, self.shape, target.final_norm.float(), device=device)
        self.fill(module, lambda: initialise(module, generator))
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
    if module.position_proj is not None:
        module.position_proj.mul_(0.1)
        for position in module.position_proj.view(-1, d, d):
            position.diagonal().add_(1.0)


class SpecFormerPupil(ModulePupil[SpecFormer, SpecFormerShape]):
    """See `training.run.Pupil`."""

    def loss(self, module: nn.Module, samples: Sequence[Sample], done: float) -> Loss:
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
    given = options or SpecFormerOptions()
    train_drafter(model, data, out, given, engine, SpecFormerRecipe, report, progress, stop_after)
