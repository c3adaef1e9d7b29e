"""Sampling: the filters equal transformers', the draw follows its distribution, noise is a function."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from edgespec.config import GenerationOptions
from edgespec.core.sampling import (
    DRAFT_DRAW,
    FOLDED,
    Distribution,
    Noise,
    Sampler,
    argmax,
    floor,
    largest,
)
from edgespec.errors import ModelError

rng = np.random.default_rng(0)


def row(vocabulary: int, spread: float = 3.0) -> np.ndarray:
    return (rng.standard_normal(vocabulary) * spread).astype(np.float32)


def test_importing_needs_no_torch():
    modules = (
        "text.tokenizer text.chat_template models.hub core.sampling core.tree core.acceptance text.detokenize"
    )
    code = f"import sys, importlib\nfor m in {modules.split()}: importlib.import_module('edgespec.' + m)\n"
    code += "heavy = {'torch', 'huggingface_hub'} & set(sys.modules)\nassert not heavy, heavy"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_noise_is_a_function_of_seed_position_and_draw():
    keys = [(s, p, d) for s in (0, 1, 2**63 - 1) for p in range(50) for d in (0, 1, DRAFT_DRAW)]
    values = [Noise(s).uniform(p, d) for s, p, d in keys]
    again = [Noise(s).uniform(p, d) for s, p, d in reversed(keys)]
    assert values == again[::-1]
    assert len(set(values)) == len(values)
    assert Noise(7).uniform(3) == 0.09822629922455928  # the same on every machine, for ever


def test_noise_is_uniform_and_independent_along_each_key():
    stats = pytest.importorskip("scipy.stats")
    grids = [
        [(Noise(5).uniform(i), Noise(5).uniform(i + 1)) for i in range(4000)],
        [(Noise(i).uniform(9), Noise(i + 1).uniform(9)) for i in range(4000)],
        [(Noise(5).uniform(i, 0), Noise(5).uniform(i, 1)) for i in range(4000)],
    ]
    for pairs in map(np.array, grids):
        assert pairs.min() >= 0
        assert pairs.max() < 1
        cells = np.histogram2d(pairs[:, 0], pairs[:, 1], bins=8, range=[[0, 1], [0, 1]])[0]
        assert stats.chisquare(cells.ravel()).pvalue > 1e-4


OPTIONS = [
    {"temperature": 1.0},
    {"temperature": 0.6, "top_k": 1},
    {"temperature": 0.6, "top_k": 40},
    {"temperature": 1.3, "top_p": 0.9},
    {"temperature": 0.8, "top_p": 0.05},
    {"temperature": 0.8, "min_p": 0.1},
    {"temperature": 1.5, "top_k": 100, "top_p": 0.8, "min_p": 0.02},
    {"temperature": 1.0, "top_k": 10**6},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("spread", [0.01, 1.0, 6.0])
def test_filters_equal_transformers(options, spread):
    torch = pytest.importorskip("torch")
    process = pytest.importorskip("transformers.generation.logits_process")
    chain = [process.TemperatureLogitsWarper(options["temperature"])]
    if "top_k" in options:
        chain.append(process.TopKLogitsWarper(options["top_k"]))
    if "top_p" in options:
        chain.append(process.TopPLogitsWarper(options["top_p"]))
    if "min_p" in options:
        chain.append(process.MinPLogitsWarper(options["min_p"]))
    sampler = Sampler(GenerationOptions(**options))
    for vocabulary in (5, 700, 5000):
        logits = row(vocabulary, spread)
        scores = torch.from_numpy(logits.astype(np.float64))[None]
        for warper in chain:
            scores = warper(None, scores)
        expected = torch.softmax(scores, dim=-1)[0].numpy()
        ours = sampler.distribution(logits)
        assert ours.ids.tolist() == np.flatnonzero(expected).tolist()
        np.testing.assert_allclose(ours.probs, expected[ours.ids], rtol=1e-9)


def test_ties():
    logits = np.array([1, 3, 3, 2, 3, 0], dtype=np.float32)
    assert argmax(logits) == 1
    kept = {"top_k": [1, 2, 4], "top_p": [1, 2]}  # equals at the top-k boundary stay; top-p prefers low ids
    ids = Sampler(GenerationOptions(temperature=1, top_k=2)).distribution(logits).ids
    assert ids.tolist() == kept["top_k"]
    ids = Sampler(GenerationOptions(temperature=1, top_p=0.5)).distribution(logits).ids
    assert ids.tolist() == kept["top_p"]
    flat = np.zeros(1000, dtype=np.float32)
    ids = Sampler(GenerationOptions(temperature=1, top_p=0.25)).distribution(flat).ids
    assert ids.tolist() == list(range(250))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_pick_inverts_the_distribution(options):
    sampler = Sampler(GenerationOptions(**options))
    for _ in range(5):
        logits = row(300)
        found = sampler.distribution(logits)
        for position in range(40):
            noise = Noise(position)
            token = sampler.pick(logits, noise, position)
            below = found.probs[found.ids < token].sum()
            assert below - 1e-12 <= noise.uniform(position) <= below + found.of(token) + 1e-12
            assert sampler.pick(logits.copy(), noise, position) == token


def test_greedy_takes_the_lowest_of_the_highest():
    sampler = Sampler(GenerationOptions(temperature=0, top_k=3, top_p=0.5))
    assert sampler.pick(np.array([0, 2, 2], dtype=np.float32), Noise(0), 0) == 1
    assert sampler.distribution(np.array([0, 2, 2], dtype=np.float32)).ids.tolist() == [1]


def test_a_row_decides_whatever_was_sampled_before():
    logits, other = row(2000), row(5000)
    fresh = [Sampler(GenerationOptions(temperature=1)).pick(logits, Noise(3), p) for p in range(50)]
    used = Sampler(GenerationOptions(temperature=1))
    again = []
    for position in range(50):
        used.pick(other, Noise(1), position)
        again.append(used.pick(logits, Noise(3), position))
    assert again == fresh


def test_distributions_do_not_share_memory():
    sampler = Sampler(GenerationOptions(temperature=1))
    first = sampler.distribution(row(100))
    kept = first.probs.copy()
    sampler.distribution(row(100))
    sampler.pick(row(100), Noise(0), 0)
    assert (first.probs == kept).all()


@pytest.mark.parametrize("temperature", [1e-300, 1e-5, 100.0])
def test_extreme_temperatures(temperature):
    logits = np.array([-50, 7, 6.99, -np.inf, 3], dtype=np.float32)
    found = Sampler(GenerationOptions(temperature=temperature)).distribution(logits)
    assert found.probs.sum() == pytest.approx(1)
    assert found.of(3) == 0
    if temperature < 1:
        assert found.of(1) == pytest.approx(1)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_not_numbers_are_refused(bad, temperature):
    sampler = Sampler(GenerationOptions(temperature=temperature))
    logits = row(50)
    logits[17] = bad
    with pytest.raises(ModelError, match="not numbers"):
        sampler.pick(logits, Noise(0), 0)
    with pytest.raises(ModelError, match="not numbers"):
        sampler.distribution(np.full(4, -np.inf, dtype=np.float32))


def test_distribution_lookups_and_the_ends_of_the_line():
    found = Distribution(np.array([2, 5, 9, 11]), np.array([0.0, 0.5, 0.5, 0.0]))
    assert [found.of(t) for t in (0, 2, 5, 9, 10, 99)] == [0, 0, 0.5, 0.5, 0, 0]
    assert found.at(np.array([9, 3, 5, 99])).tolist() == [0.5, 0, 0.5, 0]
    assert found.pick(0.0) == 5  # never a token without probability
    assert found.pick(1 - 2**-53) == 9


def test_the_largest_are_those_of_a_full_sort(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of equal values the lower index first, at the last place that is taken, too; and no more is sorted."""
    rng = np.random.default_rng(0)
    for most in (30, 2000) * 200:
        values = rng.integers(0, most // 5, int(rng.integers(0, most))) / 7
        values[rng.random(len(values)) < rng.choice([0, 0.2, 0.99])] = -np.inf
        count = int(rng.integers(0, 34))
        assert largest(values, count).tolist() == np.argsort(-values, kind="stable")[:count].tolist()
    argsort, sorted_at_once = np.argsort, list[int]()

    def counted(values: np.ndarray, **how: str) -> np.ndarray:
        sorted_at_once.append(len(values))
        return argsort(values, **how)

    monkeypatch.setattr(np, "argsort", counted)
    few = rng.standard_normal(10**5)
    assert largest(few, 16)[0] == few.argmax()
    assert sorted_at_once[0] < 64


def test_as_many_as_asked_reach_the_floor_and_few_more() -> None:
    rng = np.random.default_rng(1)
    for _ in range(300):
        rows, m = rng.integers(1, 4), int(rng.integers(1, 3000))
        values = rng.standard_normal((rows, m)).astype(np.float32)
        count = int(rng.integers(1, min(m, 40) + 1))
        reach = (values >= floor(values, count)[:, None]).sum(axis=1)
        assert reach.min() >= count
        assert reach.max() <= count * FOLDED + m % FOLDED


def test_top_k_of_a_large_vocabulary_keeps_all_that_are_equal_to_the_last() -> None:
    logits = np.zeros(32000, np.float32)
    logits[[5, 31999]], logits[[7, 9000]] = 3.0, 2.0
    found = Sampler(GenerationOptions(temperature=1.0, top_k=3)).distribution(logits)
    assert found.ids.tolist() == [5, 7, 9000, 31999]
