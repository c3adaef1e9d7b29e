"""Saguaro sampling (SSD, Definition 14): easier to foresee, and no less exact."""

from __future__ import annotations

import numpy as np
import pytest

from edgespec.config import GenerationOptions
from edgespec.core.acceptance import make_acceptance
from edgespec.core.sampling import DRAFT_DRAW, Distribution, FloatArray, Noise, Sampler, saguaro
from edgespec.core.tree import TokenTree
from tests.test_acceptance import Toy, chi_square, exact_pairs, speculative

OPTIONS = GenerationOptions(temperature=0.9)


def row(*probs: float) -> Distribution:
    return Distribution(np.arange(len(probs)), np.array(probs))


def residual(target: Distribution, draft: Distribution) -> FloatArray:
    excess = np.maximum(target.probs - draft.at(target.ids), 0.0)
    return excess / excess.sum()


def cache_hit(target: Distribution, draft: Distribution, drawn_from: Distribution, count: int) -> float:
    """The chance that the bonus token is among the `count` likeliest of `draft` but the drafted one, given
    that a token drawn from `drawn_from` was refused."""
    refused = np.maximum(drawn_from.probs - target.probs, 0.0)
    left = residual(target, drawn_from)
    hits = 0.0
    for token in np.flatnonzero(refused):
        others = np.where(np.arange(len(draft.ids)) == token, -1.0, draft.probs)
        hits += refused[token] * left[np.argsort(-others, kind="stable")[:count]].sum()
    return float(hits / refused.sum())


def test_construction_1_of_the_paper() -> None:
    """Appendix A.3.1: C = 47/147, F = 2: the same acceptance of 0.98, and hits go from 50 % to 100 %."""
    target, draft = row(0.48, 0.48, 0.02, 0.02), row(0.49, 0.49, 0.01, 0.01)
    scaled = saguaro(draft, 2, 47 / 147)
    assert scaled.probs == pytest.approx([0.47, 0.47, 0.03, 0.03])
    for drawn_from in (draft, scaled):
        assert np.minimum(target.probs, drawn_from.probs).sum() == pytest.approx(0.98)
    assert residual(target, draft) == pytest.approx([0, 0, 0.5, 0.5])
    assert residual(target, scaled) == pytest.approx([0.5, 0.5, 0, 0])
    assert cache_hit(target, draft, draft, 2) == pytest.approx(0.5)
    assert cache_hit(target, draft, scaled, 2) == pytest.approx(1.0)


def test_theorem_15_hits_never_fall_as_the_weight_does() -> None:
    """As it is proved: the residual's mass on the F likeliest tokens."""
    rng = np.random.default_rng(8)
    for _ in range(30):
        target, draft = row(*rng.dirichlet(np.full(12, 0.6))), row(*rng.dirichlet(np.full(12, 0.6)))
        kept = np.argsort(-draft.probs, kind="stable")[:4]
        masses = [residual(target, saguaro(draft, 4, c))[kept].sum() for c in (1.0, 0.7, 0.4, 0.1, 0.0)]
        assert (np.diff(masses) >= -1e-9).all()


def test_its_ends() -> None:
    q = row(0.1, 0.4, 0.4, 0.1)
    assert saguaro(q, 1, 1.0).probs == pytest.approx(q.probs)
    assert saguaro(q, 1, 0.0).probs == pytest.approx([1 / 6, 0, 2 / 3, 1 / 6])  # of equal ones the lower id
    assert saguaro(q, 0, 0.5) is saguaro(q, 4, 0.0) is saguaro(q, 9, 0.5) is q
    certain = row(0.0, 1.0, 0.0)
    assert saguaro(certain, 1, 0.0) is certain
    few = Distribution(np.array([3, 70, 4000]), np.array([0.5, 0.3, 0.2]))  # what top-k has left
    assert saguaro(few, 1, 0.5).ids is few.ids
    assert saguaro(few, 1, 0.5).probs == pytest.approx([1 / 3, 0.4, 4 / 15])
    assert few.probs.tolist() == [0.5, 0.3, 0.2]  # not written to
    for wrong in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="must be in"):
            saguaro(q, 1, wrong)


def pair_counts(weight: float, claimed: float) -> tuple[float, int]:
    """The p-value of the first two tokens against the target's, with chains drawn by one weight and judged
    by another; and how many tokens were accepted."""
    target, drafter, sampler = Toy(2, 5), Toy(3, 5), Sampler(OPTIONS)
    acceptance = make_acceptance("ratio", OPTIONS)
    counts, kept = np.zeros((5, 5)), 0
    for seed in range(2500):
        noise = Noise(seed)

        def draft(text: list[int], noise: Noise = noise) -> TokenTree:
            chain, drafts = list(text[-2:]), []
            for depth in range(2):
                q = sampler.distribution(drafter.table[chain[-2], chain[-1]])
                chain.append(saguaro(q, 2, weight).pick(noise.uniform(len(text) + depth, DRAFT_DRAW + depth)))
                drafts.append(saguaro(q, 2, claimed))
            return TokenTree.chain(chain[1:], [0.0] * 3, drafts)

        (first, second), accepted = speculative(target, acceptance, noise, (0, 1), 2, draft)
        counts[first, second] += 1
        kept += accepted
    return chi_square(counts, exact_pairs(target, sampler, (0, 1))), kept


@pytest.mark.parametrize("weight", [0.6, 0.2, 0.0])
def test_ratio_over_what_was_really_drawn_from_is_lossless(weight: float) -> None:
    chance, kept = pair_counts(weight, claimed=weight)
    assert kept > 300
    assert chance > 1e-3


def test_ratio_over_the_row_before_it_was_scaled_is_not() -> None:
    """So the test above would see it; the other way round, too."""
    assert pair_counts(0.2, claimed=1.0)[0] < 1e-6
    assert pair_counts(1.0, claimed=0.2)[0] < 1e-6
