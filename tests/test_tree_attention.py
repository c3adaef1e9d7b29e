"""Attention over a tree's paths: the right values, and a row's bits whatever is beside it, both ways."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from edgespec.kernels import compiled
from edgespec.kernels.tree_attention import BLOCK, Past, TreeAttention
from edgespec.runtimes.base import IntArray
from edgespec.runtimes.config import ModelConfig, Rope
from edgespec.runtimes.rows import Rows
from edgespec.runtimes.torch import attention
from edgespec.runtimes.torch.attention import AttentionPlan, ancestor_paths
from edgespec.runtimes.torch.kv_cache import TorchKVCache
from tests.test_half import levels

pytestmark = pytest.mark.usefixtures("best_level")
needs_library = pytest.mark.skipif(bool(compiled.unavailable()), reason=compiled.unavailable())

TYPES = tuple(compiled.SOURCES)
CPU = torch.device("cpu")


def normal(*shape: int, dtype: torch.dtype, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@dataclass
class Case:
    """A random tree of `n` rows behind `length` committed positions of one layer."""

    heads: int
    kv_heads: int
    e: int
    length: int
    n: int
    window: int | None
    dtype: torch.dtype

    def __post_init__(self) -> None:
        dice = np.random.default_rng(self.n)
        self.parents = np.array([-1, *(int(dice.integers(0, i)) for i in range(1, self.n))])
        self.cache = TorchKVCache(self.config(), self.length + 16, self.n, self.dtype, CPU)
        shape = self.cache.k.shape
        self.cache.k = normal(*shape, dtype=self.dtype, seed=1)
        self.cache.v = normal(*shape, dtype=self.dtype, seed=2)
        self.cache.length = self.length
        self.slots = self.cache.append(self.parents)
        self.q = normal(self.n, self.heads, self.e, dtype=self.dtype, seed=3)
        self.k = normal(self.n, self.kv_heads, self.e, dtype=self.dtype, seed=4)
        self.v = normal(self.n, self.kv_heads, self.e, dtype=self.dtype, seed=5)

    def config(self) -> ModelConfig:
        shape = 1, self.heads, self.kv_heads, self.e  # layers first
        return ModelConfig(
            "llama", self.heads * self.e, 8, *shape, 8, 4096, 1e-5, Rope(1e4), False, "float32"
        )

    def rows(self, some: IntArray) -> Rows:
        return Rows.of(self.cache, self.slots[some])

    def attend(self, some: IntArray) -> Tensor:
        """[rows, heads * e], of these rows of the tree only; the others' keys are there."""
        self.cache.write(0, self.cache.places(self.slots), self.k, self.v)
        plan = AttentionPlan(self.rows(some), CPU)
        return plan(0, self.q[some], self.k[some], self.v[some], self.window)

    def exact(self) -> Tensor:
        """The definition, in fp64."""
        group = self.heads // self.kv_heads
        k, v = (kv[0].double().repeat_interleave(group, 0) for kv in (self.cache.k, self.cache.v))
        seen = torch.zeros(self.n, k.shape[1], dtype=torch.bool)
        for row, path in enumerate(ancestor_paths(self.parents, np.arange(self.n))):
            places = [*range(self.length), *(self.length + slot for slot in path)]
            seen[row, places[-self.window :] if self.window else places] = True
        scores = torch.einsum("nhe,hpe->nhp", self.q.double(), k) * self.e**-0.5
        weights = scores.masked_fill(~seen[:, None], -torch.inf).softmax(-1)
        return torch.einsum("nhp,hpe->nhe", weights, v).flatten(1)


SHAPES = (
    (4, 2, 8, 70, 5, None),
    (4, 4, 128, 200, 33, None),
    (8, 2, 64, 130, 17, 100),
    (3, 1, 80, 10, 3, None),
    (32, 4, 64, 64, 1, None),
    (32, 1, 16, 5, 70, 4),  # a path longer than the prefix; more rows than queries are taken at a time
    (2, 2, 256, 500, 9, 77),
    (2, 1, 24, 0, 12, None),
    (40, 1, 16, 70, 3, None),  # more query heads than the library takes: torch
)


@pytest.fixture(params=["compiled", "torch"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """By the library, and without it."""
    if request.param == "torch":
        monkeypatch.setattr(attention, "suits", lambda kv: False)
    elif compiled.unavailable():
        pytest.skip(compiled.unavailable())
    return str(request.param)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_rows_attend_to_their_own_paths(
    way: str, shape: tuple[int, int, int, int, int, int | None], dtype: torch.dtype
) -> None:
    case = Case(*shape, dtype)
    whole = np.arange(case.n)
    found = case.attend(whole)
    tolerance = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
    assert found.dtype == dtype
    assert torch.allclose(found.double(), case.exact(), rtol=tolerance, atol=tolerance)
    if way == "torch" and dtype != torch.bfloat16:
        return  # those sizes of heads have classes of their own, which `kernels.row_class` knows
    for row in range(0, case.n, 7):
        assert torch.equal(case.attend(whole[row : row + 1])[0], found[row])
        assert torch.equal(case.attend(whole[row : row + 5])[0], found[row])


@needs_library
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_instructions_and_threads_change_no_bit(
    shape: tuple[int, int, int, int, int, int | None], dtype: torch.dtype
) -> None:
    case = Case(*shape, dtype)
    whole = np.arange(case.n)
    expected = case.attend(whole)
    threads = torch.get_num_threads()
    try:
        for level in levels():
            for count in (1, 3):
                torch.set_num_threads(count)
                assert torch.equal(case.attend(whole), expected), (level, count)
    finally:
        torch.set_num_threads(threads)


@needs_library
@pytest.mark.parametrize("dtype", TYPES)
def test_a_chain_is_what_decoding_one_by_one_gives(dtype: torch.dtype) -> None:
    """Drafted and then committed one by one, over the end of a block."""
    case = Case(4, 2, 64, 60, 9, None, dtype)
    case.parents = np.arange(-1, 8)
    case.cache.parents = np.empty(0, dtype=np.int64)
    case.slots = case.cache.append(case.parents)
    together = case.attend(np.arange(9))
    case.cache.parents = np.empty(0, dtype=np.int64)
    for row in range(9):
        slots = case.cache.append([-1])
        plan = AttentionPlan(Rows.of(case.cache, slots), CPU)
        one = slice(row, row + 1)
        assert torch.equal(plan(0, case.q[one], case.k[one], case.v[one], None)[0], together[row])
        case.cache.commit(slots)


@needs_library
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("place", [3, 150])
@pytest.mark.parametrize("which", ["q", "k", "v"])
def test_nan_is_not_lost(dtype: torch.dtype, place: int, which: str) -> None:
    """A damaged model is noticed by its NaN."""
    case = Case(4, 2, 64, 200, 3, None, dtype)
    if which == "q":
        case.q[1, 2, 5] = torch.nan
    else:
        getattr(case.cache, which)[0, 1, place, 5] = torch.nan
    found = case.attend(np.arange(3)).view(3, 4, 64)
    if which == "q":
        assert found[1, 2].isnan().all()
        found[1, 2] = 0
        assert not found.isnan().any()
    else:
        assert found[:, 2:, 5].isnan().all()
        assert not found[:, :2].isnan().any()


@needs_library
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("window", "place"), [(40, 140), (5, 193)])  # in the shared blocks and behind them
@pytest.mark.parametrize("damage", [torch.nan, torch.inf])
def test_what_lies_outside_a_window_is_not_heard(
    dtype: torch.dtype, window: int, place: int, damage: float
) -> None:
    """Though it is in a block of which a row sees the rest."""
    case = Case(4, 2, 64, 200, 3, window, dtype)
    rows = np.arange(3)
    expected = case.attend(rows)
    case.cache.k[0, 1, place] = damage
    case.cache.v[0, 1, place] = damage
    for _ in levels():
        assert torch.equal(case.attend(rows), expected)


@needs_library
@pytest.mark.parametrize("dtype", TYPES)
def test_scores_of_any_size(dtype: torch.dtype) -> None:
    """Where one key is all that counts, its value is the result; a row's first keys may weigh nothing."""
    case = Case(2, 1, 64, 130, 4, None, dtype)
    case.cache.k.zero_()
    case.cache.k[0, 0, 100] = 200
    case.q[:] = 8
    case.k[:] = 0
    found = case.attend(np.arange(4)).view(4, 2, 64)
    assert torch.equal(found, case.cache.v[0, 0, 100].expand_as(found))


@needs_library
def test_what_does_not_fit_is_refused() -> None:
    kv = torch.zeros(1, 2, 3 * BLOCK, 16)
    place, behind = np.zeros((1, BLOCK), dtype=np.int32), range(BLOCK, 2 * BLOCK)

    usual = Past((kv, kv), (kv, kv), behind, BLOCK, place, np.array([BLOCK]))
    TreeAttention([usual, usual])
    rows = np.arange(4 * BLOCK).reshape(2, -1)
    for change in (
        {"positions": np.array([2 * BLOCK])},  # has no place
        {"positions": np.array([BLOCK - 1])},
        {"positions": np.array([BLOCK, BLOCK])},
        {"positions": np.array([BLOCK], dtype=np.int32)},
        {"place": rows[:, ::2].astype(np.int32), "positions": rows[:, 0] % 2 + BLOCK},  # up to 254 of 64
        {"place": np.zeros((2, 2 * BLOCK), dtype=np.int32)[:, ::2], "positions": np.array([BLOCK, BLOCK])},
        {"place": place.astype(np.int64)},
        {"place": place + np.int32(BLOCK)},
        {"shared": BLOCK - 1},
        {"shared": 4 * BLOCK, "positions": np.array([4 * BLOCK])},
        {"behind": range(BLOCK, 4 * BLOCK)},
        {"behind": range(-1, BLOCK)},
    ):
        with pytest.raises(AssertionError):
            TreeAttention([usual, usual._replace(**change)])
    for other in (kv.double().to(torch.bfloat16), kv[:, :1], kv[..., :8], kv.transpose(2, 3)):
        with pytest.raises(AssertionError):  # of two types, or shapes
            TreeAttention([usual, usual._replace(prefix=(other, other), own=(other, other))])


@pytest.mark.parametrize("dtype", TYPES)
def test_rows_of_several_caches_are_what_each_gives_alone(way: str, dtype: torch.dtype) -> None:
    """Trees of any size behind prefixes of any length, in one call: outputs, and what is stored. Behind
    them is a prompt's block."""
    cases = [Case(4, 2, 40, length, n, None, dtype) for length, n in ((70, 5), (0, 1), (200, 33), (64, 1))]
    for window in (None, 50):
        alone = []
        for case in cases:
            whole = np.arange(case.n)
            plan = AttentionPlan(case.rows(whole), CPU)
            alone.append(plan(0, case.q, case.k, case.v, window))
            case.stored = case.cache.k.clone(), case.cache.v.clone()  # type: ignore[attr-defined]
            for kv in (case.cache.k, case.cache.v):
                kv[:, :, case.length :].zero_()
        tail = Case(4, 2, 40, 30, 7, None, dtype)
        tail.cache.truncate(30)
        block = Rows.append(tail.cache, np.arange(-1, 6), prefill=True)
        prompt = AttentionPlan(block, CPU)(0, tail.q, tail.k, tail.v, window)
        rows = Rows.concat([*(case.rows(np.arange(case.n)) for case in cases), block])
        q, k, v = (torch.cat([getattr(c, name) for c in (*cases, tail)]) for name in "qkv")
        together = AttentionPlan(rows, CPU)(0, q, k, v, window)
        assert torch.equal(together, torch.cat([*alone, prompt]))
        for case in cases:
            places = case.cache.places(case.slots)
            for now, before in zip((case.cache.k, case.cache.v), case.stored, strict=True):  # type: ignore[attr-defined]
                assert torch.equal(now[:, :, places], before[:, :, places])
