"""Steps of AdamW with what a long run needs: accumulation, warm-up, clipping, checkpoints, exact resume.

Knows nothing of what is trained: a model, an iterator of steps with an exact `state`, a loss function, and an
evaluator come from the caller.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from edgespec.devices.files import replacing
from edgespec.errors import CorruptFileError, OptionError, StorageError, TrainingError
from edgespec.kernels.threads import using
from edgespec.training import log
from edgespec.training.optimizer import AdamW, Optimizer
from edgespec.training.threads import Threads, busy
from edgespec.training.workers import Workers

CHECKPOINT = "checkpoint.safetensors"


@dataclass(frozen=True)
class Settings:
    """How long and how fast. All but lengths and rate must be the same when a run is resumed."""

    steps: int
    rate: float  # of learning, after warm-up
    warmup: int = 100  # steps
    decay: float = 0.2  # of the steps, the last part, in which the rate falls linearly to zero
    clip: float = 1.0  # norm of each parameter group's gradient
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.95)

    def factor(self, step: int) -> float:
        """Of the rate at `step`, which counts from 0."""
        return min(
            1.0, (step + 1) / max(1, self.warmup), (self.steps - step) / max(1.0, self.decay * self.steps)
        )


class Steps(Protocol):
    """An endless source of steps; each is a list of passes whose gradients are summed."""

    state: dict[str, int]

    def __next__(self) -> Sequence[Any]: ...

    def restore(self, state: dict[str, int]) -> None: ...


@dataclass(frozen=True)
class Loss:
    """Of one pass: sums over `count` positions, by name; the gradient is that of their total.

    tokens: that went through the pass, for the throughput.
    """

    sums: Mapping[str, Tensor]
    count: float  # or their weight
    tokens: int


@dataclass(frozen=True)
class Report:
    """After a step, or after an evaluation (`held_out`)."""

    step: int  # done
    steps: int
    losses: Mapping[str, float]  # means over positions
    rate: float
    tokens: int  # seen so far
    seconds: float  # spent so far, all runs
    tokens_per_second: float  # of this step
    seconds_left: float  # at the pace since this process began
    held_out: Mapping[str, Any] | None = None


class Trainer:
    """One training run in a directory: `checkpoint.safetensors` and `log.jsonl`.

    model: its parameters are trained and saved; `loss(model, batch)` calls it.
    optimizer: of these parameters; default: AdamW, for which they must be fp32.
    groups: parameters whose gradients are clipped together (default: all of them).
    identity: what a run must share with the checkpoint that it resumes, beside the settings.
    """

    def __init__(
        self,
        model: nn.Module,
        batches: Steps,
        loss: Callable[[nn.Module, Any], Loss],
        settings: Settings,
        directory: Path,
        *,
        evaluate: Callable[[nn.Module], Mapping[str, Any]] | None = None,
        groups: Sequence[Iterable[nn.Parameter]] | None = None,
        identity: Mapping[str, Any] | None = None,
        workers: Workers | None = None,
        optimizer: Optimizer | None = None,
    ) -> None:
        """Resumes from the directory's checkpoint, if it has one.

        Raises OptionError when that belongs to other settings, CorruptFileError when it is damaged.
        """
        self.model = model
        self.batches = batches
        self.loss = loss
        self.settings = settings
        self.directory = directory
        self.evaluate = evaluate
        self.workers = workers or Workers()
        self.groups = [list(g) for g in groups] if groups else [list(model.parameters())]
        self.optimizer: Optimizer = optimizer or AdamW(
            dict(model.named_parameters()), settings.betas, settings.weight_decay
        )
        free = ("steps", "warmup", "decay", "rate")
        fixed = {k: v for k, v in asdict(settings).items() if k not in free}
        self.identity = json.loads(json.dumps(fixed | dict(identity or {})))
        self.step = 0
        self.tokens = 0
        self.spent = 0.0  # seconds before this process, then up to the last checkpoint
        self.threads = Threads(torch.get_num_threads(), busy())
        self._began_at = (0, 0.0)  # step and seconds, in this process
        directory.mkdir(parents=True, exist_ok=True)
        self._resume()
        self._called = self.workers.wrap(model)

    def run(
        self,
        report: Callable[[Report], None],
        checkpoint_seconds: float = 300.0,
        evaluate_every: int = 0,
        stop_after: int | None = None,
    ) -> None:
        """Train to the last step (or to `stop_after` steps in all), evaluating first, last, and on the way.

        Raises TrainingError when loss or gradient is not finite; the last checkpoint stays as it was.
        """
        began = saved = perf_counter()
        base, self._began_at = self.spent, (self.step, self.spent)
        last = min(self.settings.steps, stop_after or self.settings.steps)
        if self.step == 0:
            self._evaluate(report, 0.0)
            self.save()
        while self.step < last:
            started = perf_counter()
            with using(self.threads.count):
                losses, tokens = self._step()
            now = perf_counter()
            self.threads.took(now - started, tokens)
            self.spent = base + now - began
            line = self._report(losses, tokens / (now - started))
            self._log({"loss": losses, "rate": line.rate, "tokens_per_second": line.tokens_per_second})
            report(line)
            due = evaluate_every and self.step % evaluate_every == 0
            if due or self.step == self.settings.steps:
                self._evaluate(report, line.tokens_per_second, losses)
                self.spent = base + perf_counter() - began
            if perf_counter() - saved > checkpoint_seconds or self.step == last:
                self.save()
                saved = perf_counter()

    def _step(self) -> tuple[dict[str, float], int]:
        """One step of the optimizer: mean losses by name over all positions of all workers, and tokens."""
        self.optimizer.clear()
        passes = next(self.batches)
        sums: dict[str, float] = {}
        count, tokens = 0.0, 0
        for i, batch in enumerate(passes):
            with self.workers.apart(self._called, last=i + 1 == len(passes)):
                loss = self.loss(self._called, batch)
                torch.autograd.backward(list(loss.sums.values()))
            for name, value in loss.sums.items():
                sums[name] = sums.get(name, 0.0) + float(value.detach())
            count, tokens = count + loss.count, tokens + loss.tokens
        device = next(self.model.parameters()).device
        everywhere = max(1.0, self.workers.sum(count, device))
        means = {name: self.workers.sum(value, device) / everywhere for name, value in sums.items()}
        for name, mean in means.items():
            self._require_finite(mean, f"the loss of {name}")
        for group in self.groups:
            gradients = [p.grad for p in group if p.grad is not None]
            for gradient in gradients:  # workers' sums were averaged; a mean over positions is wanted
                gradient.mul_(self.workers.count / everywhere)
            norm = nn.utils.clip_grad_norm_(group, self.settings.clip)
            self._require_finite(float(norm), "the gradient's norm")
        self.optimizer.step(self.settings.rate * self.settings.factor(self.step))
        self.step += 1
        tokens = round(self.workers.sum(tokens, device))
        self.tokens += tokens
        return means, tokens

    def _require_finite(self, value: float, what: str) -> None:
        if not math.isfinite(value):
            raise TrainingError(
                f"{what} is {value} at step {self.step + 1}; the last good checkpoint is kept in "
                f"{self.directory}. Go on from it with a lower rate= (it was {self.settings.rate:.3g})"
            )

    def _report(self, losses: Mapping[str, float], speed: float) -> Report:
        rate = self.settings.rate * self.settings.factor(max(0, self.step - 1))
        step, spent = self._began_at
        pace = (self.spent - spent) / (self.step - step) if self.step > step else math.inf
        left = pace * (self.settings.steps - self.step) if self.step < self.settings.steps else 0.0
        return Report(self.step, self.settings.steps, losses, rate, self.tokens, self.spent, speed, left)

    def _evaluate(
        self, report: Callable[[Report], None], speed: float, losses: Mapping[str, float] | None = None
    ) -> None:
        if self.evaluate is not None and self.workers.first:
            with torch.no_grad(), using(self.threads.count):
                held_out = self.evaluate(self.model)
            self._log({"held_out": held_out})
            line = self._report(losses or {}, speed)
            report(Report(**{**vars(line), "held_out": held_out}))
        self.workers.wait()

    # --- on disk ------------------------------------------------------------------------------------------

    def save(self) -> None:
        """Written aside and renamed: a kill leaves the last good one. Raises StorageError."""
        if not self.workers.first:
            return
        path = self.directory / CHECKPOINT
        facts = {
            "step": self.step,
            "tokens": self.tokens,
            "seconds": self.spent,
            "batches": self.batches.state,
            "identity": self.identity,
        }
        try:
            with replacing(path) as temporary:
                save_file(self.optimizer.state(), temporary, metadata={"facts": json.dumps(facts)})
        except (OSError, SafetensorError) as error:
            raise StorageError(f"{path} cannot be written: {error}; free some space, then resume") from None

    def _resume(self) -> None:
        path = self.directory / CHECKPOINT
        if not path.is_file():
            self._rewind()
            return
        try:
            with safe_open(path, "pt") as file:
                facts = json.loads((file.metadata() or {})["facts"])
            different = sorted(k for k, v in self.identity.items() if facts["identity"].get(k) != v)
            if different:
                k = different[0]
                raise OptionError(
                    f"{self.directory} holds a run with {k} = {facts['identity'].get(k)}, not "
                    f"{self.identity[k]}; give it the same options to resume it, or choose another out="
                )
            tensors = load_file(path)
            self.step, self.tokens, self.spent = facts["step"], facts["tokens"], facts["seconds"]
            self.batches.restore(facts["batches"])
            self.optimizer.restore(tensors, self.step)
        except (SafetensorError, KeyError, TypeError, ValueError, RuntimeError, OSError) as error:
            raise CorruptFileError(
                f"{path} is damaged ({error!r}); remove it to start this run from the beginning"
            ) from None
        self._rewind()

    def _rewind(self) -> None:
        if self.workers.first:
            log.rewind(self.directory, self.step)

    def _log(self, values: Mapping[str, Any]) -> None:
        if self.workers.first:
            line = {"step": self.step, "tokens": self.tokens, "seconds": round(self.spent, 3), **values}
            log.add(self.directory, line)


def recorded(directory: Path) -> dict[str, Any]:
    """Settings and identity of the run that a directory holds; empty when it holds none that can be read."""
    try:
        with safe_open(directory / CHECKPOINT, "pt") as file:
            found = json.loads((file.metadata() or {})["facts"])["identity"]
    except (SafetensorError, KeyError, TypeError, ValueError, OSError):
        return {}  # the trainer says what is wrong with it
    return found if isinstance(found, dict) else {}
