"""What tests of drafters that read the target's states share: engines, conversations, interruptions."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import edgespec
from edgespec.config import GenerationOptions
from edgespec.control.fixed import Fixed
from edgespec.control.partner import Partner
from edgespec.control.shares import Shares
from edgespec.core.schedule import Offer, TreeBudget
from edgespec.engine import Engine
from edgespec.errors import Cancelled
from edgespec.response import Stats
from edgespec.runtimes.rows import Rows
from edgespec.runtimes.target import PassObserver
from edgespec.session import Session
from tests.covering import covering
from tests.test_session import prompt_of

MOST = 16
REPLY = GenerationOptions(max_tokens=MOST, ignore_eos=True)
SAMPLED = GenerationOptions(max_tokens=MOST, temperature=0.9, top_p=0.95, seed=3, ignore_eos=True)
TYPES = [pytest.param("float32", marks=pytest.mark.slow), "bfloat16"]
"""Of a module's models, for what hardly depends on the numbers' type."""
ONE_TYPE = pytest.mark.parametrize("model", ["bfloat16"], indirect=True)
"""For what does not."""
VARIED = pytest.mark.parametrize(
    ("model", "kind", "options"),
    covering(("float32", "bfloat16"), ("random", "exits"), {"sampled": SAMPLED, "greedy": REPLY}),
    indirect=["model"],
    scope="module",
)
"""For what may depend on the type, on what was trained, and on how tokens are chosen."""


class Never(Fixed):
    """Drafts nothing, and hears everything, until it is told."""

    drafts = False

    def budget(self, limit: TreeBudget, passes: range) -> TreeBudget | None:
        return super().budget(limit, passes) if self.drafts else None


def load_with(model: Path, drafter: str, adapters: Path | None, **options: Any) -> Engine:
    """A model of which three layers stream. No adapters where nothing, or others, draft."""
    settings: dict[str, Any] = {"memory": "2GB", "context": 400, "resident_layers": 2, "drafter": drafter}
    return edgespec.load(model, **settings | {"adapters": adapters} | options)


def say(session: Session, prompt: list[int], options: GenerationOptions) -> tuple[list[int], Stats]:
    responses = list(session.generate(prompt, options))
    assert responses[-1].stats is not None
    return [r.token for r in responses if r.token is not None], responses[-1].stats


def two_turns(session: Session, options: GenerationOptions) -> tuple[list[int], list[Stats]]:
    """The second prompt shares the first turn."""
    first, stats = say(session, prompt_of(50), options)
    second, more = say(session, [*prompt_of(50), *first, *prompt_of(9, 1)], options)
    return first + second, [stats, more]


def undrafted(model: Path) -> dict[float, list[int]]:
    """What these turns are without drafts, by temperature."""
    texts = {}
    with load_with(model, "none", None) as engine:
        for options in (REPLY, SAMPLED):
            with engine.new_session(300) as session:
                texts[options.temperature] = two_turns(session, options)[0]
                assert len(set(texts[options.temperature])) > 5, "a text that repeats itself tests nothing"
    return texts


def interrupt_anywhere(engine: Engine, session: Session, step: int) -> None:
    """Replies to other prompts, each cancelled at another of the target's products."""
    weights = engine.target.weights
    asked = {name: getattr(weights, name) for name in ("linear", "layer_together")}
    for moment in itertools.count(1, step):
        count = 0

        def failing(name: str, *args: Any, **more: Any) -> Any:
            nonlocal count
            count += 1
            if count == moment:  # noqa: B023 - the loop waits for the reply
                raise Cancelled("stop")
            return asked[name](*args, **more)

        for name in asked:
            setattr(weights, name, partial(failing, name))
        try:
            responses = list(session.generate(prompt_of(50, moment), REPLY))
        finally:
            for name in asked:
                delattr(weights, name)
        if count < moment:  # none was left
            break
        assert responses[-1].finish_reason == "cancelled"
    assert moment > 20


class Resting(Fixed):
    """Every fifth cycle drafts; that none comes next is known in three of the others."""

    cycle = 0

    def budget(self, limit: TreeBudget, passes: range) -> TreeBudget | None:
        self.cycle += 1
        self.rests = self.cycle % 5 in (1, 2, 3)
        return super().budget(limit, passes) if self.cycle % 5 == 0 else None


def deaf_positions(engine: Engine, session: Session, plain: list[int]) -> set[int]:
    """Two turns of a `Resting` session are as without drafts: the positions committed in passes that were to
    tell of no layer."""
    run, passes = engine.target.run, list[tuple[int, bool]]()

    def spied(hidden: Any, rows: Rows, layers: range, observer: PassObserver | None = None) -> Any:
        assert observer is not None
        assert observer.hears or not rows.prefill
        passes.append((session.cache.length, not observer.hears))
        return run(hidden, rows, layers, observer)

    engine.target.run = spied  # type: ignore[method-assign]
    tokens, stats = two_turns(session, REPLY)
    del engine.target.run
    assert tokens == plain
    assert sum(s.drafted for s in stats) > 0
    stops = [*(length for length, _ in passes[1:]), session.cache.length]
    spans = [range(start, stop) for (start, deaf), stop in zip(passes, stops, strict=True) if deaf]
    return {position for span in spans for position in span}


def draft_always(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a batch everybody drafts in every cycle, four passes at most, as if that took no time."""
    allot, record = Shares.allot, Shares.record

    def always(self: Partner, limit: TreeBudget, passes: range) -> TreeBudget | None:
        able = limit.depth > 0 and limit.nodes > 1
        return replace(limit, passes=min(4, passes.stop - 1)) if able else None

    def free(self: Shares, offers: Sequence[Offer], most: Sequence[int], others: int, room: int) -> list[Any]:
        return allot(self, [replace(offer, seconds=0.0) for offer in offers], most, others, min(room, 20))

    def quick(
        self: Shares, offers: Sequence[Offer], rows: int, tokens: int, seconds: float, prompts: bool
    ) -> None:
        record(self, [replace(offer, seconds=0.0) for offer in offers], rows, tokens, 1e-3, prompts)

    monkeypatch.setattr(Partner, "budget", always)
    monkeypatch.setattr(Shares, "allot", free)
    monkeypatch.setattr(Shares, "record", quick)
