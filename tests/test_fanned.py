"""Drafting ahead with SSD's own fan-outs: what is prepared for, what is recorded, and the text."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import edgespec
from edgespec.config import FAN_OUTS, EngineOptions, GenerationOptions
from edgespec.control.fixed import Fixed
from edgespec.core.acceptance import Outcome
from edgespec.core.schedule import Context, TreeBudget
from edgespec.core.tree import TokenTree
from edgespec.drafters import growth
from edgespec.drafters.base import Root
from edgespec.drafters.combined import Combined
from edgespec.drafters.fanned import Fanned
from edgespec.drafters.ngram import NGram
from edgespec.errors import OptionError
from edgespec.schedules.fan_out import POLICIES, CacheShape
from edgespec.schedules.ssd import Ssd, make
from tests.table_runtime import GREEDY, HOT, PROMPT, plain
from tests.test_ssd import Watched, model_of, reply

BUDGET = TreeBudget(12, 4, 4)
NO_PLACE: Any = None  # ssd asks nothing of it


def test_the_names_of_the_option_are_the_policies() -> None:
    assert ("best-first", *sorted(POLICIES, key=FAN_OUTS.index)) == FAN_OUTS


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("outcomes", [2, 9, 24])
@pytest.mark.parametrize("options", [GREEDY, HOT])
def test_the_text_is_the_targets_own(policy: str, outcomes: int, options: GenerationOptions) -> None:
    expected = plain(options)
    for waits in (0, 7, 1000):
        drafter, runtime = model_of()
        asked = EngineOptions(fan_out=policy, fan_out_budget=outcomes, tree_nodes=outcomes)
        both = Combined([NGram(), drafter]) if waits == 7 else drafter
        schedule = make(both, Fixed(BUDGET), asked, NO_PLACE)
        said, cycles = reply(schedule, lambda n=waits: n, options)  # type: ignore[misc]
        assert said == expected
        assert not [text for text, times in Counter(runtime.done).items() if times > 1]
        assert all(cycle.tree.depths.max() < outcomes for cycle in cycles)
        if waits == 1000:
            assert sum(cycle.overlap.hit is True for cycle in cycles if cycle.overlap) > 2
            assert schedule.shape is not None
            assert schedule.shape.after_hit.acceptance() != schedule.shape.after_miss.acceptance()


def prepared(fan_out: list[int], verified: TokenTree, depth: int = 20) -> tuple[Fanned, Watched, int]:
    """After all its work; and how many rows had been run before."""
    drafter, runtime = model_of()
    drafter.prefill(Context(PROMPT))
    drafting = drafter.start([Root((2,))], TreeBudget(12, 1, 1))
    while drafting.step():
        pass
    drafting.stop()
    done = len(runtime.done)
    ahead = drafter.ahead(verified, TreeBudget(64, depth, 0), fan_out)
    assert isinstance(ahead, Fanned)
    while ahead.step():
        pass
    return ahead, runtime, done


@pytest.mark.parametrize("fan_out", [[1, 1, 1], [3, 2, 5], [0, 0, 8]])
def test_each_number_of_accepted_tokens_has_its_outcomes(fan_out: list[int]) -> None:
    """Their bonus tokens are the drafter's likeliest but for the drafted one, and each has a chain of first
    choices, all equally long."""
    verified = TokenTree.chain([2, 5, 3], [0.0, -1.0, -1.0])
    _, runtime, done = prepared(fan_out, verified, depth=8)
    texts = [text[len(PROMPT) :] for text in runtime.done[done:]]
    trunk = (2, 5, 3)
    assert {text for text in texts if text == trunk[: len(text)]} == {trunk[:2], trunk[:3]}
    table = runtime.table

    def order(path: tuple[int, ...]) -> list[int]:
        before = (PROMPT[-1], *path)
        return np.argsort(-table[before[-2], before[-1]], kind="stable").tolist()

    for k, count in enumerate(fan_out):
        path = trunk[: k + 1]
        likely = [token for token in order(path)[:8] if trunk[k + 1 : k + 2] != (token,)][:count]
        bonus = [text[-1] for text in texts if text[:-1] == path and text != trunk[: k + 2]]
        assert bonus == likely
        for token in likely:
            chain = [text for text in texts if text[: k + 2] == (*path, token)]
            assert [len(text) for text in chain] == list(range(k + 2, 9))
            assert all(order(a)[0] == b[-1] for a, b in pairwise(chain))
    assert len(texts) == 2 + sum(count * (8 - k - 1) for k, count in enumerate(fan_out))


def test_the_rank_of_an_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "KNOWN", 8)  # of 12 tokens
    verified = TokenTree.chain([2, 5, 3], [0.0, -1.0, -1.0])
    ahead, runtime, _ = prepared([2, 2, 2], verified)
    order = np.argsort(-runtime.table[2, 5], kind="stable").tolist()
    guesses = [token for token in order[:8] if token != 3]
    for place, token in enumerate(guesses):
        assert ahead.rank(Outcome(np.array([0, 1]), (5, token))) == place
    assert ahead.rank(Outcome(np.array([0, 1]), (5, order[-1]))) == len(guesses)
    ahead, _, _ = prepared([2, 2, 2], verified, depth=2)
    assert ahead.rank(Outcome(np.arange(3), (5, 3, 1))) is None  # nobody was asked what follows it


def test_in_a_tree_the_likeliest_of_a_depth() -> None:
    verified = TokenTree(np.array([2, 5, 6]), np.array([-1, 0, 0]), np.array([0.0, -0.1, -3.0]))
    ahead, _, _ = prepared([0, 6], verified)
    guesses = ahead.guesses(1)
    scores = [score for score, _, _ in guesses]
    assert scores == sorted(scores, reverse=True)
    assert len({slot for _, slot, _ in guesses}) == 2
    assert ahead.nodes > 6


def test_bad_fan_outs_are_refused() -> None:
    with pytest.raises(OptionError, match="fan_out"):
        EngineOptions(fan_out="widest")
    with pytest.raises(OptionError, match="fan_out_budget is 1; it must be from 2"):
        EngineOptions(fan_out_budget=1)
    with pytest.raises(OptionError, match="fallback"):
        EngineOptions(fallback="luck")
    with pytest.raises(OptionError, match="unknown"):
        CacheShape("widest", 16, 8)
    assert edgespec.config.EngineOptions().fan_out == "best-first"
    drafter, _ = model_of()
    schedule = make(drafter, Fixed(BUDGET), EngineOptions(), NO_PLACE)
    assert isinstance(schedule, Ssd)
    assert schedule.shape is None
