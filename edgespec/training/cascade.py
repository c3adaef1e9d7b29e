"""Training a cascade's adapters: one behind the draft's layers, one behind each shallow verifier's.

All adapters learn from the same passes of the target; none reaches another's parameters. See CATS
(arXiv 2605.11186), section 4; what is shared with other drafters is in the modules beside this one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from edgespec.config import EngineOptions
from edgespec.devices.probe import cpu_count
from edgespec.errors import OptionError
from edgespec.kernels.threads import use_threads
from edgespec.models.hub import resolve_model
from edgespec.models.loading import choose_device
from edgespec.progress import ProgressCallback
from edgespec.runtimes.formats.describe import ModelFiles, describe_model
from edgespec.runtimes.torch.adapter import Adapter, adapter_bytes
from edgespec.runtimes.torch.adapter_files import AdapterFile, Role, describe_adapters, save_adapters
from edgespec.runtimes.torch.target import TorchTarget
from edgespec.runtimes.torch.weights import Weights
from edgespec.text.tokenizer import load_tokenizer
from edgespec.training.corpus import Sample, corpus_digest, text_files
from edgespec.training.data import Batches, Samples, Shards, padded, passes, split
from edgespec.training.held_out import Agreement
from edgespec.training.losses import BLOCK_BYTES, BLOCK_ROWS, RowsLoss, distill, make_loss
from edgespec.training.options import TOP_K, CascadeOptions
from edgespec.training.prepare import DataMaker, Making
from edgespec.training.target import (
    KERNELS_BYTES,
    FrozenTarget,
    measure_for_training,
    open_beside,
    pass_bytes,
    plan_beside,
)
from edgespec.training.trainer import Loss, Report, Settings, Trainer, recorded
from edgespec.training.workers import Workers

DRAFT_SHARE, VERIFY_SHARE = 3 / 32, 15 / 32  # of the layers: the paper's choice for 32 of them
RATE = 0.25  # of learning, times 1 / width: 6e-5 for a 7B (Kangaroo has 5e-5), 1e-3 for a width of 256
WARMUP = 100  # steps, but at most a tenth of them
HELD_OUT_SHARE, HELD_OUT_TOKENS = 0.05, 16_384
HELD_OUT_REPLY = 32  # tokens, with its prompt; few are shorter
EVALUATIONS = 10  # on the way
ELSEWHERE = {"draft_layers", "verify_layers", "held_out", "from_"}  # not said of each adapter in the manifest


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


class CascadeTraining:
    """The loss and the evaluation that the trainer is given."""

    def __init__(self, target: FrozenTarget, loss: RowsLoss, held_out: Sequence[Sequence[Sample]]) -> None:
        """`held_out`: passes."""
        self.target = target
        self.rows_loss = loss
        self.held_out = held_out

    def loss(self, model: nn.Module, samples: Sequence[Sample]) -> Loss:
        features = self.target(samples)
        students = model(features.hidden, features.supervised)
        sums, _ = distill(self.target.head, features.final, students, self.rows_loss)
        return Loss(sums, len(features.final), sum(len(s.tokens) for s in samples))

    def evaluate(self, model: nn.Module) -> dict[str, Any]:
        results: dict[str, Agreement] = {}
        for samples in self.held_out:
            features = self.target(samples)
            students = model(features.hidden, features.supervised)
            sums, agree = distill(self.target.head, features.final, students, self.rows_loss)
            counts = np.cumsum([stop - start for s in samples for start, stop in s.spans])[:-1]
            for name, hits in agree.items():
                parts: list[Any] = np.split(hits.cpu().numpy(), counts)
                results.setdefault(name, Agreement()).add(parts, float(sums[name]))
        return {name: agreement.result() for name, agreement in results.items()}


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
    """Train adapters for a model from the text in `data`, and keep them in `out`; resumes by itself.

    out/data, out/held-out: token shards; out/run: checkpoint and log; out itself: the adapters, as
    `adapter_files.describe_adapters` reads them, from the first evaluation on.

    Raises OptionError for depths, data or options that cannot be, before any weight is read; BudgetError when
    the dial is too small; TrainingError when the loss is not finite.
    """
    data, out = Path(data), Path(out)
    options, engine = options or CascadeOptions(), engine or EngineOptions()
    path = resolve_model(str(model), progress, engine.offline)
    files = describe_model(path, engine.precision)
    depths = choose_depths(files.config.layers, options)
    tokenizer, device = load_tokenizer(files, path), choose_device(engine)
    use_threads(engine.threads, cpu_count())
    held_out = options.held_out
    begun_with = {} if options.from_ is None else _earlier(options.from_, files, depths)
    machine = measure_for_training(files, device)
    plan_beside(files, engine, machine, 64, 64, lambda rows: training_bytes(files, rows, len(depths)))
    workers = Workers()
    device = workers.device(device)
    if workers.first:
        making = Making(options.length, options.generate, options.temperature, options.seed)
        prepare = DataMaker(files, tokenizer, making, engine, device, progress)
        if options.generate:
            prepare.check(data)
            if held_out is not None:
                prepare.check(held_out)
        if held_out is not None:
            prepare(held_out, out / "held-out", 1 + HELD_OUT_TOKENS // HELD_OUT_REPLY)
        prepare(data, out / "data")
    workers.wait()
    shards = Shards(out / "data")
    samples = Samples(shards, files.config.vocab_size)
    if held_out is None:
        try:
            train, test = split(samples, HELD_OUT_SHARE, HELD_OUT_TOKENS)
        except OptionError:
            if workers.first:
                shards.forget()  # the text will be added to, and is then another
            raise
        tests = [samples[int(i)] for i in test]
    else:
        others = Samples(Shards(out / "held-out"), files.config.vocab_size)
        train, tests = np.arange(len(samples)), list(_first_tokens(others, HELD_OUT_TOKENS))

    def nbytes(rows: int) -> int:
        return samples.nbytes + training_bytes(files, rows, len(depths))

    longest = padded(int(np.diff(samples.ends, prepend=0).max()))
    rows = max(longest, padded(options.batch_tokens // workers.count))
    if begun := recorded(out / "run"):  # other passes would round otherwise
        longest = rows = max(longest, int(begun.get("rows", rows)))
    target, _, rows = open_beside(files, engine, device, rows, longest, nbytes, lambda rows: rows, progress)
    frozen = FrozenTarget(target, [depth for _, depth in depths])
    trainer: Trainer | None = None
    try:
        generator = torch.Generator().manual_seed(options.seed)
        adapters = {f"{role}-{depth}": Adapter(files.config, depth, device=device) for role, depth in depths}
        for name, adapter in adapters.items():
            if name in begun_with:
                adapter.load_state_dict(
                    begun_with[name].open(files.config, torch.float32, device).state_dict()
                )
                continue
            adapter.initialise(frozen.final_norm, generator)
            if not files.config.qk_norm:  # without which q and k are of another scale
                copy_attention(adapter, frozen.target)
        cascade = CascadeAdapters(adapters)
        rate = options.rate or RATE / files.config.hidden_size
        loss = make_loss(options.loss, options.top_k or TOP_K)
        training = CascadeTraining(frozen, loss, passes(tests, rows))
        trainer = Trainer(
            cascade,
            Batches(samples, train, options.batch_tokens, rows, options.seed, workers.rank, workers.count),
            training.loss,
            Settings(options.steps, rate, warmup=min(WARMUP, 1 + options.steps // 10)),
            out / "run",
            evaluate=training.evaluate,
            groups=[list(adapter.parameters()) for adapter in adapters.values()],
            identity=_identity(files, options, depths, begun_with) | {"workers": workers.count, "rows": rows},
            workers=workers,
        )

        def keep(line: Report) -> None:
            if line.held_out is not None:
                facts = {
                    name: {"steps": line.step, "tokens": line.tokens, "held_out": dict(values)}
                    | {k: v for k, v in asdict(options).items() if k not in ELSEWHERE}
                    for name, values in line.held_out.items()
                }
                kept = [(role, adapters[name := f"{role}-{depth}"], facts[name]) for role, depth in depths]
                save_adapters(out, files, kept, target.dtype)
            report(line)

        every = max(1, options.steps // EVALUATIONS)
        trainer.run(keep if workers.first else lambda line: None, 300.0, every, stop_after)
    finally:
        frozen.close()
        trainer = None  # which holds the wrapped model
        workers.close()


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
    name, weights = f"model.layers.{adapter.depth}.", target.weights
    adapter.input_norm.copy_(weights.small[name + "input_layernorm.weight"])
    for matrix in ("q_proj", "k_proj", "v_proj", "o_proj"):
        parameter = getattr(adapter, matrix)
        unit = torch.eye(parameter.shape[1], dtype=target.dtype, device=target.device)
        full = name + "self_attn." + matrix
        [rows] = weights.linear((full,), unit, False)  # W^T, and the bias, which an adapter has not
        parameter.copy_((rows - weights.small.get(full + ".bias", 0)).T)
    weights.release()


def training_bytes(files: ModelFiles, rows: int, adapters: int) -> int:
    """Memory of training beside the open target, at its peak, for passes of so many (padded) rows."""
    c, e = files.config, files.dtype.itemsize
    parameters = adapter_bytes(c, torch.float32)
    states = adapters * (4 * parameters + parameters // 2)  # masters, gradients, two moments; the cast copies
    row = (16 + 10 * e) * c.hidden_size + 2 * e * (c.q_size + 2 * c.kv_size)  # measured: 0.7 to 0.85 of this
    logits = BLOCK_ROWS * c.vocab_size * BLOCK_BYTES
    dense = 0 if files.table.precision in ("source", "bf16") else c.vocab_size * c.hidden_size * e
    widest = max(
        pass_bytes(files, rows, adapters), adapters * rows * row
    )  # one is over when the other begins
    return states + widest + logits + dense + KERNELS_BYTES


def _identity(
    files: ModelFiles,
    options: CascadeOptions,
    depths: Sequence[tuple[Role, int]],
    begun_with: Mapping[str, AdapterFile],
) -> dict[str, Any]:
    """What a resumed run must share with the one it goes on from."""
    names = ("loss", "top_k", "generate", "temperature", "length", "batch_tokens", "seed")
    return {name: getattr(options, name) for name in names} | {
        "target": files.digest,
        "adapters": [f"{role}-{depth}" for role, depth in depths],
        "held-out": options.held_out and corpus_digest(text_files(options.held_out)),
        "first": corpus_digest([begun_with[f"{role}-{depth}"].path for role, depth in depths])
        if begun_with
        else None,
    }


def _first_tokens(samples: Samples, most: int) -> Iterator[Sample]:
    """At least one sequence, and then as many as hold `most` tokens."""
    for i in range(len(samples)):
        if i and samples.ends[i] > most:
            return
        yield samples[i]
