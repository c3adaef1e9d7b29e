"""Shards survive kills, batches know exactly where they stand, held-out data is apart."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from edgespec.errors import CorruptFileError, OptionError
from edgespec.training import data
from edgespec.training.corpus import Sample
from edgespec.training.data import Batches, Samples, Shards, passes, split

SOURCE = {"text": "abc", "length": 64}


def make_samples(count: int, seed: int = 0) -> list[Sample]:
    lengths = np.random.default_rng(seed).integers(8, 60, count)
    return [
        Sample([i % 100] * int(n), ((1, 1 + int(n) // 4), (1 + int(n) // 2, int(n))))
        for i, n in enumerate(lengths)
    ]


def stored(directory: Path, samples: list[Sample]) -> Samples:
    shards = Shards(directory)
    shards.write_all(samples)
    return Samples(shards, 100)


def test_shards_give_back_what_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "SHARD_TOKENS", 100)
    written = make_samples(40)
    found = stored(tmp_path, written)
    assert len(Shards(tmp_path).paths()) > 3
    assert [found[i] for i in range(len(found))] == written


def test_a_preparation_is_done_once_and_only_for_its_source(tmp_path: Path) -> None:
    shards = Shards(tmp_path)
    assert not shards.begin(SOURCE)
    shards.append(make_samples(3))
    assert not shards.begin(SOURCE)  # interrupted: what is there stays
    assert len(shards.paths()) == 1
    shards.finish(SOURCE)
    assert shards.begin(SOURCE)
    with pytest.raises(OptionError, match="another length"):
        shards.begin(SOURCE | {"length": 65})
    with pytest.raises(OptionError, match="another generate"):
        shards.begin(SOURCE | {"generate": 5})
    (tmp_path / "data.json").unlink()
    assert not shards.begin(SOURCE)  # shards of who knows what
    assert shards.paths() == []


def test_columns_beside_the_samples(tmp_path: Path) -> None:
    shards = Shards(tmp_path)
    assert shards.column("prompts").tolist() == []
    samples = make_samples(3)
    shards.append(samples[:2], prompts=[7, 3])
    shards.append(samples[2:], prompts=[5])
    assert shards.column("prompts").tolist() == [7, 3, 5]
    found = Samples(shards, 100)
    assert [found[i] for i in range(3)] == [samples[1], samples[2], samples[0]]  # in the prompts' order


def test_damaged_shards_are_refused(tmp_path: Path) -> None:
    shards = Shards(tmp_path)
    for spans in (((2, 4),), ((0, 2),), ((2, 2),), ()):
        shards.append([Sample([1, 2, 3], spans), Sample.behind([1, 2])])
        with pytest.raises(CorruptFileError, match="damaged"):
            Samples(shards, 100)
        shards.clear()
    shards.append([Sample.behind([1, 200, 3])])
    with pytest.raises(CorruptFileError, match="vocabulary of 100"):
        Samples(shards, 100)
    shards.paths()[0].write_bytes(b"x" * 50)
    with pytest.raises(CorruptFileError, match=r"00000\.safetensors is damaged"):
        Samples(shards, 100)
    (tmp_path / "data.json").write_text(json.dumps({"source": 3}))
    with pytest.raises(CorruptFileError, match="does not say"):
        shards.begin(SOURCE)


def test_held_out_is_the_end_and_bounded(tmp_path: Path) -> None:
    samples = stored(tmp_path, make_samples(200))
    train, test = split(samples, 0.1, 10**6)
    assert np.array_equal(np.concatenate([train, test]), np.arange(200))
    share = sum(len(samples[int(i)].tokens) for i in test) / len(samples.tokens)
    assert 0.08 < share < 0.12
    _, few = split(samples, 0.1, 100)
    assert few[0] == test[0]
    assert sum(len(samples[int(i)].tokens) for i in few) <= 100


def test_two_sequences_are_enough_and_one_is_not(tmp_path: Path) -> None:
    train, test = split(stored(tmp_path / "two", make_samples(2)), 0.05, 1)
    assert (train.tolist(), test.tolist()) == ([0], [1])
    with pytest.raises(OptionError, match="makes 1 sequence,"):
        split(stored(tmp_path / "one", make_samples(1)), 0.05, 100)


def flat(step: list[list[Sample]]) -> list[tuple[int, ...]]:
    return sorted(tuple(s.tokens) for group in step for s in group)


def test_each_epoch_has_every_sequence_once_in_another_order() -> None:
    samples = [Sample.behind([i, i]) for i in range(30)]
    batches = Batches(samples, np.arange(30), step_tokens=20, pass_tokens=128, seed=1)
    epochs = [[s.tokens[0] for _ in range(3) for g in next(batches) for s in g] for _ in range(2)]
    assert all(Counter(epoch) == Counter(range(30)) for epoch in epochs)
    assert epochs[0] != epochs[1]


def test_restored_batches_go_on_exactly() -> None:
    samples = make_samples(50)
    one = Batches(samples, np.arange(50), 200, 128, seed=3)
    for _ in range(9):
        next(one)
    state = json.loads(json.dumps(one.state))
    assert state["epoch"] > 0
    two = Batches(samples, np.arange(50), 200, 128, seed=3)
    two.restore(state)
    for _ in range(9):
        assert next(one) == next(two)
    for place in (-1, 51):
        with pytest.raises(ValueError, match="of 50 sequences"):
            two.restore({"epoch": 0, "place": place})
    other = Batches(samples, np.arange(50), 200, 128, seed=4)
    assert flat(next(other)) != flat(next(Batches(samples, np.arange(50), 200, 128, seed=3)))


def test_the_size_of_a_pass_does_not_change_the_step() -> None:
    samples = make_samples(50)
    small = Batches(samples, np.arange(50), 300, 64, seed=3)
    large = Batches(samples, np.arange(50), 300, 10**6, seed=3)
    for _ in range(5):
        a, b = next(small), next(large)
        assert len(a) > 1
        assert len(b) == 1
        assert flat(a) == flat(b)


def test_workers_share_a_step_and_none_is_idle() -> None:
    samples = make_samples(50)
    whole = next(Batches(samples, np.arange(50), 1, 10**6, seed=3))
    assert len(flat(whole)) == 1
    parts = [next(Batches(samples, np.arange(50), 1, 10**6, 3, worker, 3)) for worker in range(3)]
    assert [len(flat(part)) for part in parts] == [1, 1, 1]
    assert len({flat(part)[0] for part in parts}) == 3
    with pytest.raises(OptionError, match="shared by 3"):
        Batches(samples, np.arange(2), 1, 1, 3, 0, 3)


def test_passes_hold_what_fits_padding_included() -> None:
    samples = [Sample.behind([0] * n) for n in (70, 5, 64, 3, 300)]
    groups = passes(samples, 256)
    assert [[len(s.tokens) for s in g] for g in groups] == [[300], [70, 64], [5, 3]]
