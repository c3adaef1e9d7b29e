"""One training run, whatever drafter it is of: text, target, trainer; resumes by itself.

    files ─► recipe ─► is there memory? ─► token shards ─► open target ─► pupil ─► trainer ─► DIR
             (headers and options)                                        (module)     │
                                                     DIR/run: checkpoint, log ◄────────┘

A kind of drafter brings a `Recipe`, which is made from headers and options before anything is read, and the
`Pupil` that this begins with once the target is open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import nn

from edgespec.config import EngineOptions
from edgespec.devices.probe import cpu_count
from edgespec.errors import OptionError
from edgespec.kernels.threads import use_threads
from edgespec.models.hub import resolve_model
from edgespec.models.loading import choose_device
from edgespec.progress import ProgressCallback
from edgespec.runtimes.formats.describe import ModelFiles, describe_model
from edgespec.text.tokenizer import load_tokenizer
from edgespec.training.corpus import Sample, corpus_digest, text_files
from edgespec.training.data import Batches, Samples, Shards, padded, passes, split
from edgespec.training.options import TrainingOptions
from edgespec.training.prepare import DataMaker, Making
from edgespec.training.target import FrozenTarget, measure_for_training, open_beside, plan_beside
from edgespec.training.trainer import Loss, Report, Settings, Trainer, recorded
from edgespec.training.workers import Workers

RATE = 0.25  # of learning, times 1 / width: 6e-5 for a 7B (Kangaroo has 5e-5), 1e-3 for a width of 256
WARMUP = 100  # steps, but at most a tenth of them
HELD_OUT_SHARE, HELD_OUT_TOKENS = 0.05, 16_384
HELD_OUT_REPLY = 32  # tokens, with its prompt; few are shorter
EVALUATIONS = 10  # on the way
ELSEWHERE = ("held_out", "from_")  # options that a manifest does not have: paths

T = TypeVar("T", bound=TrainingOptions)


class Pupil(Protocol):
    """A drafter's module, being trained."""

    @property
    def module(self) -> nn.Module: ...

    @property
    def groups(self) -> Sequence[Sequence[nn.Parameter]]:
        """Parameters whose gradients are clipped together."""

    def loss(self, module: nn.Module, samples: Sequence[Sample], done: float) -> Loss:
        """Of one pass; `module` is its own, as it is to be called. `done`: the share of the run behind it."""

    def evaluate(self, module: nn.Module, held_out: Sequence[Sequence[Sample]]) -> Mapping[str, Any]:
        """How it does on these passes, by name: what `held_out.Agreement.result` has, at least."""

    def save(self, out: Path, facts: Mapping[str, Mapping[str, Any]], dtype: torch.dtype) -> None:
        """Write it, its parameters as `dtype`, with these facts of each name. Raises StorageError."""


class Recipe(Protocol):
    """How one kind of drafter is trained for one target."""

    @property
    def depths(self) -> Sequence[int]:
        """Layers of the target below each state that it learns from; 0 = the embeddings."""

    @property
    def identity(self) -> Mapping[str, Any]:
        """What a resumed run must share, beside what every run has."""

    def nbytes(self, rows: int) -> int:
        """Memory of training it beside the open target, at its peak, for passes of so many (padded) rows."""

    def begin(self, target: FrozenTarget, generator: torch.Generator, device: torch.device) -> Pupil:
        """The pupil, new or as it was begun elsewhere."""


def train_drafter(
    model: str | Path,
    data: str | Path,
    out: str | Path,
    options: T,
    engine: EngineOptions | None,
    make: Callable[[ModelFiles, T], Recipe],
    report: Callable[[Report], None] = lambda report: None,
    progress: ProgressCallback | None = None,
    stop_after: int | None = None,
) -> None:
    """Train a drafter for a model from the text in `data`, and keep it in `out`; resumes by itself.

    out/data, out/held-out: token shards; out/run: checkpoint and log; out itself: what the pupil saves, from
    the first evaluation on.

    Raises OptionError for data or options that cannot be, and what `make` raises, before any weight is read;
    BudgetError when the dial is too small; TrainingError when the loss is not finite.
    """
    data, out, engine = Path(data), Path(out), engine or EngineOptions()
    path = resolve_model(str(model), progress, engine.offline)
    files = describe_model(path, engine.precision)
    recipe = make(files, options)
    tokenizer, device = load_tokenizer(files, path), choose_device(engine)
    use_threads(engine.threads, cpu_count())
    machine = measure_for_training(files, device)
    plan_beside(files, engine, machine, 64, 64, recipe.nbytes)
    workers = Workers()
    device = workers.device(device)
    if workers.first:
        making = Making(options.length, options.generate, options.temperature, options.seed)
        _prepare(DataMaker(files, tokenizer, making, engine, device, progress), data, out, options)
    workers.wait()
    samples, train, tests = _read(files, out, options, workers)
    longest = padded(int(np.diff(samples.ends, prepend=0).max()))
    rows = max(longest, padded(options.batch_tokens // workers.count))
    if begun := recorded(out / "run"):  # other passes would round otherwise
        longest = rows = max(longest, int(begun.get("rows", rows)))

    def nbytes(rows: int) -> int:
        return samples.nbytes + recipe.nbytes(rows)

    target, _, rows = open_beside(files, engine, device, rows, longest, nbytes, lambda rows: rows, progress)
    frozen = FrozenTarget(target, recipe.depths)
    trainer: Trainer | None = None
    try:
        pupil = recipe.begin(frozen, torch.Generator().manual_seed(options.seed), device)
        held_out = passes(tests, rows)

        def loss(module: nn.Module, samples: Sequence[Sample]) -> Loss:
            done = 0.0 if trainer is None else trainer.step / options.steps
            return pupil.loss(module, samples, done)

        identity = _identity(files, options) | dict(recipe.identity)
        trainer = Trainer(
            pupil.module,
            Batches(samples, train, options.batch_tokens, rows, options.seed, workers.rank, workers.count),
            loss,
            Settings(
                options.steps,
                options.rate or RATE / files.config.hidden_size,
                warmup=min(WARMUP, 1 + options.steps // 10),
            ),
            out / "run",
            evaluate=lambda module: pupil.evaluate(module, held_out),
            groups=pupil.groups,
            identity=identity | {"workers": workers.count, "rows": rows},
            workers=workers,
        )
        chosen = {name: value for name, value in asdict(options).items() if name not in ELSEWHERE}

        def keep(line: Report) -> None:
            if line.held_out is not None:
                facts = {
                    name: {"steps": line.step, "tokens": line.tokens, "held_out": dict(values)} | chosen
                    for name, values in line.held_out.items()
                }
                pupil.save(out, facts, target.dtype)
            report(line)

        every = max(1, options.steps // EVALUATIONS)
        trainer.run(keep if workers.first else lambda line: None, 300.0, every, stop_after)
    finally:
        frozen.close()
        trainer = None  # which holds the wrapped model
        workers.close()


def _prepare(make: DataMaker, data: Path, out: Path, options: TrainingOptions) -> None:
    """The token shards, unless they are there."""
    held_out = options.held_out
    if options.generate:
        make.check(data)
        if held_out is not None:
            make.check(held_out)
    if held_out is not None:
        make(held_out, out / "held-out", 1 + HELD_OUT_TOKENS // HELD_OUT_REPLY)
    make(data, out / "data")


def _read(
    files: ModelFiles, out: Path, options: TrainingOptions, workers: Workers
) -> tuple[Samples, np.ndarray[Any, np.dtype[np.int64]], list[Sample]]:
    """All sequences, the indices of those to train on, and those held out."""
    shards, vocabulary = Shards(out / "data"), files.config.vocab_size
    samples = Samples(shards, vocabulary)
    if options.held_out is not None:
        others = Samples(Shards(out / "held-out"), vocabulary)
        return samples, np.arange(len(samples)), list(_first_tokens(others, HELD_OUT_TOKENS))
    try:
        train, test = split(samples, HELD_OUT_SHARE, HELD_OUT_TOKENS)
    except OptionError:
        if workers.first:
            shards.forget()  # the text will be added to, and is then another
        raise
    return samples, train, [samples[int(i)] for i in test]


def _first_tokens(samples: Samples, most: int) -> Iterator[Sample]:
    """At least one sequence, and then as many as hold `most` tokens."""
    for i in range(len(samples)):
        if i and samples.ends[i] > most:
            return
        yield samples[i]


def _identity(files: ModelFiles, options: TrainingOptions) -> dict[str, Any]:
    """What every resumed run must share with the one it goes on from."""
    names = ("generate", "temperature", "length", "batch_tokens", "seed")
    return {name: getattr(options, name) for name in names} | {
        "target": files.digest,
        "held-out": options.held_out and corpus_digest(text_files(options.held_out)),
    }
