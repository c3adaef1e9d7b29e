"""Growing trees on any runtime: parts of passes, what an outcome keeps, room for several roots, no torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from edgespec.config import GenerationOptions
from edgespec.core.acceptance import Outcome
from edgespec.core.sampling import Noise, Sampler
from edgespec.core.schedule import Context, TreeBudget
from edgespec.core.tree import TokenTree
from edgespec.drafters.base import Drafting, Root
from edgespec.drafters.continuations import likeliest
from edgespec.drafters.model import ModelDrafter
from tests.table_runtime import VOCABULARY, TableRuntime, with_drafts

PROMPT = [3, 1, 4, 1, 5]
WHOLE = TreeBudget(12, 3, 16)  # more passes than the best tree of that size takes


def drafter_of(context: Context | None = None, **options: int) -> tuple[ModelDrafter, TableRuntime]:
    runtime = TableRuntime(**options)
    drafter = ModelDrafter(runtime, VOCABULARY)
    drafter.prefill(context or Context(PROMPT))
    return drafter, runtime


def drain(drafting: Drafting) -> int:
    steps = 0
    while drafting.step():
        steps += 1
    return steps


def alike(a: TokenTree, b: TokenTree) -> bool:
    return all(
        np.array_equal(getattr(a, name), getattr(b, name)) for name in ("tokens", "parents", "logprobs")
    )


def test_a_runtime_without_torch_drafts() -> None:
    """In a process that has none: serial growth, to the target's own text."""
    script = Path(__file__).with_name("table_runtime.py")
    run = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        cwd=script.parent.parent,
        env={**os.environ, "PYTHONPATH": str(script.parent.parent)},
    )
    assert run.returncode == 0, run.stderr
    said = json.loads(run.stdout)
    assert said["same"]
    assert said["accepted"] > 15
    same, accepted = with_drafts(noise=0.0)
    assert same
    assert accepted > 90  # of 120; the target's own table


@pytest.mark.parametrize("parts", [1, 4])
def test_a_step_is_a_part_of_a_pass(parts: int) -> None:
    drafter, runtime = drafter_of(parts=parts)
    drafting = drafter.start([Root((2,))], TreeBudget(40, 9, 3))
    assert drain(drafting) == 3 * parts
    drafter, other = drafter_of()
    drain(again := drafter.start([Root((2,))], TreeBudget(40, 9, 3)))
    assert alike(drafting.tree(), again.tree())
    assert runtime.slots == other.slots


@pytest.mark.parametrize("end", ["stop", "cancel", "commit"])
def test_what_was_drafted_below_an_outcome_is_not_run_again(end: str) -> None:
    """After `stop`; in the middle of a pass, too. After `cancel` all of it is."""
    drafter, runtime = drafter_of()
    tree = drafter.start([Root((2,))], WHOLE)
    drain(tree)
    a, b = tree.tree().tokens[tree.tree().path_to(int(np.argmax(tree.tree().depths)))][1:3].tolist()
    drafter, runtime = drafter_of()
    drafting = drafter.start([Root((2,)), Root((2, a, b), -0.1), Root((7, 7), -5.0)], WHOLE)
    for _ in range(7):  # two passes, and a part of the third
        assert drafting.step()
    if end != "commit":
        getattr(drafting, end)()
        assert not drafting.step()
    ran = runtime.ran
    drafter.commit(2, Outcome(np.array([0, 1]), (a, b)))
    kept = len(runtime.slots)
    assert drafter.tokens + drafter.tail == [*PROMPT, 2, a]
    assert (kept > 1) == (end == "stop")
    drafting = drafter.start([Root((b,))], WHOLE)
    drain(drafting)
    fresh, other = drafter_of(Context([*PROMPT, 2, a]))
    expected = fresh.start([Root((b,))], WHOLE)
    drain(expected)
    assert alike(drafting.tree(), expected.tree())
    tail = 2 if end == "cancel" else 0  # tokens that it follows again
    assert runtime.ran - ran == len(runtime.slots) - kept  # nothing twice
    assert len(set(runtime.slots)) == len(runtime.slots)
    assert runtime.ran - ran <= other.ran + tail - kept


def test_nothing_is_kept_where_the_outcome_was_not_foreseen() -> None:
    drafter, runtime = drafter_of()
    drafting = drafter.start([Root((2,)), Root((2, 6))], WHOLE)
    drain(drafting)
    drafting.stop()
    drafter.commit(2, Outcome(np.array([0, 1, 2, 3]), (6, 7, 8, 9)))
    assert runtime.slots == []
    assert drafter.tokens + drafter.tail == [*PROMPT, 2, 6, 7, 8]
    drafter.commit(9, Outcome(np.array([0]), (1,)))  # what was kept, or not, ends with the next outcome
    assert drafter.tokens + drafter.tail == [*PROMPT, 2, 6, 7, 8, 9]


def test_a_round_that_was_left_does_not_go_on() -> None:
    """Its half-done pass leaves no trace among the slots of the next."""
    drafter, _ = drafter_of()
    first = drafter.start([Root((2,))], WHOLE)
    for _ in range(4):
        first.step()
    second = drafter.start([Root((5,))], WHOLE)
    second.step()
    assert not first.step()
    del first
    drain(second)
    fresh, _ = drafter_of()
    expected = fresh.start([Root((5,))], WHOLE)
    drain(expected)
    assert alike(second.tree(), expected.tree())


def test_roots_that_find_no_room_stay_alone() -> None:
    """The likeliest outcomes are drafted for, in any order of roots; no pass is larger than its runtime."""
    rng = np.random.default_rng(1)
    logprobs = -rng.permutation(40).astype(float)
    roots = [Root((i % 11, i % 7, 3), float(logprob)) for i, logprob in enumerate(logprobs)]
    assert len({r.path for r in roots}) == 40
    drafter, runtime = drafter_of(rows=64)
    drafter.commit(9, Outcome(np.array([0]), (1,)))  # a tail
    drafting = drafter.start(roots, TreeBudget(6, 4, 16))
    drain(drafting)
    assert len(runtime.slots) <= 64
    sizes = [len(drafting.tree(i)) for i in range(40)]
    drafted = [root.logprob for root, size in zip(roots, sizes, strict=True) if size > 1]
    assert 10 < len(drafted) < 40
    assert min(drafted) <= -15  # some shared enough
    assert sorted(drafted, reverse=True)[:12] == [-float(i) for i in range(12)]


def test_likelier_outcomes_are_drafted_further() -> None:
    sizes = {}
    for logprobs in ((0.0, -9.0), (-9.0, 0.0), (-1.0, -1.0)):
        drafter, _ = drafter_of()
        drafting = drafter.start([Root((2, 3), logprobs[0]), Root((6, 7), logprobs[1])], TreeBudget(40, 9, 4))
        drain(drafting)
        sizes[logprobs] = [int(drafting.tree(i).depths.max()) for i in range(2)]
    assert sizes[0.0, -9.0] == [4, 1]
    assert sizes[-9.0, 0.0] == [1, 4]
    assert min(sizes[-1.0, -1.0]) > 1


def test_drawn_chains_of_several_roots_share_what_is_alike() -> None:
    context = Context(PROMPT, Sampler(GenerationOptions(temperature=1.0)), Noise(1), drawn=True)
    drafter, runtime = drafter_of(context)
    roots = [Root((2, 3)), Root((2, 3)), Root((6,))]
    drafting = drafter.start(roots, TreeBudget(6, 5, 5))
    drain(drafting)
    assert runtime.ran == 3 + 2 * 4  # two and three tokens of paths that share, and two chains
    for i, root in enumerate(roots):
        alone, _ = drafter_of(context)
        expected = alone.start([root], TreeBudget(6, 5, 5))
        drain(expected)
        assert alike(drafting.tree(i), expected.tree())
        assert len(drafting.tree(i)) == 6


@pytest.mark.parametrize("vocabulary", [3, 8, 9, 160, 5000])
def test_likeliest_is_topk(vocabulary: int) -> None:
    torch = pytest.importorskip("torch")
    rows = np.random.default_rng(0).standard_normal((20, vocabulary)).astype(np.float32) * 4
    tokens, logprobs = likeliest(rows, 8)
    top = torch.from_numpy(rows).topk(min(8, vocabulary), dim=1)
    assert tokens.tolist() == top.indices.tolist()
    exact = top.values.double() - torch.from_numpy(rows).double().logsumexp(1, keepdim=True)
    np.testing.assert_allclose(logprobs, exact.numpy(), atol=1e-6)


def test_likeliest_of_equal_ones_is_the_lowest_token() -> None:
    rows = np.zeros((3, 200), dtype=np.float32)
    rows[1, [150, 20, 30]] = 1.0
    rows[2, 100:] = -np.inf
    tokens, logprobs = likeliest(rows, 4)
    assert tokens.tolist() == [[0, 1, 2, 3], [20, 30, 150, 0], [0, 1, 2, 3]]
    np.testing.assert_allclose(logprobs[0], np.log(1 / 200))
    np.testing.assert_allclose(logprobs[2], np.log(1 / 100))


@pytest.mark.parametrize("damage", [np.nan, np.inf])
def test_likeliest_of_damaged_rows_is_nothing(damage: float) -> None:
    rows = np.zeros((2, 50), dtype=np.float32)
    rows[0, 49] = damage
    tokens, logprobs = likeliest(rows, 4)
    assert np.isneginf(logprobs[0]).all()
    assert np.isfinite(logprobs[1]).all()
    assert ((tokens >= 0) & (tokens < 50)).all()
    assert np.isneginf(likeliest(np.full((1, 9), -np.inf, dtype=np.float32), 4)[1]).all()
