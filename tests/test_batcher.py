"""Many conversations in shared passes: each says what it says alone, whoever joins, leaves, fails, waits."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from edgespec.config import GenerationOptions
from edgespec.control.costs import Costs
from edgespec.control.fixed import Fixed
from edgespec.control.partner import Partner
from edgespec.control.shares import Shares
from edgespec.core import batch
from edgespec.core.acceptance import make_acceptance
from edgespec.core.batch import Part
from edgespec.core.batcher import Batcher
from edgespec.core.decode import Chooser, Decoding, decode
from edgespec.core.passes import LocalVerifier
from edgespec.core.sampling import Noise, Sampler
from edgespec.core.schedule import Offer, Schedule, TreeBudget
from edgespec.core.verify import Cancellation
from edgespec.drafters.ngram import NGram
from edgespec.errors import StorageError
from edgespec.runtimes.rows import Rows
from edgespec.runtimes.target import EVERY_LAYER, PassObserver
from edgespec.runtimes.torch.target import TorchTarget
from edgespec.schedules.serial import Plain, Serial
from tests.covering import covering
from tests.table_runtime import TableSeat, TableVerifier
from tests.tiny import open_tiny, write_checkpoint

CONTEXT = 200
BLOCK = 40  # rows of a prompt a pass: several blocks without long prompts


TARGETS = {
    f"{dtype}-{'streamed' if layers == 1 else 'resident'}": (dtype, layers)
    for dtype in ("float32", "bfloat16")
    for layers in (9, 1)
}


@pytest.fixture(scope="module", params=TARGETS.values(), ids=TARGETS)
def target(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TorchTarget[Any]]:
    dtype, layers = request.param
    path = write_checkpoint(tmp_path_factory.mktemp("batcher"), torch_dtype=dtype)
    target = open_tiny(path, pinned=lambda chunk: chunk.layer < layers, slots=64)
    yield target
    target.weights.close()


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "PREFILL_ROWS", BLOCK)


class Talk:
    """A member: what it says, up to `count` tokens, and in which passes it was asked and answered."""

    def __init__(self, decoding: Decoding, count: int, clock: Callable[[], int] = lambda: 0) -> None:
        self.decoding, self.count, self.clock = decoding, count, clock
        self.said: list[int] = []
        self.asked: list[int] = []
        self.answered: list[int] = []

    def ask(self) -> Part:
        self.asked.append(self.clock())
        return self.decoding.ask()

    def answer(self, part: Part) -> bool:
        self.answered.append(self.clock())
        cycle = self.decoding.answer(part)
        if cycle is not None:
            self.said += cycle.outcome.tokens
        elif self.decoding.root >= 0:
            self.said.append(self.decoding.root)
        return len(self.said) < self.count


def talk(verifier: Any, rng: np.random.Generator, seed: int, observer: PassObserver | None = None) -> Talk:
    """Of its own length, prompt, sampling, seed and trees (n-grams', of a text that repeats itself)."""
    prompt = np.tile(rng.integers(0, 160, rng.integers(1, 30)), 4)[: rng.integers(1, 100)].tolist()
    options = GenerationOptions(temperature=float(rng.choice([0.0, 0.9])), seed=seed)
    chooser = Chooser(Sampler(options), Noise(seed), make_acceptance(None, options))
    fixed = Fixed(TreeBudget(int(rng.integers(1, 9)), 4, 0))
    sharing = getattr(verifier, "allotter", None)
    whole = rng.random() < 0.2 or sharing is None
    controller = fixed if whole else Partner(sharing)
    schedule: Schedule = Serial(NGram(), controller, 8) if rng.random() < 0.7 else Plain()
    count = int(rng.integers(1, 25))
    if isinstance(controller, Partner):  # trees lie where the rest of the reply will be
        seat = verifier.new_seat(len(prompt) + count, slots=0)
    else:
        seat = verifier.new_seat(CONTEXT)
    return Talk(Decoding(verifier, seat, prompt, chooser, schedule, count, observer), count)


class Counting(Shares):
    """Drafts that were verified, and that were not. Its passes take no time, so that many are."""

    drafts = left_out = 0

    def allot(self, offers: Sequence[Offer], most: Sequence[int], others: int, room: int) -> list[Any]:
        free = [replace(offer, seconds=0.0) for offer in offers]
        kept = super().allot(free, most, others, min(room, 6))
        self.drafts += sum(map(len, kept)) - len(kept)
        self.left_out += sum(len(offer.gains) for offer in offers) - sum(map(len, kept))
        return kept

    def record(self, offers: Sequence[Offer], rows: int, tokens: int, seconds: float, prompts: bool) -> None:
        super().record([replace(offer, seconds=0.0) for offer in offers], rows, tokens, 1e-3, prompts)


def alone(verifier: Any, seed: int) -> list[int]:
    """What `talk` of this seed says by itself, in passes of its own, which are nobody else's to share out."""
    member = talk(LocalVerifier(verifier.target), np.random.default_rng(seed), seed)
    for cycle in decode(member.decoding):
        member.said += [*cycle.tree.tokens[:1].tolist(), *cycle.outcome.tokens][bool(member.said) :]
        if len(member.said) >= member.count:
            break
    return member.said[: member.count]


@pytest.mark.parametrize(
    ("target", "how"),
    covering(TARGETS, {"whole": (False, False), "shared": (True, False), "patient": (True, True)}),
    indirect=["target"],
    scope="module",
)
def test_whoever_joins_and_leaves_each_says_what_it_says_alone(
    target: TorchTarget[Any], how: tuple[bool, bool]
) -> None:
    """Prompts of one to three blocks among trees of others; some wait for room, which 90 rows a pass are not
    always. Trees are verified whole, or the best nodes of all. Prompts may go through their layers in several
    passes."""
    shared, patient = how
    target.pass_rows = 90
    sharing = Counting(Costs()) if shared else None
    verifier, rng = LocalVerifier(target, sharing), np.random.default_rng(7)
    batcher, joining = Batcher[Talk](verifier, patient), deque(range(15))
    members, most, mixed, rested = dict[int, Talk](), 0, 0, 0
    compute = verifier.compute

    def computing(parts: Sequence[Part]) -> Sequence[Part]:
        nonlocal mixed, rested
        taken = compute(parts)
        rested += any(part.until is not None for part in taken)
        mixed += len({type(part) for part in taken}) == 2
        return taken

    verifier.compute = computing  # type: ignore[method-assign]
    while joining or len(batcher):
        while joining and rng.random() < 0.5:
            seed = joining.popleft()
            members[seed] = talk(verifier, np.random.default_rng(seed), seed)
            batcher.join(members[seed])
        most = max(most, len(batcher))
        for member, error in batcher.step():
            assert error is None
            assert len(member.decoding.seat.parents) == 0
    assert most >= 6
    assert mixed >= 5
    assert (rested > 0) == patient
    if sharing is not None:
        assert sharing.drafts > 0
        assert sharing.left_out > 0
    for seed, member in members.items():
        assert member.said[: member.count] == alone(verifier, seed), seed


def test_a_newcomer_costs_the_others_no_pass(
    target: TorchTarget[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its prompt's two blocks go beside their trees, and its first token is there after two passes."""
    verifier, rows = LocalVerifier(target), list[int]()
    run = target.run

    def counting(hidden: torch.Tensor, some: Rows, *args: Any) -> torch.Tensor:
        rows.append(some.n)
        return run(hidden, some, *args)

    monkeypatch.setattr(target, "run", counting)
    chooser = Chooser(Sampler(GenerationOptions()), Noise(0), make_acceptance(None, GenerationOptions()))
    prompts = [[3, 5, 7], [2, 9], [4] * 71]
    seats = [verifier.new_seat(CONTEXT) for _ in prompts]
    members = [
        Talk(Decoding(verifier, seat, prompt, chooser, Plain(), 8), 8)
        for seat, prompt in zip(seats, prompts, strict=True)
    ]
    batcher = Batcher[Talk](verifier)
    for member in members[:2]:
        batcher.join(member)
    for _ in range(3):
        assert batcher.step() == []
    batcher.join(members[2])
    for passes in (4, 5):
        batcher.step()
        assert [len(member.said) for member in members] == [passes, passes, passes - 4]
    ended = []
    while len(batcher):
        ended += batcher.step()
    assert [member for member, _ in ended] == members
    assert rows == [5, 2, 2, 42, 33, 3, 3, 3, 1, 1, 1, 1]


class Layers:
    """An observer that hears each layer of its rows once, in ascending order, in whichever pass."""

    hears = EVERY_LAYER

    def __init__(self) -> None:
        self.heard: list[int] = []

    def on_chunk(self) -> None:
        pass

    def on_layer(self, index: int, hidden: torch.Tensor, rows: Rows) -> None:
        assert len(hidden) == rows.n
        assert len(rows.caches) == 1
        self.heard.append(index)

    def on_wait(self) -> bool:
        return False


def test_who_listens_hears_every_layer_beside_blocks_that_rest(target: TorchTarget[Any]) -> None:
    verifier = LocalVerifier(target)
    batcher, listeners, rested = Batcher[Talk](verifier, patient=True), list[Layers](), 0
    compute = verifier.compute

    def computing(parts: Sequence[Part]) -> Sequence[Part]:
        nonlocal rested
        taken = compute(parts)
        rested += any(part.until is not None for part in taken)
        return taken

    verifier.compute = computing  # type: ignore[method-assign]
    for seed in range(300, 306):
        listeners.append(Layers())
        batcher.join(talk(verifier, np.random.default_rng(seed), seed, listeners[-1]))
        batcher.step()
    while len(batcher):
        batcher.step()
    assert rested
    layers = [-1, *range(target.config.layers)]
    for listener in listeners:
        assert listener.heard == layers * (len(listener.heard) // len(layers))


class Fails:
    """An observer that ends its conversation."""

    hears = EVERY_LAYER

    def __init__(self, how: str) -> None:
        self.how, self.layers, self.flag = how, 0, Cancellation()

    def on_chunk(self) -> None:
        self.flag.check()

    def on_layer(self, index: int, hidden: torch.Tensor, rows: Rows) -> None:
        self.layers += 1
        if self.layers == 20:
            if self.how == "cancelled":
                self.flag.cancel()
            else:
                raise ValueError("cannot hear")

    def on_wait(self) -> bool:
        return False


@pytest.mark.parametrize(
    ("target", "how"),
    covering(TARGETS, ("cancelled", "observer", "ask", "answer", "NaN")),
    indirect=["target"],
    scope="module",
)
def test_one_that_ends_harms_no_other(target: TorchTarget[Any], how: str) -> None:
    verifier = LocalVerifier(target, Counting(Costs()))
    seeds, batcher = range(100, 105), Batcher[Talk](verifier)
    observer = Fails(how) if how in ("cancelled", "observer") else None
    members = {
        seed: talk(verifier, np.random.default_rng(seed), seed, observer if seed == 102 else None)
        for seed in seeds
    }
    victim = members[102]
    victim.count = 150
    for member in members.values():
        batcher.join(member)
    if how in ("ask", "answer"):
        usual, calls = getattr(victim, how), iter(range(99))

        def fails(*arguments: Any) -> Any:
            if next(calls) == 3:
                raise ValueError("no more")
            return usual(*arguments)

        setattr(victim, how, fails)
    ended, steps = dict[int, BaseException | None](), 0
    while len(batcher):
        steps += 1
        if how == "NaN" and steps == 4:
            victim.decoding.seat.v[:, :, 0] = torch.nan
        for member, error in batcher.step():
            ended[next(seed for seed, m in members.items() if m is member)] = error
    kinds = {"cancelled": "Cancelled", "NaN": "ModelError"}
    assert type(ended.pop(102)).__name__ == kinds.get(how, "ValueError")
    assert set(ended.values()) == {None}
    assert len(victim.decoding.seat.parents) == 0
    for seed in ended:
        assert members[seed].said[: members[seed].count] == alone(verifier, seed), seed
    expected = alone(verifier, 102)
    assert victim.said[: len(expected)] == expected[: len(victim.said)]


def test_what_the_disk_says_ends_the_step_and_nobody(
    target: TorchTarget[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the disk is back, all of them go on."""
    verifier, batcher = LocalVerifier(target), Batcher[Talk](LocalVerifier(target))
    members = [talk(verifier, np.random.default_rng(seed), seed) for seed in (200, 201, 202)]
    for member in members:
        batcher.join(member)
    batcher.step()
    with monkeypatch.context() as patched:

        def away(*arguments: Any) -> Any:
            raise StorageError("the disk went away")

        patched.setattr(target, "run", away)
        with pytest.raises(StorageError):
            batcher.step()
    while len(batcher):
        batcher.step()
    for seed, member in zip((200, 201, 202), members, strict=True):
        assert member.said[: member.count] == alone(verifier, seed)


# --- fairness ----------------------------------------------------------------------------------------------


class Narrow(TableVerifier):
    """Has room for `rows` a pass; the first part is always taken. Counts passes."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.rows, self.passes = rows, 0

    def compute(self, parts: Sequence[Part]) -> Sequence[Part]:
        self.passes += 1
        room, taken = self.rows, list[Part]()
        for part in parts:
            if not taken or len(part) <= room:
                room -= len(part)
                taken.append(part)
        return super().compute(taken)


def test_nobody_starves() -> None:
    """Members whose parts fill a pass each, among many small ones that keep coming: who waits is passed over
    by those alone who came before it, so it waits for no more passes than there are of them."""
    verifier, rng = Narrow(rows=50), np.random.default_rng(0)
    batcher = Batcher[Talk](verifier)
    chooser = Chooser(Sampler(GenerationOptions()), Noise(0), make_acceptance(None, GenerationOptions()))
    seen, large, waits = list[Talk](), list[Talk](), list[int]()
    for step in range(600):
        while step < 100 and len(batcher) < 20:
            big = rng.random() < 0.2
            seat = TableSeat(10**6)
            prompt = rng.integers(0, 12, BLOCK * 20 if big else 2).tolist()
            decoding = Decoding(verifier, seat, prompt, chooser, Plain(), 30)
            member = Talk(decoding, 3 if big else int(rng.integers(5, 30)), lambda: verifier.passes)
            (large if big else seen).append(member)
            batcher.join(member)
        batcher.step()
    assert not len(batcher)
    for member in seen + large:
        # Asked before a pass, answered behind it.
        waits += [answered - asked - 1 for asked, answered in zip(member.asked, member.answered, strict=True)]
    assert len(large) > 10
    assert 0 < max(waits) < 20
    assert all(len(m.said) == m.count for m in seen + large)
