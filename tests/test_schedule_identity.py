"""Every drafter under every schedule that it can follow says what plain decoding says, whenever it drafts.

The models are those of `test_identity`: near ties at every token, so that a pass of other bits would go
another way, and a draft model that is often right and not always. Their layers stream, and each chunk is
waited for as often as said.

`pytest -m slow -s tests/test_schedule_identity.py` prints what was compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count, groupby, product
from pathlib import Path
from time import sleep

import numpy as np
import pytest

import edgespec
from edgespec.config import GenerationOptions
from edgespec.control.controller import Adaptive
from edgespec.control.fixed import Fixed
from edgespec.core.schedule import Controller, TreeBudget
from edgespec.drafters import beside
from edgespec.drafters.kinds import KINDS, drafter_names
from edgespec.engine import Engine
from edgespec.errors import OptionError
from edgespec.models import planning
from edgespec.models.packing import pack_model
from edgespec.offload.plan import pinning
from edgespec.response import Stats
from edgespec.schedules.kinds import SCHEDULES, check_schedule
from tests.eagles import write_eagle
from tests.moa import write_moa
from tests.sessions import tokens_of
from tests.specformers import write_specformer
from tests.streamings import write_spd, write_streaming
from tests.test_cascade import train
from tests.test_identity import loosely_other, write_pair
from tests.test_lossless import next_difference
from tests.test_session import prompt_of
from tests.test_ssd_engine import waiting

CHOSEN = {"llama3.1": "float32", "mistral": "bfloat16", "qwen3": "float32"}
GREEDY = GenerationOptions(ignore_eos=True)
SAMPLED = GenerationOptions(ignore_eos=True, temperature=0.9, top_p=0.95, seed=7)
BUDGET = TreeBudget(16, 5, 4)
WAITS = {"none": lambda rng: 0, "one a chunk": lambda rng: 1, "many": lambda rng: 6}
WAITS["at random"] = lambda rng: int(rng.integers(0, 8) * rng.integers(0, 2))


def legal() -> Iterator[tuple[str, str]]:
    """Drafters, alone and joined, and the schedules that they can follow."""
    other = {"none", "auto", *(kind.name for kind in KINDS if kind.elsewhere)}  # those: test_draft_server.py
    drafters = [name for name in drafter_names() if not other & {*name.split("+")}]
    for drafter, schedule in product([*drafters, "ngram+cascade+substitute"], SCHEDULES):
        with suppress(OptionError):
            check_schedule(schedule.name, drafter.split("+"))
            yield drafter, schedule.name


PAIRS = list(legal())
AUTO = [("model", "auto"), ("ngram+substitute", "auto")]  # ssd, and mirror now and then


def chosen() -> Iterator[tuple[str, str]]:
    """Of drafters joined with n-grams each under one schedule, and the schedules in turn."""
    turn = count()
    for drafter, schedules in groupby(PAIRS, lambda pair: pair[0]):
        able = [schedule for _, schedule in schedules]
        if "+" in drafter and len(able) > 1:
            able = [able[next(turn) % len(able)]]
        yield from ((drafter, schedule) for schedule in able)
    yield from AUTO


class Sometimes(Fixed):
    """Asks the early exit in two of three passes."""

    passes = 0

    def asks(self) -> bool:
        self.passes += 1
        return self.passes % 3 > 0


def test_every_legal_pair_is_among_them() -> None:
    by_schedule = Counter(schedule for _, schedule in PAIRS)
    assert by_schedule == {"serial": 19, "ssd": 13, "mirror": 13}
    alone = {"ngram", "model", "substitute", "moa", "eagle", "streaming", "spd"}
    joined = {f"ngram+{name}" for name in alone - {"ngram"}}
    assert {d for d, schedule in PAIRS if schedule == "mirror"} == alone | joined


@dataclass
class Family:
    """A target with what drafts for it, and what it says by itself."""

    folder: Path
    kind: str
    loose: int = 0  # of its greedy tokens, those that an ordinary pass would have chosen otherwise
    said: dict[tuple[GenerationOptions, int], list[int]] = field(default_factory=dict)

    def load(self, drafter: str, schedule: str = "auto", worker: int | None = None) -> Engine:
        given: dict[str, Path] = {"draft_model": self.folder / "draft"} if "model" in drafter else {}
        if "moa" in drafter:
            given["adapters"] = self.folder / "moa"
        if "cascade" in drafter:
            given["adapters"] = self.folder / "model" / "exits"
            if "substitute" in drafter:
                given["draft_model"] = self.folder / "copy"
        for trained in ("eagle", "specformer", "streaming", "spd"):
            if trained in drafter:
                given["adapters"] = self.folder / trained
        path = self.folder / ("packed" if "cascade" not in drafter else "model")
        layers = 2 if "cascade" in drafter else 1  # those that it drafts in are pinned
        settings = {
            "memory": "4GB",
            "context": 600,
            "resident_layers": layers,
            "schedule": schedule,
            "draft_worker": worker,
        }
        engine = edgespec.load(path, drafter=drafter, **settings, **given)  # type: ignore[arg-type]
        chunks = engine.plan.table.chunks
        assert engine.plan.bytes_per_pass > 0
        if schedule in ("mirror", "auto"):  # so that the early exit speaks
            engine.target.weights.pin([c.index for c in chunks if c.layer == engine.plan.table.layers])
        return engine

    def plain(self, options: GenerationOptions, seed: int) -> list[int]:
        """The reply to a prompt, made once."""
        if (options, seed) not in self.said:
            with self.load("none") as engine:
                said = edgespec.generate(engine, prompt_of(70, seed), options).tokens
                if options.temperature == 0:
                    self.loose += loosely_other(engine, prompt_of(70, seed), said)
            self.said[options, seed] = said
        return self.said[options, seed]


@pytest.fixture(autouse=True)
def smallest_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pinning, "RING_CHUNKS", pinning.MIN_RING_CHUNKS)
    monkeypatch.setattr(planning, "_able", lambda plan, options: True)  # the head is pinned later


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Family]:
    found = {}
    for kind, dtype in CHOSEN.items():
        folder = tmp_path_factory.mktemp("family")
        model, _ = write_pair(folder, kind, dtype)
        pack_model(str(model), folder / "packed", substitute="int4")
        pack_model(str(model), folder / "copy", precision="int4")
        train(model, "exits", depths=(1, 2))
        write_moa(model, folder / "moa")
        write_eagle(model, "exits", out=folder / "eagle")
        write_specformer(model, out=folder / "specformer")
        write_streaming(model, out=folder / "streaming")
        write_spd(model, out=folder / "spd")
        found[kind] = Family(folder, kind)
    return found


@dataclass
class Tally:
    """What was compared."""

    tokens: int = 0
    cycles: int = 0
    accepted: int = 0
    ahead: int = 0
    hits: int = 0
    misses: int = 0
    exits: int = 0  # cycles in which the early exit spoke

    def add(self, tokens: int, stats: Stats) -> None:
        self.tokens += tokens
        self.cycles += stats.cycles
        self.accepted += stats.accepted
        self.ahead += stats.drafted_while_verifying
        self.hits += stats.cache_hits
        self.misses += stats.cache_misses
        self.exits += stats.early_exit.cycles


Job = tuple[GenerationOptions, str, int, Controller]
"""Options of a reply, the name of its waits, its prompt's number, and who decides what is drafted."""


def compare(
    family: Family, pair: tuple[str, str], jobs: Sequence[Job], tally: Tally, worker: int | None = None
) -> None:
    expected = [family.plain(options, seed) for options, _, seed, _ in jobs]
    with pytest.MonkeyPatch.context() as patch, family.load(*pair, worker) as engine:
        for (options, waits, seed, controller), plain in zip(jobs, expected, strict=True):
            wait = partial(WAITS[waits], np.random.default_rng(seed))
            with waiting(patch, wait), engine.new_session(500, controller) as session:
                responses = list(session.generate(prompt_of(70, seed), options))
            said, stats = tokens_of(responses), responses[-1].stats
            assert stats.schedule == ("ssd" if pair[1] == "auto" else pair[1])
            where = f"{family.kind}, {pair}, waits {waits}, temperature {options.temperature}"
            assert said == plain, f"{where}: differs from token {next_difference(said, plain)} on"
            tally.add(len(said), stats)


def check(pair: tuple[str, str], tally: Tally) -> None:
    """It drafted, and while the target verified, if it was to."""
    drafter, schedule = pair
    assert tally.accepted > 0
    hides = schedule != "serial" and drafter != "ngram"
    assert (tally.ahead > 0) == (tally.hits + tally.misses > 0) == hides
    assert (tally.exits > 0) == (hides and schedule in ("mirror", "auto"))


@pytest.mark.parametrize(("number", "pair"), list(enumerate(chosen())))
def test_tens_of_tokens(families: dict[str, Family], number: int, pair: tuple[str, str]) -> None:
    """Each on one of the architectures, with two of the waits; every pair, on all, in the slow test."""
    long = 48 if pair[0] == "ngram" else 18  # until something is said again, by one of them
    tally, greedy, sampled = Tally(), replace(GREEDY, max_tokens=long), replace(SAMPLED, max_tokens=18)
    names = [*WAITS]
    waits = names[number % 4], names[(number + 2) % 4]
    if pair in AUTO:
        waits = "many", "at random"
    kept = families.values() if pair[0] == "ngram" else [[*families.values()][number % len(families)]]
    for family in kept:
        jobs: list[Job] = [
            (sampled, waits[0], 1, Sometimes(BUDGET)),
            (greedy, waits[1], 1, Adaptive() if pair in AUTO else Sometimes(BUDGET)),
        ]
        compare(family, pair, jobs, tally)
    check(pair, tally)


@pytest.mark.parametrize("schedule", ["ssd", "mirror"])
def test_a_draft_worker(families: dict[str, Family], monkeypatch: pytest.MonkeyPatch, schedule: str) -> None:
    """The same with the draft model in a process beside the target's."""
    monkeypatch.setattr(beside, "SILENCE", 60.0)  # the machine may be busy
    monkeypatch.setitem(WAITS, "asleep", lambda rng: sleep(0.002) or 0)  # so that it has a core for itself
    pair, tally = ("ngram+model", schedule), Tally()
    jobs: list[Job] = [
        (replace(options, max_tokens=24), "asleep", 1, Fixed(BUDGET)) for options in (GREEDY, SAMPLED)
    ]
    compare(next(iter(families.values())), pair, jobs, tally, worker=1)
    check(pair, tally)
    assert tally.hits > 0


@pytest.mark.slow
@pytest.mark.parametrize("pair", PAIRS + AUTO)
def test_thousands_of_tokens(families: dict[str, Family], pair: tuple[str, str]) -> None:
    tally = Tally()
    for place, family in enumerate(families.values()):
        jobs: list[Job] = [
            (
                replace(options, max_tokens=210),
                waits,
                100 + seed,
                Adaptive() if seed % 4 == place else Sometimes(BUDGET),
            )
            for seed, (options, waits) in enumerate(product((GREEDY, SAMPLED), WAITS))
        ]
        compare(family, pair, jobs, tally)
    print(f"\n{' '.join(pair)}: {tally}")
    assert tally.tokens >= 5000
    check(pair, tally)
    assert (tally.hits > 0) == (tally.ahead > 0)
    assert sum(family.loose for family in families.values()) > 0, "no near ties: equality proves nothing"
