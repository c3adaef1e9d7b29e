"""The trainer on a small regression: what it sums, how it resumes, when it stops."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from edgespec.errors import CorruptFileError, OptionError, StorageError, TrainingError
from edgespec.training import trainer as module
from edgespec.training.log import LOG, read_log
from edgespec.training.trainer import CHECKPOINT, Loss, Report, Settings, Trainer
from edgespec.training.workers import Workers

SETTINGS = Settings(steps=12, rate=0.05, warmup=3, decay=0.3)
Batch = tuple[Tensor, Tensor]


class Data:
    """Steps of 12 rows in `cut` passes; step i's rows are a function of i alone."""

    def __init__(self, cut: int = 2, poison: int = -1) -> None:
        self.cut, self.poison = cut, poison
        self.state = {"at": 0}

    def restore(self, state: dict[str, int]) -> None:
        self.state = dict(state)

    def __next__(self) -> Sequence[Batch]:
        at = self.state["at"]
        self.state = {"at": at + 1}
        x = torch.randn(12, 3, generator=torch.Generator().manual_seed(at))
        if at == self.poison:
            x[0] = math.nan
        y = x @ torch.tensor([[1.0], [-2.0], [0.5]])
        sizes = [12] if self.cut == 1 else [4, 8]
        return list(zip(x.split(sizes), y.split(sizes), strict=True))


def loss_of(model: nn.Module, batch: Batch) -> Loss:
    x, y = batch
    error: Tensor = model(x) - y
    return Loss({"squared": error.square().sum(), "size": 0.1 * error.abs().sum()}, len(x), len(x))


def make_model() -> nn.Module:
    model = nn.Linear(3, 1)
    with torch.no_grad():
        model.weight.fill_(0.1)
        model.bias.fill_(0.0)
    return model


def make_trainer(directory: Path, data: Data | None = None, **changes: Any) -> Trainer:
    settings = changes.pop("settings", SETTINGS)
    return Trainer(make_model(), data or Data(), loss_of, settings, directory, **changes)


def ignore(report: Report) -> None:
    pass


def test_it_learns_and_tells(tmp_path: Path) -> None:
    seen: list[Report] = []
    trainer = make_trainer(tmp_path, settings=Settings(60, 0.2), evaluate=lambda model: {"w": 1})
    trainer.run(seen.append, evaluate_every=30)
    assert trainer.step == 60
    steps = [r for r in seen if r.held_out is None]
    assert steps[-1].losses["squared"] < 0.05 * steps[0].losses["squared"]
    assert [r.step for r in steps] == list(range(1, 61))
    assert [r.step for r in seen if r.held_out is not None] == [0, 30, 60]
    assert steps[-1].tokens == 60 * 12
    assert steps[29].seconds_left == pytest.approx(steps[29].seconds)
    lines = read_log(tmp_path / LOG)
    assert [x["loss"] for x in lines if "loss" in x] == [dict(r.losses) for r in steps]


def test_the_time_left_is_at_the_pace_of_this_process(tmp_path: Path) -> None:
    make_trainer(tmp_path, settings=Settings(60, 0.2)).run(ignore, stop_after=30)
    trainer = make_trainer(tmp_path, settings=Settings(60, 0.2))
    trainer.spent += 1e6  # on a slower machine, say
    seen: list[Report] = []
    trainer.run(seen.append)
    assert seen[0].seconds > 1e6
    assert 0 < seen[0].seconds_left < 1e4
    assert seen[-1].seconds_left == 0


def test_the_rate_warms_up_stays_and_falls() -> None:
    factors = [SETTINGS.factor(step) for step in range(12)]
    assert factors[:3] == pytest.approx([1 / 3, 2 / 3, 1])
    assert factors[3:9] == [1.0] * 6
    assert factors[9:] == pytest.approx([3 / 3.6, 2 / 3.6, 1 / 3.6])


def test_accumulated_passes_are_one_step(tmp_path: Path) -> None:
    whole, parts = make_trainer(tmp_path / "a", Data(cut=1)), make_trainer(tmp_path / "b", Data(cut=2))
    for trainer in (whole, parts):
        trainer.run(ignore)
    for a, b in zip(whole.model.parameters(), parts.model.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-6)
    first = [read_log(t.directory / LOG)[0]["loss"]["squared"] for t in (whole, parts)]
    assert first[0] == pytest.approx(first[1])


def test_the_step_is_adamws_on_the_mean_over_positions(tmp_path: Path) -> None:
    settings = Settings(1, 0.05, warmup=1, decay=0.0, clip=0.5)
    trainer = make_trainer(tmp_path, settings=settings)
    trainer.run(ignore)
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), 0.05, (0.9, 0.95), weight_decay=0.0)
    for batch in next(Data(cut=1)):
        (torch.stack(list(loss_of(model, batch).sums.values())).sum() / 12).backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    assert norm > 0.5  # so that clipping is part of this
    optimizer.step()
    for a, b in zip(trainer.model.parameters(), model.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-6)


def test_groups_are_clipped_apart(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path)
    weight, bias = trainer.model.parameters()
    trainer.groups = [[weight], [bias]]
    trainer.run(ignore, stop_after=1)
    assert weight.grad is not None
    assert bias.grad is not None
    assert float(weight.grad.norm()) == pytest.approx(1.0, abs=1e-4)  # cut down to the limit
    assert float(bias.grad.norm()) < 1.0


def tensors(directory: Path) -> dict[str, Tensor]:
    return load_file(directory / CHECKPOINT)


def assert_same_run(a: Path, b: Path) -> None:
    one, two = tensors(a), tensors(b)
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)
    times = ("seconds", "tokens_per_second")
    logs = [[{k: v for k, v in x.items() if k not in times} for x in read_log(d / LOG)] for d in (a, b)]
    assert logs[0] == logs[1]


class Killed(Exception):
    pass


def kill_at(step: int) -> Callable[[Report], None]:
    def report(line: Report) -> None:
        if line.step == step:
            raise Killed  # after the log line, before the checkpoint

    return report


@pytest.mark.usefixtures("steady_threads")
def test_a_killed_run_resumes_bit_for_bit(tmp_path: Path) -> None:
    make_trainer(tmp_path / "straight", evaluate=lambda m: {}).run(ignore, evaluate_every=4)
    killed = make_trainer(tmp_path / "killed", evaluate=lambda m: {})
    with pytest.raises(Killed):
        killed.run(kill_at(8), checkpoint_seconds=0.0, evaluate_every=4)
    with open(tmp_path / "killed" / LOG, "a") as file:
        file.write('{"step": 9, "lo')  # cut off
    again = make_trainer(tmp_path / "killed", evaluate=lambda m: {})
    assert again.step == 7
    assert again.spent > 0
    again.run(ignore, evaluate_every=4)
    assert_same_run(tmp_path / "straight", tmp_path / "killed")


def test_a_run_that_died_before_its_first_checkpoint_starts_again(tmp_path: Path) -> None:
    make_trainer(tmp_path / "straight").run(ignore)
    with pytest.raises(Killed):
        make_trainer(tmp_path / "killed").run(kill_at(3))
    make_trainer(tmp_path / "killed").run(ignore)
    assert_same_run(tmp_path / "straight", tmp_path / "killed")


def test_a_finished_run_may_be_made_longer(tmp_path: Path) -> None:
    make_trainer(tmp_path).run(ignore)
    make_trainer(tmp_path).run(kill_at(12))  # nothing left to do, so nothing is reported
    longer = make_trainer(tmp_path, settings=Settings(15, 0.05, 9, 0.3))
    longer.run(ignore)
    assert longer.step == 15


def test_nan_stops_and_keeps_the_last_good_checkpoint(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, Data(poison=5))
    with pytest.raises(TrainingError, match=r"loss of squared is nan at step 6.*rate="):
        trainer.run(ignore, checkpoint_seconds=0.0)
    kept = make_trainer(tmp_path)
    assert kept.step == 5
    assert all(torch.isfinite(p).all() for p in kept.model.parameters())


def test_nan_before_the_first_interval_keeps_the_beginning(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="kept in"):
        make_trainer(tmp_path, Data(poison=2)).run(ignore)
    assert (tmp_path / CHECKPOINT).is_file()
    lower = make_trainer(tmp_path, settings=Settings(12, 0.01, 3, 0.3))
    assert lower.step == 0
    lower.run(ignore)
    assert lower.step == 12


def test_a_torn_log_stops_nobody(tmp_path: Path) -> None:
    make_trainer(tmp_path).run(ignore, stop_after=2)
    with open(tmp_path / LOG, "ab") as log:
        log.write(b'{"step": 3, "\xff\xfe')
    make_trainer(tmp_path).run(ignore)
    assert [line["step"] for line in read_log(tmp_path / LOG)] == list(range(1, 13))


def test_a_gradient_that_is_not_finite_stops_too(tmp_path: Path) -> None:
    def steep(model: nn.Module, batch: Batch) -> Loss:
        value = model(batch[0]).sum() * 0 + model.weight.abs().sum().sub(0.3).abs().sqrt()  # type: ignore[union-attr]
        return Loss({"x": value * 0}, 1, 1)

    trainer = Trainer(make_model(), Data(), steep, SETTINGS, tmp_path)
    with torch.no_grad():
        trainer.model.weight.copy_(torch.tensor([[0.0, 0.0, 0.3]]))  # sqrt's slope is infinite there
    with pytest.raises(TrainingError, match="gradient's norm is nan"):
        trainer.run(ignore)


def test_other_settings_are_not_resumed(tmp_path: Path) -> None:
    make_trainer(tmp_path, identity={"target": "abc"}).run(ignore, stop_after=2)
    with pytest.raises(OptionError, match=r"clip = 1.0, not 0.1; .* another out="):
        make_trainer(tmp_path, identity={"target": "abc"}, settings=Settings(12, 0.05, 3, 0.3, clip=0.1))
    # A run whose loss became no number goes on at a lower rate.
    assert make_trainer(tmp_path, identity={"target": "abc"}, settings=Settings(12, 0.01, 3, 0.3)).step == 2
    with pytest.raises(OptionError, match="target = abc, not xyz"):
        make_trainer(tmp_path, identity={"target": "xyz"})


def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    make_trainer(tmp_path).run(ignore, stop_after=2)
    whole = (tmp_path / CHECKPOINT).read_bytes()
    for damaged in (b"", whole[:-5], b"x" * 100, whole.replace(b"model.bias", b"model.bibs")):
        (tmp_path / CHECKPOINT).write_bytes(damaged)
        with pytest.raises(CorruptFileError, match="damaged"):
            make_trainer(tmp_path)


def test_a_full_disk_keeps_the_last_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make_trainer(tmp_path)
    trainer.run(ignore, stop_after=2)
    before = (tmp_path / CHECKPOINT).read_bytes()

    def full(*args: Any, **more: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "save_file", full)
    with pytest.raises(StorageError, match="No space left"):
        trainer.run(ignore, stop_after=3)
    assert (tmp_path / CHECKPOINT).read_bytes() == before


def test_half_a_worker_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(OptionError, match="torchrun"):
        Workers()


def test_checkpoints_say_what_they_are(tmp_path: Path) -> None:
    from safetensors import safe_open

    make_trainer(tmp_path).run(ignore, stop_after=2)
    with safe_open(tmp_path / CHECKPOINT, "pt") as file:
        facts = json.loads(file.metadata()["facts"])
    assert (facts["step"], facts["tokens"], facts["batches"]) == (2, 24, {"at": 2})
