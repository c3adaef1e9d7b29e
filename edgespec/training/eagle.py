"""Training an EAGLE drafter: smooth L1 to the target's features, and cross-entropy to its distribution.

EAGLE (arXiv 2401.15077, section 4.2): L = L_reg + w L_cls, with L_reg = SmoothL1(f_{t+1}, f'_{t+1}) and
L_cls the cross-entropy of head(f') to the target's own distribution head(f), over the tokens that replies
are made of. Noise on the features that it reads lets it live with its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edgespec.config import EngineOptions
from edgespec.progress import ProgressCallback
from edgespec.runtimes.formats.describe import ModelFiles
from edgespec.runtimes.torch.blocks import CausalAttention, GatedMLP, fill_randomly, widened
from edgespec.runtimes.torch.eagle import KIND, Eagle, EagleShape, eagle_shapes
from edgespec.training.corpus import Sample
from edgespec.training.held_out import Agreement
from edgespec.training.losses import BLOCK_BYTES, BLOCK_ROWS, distill, full_kl
from edgespec.training.one_module import ModulePupil, ModuleRecipe
from edgespec.training.options import EagleOptions
from edgespec.training.run import train_drafter
from edgespec.training.target import KERNELS_BYTES, Features, FrozenTarget, element, pass_bytes, target_matrix
from edgespec.training.trainer import Loss, Report

TOKEN_WEIGHT = 0.1  # w: of L_cls; both of the paper's
NOISE = 0.1  # of a feature's root mean square; uniform, as the paper's


class EagleRecipe(ModuleRecipe[EagleShape]):
    """See `training.run.Recipe`."""

    def __init__(self, files: ModelFiles, options: EagleOptions) -> None:
        """Raises as `ModuleRecipe` for a drafter to begin with."""
        depths = 0, files.config.layers
        super().__init__(files, KIND, EagleShape(options.mlp), eagle_shapes, depths, options.from_)

    def nbytes(self, rows: int) -> int:
        c, e = self.files.config, element(self.files)
        row = (
            (32 + 20 * e) * c.hidden_size
            + 6 * e * widened(c, self.shape.mlp).intermediate_size
            + 2 * e * (c.q_size + 2 * c.kv_size)
        )
        logits = BLOCK_ROWS * c.vocab_size * BLOCK_BYTES
        widest = max(pass_bytes(self.files, rows, 2), rows * row)
        return self.state_bytes + widest + logits + KERNELS_BYTES

    def begin(self, target: FrozenTarget, generator: torch.Generator, device: torch.device) -> EaglePupil:
        module = Eagle(self.files.config, self.shape, target.final_norm.float(), device=device)
        self.fill(module, lambda: initialise(module, target, generator))
        return EaglePupil(target, module, self)


@torch.no_grad()
def initialise(module: Eagle, target: FrozenTarget, generator: torch.Generator) -> None:
    """Begin as the target's last layer, on the sum of feature and embedding."""
    copy_layer(module.attention, module.mlp, target, module.config.layers - 1, generator)
    d = module.config.hidden_size
    fill_randomly(module.fuse, generator)
    module.fuse.mul_(0.1)
    for half in (module.fuse[:, :d], module.fuse[:, d:]):
        half.diagonal().add_(1.0)


@torch.no_grad()
def copy_layer(
    attention: CausalAttention, mlp: GatedMLP, target: FrozenTarget, layer: int, generator: torch.Generator
) -> None:
    """The weights of one of the target's layers; where that normalises q and k, which are then of another
    scale, random ones for attention. What a wider MLP has more adds nothing yet."""
    name, small = f"model.layers.{layer}.", target.target.weights.small
    attention.input_norm.copy_(small[name + "input_layernorm.weight"])
    mlp.input_norm.copy_(small[name + "post_attention_layernorm.weight"])
    matrices = {"mlp.gate_proj": mlp.gate_proj, "mlp.up_proj": mlp.up_proj, "mlp.down_proj": mlp.down_proj}
    if attention.config.qk_norm:
        for matrix in (attention.q_proj, attention.k_proj, attention.v_proj):
            fill_randomly(matrix, generator)
        attention.o_proj.zero_()
    else:
        for part in ("q_proj", "k_proj", "v_proj", "o_proj"):
            matrices[f"self_attn.{part}"] = getattr(attention, part)
    fill_randomly(mlp.gate_proj, generator)
    fill_randomly(mlp.up_proj, generator)
    mlp.down_proj.zero_()
    for part, matrix in matrices.items():
        whole = target_matrix(target.target, name + part)
        rows, columns = map(min, matrix.shape, whole.shape)
        matrix[:rows, :columns] = whole[:rows, :columns]


class EaglePupil(ModulePupil[Eagle, EagleShape]):
    """See `training.run.Pupil`."""

    def loss(self, module: nn.Module, samples: Sequence[Sample], done: float) -> Loss:
        drafted, wanted = self._drafted(module, samples, noise=True)
        feature = F.smooth_l1_loss(drafted.float(), wanted.float(), reduction="none").mean(-1).sum()
        sums, _ = distill(self.target.head, wanted, {"token": drafted}, full_kl)
        losses = {"feature": feature, "token": TOKEN_WEIGHT * sums["token"]}
        return Loss(losses, len(wanted), sum(len(s.tokens) for s in samples))

    def evaluate(self, module: nn.Module, held_out: Sequence[Sequence[Sample]]) -> dict[str, Any]:
        found = Agreement()
        for samples in held_out:
            drafted, wanted = self._drafted(module, samples, noise=False)
            sums, agree = distill(self.target.head, wanted, {KIND: drafted}, full_kl)
            counts = [stop - max(start, 2) for s in samples for start, stop in s.spans]
            parts: list[Any] = np.split(agree[KIND].cpu().numpy(), np.cumsum(counts)[:-1])
            found.add(parts, float(sums[KIND]))
        return {KIND: found.result()}

    def _drafted(self, module: nn.Module, samples: Sequence[Sample], noise: bool) -> tuple[Tensor, Tensor]:
        """What is drafted for n positions, and the target's own features there; [n, d] each."""
        features = self.target(samples)
        embedded, hidden = (features.hidden[depth] for depth in self.recipe.depths)
        read = self.drafter.feature(hidden)[:, :-1]
        if noise:
            read = read + _noise(read, samples)
        drafted = module(read, embedded[:, 1:])  # [b, t - 1, d]: of positions 1 on
        return drafted[features.supervised[:, 1:]], features.final[_behind_first(features)]


def _behind_first(features: Features) -> Tensor:
    """[n] which rows of `final` are not of a sequence's first position: nothing can be drafted for it."""
    first = torch.zeros_like(features.supervised)
    first[:, 0] = True
    return ~first[features.supervised]


def _noise(features: Tensor, samples: Sequence[Sample]) -> Tensor:
    """Keyed by the tokens, so that a resumed run draws the same; [b, t, d]."""
    seed = sum(sum(sample.tokens) for sample in samples)
    uniform = torch.rand(features.shape, generator=torch.Generator().manual_seed(seed)).to(features.device)
    size = features.float().square().mean(-1, keepdim=True).sqrt() * NOISE
    return ((2 * uniform - 1) * size).to(features.dtype)


def train_eagle(
    model: str | Path,
    data: str | Path,
    out: str | Path,
    options: EagleOptions | None = None,
    engine: EngineOptions | None = None,
    *,
    report: Callable[[Report], None] = lambda report: None,
    progress: ProgressCallback | None = None,
    stop_after: int | None = None,
) -> None:
    """Train an EAGLE drafter for a model from the text in `data`, and keep it in `out`; see
    `training.run.train_drafter`, which it raises as."""
    given = options or EagleOptions()
    train_drafter(model, data, out, given, engine, EagleRecipe, report, progress, stop_after)
