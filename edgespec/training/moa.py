"""Training a Mixture-of-Attentions drafter: see `runtimes.torch.moa`, and Zimmer et al. 2024, section 3.3.

    loss = 0.1 KL(target || drafter) + SmoothL1(drafter's last state, target's)        (Equation 2)

over the tokens of replies, each drafted with the memory that it would have in a cycle (`training.bounded`).
Where drafts go through the target's last layers, half of the distance is between the states before these, as
in the official code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.checkpoint import checkpoint

from edgespec.config import EngineOptions
from edgespec.progress import ProgressCallback
from edgespec.runtimes.formats.describe import ModelFiles
from edgespec.runtimes.formats.moa_sizes import (
    KIND,
    MoaSizes,
    choose_sizes,
    memory_width,
    parameter_shapes,
    parameters,
)
from edgespec.runtimes.torch.moa import Moa
from edgespec.training.bounded import Questions, ask, at_gap, bounded, local_share
from edgespec.training.corpus import Sample
from edgespec.training.held_out import GAMMA, Agreement
from edgespec.training.last_layers import LastLayers, last_layers_bytes
from edgespec.training.losses import BLOCK_BYTES, BLOCK_ROWS, distill, full_kl
from edgespec.training.one_module import ModulePupil, ModuleRecipe
from edgespec.training.options import MoaOptions
from edgespec.training.run import train_drafter
from edgespec.training.target import KERNELS_BYTES, Features, FrozenTarget, element, pass_bytes
from edgespec.training.trainer import Loss, Report

KL_WEIGHT, L1_WEIGHT = 0.1, 1.0  # Table 6
LAYER_ROWS = 4096  # tokens times layers whose attention over layers is held for its gradient at a time


class Student(nn.Module):
    """The network over one pass's sequences, from what the target gives of them."""

    def __init__(self, moa: Moa) -> None:
        super().__init__()
        self.moa = moa

    def forward(
        self, embedded: Tensor, states: Tensor, lengths: Sequence[int], asked: Sequence[Questions]
    ) -> list[Tensor]:
        """embedded [b, t, d]; states [sum of lengths, L, 2 E_kv], keys and values of all layers.

        What is drafted, [b, s, d], for each of `asked`, which are asked of the same memory.
        """
        rows = max(1, LAYER_ROWS // states.shape[1])
        parts = [
            checkpoint(self.moa.summary, part, use_reentrant=False) for part in torch.split(states, rows)
        ]
        memory = pad_sequence(list(torch.split(torch.cat(parts), list(lengths))), batch_first=True)
        return [self.moa(embedded, memory, e.positions, e.until, e.since) for e in asked]


class MoaPupil(ModulePupil[Moa, MoaSizes]):
    """See `training.run.Pupil`."""

    def __init__(self, target: FrozenTarget, moa: Moa, recipe: MoaRecipe) -> None:
        super().__init__(target, moa, recipe)
        self.student, self.options = Student(moa), recipe.options
        through = moa.sizes.target_layers
        self.last = LastLayers(target, through) if through else None

    @property
    def module(self) -> nn.Module:
        return self.student

    def loss(self, module: nn.Module, samples: Sequence[Sample], done: float) -> Loss:
        features = self.target(samples, layers=True)
        # The same cuts whenever this pass is made, in a resumed run, too; others in each epoch, whose passes
        # are other ones.
        chance = np.random.default_rng(crc32(np.concatenate([s.tokens for s in samples]).tobytes()))
        masks, stale = self.options.masks, self.options.stale
        until = [bounded(s, chance, stale) if masks else at_gap(s, 1) for s in samples]
        share = local_share(done) if masks and self.options.local_attention else 0.0
        asked = ask(samples, until, [chance.random() < share for _ in samples])
        [(states, drafted)] = self._drafted(module, features, samples, [asked])
        sums, _ = distill(self.target.head, features.final, {"KL": drafted}, full_kl)
        near = distance(drafted, features.final)
        if self.last is not None:
            near = (near + distance(states, features.hidden[self.last.layers.start][features.supervised])) / 2
        losses = {"KL": KL_WEIGHT * sums["KL"], "L1": L1_WEIGHT * near}
        return Loss(losses, len(features.final), sum(len(s.tokens) for s in samples))

    def evaluate(self, module: nn.Module, held_out: Sequence[Sequence[Sample]]) -> dict[str, Any]:
        """Each draft of a chain with the memory that there was before the chain."""
        agreement = Agreement()
        for samples in held_out:
            features = self.target(samples, layers=True)
            asked = [ask(samples, [at_gap(s, gap) for s in samples]) for gap in range(1, GAMMA + 1)]
            drafted = self._drafted(module, features, samples, asked)
            hits, loss = [], 0.0
            for _, each in drafted:
                sums, agree = distill(self.target.head, features.final, {"KL": each}, full_kl)
                hits.append(agree["KL"].cpu().numpy())
                loss += float(sums["KL"]) / GAMMA
            counts = np.cumsum([stop - start for s in samples for start, stop in s.spans])[:-1]
            parts: list[Any] = np.split(np.stack(hits), counts, axis=1)
            agreement.add(parts, loss)
        return {KIND: agreement.result()}

    def _drafted(
        self, module: nn.Module, features: Features, samples: Sequence[Sample], asked: Sequence[Questions]
    ) -> list[tuple[Tensor, Tensor]]:
        """What the network drafts, and what of that the LM head multiplies, [n, d] each."""
        lengths, embedded = [len(s.tokens) for s in samples], features.hidden[0]
        found = []
        for each, states in zip(asked, module(embedded, features.layers, lengths, asked), strict=True):
            final = states
            if self.last is not None and features.layers is not None:
                known = pad_sequence(list(torch.split(features.layers, lengths)), batch_first=True)
                final = self.last(states, known, each)
            there = torch.from_numpy(each.there).to(states.device)
            found.append((states[there], final[there]))
        return found


class MoaRecipe(ModuleRecipe[MoaSizes]):
    """See `training.run.Recipe`."""

    def __init__(self, files: ModelFiles, options: MoaOptions) -> None:
        """Raises OptionError for sizes that cannot be, and as `ModuleRecipe` for a network to begin with."""
        through = options.target_layers
        sizes = choose_sizes(files.config, options.kv_heads, options.mlp, options.layer_attention, through)
        depths = (0, files.config.layers - through) if through else (0,)
        super().__init__(files, KIND, sizes, parameter_shapes, depths, options.from_)
        self.options = options

    def unlike(self, other: MoaSizes) -> str:
        kv_heads, mlp = (",".join(map(str, n)) for n in (other.kv_heads, other.mlp))
        layers = "with" if other.layer_attention else "without"
        return (
            f"kv_heads={kv_heads}, mlp={mlp} and target_layers={other.target_layers}, {layers} attention "
            "over layers; train it on with the same, or anew"
        )

    @property
    def identity(self) -> Mapping[str, Any]:
        names = ("masks", "stale", "local_attention")
        return {**super().identity, **{name: getattr(self.options, name) for name in names}}

    def nbytes(self, rows: int) -> int:
        return training_bytes(self.files, self.shape, rows)

    def begin(self, target: FrozenTarget, generator: torch.Generator, device: torch.device) -> MoaPupil:
        moa = Moa(self.files.config, self.shape, device=device)
        self.fill(moa, lambda: moa.initialise(target.final_norm, generator))
        return MoaPupil(target, moa, self)


def train_moa(
    model: str | Path,
    data: str | Path,
    out: str | Path,
    options: MoaOptions | None = None,
    engine: EngineOptions | None = None,
    *,
    report: Callable[[Report], None] = lambda report: None,
    progress: ProgressCallback | None = None,
    stop_after: int | None = None,
) -> None:
    """Train a Mixture-of-Attentions drafter for a model from the text in `data`, and keep it in `out`; see
    `training.run.train_drafter`.

    Raises as `train_drafter`, and OptionError for sizes that cannot be.
    """
    given = options or MoaOptions()
    train_drafter(model, data, out, given, engine, MoaRecipe, report, progress, stop_after)


def distance(ours: Tensor, target: Tensor) -> Tensor:
    """Smooth L1, the mean over each row's features, summed over rows [n, d]."""
    return F.smooth_l1_loss(ours.float(), target.float(), reduction="none").mean(-1).sum()


def training_bytes(files: ModelFiles, sizes: MoaSizes, rows: int) -> int:
    """Memory of training beside the open target, at its peak, for passes of so many (padded) rows."""
    c, e = files.config, element(files)
    d, w = c.hidden_size, memory_width(c)
    trained = parameters(c, sizes)
    states = trained * (4 * 4 + 2)  # masters, gradients, two moments, all fp32; the cast copies
    over_layers = max(LAYER_ROWS, c.layers) * (16 * w + 6 * sizes.mlp[0]) * e
    row = (14 * d + 8 * w + 8 * c.q_size + 5 * (sizes.mlp[1] + sizes.mlp[2])) * e + 16 * d
    kept = rows * 2 * c.layers * w * e
    logits = BLOCK_ROWS * c.vocab_size * BLOCK_BYTES
    dense = 0 if files.table.precision in ("source", "bf16") else c.vocab_size * d * e
    through = last_layers_bytes(c, sizes.target_layers, rows, e)
    widest = kept + max(pass_bytes(files, rows, 2), over_layers + rows * row + through)
    return states + widest + logits + dense + KERNELS_BYTES
