"""Conversations that share passes: each has the bits of passes of its own, whatever becomes of the others."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise, zip_longest
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch

from edgespec.core import batch, decode, passes
from edgespec.core.acceptance import Acceptance, Greedy, Logits, Outcome
from edgespec.core.batch import Part, PrefillBlock, Verification, blocks
from edgespec.core.observers import FanOut
from edgespec.core.passes import LocalVerifier
from edgespec.core.sampling import Noise
from edgespec.core.tree import TokenTree
from edgespec.core.verify import Cancellation
from edgespec.errors import BusyError, Cancelled, ContextError, ModelError, StorageError
from edgespec.kernels.matmul import STORED, Block, linear, ragged
from edgespec.offload.chunks import stored_bytes
from edgespec.runtimes.rows import Rows
from edgespec.runtimes.target import EVERY_LAYER, NO_LAYER, Layers
from edgespec.runtimes.torch.kv_cache import TorchKVCache
from edgespec.runtimes.torch.target import TorchTarget
from tests.sessions import WAIT, in_threads, wait_for
from tests.test_decode import AllLogits, random_tree
from tests.tiny import fill, greedily, open_tiny, prefill, verify, write_checkpoint

LAYERS = 3


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def target(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TorchTarget[Any]]:
    path = write_checkpoint(tmp_path_factory.mktemp("passes"), torch_dtype=request.param)
    target = open_tiny(path, pinned=lambda chunk: chunk.layer < 1, slots=64)
    yield target
    target.weights.close()


@pytest.fixture
def run_rows(target: TorchTarget[Any], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of every pass."""
    counted: list[int] = []
    run = target.run

    def counting(hidden: torch.Tensor, rows: Rows, *args: Any) -> torch.Tensor:
        counted.append(rows.n)
        return run(hidden, rows, *args)

    monkeypatch.setattr(target, "run", counting)
    return counted


class Heard:
    """A part's observer: what it heard, and what `act` does at each layer."""

    hears: Layers = EVERY_LAYER

    def __init__(self, act: Callable[[int], None] = lambda layer: None) -> None:
        self.act, self.flag = act, Cancellation()
        self.hidden: list[torch.Tensor] = []

    def on_chunk(self) -> None:
        self.flag.check()

    def on_layer(self, index: int, hidden: torch.Tensor, rows: Rows) -> None:
        assert (len(rows.caches), rows.n) == (1, len(hidden))
        if index >= 0:
            self.hidden.append(hidden.clone())
        self.act(index)

    def on_wait(self) -> bool:
        return False


class Lists(LocalVerifier):
    """Computes lists of prompts, and of trees, to their ends."""

    def all(self, parts: Sequence[Part]) -> None:
        left = list(parts)
        while left:
            taken = self.compute(left)
            left = [part for part in left if part not in taken]
        for part in parts:
            part.raise_error()

    def prefill(
        self, prompts: Sequence[tuple[TorchKVCache, Sequence[int]]], observer: Heard | None = None
    ) -> list[Logits]:
        cut = [list(blocks(seat, tokens, observer)) for seat, tokens in prompts]
        for step in zip_longest(*cut):  # the blocks of one prompt come one after the other
            self.all([part for part in step if part is not None])
        return [own[-1].result() for own in cut]

    def verify(
        self,
        trees: Sequence[tuple[TorchKVCache, TokenTree, Noise]],
        acceptance: Acceptance,
        observer: Heard | None = None,
    ) -> list[Outcome]:
        parts = [
            Verification(seat, tree, acceptance, noise, observer=observer) for seat, tree, noise in trees
        ]
        self.all(parts)
        return [part.result() for part in parts]


def seats(target: TorchTarget[Any], lengths: list[int], capacity: int = 250) -> list[TorchKVCache]:
    caches = [target.new_cache(capacity) for _ in lengths]
    for seed, (cache, length) in enumerate(zip(caches, lengths, strict=True)):
        if length:
            fill(target, cache, np.random.default_rng(seed).integers(0, 160, length))
    return caches


def in_one_turn(verifier: Lists, calls: list[Callable[[], Any]]) -> list[Any]:
    """As `in_threads`, where all wait for the same turn."""

    def started(count: int) -> None:
        wait_for(lambda: len(verifier._waiting) == count)

    found = in_threads(calls, verifier.turn, started)
    assert not verifier._waiting
    assert free(verifier)
    return found


def test_who_goes_first_waits_for_the_turn_under_way_alone(target: TorchTarget[Any]) -> None:
    """Whoever asks for a turn after it has begun to wait gets one after it."""
    verifier, order = Lists(target), list[str]()

    def first() -> None:
        with verifier.first():
            order.append("first")

    def later() -> None:
        with verifier.turn:
            order.append("later")

    threads = [threading.Thread(target=work) for work in (first, *[later] * 5)]
    with verifier.turn:
        threads[0].start()
        wait_for(lambda: verifier._gate.locked())
        for thread in threads[1:]:
            thread.start()
        time.sleep(0.05)
    for thread in threads:
        thread.join(WAIT)
        assert not thread.is_alive()
    assert order == ["first"] + ["later"] * 5
    with verifier.turn, pytest.raises(BusyError), verifier.first():
        pass
    assert free(verifier)


def free(verifier: Lists) -> bool:
    """Nobody has the turn, this thread neither (BusyError)."""
    taken = verifier.turn.acquire(blocking=False)
    if taken:
        verifier._turn.release()
    return taken


def same(a: TorchKVCache, b: TorchKVCache) -> bool:
    assert len(a.parents) == len(b.parents) == 0
    pairs = [pair for layer in range(LAYERS) for pair in zip(a.view(layer), b.view(layer), strict=True)]
    return a.length == b.length and all(torch.equal(x, y) for x, y in pairs)


def heard_alike(ours: list[Heard], theirs: list[Heard]) -> bool:
    pairs = zip(ours, theirs, strict=True)
    return all(
        torch.equal(x, y) for a, b in pairs for x, y in zip(a.hidden, b.hidden, strict=True) if len(a.hidden)
    )


def test_prompts_in_one_pass_have_the_bits_of_their_own(
    target: TorchTarget[Any], run_rows: list[int]
) -> None:
    """Of lengths for which a matmul takes other ways (one row, few, remainders), behind prefixes or not."""
    lengths, starts = [1, 7, 64, 33, 130], [0, 61, 3, 0, 20]
    prompts = [np.random.default_rng(n).integers(0, 160, n).tolist() for n in lengths]
    alone, shared, threaded = (seats(target, starts) for _ in range(3))
    ours, theirs = [Heard() for _ in prompts], [Heard() for _ in prompts]
    expected = [prefill(target, *job) for job in zip(alone, prompts, theirs, strict=True)]
    verifier = Lists(target)
    run_rows.clear()
    found = verifier.prefill(list(zip(shared, prompts, strict=True)))
    calls = [
        partial(verifier.prefill, [job], heard) for *job, heard in zip(threaded, prompts, ours, strict=True)
    ]
    again = [one for (one,) in in_one_turn(verifier, calls)]
    assert run_rows == [sum(lengths)] * 2
    for logits in (found, again):
        assert all(np.array_equal(a, b) for a, b in zip(logits, expected, strict=True))
    assert all(same(a, b) for caches in (shared, threaded) for a, b in zip(caches, alone, strict=True))
    assert heard_alike(ours, theirs)
    assert [len(heard.hidden) for heard in ours] == [LAYERS] * len(lengths)


def test_prompts_and_trees_in_one_pass_have_the_bits_of_their_own(
    target: TorchTarget[Any], run_rows: list[int]
) -> None:
    """Blocks of more rows than few (`kernels.matmul.FEW`) among them; whoever came first."""
    lengths, sizes = [1, 7, 300, 33], [20, 1, 9]
    prompts = [np.random.default_rng(n).integers(0, 160, n).tolist() for n in lengths]
    trees, starts = trees_of(sizes), [0, 61, 3, 20, 70, 5, 128]
    alone, shared = (seats(target, starts, 400) for _ in range(2))
    theirs, ours = ([AllLogits() for _ in trees] for _ in range(2))
    heard, expected_heard = ([Heard() for _ in starts] for _ in range(2))
    expected = [prefill(target, *job) for job in zip(alone, prompts, expected_heard, strict=False)]
    for *job, observer in zip(alone[4:], trees, theirs, expected_heard[4:], strict=True):
        verify(target, [Verification(*job, Noise(0), observer=observer)], observer)
    verifier = Lists(target)
    asked = zip(shared, prompts, heard, strict=False)
    calls: list[Callable[[], Any]] = [partial(verifier.prefill, [(c, p)], h) for c, p, h in asked]
    judging = zip(shared[4:], trees, ours, heard[4:], strict=True)
    calls[1:1] = [partial(judged, verifier, *job) for job in judging]
    run_rows.clear()
    found = in_one_turn(verifier, calls)
    assert run_rows == [sum(lengths) + sum(sizes)]
    outcomes = found[1:4]
    assert [outcome.beside for outcome in outcomes] == [run_rows[0] - size for size in sizes]
    for (logits,), row in zip(found[:1] + found[4:], expected, strict=True):
        assert np.array_equal(logits, row)
    assert all(np.array_equal(a.logits, b.logits) for a, b in zip(ours, theirs, strict=True))
    assert all(same(a, b) for a, b in zip(shared, alone, strict=True))
    assert heard_alike(heard, expected_heard)
    assert [len(h.hidden) for h in heard] == [LAYERS] * len(starts)


@pytest.mark.parametrize("encoding", ["F32", "BF16", "F16", "I8", "U8", "Q4_K"])
@pytest.mark.parametrize("sizes", [(0, 5, 300), (3, 1, 40, 257), (1, 256), (70, 300)])
def test_rows_of_a_ragged_matmul_have_the_bits_of_calls_of_their_own(
    encoding: str, sizes: tuple[int, ...]
) -> None:
    """Trees' rows, and behind them blocks of prompts, short ones first."""
    rng, inner, rows = np.random.default_rng(0), 256, 40
    nbytes = stored_bytes(encoding, (rows, inner))
    data = torch.from_numpy(rng.integers(0, 256, nbytes, dtype=np.uint8))
    if encoding in STORED and encoding != "I8":
        data = torch.from_numpy(rng.standard_normal((rows, inner))).to(STORED[encoding]).view(torch.uint8)
    scale = torch.rand(rows, generator=torch.Generator().manual_seed(0)) if encoding in ("I8", "U8") else None
    if encoding == "Q4_K":
        data = data.view(-1, 144)
        data[:, :4] = torch.tensor([0, 32, 0, 32], dtype=torch.uint8)  # two half numbers: block scales
    block = Block.of_bytes(encoding, data.flatten(), rows, inner, scale)
    dtype = {"F32": torch.float32, "F16": torch.float16}.get(encoding, torch.bfloat16)
    x = torch.from_numpy(rng.standard_normal((sum(sizes), inner))).to(dtype)
    ends = np.cumsum(sizes).tolist()
    spans = [range(a, b) for a, b in pairwise(ends)]
    own = [linear(x[: sizes[0]], block, exact=True)] if sizes[0] else []
    own += [linear(x[s.start : s.stop], block, exact=False) for s in spans]
    assert bool(torch.isfinite(torch.cat(own)).all())
    assert torch.equal(ragged(x, block, spans), torch.cat(own))


def test_a_long_prompt_is_cut_as_ever_beside_others(
    target: TorchTarget[Any], run_rows: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "PREFILL_ROWS", 40)
    monkeypatch.setattr(target, "pass_rows", 64)
    prompts = [np.random.default_rng(n).integers(0, 160, n).tolist() for n in (100, 20, 55)]
    alone, shared = (seats(target, [0, 0, 0]) for _ in range(2))
    expected = [prefill(target, cache, prompt) for cache, prompt in zip(alone, prompts, strict=True)]
    run_rows.clear()
    found = Lists(target).prefill(list(zip(shared, prompts, strict=True)))
    assert run_rows == [60, 40, 55, 20]  # 40+20, 40 | 40+15 | 20
    assert all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))
    assert all(same(a, b) for a, b in zip(shared, alone, strict=True))


def judged(
    verifier: Lists,
    cache: TorchKVCache,
    tree: TokenTree,
    acceptance: Acceptance,
    observer: Heard | None = None,
) -> Outcome:
    """One seat's tree."""
    (outcome,) = verifier.verify([(cache, tree, Noise(0))], acceptance, observer)
    return outcome


def trees_of(sizes: list[int]) -> list[TokenTree]:
    rng = np.random.default_rng(0)
    return [random_tree(rng, n) for n in sizes]


def test_trees_that_wait_share_a_pass(target: TorchTarget[Any], run_rows: list[int]) -> None:
    """As many as the ledger has rows for, in the order in which they came."""
    trees = trees_of([20, 30, 40, 9, 3])
    alone, shared = (seats(target, [61, 5, 130, 64, 70]) for _ in range(2))
    theirs, ours = ([AllLogits() for _ in trees] for _ in range(2))
    heard = [Heard() for _ in trees]
    for job in zip(alone, trees, theirs, strict=True):
        verify(target, [Verification(*job, Noise(0))])
    verifier = Lists(target)
    run_rows.clear()
    jobs = zip(shared, trees, ours, heard, strict=True)
    outcomes = in_one_turn(verifier, [partial(judged, verifier, *job) for job in jobs])
    assert run_rows == [62, 40]
    assert [outcome.beside for outcome in outcomes] == [42, 32, 0, 53, 59]
    assert all(outcome.seconds > 0 for outcome in outcomes)
    assert all(np.array_equal(a.logits, b.logits) for a, b in zip(ours, theirs, strict=True))
    assert all(same(a, b) for a, b in zip(shared, alone, strict=True))


class Fails:
    name, lossless = "fails", False

    def walk(self, *args: Any) -> Any:
        raise ValueError("cannot walk")


def raises(error: BaseException) -> Callable[[int], None]:
    def act(layer: int) -> None:
        if layer == 1:
            raise error

    return act


def raiser(error: BaseException) -> Callable[..., Any]:
    def fail(*args: Any) -> Any:
        raise error

    return fail


@pytest.mark.parametrize("place", [0, 2])  # of the thread that runs the pass, and of another
@pytest.mark.parametrize(
    "what", ["cancelled", "observer", "leaves", "acceptance", "NaN", "no room", "no slots"]
)
def test_one_part_ends_alone(target: TorchTarget[Any], run_rows: list[int], what: str, place: int) -> None:
    lengths = [61, 5, 130]
    lengths[place] = 250 if what == "no room" else lengths[place]
    trees = trees_of([20, 30, 1])
    alone, shared = (seats(target, lengths) for _ in range(2))
    heard = [Heard() for _ in trees]
    errors = {
        "cancelled": Cancelled("no more"),
        "observer": ValueError("cannot hear"),
        "leaves": SystemExit(3),
    }
    if what in errors:
        heard[place] = Heard(raises(errors[what]))
    expected, ours = [AllLogits() for _ in trees], [AllLogits() for _ in trees]
    judges: list[Acceptance] = [
        Fails() if what == "acceptance" and i == place else j for i, j in enumerate(ours)
    ]
    if what == "NaN":
        for caches in (alone, shared):
            caches[place].v[:, :, : lengths[place]] = torch.nan
    for i, job in enumerate(zip(alone, trees, expected, strict=True)):
        if i != place:
            verify(target, [Verification(*job, Noise(0))])
    if what == "no slots":
        shared[place].append = raiser(ContextError("full"))  # type: ignore[method-assign]
    verifier = Lists(target)
    run_rows.clear()
    jobs = zip(shared, trees, judges, heard, strict=True)
    found = in_one_turn(verifier, [partial(judged, verifier, *job) for job in jobs])
    assert run_rows == [51 - len(trees[place]) * (what == "no slots")]
    kinds = {"acceptance": ValueError, "NaN": ModelError, "no room": ContextError, "no slots": ContextError}
    assert type(found[place]) is kinds.get(what, type(errors.get(what)))
    assert (shared[place].length, len(shared[place].parents)) == (lengths[place], 0)
    for i in {0, 1, 2} - {place}:
        assert np.array_equal(ours[i].logits, expected[i].logits)
        assert same(shared[i], alone[i])
        assert len(heard[i].hidden) == LAYERS


def test_a_pass_ends_when_nobody_is_left(target: TorchTarget[Any]) -> None:
    caches, heard = seats(target, [5, 9]), [Heard(raises(Cancelled("no more"))) for _ in range(2)]
    verifier = Lists(target)
    jobs = zip(caches, trees_of([3, 4]), [Greedy()] * 2, heard, strict=True)
    found = in_one_turn(verifier, [partial(judged, verifier, *job) for job in jobs])
    assert [str(error) for error in found] == ["no more"] * 2
    assert [len(h.hidden) for h in heard] == [2, 2]
    assert [(c.length, len(c.parents)) for c in caches] == [(5, 0), (9, 0)]


def test_what_the_disk_says_concerns_all(target: TorchTarget[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    caches, verifier = seats(target, [5, 9]), Lists(target)
    monkeypatch.setattr(target, "run", raiser(StorageError("the disk went away")))
    jobs = zip(caches, trees_of([3, 4]), [Greedy()] * 2, strict=True)
    found = in_one_turn(verifier, [partial(judged, verifier, *job) for job in jobs])
    assert [type(error) for error in found] == [StorageError] * 2
    assert [(c.length, len(c.parents)) for c in caches] == [(5, 0), (9, 0)]


@pytest.mark.parametrize("place", [0, 1])  # who would run the next pass, and who waits for it
def test_who_waits_for_a_turn_hears_that_it_is_cancelled(target: TorchTarget[Any], place: int) -> None:
    caches, heard, verifier = seats(target, [5, 9]), [Heard(), Heard()], Lists(target)
    found: list[Any] = [None, None]

    def run(i: int) -> None:
        try:
            found[i] = judged(verifier, caches[i], trees_of([3, 4])[i], Greedy(), heard[i])
        except Cancelled as error:
            found[i] = error

    threads = [threading.Thread(target=run, args=(i,)) for i in range(2)]
    with verifier.turn:
        for count, thread in enumerate(threads, start=1):
            thread.start()
            wait_for(lambda count=count: len(verifier._waiting) == count)  # type: ignore[misc]
        heard[place].flag.cancel()
        threads[place].join(WAIT)
        assert isinstance(found[place], Cancelled)
        assert found[1 - place] is None
    threads[1 - place].join(WAIT)
    assert found[1 - place].path[0] == 0
    assert [len(h.hidden) for h in heard] == [LAYERS * (i != place) for i in range(2)]


# --- Ctrl-C -----------------------------------------------------------------------------------------------

WHERE = {str(module.__file__) for module in (passes, batch, decode)}


class Interrupt:
    """KeyboardInterrupt at the nth moment at which Python would deliver a signal to these modules."""

    def __init__(self, nth: int) -> None:
        self.left = nth

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        # What is raised where a generator is let go is lost, whoever raises it.
        let_go = frame.f_code.co_name == "<genexpr>"
        if event in ("call", "return", "c_return") and frame.f_code.co_filename in WHERE and not let_go:
            self.left -= 1
            if self.left < 0:
                sys.setprofile(None)
                raise KeyboardInterrupt


def text(verifier: Lists, cache: TorchKVCache, prompt: list[int], count: int) -> list[int]:
    cache.truncate(0)
    loop, said = decode.decode(greedily(verifier, cache, prompt, Heard())), list[int]()
    while len(said) < count:
        cycle = next(loop)
        said += [*cycle.tree.tokens.tolist(), *cycle.outcome.tokens][bool(said) :]
    loop.close()
    return said


def interrupted(nth: int, work: Callable[[], Any]) -> int:
    """Returns how many moments there were, if they were fewer."""
    interrupt = Interrupt(nth)
    sys.setprofile(interrupt)
    try:
        work()
    finally:
        sys.setprofile(None)
    return nth - interrupt.left


def test_ctrl_c_anywhere_harms_neither_its_conversation_nor_another_thread(target: TorchTarget[Any]) -> None:
    assert threading.current_thread() is threading.main_thread()
    prompts, verifier = [[5, 6, 7], [8, 9]], Lists(target)
    main, other = seats(target, [0, 0])
    expected = [text(verifier, cache, p, 4) for cache, p in zip((main, other), prompts, strict=True)]
    wrong: list[Any] = []
    over = threading.Event()

    def work() -> None:
        try:
            while not over.is_set():
                if (said := text(verifier, other, prompts[1], 4)) != expected[1]:
                    wrong.append(said)
        except BaseException as error:
            wrong.append(error)

    moments = interrupted(10**9, partial(text, verifier, main, prompts[0], 4))
    assert moments > 200
    thread = threading.Thread(target=work)
    thread.start()
    try:
        first = 0 if target.dtype == torch.float32 else 5  # other moments for each type
        for nth in range(first, moments, moments // 20):
            with pytest.raises(KeyboardInterrupt):
                interrupted(nth, partial(text, verifier, main, prompts[0], 4))
            assert len(main.parents) == 0, f"after an interrupt at moment {nth}"
            assert text(verifier, main, prompts[0], 4) == expected[0], f"after an interrupt at moment {nth}"
    finally:
        over.set()
        thread.join(WAIT)
    assert not thread.is_alive()
    assert not wrong
    assert free(verifier)


def test_ctrl_c_in_a_pass_of_several_seats_of_the_main_thread(target: TorchTarget[Any]) -> None:
    """Of one caller: all of them go back, whoever's observer was running."""
    caches, trees = seats(target, [5, 9]), trees_of([3, 4])
    turns = iter([False, False, False, True])  # two seats, and the second one's second layer

    def act(layer: int) -> None:
        if next(turns):
            raise KeyboardInterrupt

    verifier = Lists(target)
    with pytest.raises(KeyboardInterrupt):
        verifier.verify([(c, t, Noise(0)) for c, t in zip(caches, trees, strict=True)], Greedy(), Heard(act))
    assert next(turns, None) is None
    assert [(c.length, len(c.parents)) for c in caches] == [(5, 0), (9, 0)]
    assert free(verifier)


def test_a_wait_is_one_unit_of_one_part(target: TorchTarget[Any]) -> None:
    """The parts take turns, those that have nothing to do or have failed are passed over."""
    said: list[int] = []

    class Working(Heard):
        def __init__(self, name: int, units: int) -> None:
            super().__init__()
            self.name, self.units = name, units

        def on_wait(self) -> bool:
            self.units -= 1
            if self.units >= 0:
                said.append(self.name)
            elif self.name == 3:
                raise ValueError("no more")
            return self.units >= 0

    heard = [Working(name, units) for name, units in ((0, 3), (1, 0), (2, 2), (3, 1))]
    parts = [PrefillBlock(target.new_cache(20), [1], observer=observer) for observer in heard]
    waits = FanOut(parts)
    assert [waits.on_wait() for _ in range(8)] == [True] * 6 + [False] * 2
    assert said == [0, 2, 3, 0, 2, 0]
    assert [part.error is None for part in parts] == [True, True, True, False]


def test_each_is_told_of_the_layers_that_it_hears(target: TorchTarget[Any]) -> None:
    caches, heard = seats(target, [5, 9, 3]), [Heard() for _ in range(3)]
    heard[1].hears, heard[2].hears = NO_LAYER, frozenset({-1, 1, LAYERS + 5})
    verifier = Lists(target)
    jobs = zip(caches, trees_of([3, 4, 2]), [Greedy()] * 3, heard, strict=True)
    found = in_one_turn(verifier, [partial(judged, verifier, *job) for job in jobs])
    assert [outcome.beside for outcome in found] == [6, 5, 7]
    assert [[len(hidden) for hidden in own.hidden] for own in heard] == [[3] * LAYERS, [], [2]]
