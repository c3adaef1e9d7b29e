"""Training a cascade's adapters: one behind the draft's layers, one behind each shallow verifier's.

All adapters learn from the same passes of the target; none reaches another's parameters. See CATS
(arXiv 2605.11186), section 4; what is shared with other drafters is in the modules beside this one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from edgespec.config import EngineOptions
from edgespec.errors import OptionError
from edgespec.progress import ProgressCallback
from edgespec.runtimes.formats.describe import ModelFiles
from edgespec.runtimes.torch.adapter import Adapter, adapter_bytes
from edgespec.runtimes.torch.adapter_files import AdapterFile, Role, describe_adapters, save_adapters
from edgespec.runtimes.torch.target import TorchTarget
from edgespec.runtimes.torch.weights import Weights
from edgespec.training.corpus import Sample, corpus_digest
from edgespec.training.held_out import Agreement
from edgespec.training.losses import BLOCK_BYTES, BLOCK_ROWS, RowsLoss, distill, make_loss
from edgespec.training.options import TOP_K, CascadeOptions
from edgespec.training.run import train_drafter
from edgespec.training.target import KERNELS_BYTES, FrozenTarget, element, pass_bytes, target_matrix
from edgespec.training.trainer import Loss, Report

DRAFT_SHARE, VERIFY_SHARE = 3 / 32, 15 / 32  # of the layers: the paper's choice for 32 of them
ELSEWHERE = {"draft_layers", "verify_layers"}  # not said of each adapter in the manifest


def choose_depths(layers: int, options: CascadeOptions) -> list[tuple[Role, int]]:
    """Role and depth of each adapter, the draft's first. Raises OptionError for depths that cannot be."""
    if layers < 3:
        raise OptionError(f"the target has {layers} layers; a cascade needs at least 3")
    draft = options.draft_layers
    if draft is None:
        deepest = min(options.verify_layers, default=layers - 1) - 1
        draft = max(1, min(round(layers * DRAFT_SHARE), deepest))
    verify = sorted(set(options.verify_layers or (max(draft + 1, round(layers * VERIFY_SHARE)),)))
    if draft >= verify[0]:
        raise OptionError(
            f"draft layers ({draft}) must be fewer than verify layers ({verify[0]}): the shallow verifier "
            "goes on where the draft ends"
        )
    if verify[-1] >= layers:
        raise OptionError(
            f"verify layers ({verify[-1]}) must be fewer than the target's {layers}: the last layer's output "
            "needs no adapter"
        )
    return [("draft", draft), *(("verify", depth) for depth in verify)]


class CascadeAdapters(nn.Module):
    """The adapters by name, "draft-3", "verify-15"."""

    def __init__(self, adapters: Mapping[str, Adapter]) -> None:
        super().__init__()
        self.adapters = nn.ModuleDict(adapters)
        self.depths = {name: adapter.depth for name, adapter in adapters.items()}

    def forward(self, hidden: Mapping[int, Tensor], supervised: Tensor) -> dict[str, Tensor]:
        """Hidden states by depth, [b, t, d] each -> normed states at supervised positions, [n, d] each."""
        return {n: self.adapters[n](hidden[depth])[supervised] for n, depth in self.depths.items()}


class CascadeRecipe:
    """See `training.run.Recipe`."""

    def __init__(self, files: ModelFiles, options: CascadeOptions) -> None:
        """Raises OptionError for depths that cannot be, and as `describe_adapters` for adapters to begin
        with."""
        self.files, self.options = files, options
        self.roles = choose_depths(files.config.layers, options)
        self.depths = [depth for _, depth in self.roles]
        self.begun_with = {} if options.from_ is None else _earlier(options.from_, files, self.roles)

    @property
    def identity(self) -> Mapping[str, Any]:
        names = [f"{role}-{depth}" for role, depth in self.roles]
        first = [self.begun_with[name].path for name in names] if self.begun_with else []
        return {
            "loss": self.options.loss,
            "top_k": self.options.top_k,
            "adapters": names,
            "first": corpus_digest(first) if first else None,
        }

    def nbytes(self, rows: int) -> int:
        return training_bytes(self.files, rows, len(self.roles))

    def begin(self, target: FrozenTarget, generator: torch.Generator, device: torch.device) -> CascadePupil:
        config = self.files.config
        adapters = {f"{role}-{depth}": Adapter(config, depth, device=device) for role, depth in self.roles}
        for name, adapter in adapters.items():
            if name in self.begun_with:
                adapter.load_state_dict(
                    self.begun_with[name].open(config, torch.float32, device).state_dict()
                )
                continue
            adapter.initialise(target.final_norm, generator)
            if not config.qk_norm:  # without which q and k are of another scale
                copy_attention(adapter, target.target)
        loss = make_loss(self.options.loss, self.options.top_k or TOP_K)
        return CascadePupil(target, loss, adapters, self)


class CascadePupil:
    """See `training.run.Pupil`."""

    def __init__(
        self, target: FrozenTarget, loss: RowsLoss, adapters: Mapping[str, Adapter], recipe: CascadeRecipe
    ) -> None:
        self.target, self.rows_loss, self.adapters, self.recipe = target, loss, adapters, recipe
        self.module = CascadeAdapters(adapters)

    @property
    def groups(self) -> list[list[nn.Parameter]]:
        return [list(adapter.parameters()) for adapter in self.adapters.values()]

    def loss(self, module: nn.Module, samples: Sequence[Sample], done: float) -> Loss:
        features = self.target(samples)
        students = module(features.hidden, features.supervised)
        sums, _ = distill(self.target.head, features.final, students, self.rows_loss)
        return Loss(sums, len(features.final), sum(len(s.tokens) for s in samples))

    def evaluate(self, module: nn.Module, held_out: Sequence[Sequence[Sample]]) -> dict[str, Any]:
        results: dict[str, Agreement] = {}
        for samples in held_out:
            features = self.target(samples)
            students = module(features.hidden, features.supervised)
            sums, agree = distill(self.target.head, features.final, students, self.rows_loss)
            counts = np.cumsum([stop - start for s in samples for start, stop in s.spans])[:-1]
            for name, hits in agree.items():
                parts: list[Any] = np.split(hits.cpu().numpy(), counts)
                results.setdefault(name, Agreement()).add(parts, float(sums[name]))
        return {name: agreement.result() for name, agreement in results.items()}

    def save(self, out: Path, facts: Mapping[str, Mapping[str, Any]], dtype: torch.dtype) -> None:
        kept = []
        for role, depth in self.recipe.roles:
            name = f"{role}-{depth}"
            told = {fact: value for fact, value in facts[name].items() if fact not in ELSEWHERE}
            kept.append((role, self.adapters[name], told))
        save_adapters(out, self.recipe.files, kept, dtype)


def train_cascade(
    model: str | Path,
    data: str | Path,
    out: str | Path,
    options: CascadeOptions | None = None,
    engine: EngineOptions | None = None,
    *,
    report: Callable[[Report], None] = lambda report: None,
    progress: ProgressCallback | None = None,
    stop_after: int | None = None,
) -> None:
    """Train adapters for a model from the text in `data`, and keep them in `out`, as
    `adapter_files.describe_adapters` reads them; see `training.run.train_drafter`.

    Raises as `train_drafter`, and OptionError for depths that cannot be.
    """
    given = options or CascadeOptions()
    train_drafter(model, data, out, given, engine, CascadeRecipe, report, progress, stop_after)


def _earlier(first: Path, files: ModelFiles, depths: Sequence[tuple[Role, int]]) -> dict[str, AdapterFile]:
    """Adapters to begin with, by name. Raises OptionError for one that is missing; as `describe_adapters`."""
    found = {f"{a.role}-{a.depth}": a for a in describe_adapters(first, files, fitting=False)}
    if missing := [name for role, depth in depths if (name := f"{role}-{depth}") not in found]:
        raise OptionError(
            f"{first} has {', '.join(found)}, but no {missing[0]} to begin with; train its depths, or anew"
        )
    return found


@torch.no_grad()
def copy_attention(adapter: Adapter, target: TorchTarget[Weights]) -> None:
    """Start with the attention of the target's next layer, which expects just this residual stream.

    On the demo model, 10 steps from there reach what 20 reach from random matrices.
    """
    name = f"model.layers.{adapter.depth}."
    adapter.input_norm.copy_(target.weights.small[name + "input_layernorm.weight"])
    for matrix in ("q_proj", "k_proj", "v_proj", "o_proj"):
        getattr(adapter, matrix).copy_(target_matrix(target, name + "self_attn." + matrix))


def training_bytes(files: ModelFiles, rows: int, adapters: int) -> int:
    """Memory of training beside the open target, at its peak, for passes of so many (padded) rows."""
    c, e = files.config, element(files)
    parameters = adapter_bytes(c, torch.float32)
    states = adapters * (4 * parameters + parameters // 2)  # masters, gradients, two moments; the cast copies
    row = (16 + 10 * e) * c.hidden_size + 2 * e * (c.q_size + 2 * c.kv_size)  # measured: 0.7 to 0.85 of this
    logits = BLOCK_ROWS * c.vocab_size * BLOCK_BYTES
    dense = 0 if files.table.precision in ("source", "bf16") else c.vocab_size * c.hidden_size * e
    widest = max(
        pass_bytes(files, rows, adapters), adapters * rows * row
    )  # one is over when the other begins
    return states + widest + logits + dense + KERNELS_BYTES
