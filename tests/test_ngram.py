"""Drafts copied from the conversation: right branches, honest probabilities, an index that can go back."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgespec.core.acceptance import Outcome
from edgespec.core.schedule import Context, TreeBudget
from edgespec.core.tree import TokenTree
from edgespec.drafters.base import Root
from edgespec.drafters.ngram import LONGEST, ORDERS, SHORT, NGram, _match_length

BUDGET = TreeBudget(64, 16, 0)


def drafter_of(tokens: list[int]) -> NGram:
    drafter = NGram()
    drafter.prefill(Context(tokens))
    drafter.catch_up()
    return drafter


def draft(drafter: NGram, root: int, budget: TreeBudget = BUDGET) -> TokenTree:
    drafting = drafter.start([Root((root,))], budget)
    assert len(drafting.tree()) == 1, "nothing is drafted before a step"
    assert drafting.step()
    assert not drafting.step()
    tree = drafting.tree()
    tree.validate()
    return tree


def paths(tree: TokenTree) -> set[tuple[int, ...]]:
    return {tuple(tree.tokens[tree.path_to(node)].tolist()) for node in range(len(tree))}


def emit(drafter: NGram, root: int, *tokens: int) -> None:
    """One cycle: `tokens` are what it emitted, the bonus last."""
    drafter.commit(root, Outcome(np.arange(len(tokens)), tokens))
    drafter.catch_up()


def test_the_longest_match_comes_first_and_others_become_branches() -> None:
    drafter = drafter_of([5, 6, 7, 8, 1, 2, 9, 7, 3, 4, 5, 6])
    tree = draft(drafter, 7)  # "5 6 7" was followed by 8, "9 7" by 3
    first, second = tree.children(0)
    assert (tree.tokens[first], tree.tokens[second]) == (8, 3)
    assert tree.logprobs[first] > tree.logprobs[second]
    assert {(7, 8, 1, 2), (7, 3, 4)} <= paths(tree)


def test_nothing_said_before_means_nothing_drafted() -> None:
    assert len(draft(drafter_of([1, 2, 3]), 9)) == 1
    assert len(draft(NGram(), 9)) == 1


def test_a_draft_that_would_not_pay_is_not_made() -> None:
    """It promises what its matches were worth of late, and nodes that are not worth theirs are left out."""
    text = [5, 6, 7, 8] * 6
    whole = draft(drafter_of(text), 5)
    promised = float(np.exp(whole.scores[1:]).sum())
    kept = draft(drafter_of(text), 5, replace(BUDGET, worth=0.9 * promised))
    assert paths(kept) == paths(whole)
    assert len(draft(drafter_of(text), 5, replace(BUDGET, worth=1.1 * promised))) == 1
    few = draft(drafter_of(text), 5, replace(BUDGET, least=0.5))
    assert 1 < len(few) < len(whole)
    assert np.exp(few.scores).min() >= 0.5
    beyond = float((np.exp(few.scores[1:]) - 0.5).sum())
    assert len(draft(drafter_of(text), 5, replace(BUDGET, least=0.5, worth=1.1 * beyond))) == 1
    assert len(draft(drafter_of(text), 5, replace(BUDGET, least=2.0))) == 1


def test_a_copy_past_the_end_repeats_itself() -> None:
    tree = draft(drafter_of([1, 2, 3] * 4), 1, TreeBudget(13, 12, 0))
    assert max(tree.depths) == 12
    deepest = tree.tokens[tree.path_to(int(np.argmax(tree.depths)))].tolist()
    assert deepest == ([1, 2, 3] * 5)[:13]


def test_the_budget_holds() -> None:
    rng = np.random.default_rng(0)
    drafter = drafter_of(rng.integers(0, 3, 500).tolist())
    for nodes, depth in [(1, 5), (2, 5), (7, 3), (64, 1), (5, 0)]:
        tree = draft(drafter, 1, TreeBudget(nodes, depth, 0))
        assert len(tree) <= nodes
        assert max(tree.depths) <= depth


def test_siblings_differ_and_share_at_most_all_probability() -> None:
    rng = np.random.default_rng(1)
    drafter = drafter_of(rng.integers(0, 4, 800).tolist())
    tree = draft(drafter, 2)
    assert len(tree) > 20
    for node in range(len(tree)):
        children = tree.children(node)
        assert len(set(tree.tokens[children].tolist())) == len(children)
        assert np.exp(tree.logprobs[children]).sum() <= 1 + 1e-9


def test_probabilities_are_measured() -> None:
    """Text that repeats makes the index sure of itself; random text makes it doubt."""
    rng = np.random.default_rng(2)
    loop, noise = NGram(), NGram()
    loop.prefill(Context([1, 2, 3, 4]))
    noise.prefill(Context(rng.integers(0, 8, 50).tolist()))
    root = 1
    for i in range(200):
        emit(loop, 1 + i % 4, 1 + (i + 1) % 4)
        following = int(rng.integers(0, 8))
        emit(noise, root, following)
        root = following
    assert loop.confidence(LONGEST) > 0.95
    assert noise.confidence(1) < 0.3
    sure, doubtful = draft(loop, 1), draft(noise, root)
    assert np.exp(sure.logprobs[1]) > 0.95
    assert np.exp(doubtful.logprobs[doubtful.children(0)]).max() < 0.5


def test_a_plain_cycle_teaches_too() -> None:
    drafter = drafter_of([1, 2, 1, 2])
    before = sum(drafter._trials)
    emit(drafter, 1, 2)
    assert sum(drafter._trials) == before + 1


def test_what_nobody_asks_about_is_not_indexed() -> None:
    """Where drafts do not pay a cycle costs nothing; the next draft is as if each had been learned from."""
    lazy, eager = drafter_of([1, 2, 3, 1, 2]), drafter_of([1, 2, 3, 1, 2])
    for token in (3, 1, 2, 3, 1):
        lazy.commit(token, Outcome(np.arange(1), (0,)))
        emit(eager, token, 0)
    assert lazy.tokens == [1, 2, 3, 1, 2]
    assert paths(draft(lazy, 2)) == paths(draft(eager, 2))
    assert lazy.tokens == eager.tokens
    assert np.array_equal(lazy._hits, eager._hits)
    lazy.commit(2, Outcome(np.arange(1), (0,)))
    lazy.prefill(Context([*eager.tokens, 2, 7]))
    lazy.catch_up()
    assert lazy.tokens == [*eager.tokens, 2, 7]


def counted(drafter: NGram, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Tokens that are put into its index from now on."""
    pushed, push = list[int](), NGram._push

    def counting(self: NGram, token: int) -> None:
        if self is drafter:
            pushed.append(token)
        push(self, token)

    monkeypatch.setattr(NGram, "_push", counting)
    return pushed


def test_replies_of_which_no_draft_may_pay_are_in_no_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other, each looked at three times: they repeat single tokens and pairs, where a row is
    worth a chance of 0.6. When a longer piece comes again the draft is as of an index of all."""
    drafter, said = NGram(), list[int]()
    pushed = counted(drafter, monkeypatch)
    for reply in range(6):
        prompt = [100 * (1 + reply) + n for n in range(SHORT)]
        drafter.prefill(Context(prompt))
        said = [*prompt]
        for token in [1, 2, 9, 1, 2, 8, 1, 3, 7, 2]:
            if token == 1:
                assert len(draft(drafter, token, replace(BUDGET, least=0.6, worth=0.01))) == 1
            drafter.commit(token, Outcome(np.arange(1), (0,)))
            said.append(token)
    assert pushed == []
    for token in (1, 2, 8):
        drafter.commit(token, Outcome(np.arange(1), (0,)))
    tree = draft(drafter, 1, replace(BUDGET, least=0.3))
    assert tree.tokens[tree.children(0)].tolist() == [3]
    assert pushed == [*said, 1, 2, 8]
    assert sum(drafter._trials) > 0, "and it has learned from what was said, but for the prompt"


def test_of_a_reply_that_no_prompt_goes_on_nothing_is_learned_late(monkeypatch: pytest.MonkeyPatch) -> None:
    drafter = drafter_of(list(range(100, 180)))
    pushed = counted(drafter, monkeypatch)
    for token in [1, 2, 3] * 20:
        drafter.commit(token, Outcome(np.arange(1), (0,)))
    drafter.prefill(Context([5, 6, 7]))
    assert pushed == []
    assert draft(drafter, 5).tokens[1:].tolist()[:2] == [6, 7]
    assert drafter.tokens == [5, 6, 7]


def test_a_long_prompt_is_no_part_of_the_first_drafts_time(monkeypatch: pytest.MonkeyPatch) -> None:
    drafter = NGram()
    pushed = counted(drafter, monkeypatch)
    drafter.prefill(Context(range(SHORT + 1)))
    assert len(pushed) == SHORT + 1


def test_what_the_text_says_of_a_match_is_what_the_index_does() -> None:
    """No draft is missed, and none is looked for where the last token was never said before."""
    rng = np.random.default_rng(6)
    looked = 0
    for tokens in (3, 30, 300, 3000, 70000):
        text = rng.integers(0, tokens, 400).tolist()
        drafter = drafter_of(text[:200])
        for token in text[200:]:
            may = drafter._may_pay((token,), 4, replace(BUDGET, least=0.0))
            assert may == (token in drafter.tokens)
            assert may == (drafter._longest([*drafter.tokens, token]) is not None)
            looked += may
            emit(drafter, token, 0)
    assert 200 < looked < 800


def test_going_back_leaves_the_index_of_what_remains() -> None:
    """Chat edits truncate: afterwards the index is as if the rest had never been there."""
    rng = np.random.default_rng(3)
    long = rng.integers(0, 5, 300).tolist()
    for keep in (0, 1, 3, 150, 299):
        edited = long[:keep] + rng.integers(0, 5, 40).tolist()
        drafter = drafter_of(long)
        drafter.prefill(Context(edited))
        drafter.catch_up()
        fresh = drafter_of(edited)
        assert drafter.tokens == fresh.tokens == edited
        assert drafter._last == fresh._last
        assert drafter._before == fresh._before
        assert paths(draft(drafter, 2)) == paths(draft(fresh, 2))


def test_commits_equal_a_prefill() -> None:
    rng = np.random.default_rng(4)
    text = rng.integers(0, 6, 120).tolist()
    grown = NGram()
    grown.prefill(Context(text[:10]))
    place = 10
    while place < 119:
        n = int(rng.integers(1, 5))
        emit(grown, text[place], *text[place + 1 : place + n], 0)
        place += len(text[place : place + n])
    whole = drafter_of(text[:place])
    assert grown.tokens == whole.tokens
    assert grown._last == whole._last
    assert grown._before == whole._before


def test_an_interrupted_update_is_mended() -> None:
    drafter = drafter_of([1, 2, 3, 1, 2])

    class Interrupted(list[int]):
        def append(self, value: int) -> None:
            raise KeyboardInterrupt

    whole = drafter._before[1]
    drafter._before[1] = Interrupted(whole)
    try:
        emit(drafter, 3, 1)
    except KeyboardInterrupt:
        drafter._before[1] = whole
    drafter.prefill(Context([1, 2, 3, 1, 2, 3]))
    drafter.catch_up()
    fresh = drafter_of([1, 2, 3, 1, 2, 3])
    assert (drafter.tokens, drafter._last, drafter._before) == (fresh.tokens, fresh._last, fresh._before)


def test_an_interrupted_new_prompt_is_mended(monkeypatch: pytest.MonkeyPatch) -> None:
    drafter = drafter_of([1, 2, 3, 1, 2])

    def interrupted(self: NGram, token: int) -> None:
        self._before[0].append(-1)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(NGram, "_push", interrupted)
        with pytest.raises(KeyboardInterrupt):
            drafter.prefill(Context([7, 8] * SHORT))
    drafter.prefill(Context([7, 8, 7, 9]))
    drafter.catch_up()
    fresh = drafter_of([7, 8, 7, 9])
    assert (drafter.tokens, drafter._last, drafter._before) == (fresh.tokens, fresh._last, fresh._before)


def test_several_roots() -> None:
    """Predicted outcomes: each root stands behind its own path."""
    drafter = drafter_of([1, 2, 3, 4, 9, 1, 2, 7, 8])
    drafting = drafter.start([Root((1, 2)), Root((9, 1)), Root((5,))], BUDGET)
    assert [drafting.step() for _ in range(4)] == [True, True, True, False]  # a root each
    assert {int(drafting.tree(0).tokens[c]) for c in drafting.tree(0).children(0)} == {3, 7}
    assert {int(drafting.tree(1).tokens[c]) for c in drafting.tree(1).children(0)} == {2}
    assert len(drafting.tree(2)) == 1


def test_memory_is_bounded_by_the_text() -> None:
    drafter = drafter_of(np.random.default_rng(5).integers(0, 1000, 3000).tolist())
    assert all(len(last) <= 3000 for last in drafter._last)
    assert [len(before) for before in drafter._before] == [3000] * len(ORDERS)
    drafter.prefill(Context([1]))
    drafter.catch_up()
    assert all(len(last) == 1 for last in drafter._last)


def test_match_length_stops_at_the_ends() -> None:
    assert _match_length([1, 2, 1, 2], 1) == 2
    assert _match_length([3, 2, 1, 2], 1) == 1
    assert _match_length([7] * 100, 50) == LONGEST


def lookup(text: list[int], longest: int = 2, count: int = 10) -> list[int]:
    """Prompt lookup, as others have it: what followed the first occurrence of the last tokens."""
    for length in range(longest, 0, -1):
        for place in range(len(text) - length):
            if text[place : place + length] == text[-length:]:
                return text[place + length : place + length + count]
    return []


@pytest.mark.parametrize("name", ["edgespec/drafters/ngram.py", "docs/architecture.md"])
def test_it_finds_more_than_prompt_lookup_does(name: str) -> None:
    """Reading on in code and in prose, with trees of no more nodes than prompt lookup's chains have."""
    words = re.findall(r"\w+|\s+|.", (Path(__file__).parents[1] / name).read_text(encoding="utf-8"))
    text = np.unique(words, return_inverse=True)[1].tolist()[:2000]
    start = len(text) // 3
    drafter, cycles = drafter_of(text[:start]), {"lookup": 0, "ngram": 0}
    place = start
    while place < len(text):
        chain = lookup(text[: place + 1])
        agree = [a == b for a, b in zip(chain, text[place + 1 :], strict=False)]
        place += 1 + [*agree, False].index(False)
        cycles["lookup"] += 1
    place = start
    while place < len(text) - 1:
        tree = draft(drafter, text[place], TreeBudget(11, 10, 0))
        path = [0]
        while place + len(path) < len(text) - 1:
            ahead = text[place + len(path)]
            if not (right := [n for n in tree.children(path[-1]) if tree.tokens[n] == ahead]):
                break
            path.append(int(right[0]))
        said = text[place + 1 : place + len(path) + 1]
        emit(drafter, text[place], *said)
        place += len(said)
        cycles["ngram"] += 1
    assert drafter.tokens == text[:place]
    assert cycles["ngram"] < 0.97 * cycles["lookup"], cycles
