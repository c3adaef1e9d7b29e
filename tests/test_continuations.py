"""What a drafter foresees of sampling: it knows the numbers that the target draws with."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from edgespec.config import GenerationOptions
from edgespec.control.fixed import Fixed
from edgespec.core.sampling import Noise, Sampler
from edgespec.core.schedule import Context, TreeBudget
from edgespec.drafters.base import Root
from edgespec.drafters.continuations import foreseen, likeliest
from edgespec.schedules.serial import Serial
from edgespec.schedules.ssd import Ssd
from tests.table_runtime import PROMPT, plain
from tests.test_ssd import model_of, reply

SAMPLED = GenerationOptions(temperature=0.9)


@pytest.mark.parametrize("options", [SAMPLED, replace(SAMPLED, top_k=5), replace(SAMPLED, top_p=0.7)])
@pytest.mark.parametrize("vocabulary", [3, 40, 5000])
def test_chances_are_a_distribution_around_the_number(options: GenerationOptions, vocabulary: int) -> None:
    rng = np.random.default_rng(0)
    rows = (rng.standard_normal((50, vocabulary)) * 3).astype(np.float32)
    uniforms, sampler = rng.random(50).tolist(), Sampler(options)
    tokens, logprobs = foreseen(rows, vocabulary, sampler, uniforms)
    for row, uniform, found, logs in zip(rows, uniforms, tokens, logprobs, strict=True):
        distribution = sampler.distribution(row)
        possible = np.isfinite(logs)
        assert set(found[possible]) <= set(distribution.ids.tolist())
        total = float(np.exp(logs).sum())
        assert total <= 1 + 1e-9
        assert total > (0.97 if vocabulary <= 40 else 0.1)  # the faint ones are left out
        assert np.all(np.diff(logs[possible]) <= 0)
        # A token whose interval reaches a blur and more to both sides is nearly certain.
        drawn = distribution.pick(uniform)
        edges = np.append(0.0, np.cumsum(distribution.probs))
        place = int(np.searchsorted(distribution.ids, drawn))
        if edges[place] < uniform - 0.3 and edges[place + 1] > uniform + 0.3:
            assert found[0] == drawn
            assert logs[0] > np.log(0.9)
    few = foreseen(rows, 8, sampler, uniforms)
    assert few[0].tolist() == tokens[:, :8].tolist()


def test_the_same_logits_say_the_same_token() -> None:
    """On the whole: the token that is drawn is by far the likeliest to be foreseen."""
    rng = np.random.default_rng(1)
    rows = (rng.standard_normal((400, 60)) * 2).astype(np.float32)
    sampler, noise = Sampler(SAMPLED), Noise(5)
    drawn = [sampler.pick(row, noise, position) for position, row in enumerate(rows)]
    uniforms = [noise.uniform(position) for position in range(400)]
    known = foreseen(rows, 8, sampler, uniforms)[0][:, 0]
    blind = likeliest(rows, 8)[0][:, 0]
    assert np.mean(known == drawn) > np.mean(blind == drawn) + 0.15


def test_each_row_has_the_tokens_of_a_full_sort() -> None:
    rng = np.random.default_rng(2)
    for m in (3, 63, 64, 700, 5000):
        rows = rng.integers(0, 40, (7, m)).astype(np.float32)
        rows[2, 1:] = -np.inf
        expected = np.argsort(-rows, axis=1, kind="stable")[:, :10]
        assert likeliest(rows, 10)[0].tolist() == expected.tolist()


@pytest.mark.parametrize("damage", [np.nan, np.inf])
def test_damaged_rows_say_nothing(damage: float) -> None:
    rows = np.zeros((2, 50), dtype=np.float32)
    rows[0, 49] = damage
    _, logprobs = foreseen(rows, 4, Sampler(SAMPLED), [0.5, 0.5])
    assert np.isneginf(logprobs[0]).all()
    assert np.isfinite(logprobs[1]).all()


@pytest.mark.parametrize("kind", [Serial, Ssd])
def test_more_is_accepted_and_the_text_is_the_same(kind: type[Serial]) -> None:
    """The text cannot depend on what the drafter makes of the numbers."""
    lengths = {}
    for keyed in (True, False):

        class Told(kind):  # type: ignore[misc, valid-type]
            told = keyed

            def begin(self, context: Context, limit: int) -> None:
                super().begin(replace(context, keyed=self.told), limit)

        said, cycles = reply(Told(model_of(0.3)[0], Fixed(TreeBudget(12, 4, 4)), 64), lambda: 30, SAMPLED)
        assert said == plain(SAMPLED)
        lengths[keyed] = len(cycles)
    assert lengths[True] < 0.85 * lengths[False]


def test_each_position_has_its_own_number() -> None:
    """The one that the target will draw with there: what is foreseen for a node is what a fresh drafter
    foresees that has committed the node's path."""
    context = Context(PROMPT, Sampler(SAMPLED), Noise(9), keyed=True)
    drafter, _ = model_of()
    drafter.prefill(context)
    drafting = drafter.start([Root((2,))], TreeBudget(12, 3, 9))
    while drafting.step():
        pass
    tree = drafting.tree()
    for node in range(len(tree)):
        if not len(children := tree.children(node)):
            continue
        path = tree.tokens[tree.path_to(node)].tolist()
        fresh, _ = model_of()
        fresh.prefill(replace(context, tokens=[*PROMPT, *path[:-1]]))
        again = fresh.start([Root((path[-1],))], TreeBudget(12, 1, 1))
        while again.step():
            pass
        one = again.tree()
        expected = dict(zip(one.tokens[1:].tolist(), one.logprobs[1:].tolist(), strict=True))
        for child in children.tolist():
            assert expected[int(tree.tokens[child])] == pytest.approx(float(tree.logprobs[child]))
