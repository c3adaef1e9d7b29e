"""The text does not depend on the drafter: adversaries through the real session, against plain decoding.

Never only with drafts that are likely: always wrong, always right, random, and the same token twice are what
finds a cache that commits the wrong row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgespec
from edgespec.config import GenerationOptions
from edgespec.control.fixed import Fixed
from edgespec.core.acceptance import Outcome
from edgespec.core.schedule import Context, TreeBudget
from edgespec.core.tree import TokenTree
from edgespec.drafters.base import Root, committed
from edgespec.engine import Engine
from edgespec.response import Response, Stats
from edgespec.schedules.serial import Serial
from edgespec.session import Session
from tests.covering import covering
from tests.test_exactness import KINDS
from tests.test_session import write_model

VOCABULARY = 160
LONG = 90  # tokens of a reply: prompt and reply pass two bounds of attention blocks
PROMPT = np.random.default_rng(9).integers(0, 128, 45).tolist()
GREEDY = GenerationOptions(max_tokens=LONG)
SAMPLED = GenerationOptions(max_tokens=LONG, temperature=1.1, top_k=60, top_p=0.95, seed=4)


class Adversary:
    """Drafts by `propose(tokens so far, the root included, node's number) -> children`, up to the budget."""

    resident = False
    passes = range(1)

    def __init__(self, propose: Callable[[list[int], np.random.Generator], Sequence[int]]) -> None:
        self.propose = propose
        self.rng = np.random.default_rng(0)
        self.tokens: list[int] = []
        self.cancelled = 0

    def prefill(self, context: Context) -> None:
        self.tokens = list(context.tokens)

    def start(self, roots: Sequence[Root], budget: TreeBudget) -> AdversaryDrafting:
        return AdversaryDrafting(self, roots[0], budget)

    def commit(self, root: int, outcome: Outcome) -> None:
        self.tokens += committed(root, outcome)


class AdversaryDrafting:
    def __init__(self, drafter: Adversary, root: Root, budget: TreeBudget) -> None:
        self.drafter, self.root, self.budget = drafter, root, budget
        self.texts = [drafter.tokens + list(root.path)]
        self.parents, self.done = [-1], 0

    def step(self) -> bool:
        """Expand one node."""
        node = self.done
        if node >= len(self.texts) or len(self.texts) >= self.budget.nodes:
            return False
        self.done += 1
        if len(self.texts[node]) - len(self.texts[0]) < self.budget.depth:
            for token in self.drafter.propose(self.texts[node], self.drafter.rng):
                if len(self.texts) < self.budget.nodes:
                    self.texts.append([*self.texts[node], int(token)])
                    self.parents.append(node)
        return True

    def tree(self, root: int = 0) -> TokenTree:
        tokens = np.array([text[-1] for text in self.texts])
        logprobs = np.where(np.arange(len(tokens)) > 0, -0.5, 0.0)
        return TokenTree(tokens, np.array(self.parents), logprobs)

    def cancel(self) -> None:
        self.drafter.cancelled += 1


def adversaries(text: list[int]) -> dict[str, Adversary]:
    """`text`: prompt and plain reply."""

    def right(so_far: list[int]) -> int:
        return text[len(so_far)] if len(so_far) < len(text) else 0

    def often_right(so_far: list[int], rng: np.random.Generator) -> list[int]:
        guess = right(so_far) if rng.random() < 0.8 else int(rng.integers(VOCABULARY))
        return [int(rng.integers(VOCABULARY)), guess, int(rng.integers(VOCABULARY))]

    return {
        "always wrong": Adversary(lambda t, rng: [(right(t) + 1) % VOCABULARY, (right(t) + 2) % VOCABULARY]),
        "always right": Adversary(lambda t, rng: [right(t)]),
        "random": Adversary(lambda t, rng: rng.integers(0, VOCABULARY, 3).tolist()),
        "duplicates": Adversary(lambda t, rng: [right(t), right(t), 7, 7]),
        "often right": Adversary(often_right),
    }


BUDGETS = {
    "always wrong": TreeBudget(20, 5, 1),
    "always right": TreeBudget(23, 40, 1),
    "random": TreeBudget(40, 8, 1),
    "duplicates": TreeBudget(48, 4, 1),
    "often right": TreeBudget(40, 12, 1),
}


def drafting_session(engine: Engine, name: str, drafter: Any) -> Session:
    session = engine.new_session(400)
    session.schedule = Serial(drafter, Fixed(BUDGETS.get(name, TreeBudget(32, 8, 8))), 64)
    return session


def reply(
    session: Session, options: GenerationOptions, prompt: list[int] = PROMPT
) -> tuple[list[int], Stats]:
    last = Response("")
    tokens = []
    for last in session.generate(prompt, options):
        if last.token is not None:
            tokens.append(last.token)
    return tokens, last.stats


@pytest.mark.parametrize(
    ("kind", "dtype", "options"),
    covering(KINDS, ("float32", "bfloat16"), {"greedy": GREEDY, "sampled": SAMPLED}),
)
def test_no_drafter_changes_the_text(
    tmp_path: Path, kind: dict[str, Any], dtype: str, options: GenerationOptions
) -> None:
    path = write_model(tmp_path / "m", torch_dtype=dtype, **kind)
    with edgespec.load(path, memory="2GB", context=400, drafter="none") as engine:
        engine.eos = frozenset()  # random models end at random
        session = engine.new_session(400)
        plain, stats = reply(session, options)
        session.close()
        assert len(plain) == LONG
        assert len(set(plain)) > 3, "a text that repeats one token tests nothing"
        assert (stats.drafted, stats.accepted, stats.cycles) == (0, 0, LONG)
        for name, drafter in adversaries(PROMPT + plain).items():
            session = drafting_session(engine, name, drafter)
            tokens, stats = reply(session, options)
            session.close()
            assert tokens == plain, f"{name}: differs from token {next_difference(tokens, plain)} on"
            assert stats.drafted >= stats.accepted
            assert stats.cycles + stats.accepted == LONG
            if name == "always wrong":
                assert stats.accepted == 0
                assert stats.drafted > 10 * LONG
            if name == "always right":
                assert stats.cycles < LONG / 10
                assert stats.accepted == stats.drafted
            if name in ("duplicates", "often right"):
                assert stats.accepted > LONG / 4


def next_difference(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


# One kind of model is enough for what follows.


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("target") / "m", torch_dtype="bfloat16")


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("draft") / "m", seed=1, num_hidden_layers=1)


@pytest.fixture(scope="module")
def plain(target: Path) -> dict[str, list[int]]:
    with edgespec.load(target, memory="2GB", context=400, drafter="none") as engine:
        engine.eos = frozenset()
        session = engine.new_session()
        return {name: reply(session, o)[0] for name, o in [("greedy", GREEDY), ("sampled", SAMPLED)]}


@pytest.mark.parametrize("drafter", ["auto", "ngram", "model"])  # auto: both
def test_real_drafters_do_not_change_the_text(
    target: Path, draft: Path, plain: dict[str, list[int]], drafter: str
) -> None:
    model = None if drafter == "ngram" else draft
    with edgespec.load(target, memory="2GB", context=400, drafter=drafter, draft_model=model) as engine:
        engine.eos = frozenset()
        assert engine.drafters == ({"auto": ("ngram", "model")}.get(drafter) or (drafter,))
        assert ("drafter" in engine.plan.owners) == (model is not None)
        for name, options in [("greedy", GREEDY), ("sampled", SAMPLED)]:
            session = engine.new_session()
            assert reply(session, options)[0] == plain[name], name  # as the controller likes
            schedule = session.schedule
            assert isinstance(schedule, Serial)
            schedule.controller = Fixed(TreeBudget(24, 6, 4))
            tokens, stats = reply(session, options)
            session.close()
            assert tokens == plain[name], name
            assert stats.drafted > LONG / 4


def test_the_target_as_its_own_drafter_is_accepted(target: Path, plain: dict[str, list[int]]) -> None:
    with edgespec.load(target, memory="2GB", context=400, drafter="model", draft_model=target) as engine:
        engine.eos = frozenset()
        session = engine.new_session()
        session.schedule.controller = Fixed(TreeBudget(12, 4, 4))  # type: ignore[attr-defined]
        tokens, stats = reply(session, GREEDY)
        assert tokens == plain["greedy"]
        # The tree is best-first over a flat distribution: 12 nodes reach depth 4 only now and then.
        assert stats.tokens_per_cycle > 2


def test_streaming_does_not_change_it_either(target: Path, plain: dict[str, list[int]]) -> None:
    with edgespec.load(target, memory="2GB", context=400, resident_layers=1) as engine:
        engine.eos = frozenset()
        assert engine.plan.bytes_per_pass > 0
        adversary = adversaries(PROMPT + plain["greedy"])["often right"]
        assert reply(drafting_session(engine, "often right", adversary), GREEDY)[0] == plain["greedy"]


def test_the_turn_after_an_early_end_finds_what_plain_decoding_left(
    target: Path, plain: dict[str, list[int]]
) -> None:
    """A tree accepted past EOS must not leave keys that plain decoding never computed."""
    lengths, texts = [], []
    follow = [*PROMPT, *plain["greedy"][:40], *PROMPT[:9]]
    for drafter in (None, "often right"):
        with edgespec.load(target, memory="2GB", context=400, drafter="none") as engine:
            engine.eos = frozenset({plain["greedy"][30]})
            if drafter is None:
                session = engine.new_session()
            else:
                adversary = adversaries(PROMPT + plain["greedy"])[drafter]
                session = drafting_session(engine, drafter, adversary)
            reply(session, GREEDY)
            lengths.append(session.cache.length)
            texts.append(reply(session, GREEDY, follow)[0])
    assert lengths[0] == lengths[1]
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    ("where", "error"),
    covering(("draft", "verify"), {"interrupt": KeyboardInterrupt, "error": RuntimeError}),
)
def test_an_interrupted_reply_leaves_the_session_usable(
    target: Path, draft: Path, plain: dict[str, list[int]], where: str, error: type[BaseException]
) -> None:
    longer = [*PROMPT, *plain["greedy"][:50]]
    rest = GenerationOptions(max_tokens=LONG - 50)
    with edgespec.load(target, memory="2GB", context=400, drafter="none") as engine:
        engine.eos = frozenset()
        session = engine.new_session()
        reply(session, GREEDY)
        expected = reply(session, rest, longer)[0]
    with edgespec.load(target, memory="2GB", context=400, draft_model=draft) as engine:
        engine.eos = frozenset()
        session = engine.new_session()
        session.schedule.controller = Fixed(TreeBudget(24, 6, 4))  # type: ignore[attr-defined]
        (draft,) = engine.resident
        model, name = (draft.model, "run_layer") if where == "draft" else (engine.target, "run")
        for passes in (3, 18):
            count, run = 0, getattr(model, name)

            def failing(*args: Any, **kwargs: Any) -> Any:
                nonlocal count
                count += 1
                hidden = run(*args, **kwargs)  # noqa: B023 - the loop waits for the reply
                if count == passes:  # noqa: B023
                    raise error
                return hidden

            setattr(model, name, failing)
            said: list[int | None] = []
            with pytest.raises(error):
                said.extend(response.token for response in session.generate(PROMPT, GREEDY))
            delattr(model, name)
            assert said == plain["greedy"][: len(said)]
            assert session.cache.length == len(session.tokens)
            assert len(session.cache.parents) == 0
        assert reply(session, GREEDY)[0] == plain["greedy"]
        # (Not the tail of the first reply: a prompt's last token is computed in its block, not in a tree.)
        assert reply(session, rest, longer)[0] == expected


def test_cancelling_keeps_what_was_said(target: Path, plain: dict[str, list[int]]) -> None:
    with edgespec.load(target, memory="2GB", context=400, drafter="none") as engine:
        engine.eos = frozenset()
        adversary = adversaries(PROMPT + plain["greedy"])["often right"]
        session = drafting_session(engine, "often right", adversary)
        said = []
        for response in session.generate(PROMPT, GREEDY):
            if response.token is not None:
                said.append(response.token)
            if len(said) == 40:
                session.cancel()
        assert response.finish_reason == "cancelled"
        assert 40 <= len(said) < 60
        assert said == plain["greedy"][: len(said)]
        assert reply(session, GREEDY)[0] == plain["greedy"]


def test_from_draft_and_the_counts_agree(target: Path, plain: dict[str, list[int]]) -> None:
    with edgespec.load(target, memory="2GB", context=400, drafter="none") as engine:
        engine.eos = frozenset()
        adversary = adversaries(PROMPT + plain["greedy"])["often right"]
        responses = list(drafting_session(engine, "often right", adversary).generate(PROMPT, GREEDY))
        stats = responses[-1].stats
        assert sum(r.from_draft for r in responses) == stats.accepted > 0
        assert stats.acceptance == "greedy"
        assert stats.lossless


def test_a_reply_ends_at_its_limit_whatever_is_drafted(target: Path, plain: dict[str, list[int]]) -> None:
    with edgespec.load(target, memory="2GB", context=len(PROMPT) + 9, drafter="none") as engine:
        engine.eos = frozenset()
        for limit in range(1, 10):
            adversary = adversaries(PROMPT + plain["greedy"])["always right"]
            session = engine.new_session()
            session.schedule = Serial(adversary, Fixed(TreeBudget(64, 40, 1)), 64)
            tokens, stats = reply(session, GenerationOptions(max_tokens=limit))
            session.close()
            assert tokens == plain["greedy"][:limit]
            assert stats.drafted == max(0, limit - 2)  # never beyond the last token but one


def test_typical_says_that_it_is_lossy_and_ratio_draws(target: Path, draft: Path) -> None:
    options = GenerationOptions(max_tokens=40, temperature=0.9, acceptance="ratio")
    with edgespec.load(target, memory="2GB", context=400, drafter="model", draft_model=draft) as engine:
        engine.eos = frozenset()
        session = engine.new_session()
        session.schedule.controller = Fixed(TreeBudget(6, 5, 5))  # type: ignore[attr-defined]
        tokens, stats = reply(session, options)
        assert (stats.acceptance, stats.lossless) == ("ratio", True)
        assert stats.drafted == pytest.approx(5 * (stats.cycles - 1), abs=15)
        assert reply(session, options)[0] == tokens
        drawn = tokens
        lossy = GenerationOptions(max_tokens=10, temperature=0.9, acceptance="typical")
        assert not reply(session, lossy)[1].lossless
    # `auto` has n-grams too; they stay silent where drafts must be drawn, and are back in the next reply.
    with edgespec.load(target, memory="2GB", context=400, draft_model=draft) as engine:
        engine.eos = frozenset()
        session = engine.new_session()
        session.schedule.controller = Fixed(TreeBudget(6, 5, 5))  # type: ignore[attr-defined]
        assert reply(session, options)[0] == drawn
        session.schedule.controller = Fixed(TreeBudget(24, 5, 0))  # type: ignore[attr-defined]
        assert reply(session, options)[1].drafted == 0
        assert reply(session, GREEDY)[1].drafted > 0  # the n-grams'
