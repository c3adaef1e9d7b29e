"""bf16 weights by the compiled kernels: tiles of AMX, or fp32 sums as fp16 has; a row's bits are its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from edgespec.kernels import compiled, reference
from edgespec.kernels.matmul import Block, Together, linear, one_class
from tests.test_half import COUNTS, SHAPES, TYPES, in_places, inputs, levels, normal, padded

pytestmark = pytest.mark.skipif(bool(compiled.unavailable()), reason=compiled.unavailable())

WIDER = [*SHAPES, (63, 97), (49, 64), (128, 321)]  # tiles, pairs of tiles, and what is left over


@pytest.fixture(autouse=True)
def _best_level() -> Iterator[None]:
    yield
    compiled.level(len(compiled.LEVELS))


def on_amx() -> bool:
    library = compiled.library()
    return library is not None and bool(library.es_bf16_on_amx())


def block_of(w: Tensor) -> Block:
    return Block("BF16", w.bfloat16(), None, *w.shape)


def multiply(x: Tensor, block: Block, dtype: torch.dtype = torch.float32) -> Tensor:
    return compiled.linear(x, "BF16", block.data, None, dtype)


def exact(x: Tensor, block: Block) -> Tensor:
    return reference.linear(x, block.data, torch.ones(block.rows))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", WIDER)
def test_values_are_the_references(shape: tuple[int, int], dtype: torch.dtype) -> None:
    """Off by what fp32 sums lose, of any type of activations; rounded once to the output's."""
    block, x = block_of(normal(*shape)), inputs(70, shape[1], dtype)
    for _ in levels():
        for n in (1, 9, 17, 33, 49, 70):
            found = multiply(x[:n], block)
            size = (x[:n].double().square() @ block.data.double().square().t()).sqrt()
            assert ((found.double() - exact(x[:n], block)).abs() <= size * 2**-20).all()
            for out in TYPES:
                assert torch.equal(multiply(x[:n], block, out), found.to(out))


def in_tiles(x: Tensor, w: Tensor) -> Tensor:
    """By AMX: of 32 columns the even ones in ascending order, and the odd ones, then both sums."""
    total = torch.zeros(len(x), len(w))
    products = padded(x, 32)[:, None] * padded(w, 32)
    for some in products.split(32, dim=-1):
        sums = torch.zeros(*total.shape, 2)
        for pair in some.split(2, dim=-1):
            sums = sums + pair
        total = total + (sums[..., 0] + sums[..., 1])
    return total


@pytest.mark.parametrize("shape", WIDER)
def test_sums_are_in_the_order_that_is_defined(shape: tuple[int, int]) -> None:
    block, x = block_of(normal(*shape)), inputs(35, shape[1], torch.bfloat16)
    places, tiles = in_places(x, block.data), in_tiles(x, block.data)
    for _ in levels():
        for n in (1, 2, 7, 35):
            assert torch.equal(multiply(x[:n], block), (tiles if on_amx() else places)[:n])


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", WIDER)
def test_a_rows_bits_depend_on_nothing_else(shape: tuple[int, int], dtype: torch.dtype) -> None:
    block, x = block_of(normal(*shape)), inputs(300, shape[1], dtype)
    used = compiled.available("BF16")
    assert not used or one_class("BF16", shape[1])
    whole = multiply(x, block)
    for n in (*COUNTS, 256):
        assert torch.equal(multiply(x[:n], block), whole[:n])
        assert torch.equal(multiply(x[-n:], block), whole[-n:])
        assert not used or torch.equal(linear(x[:n], block, True), whole[:n].to(dtype))
    assert not used or torch.equal(linear(x, block, True), whole.to(dtype))
    narrow: Tensor | None = None
    for _ in levels():
        if on_amx() and dtype == torch.bfloat16:
            continue  # has an order of its own
        narrow = multiply(x, block) if narrow is None else narrow
        for n in (1, 2, 3, 4, 5, 6, 70):
            assert torch.equal(multiply(x[:n], block), narrow[:n])


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_do_not_change_it(threads: int) -> None:
    block, x = block_of(normal(421, 700)), inputs(70, 700, torch.bfloat16)
    before = torch.get_num_threads()
    whole = multiply(x, block)
    try:
        torch.set_num_threads(threads)
        for n in (1, 3, 20, 70) * 5:
            assert torch.equal(multiply(x[:n], block), whole[:n])
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("at", [(2, 5), (17, 40), (36, 42)])
def test_what_is_not_finite_shows_where_it_is(at: tuple[int, int], bad: float) -> None:
    """A weight's in its own output, an activation's in its row, not beside it or in the next row."""
    w, x = normal(37, 43), inputs(40, 43, torch.bfloat16)
    worse = w.clone()
    worse[at] = bad
    hot = x.clone()
    hot[2, at[1]] = bad
    for _ in levels():
        for n in (1, 3, 17, 40):
            clean = multiply(x[:n], block_of(w))
            found = multiply(x[:n], block_of(worse))
            column = exact(x[:n], block_of(worse))[:, at[0]].float()
            assert torch.equal(found[:, at[0]].nan_to_num(7), column.nan_to_num(7))
            assert not column.isfinite().any()
            found[:, at[0]] = clean[:, at[0]]
            assert torch.equal(found, clean)
        found, clean = multiply(hot, block_of(w)), multiply(x, block_of(w))
        assert not found[2].isfinite().any()
        found[2] = clean[2]
        assert torch.equal(found, clean)


def test_numbers_of_any_size() -> None:
    """The smallest and largest; AMX takes subnormal numbers as 0."""
    sizes = [0.0, 2**-133, -(2**-130), 2**-126, 1.0, 3.0, 2.0**127, -(2.0**127)]
    for _ in levels():
        for size in sizes:
            w = torch.zeros(3, 40)
            w[1, 33] = size
            found = multiply(torch.ones(2, 40, dtype=torch.bfloat16), block_of(w))
            small = on_amx() and abs(size) < 2**-126
            assert found.tolist() == [[0.0, 0.0 if small else size, 0.0]] * 2
        large = multiply(torch.full((3, 40), 3e38).bfloat16(), block_of(torch.full((2, 40), 3e38)))
        assert (large == torch.inf).all()


def test_blocks_of_rows_and_strides_do_not_change_it() -> None:
    """Of a matrix in blocks, of rows that lie apart, and of q, k and v in one call, one of them fp16."""
    if not compiled.available("BF16"):
        pytest.skip("torch multiplies bf16 here")
    block = block_of(normal(50, 96))
    half = Block("F16", normal(40, 96).half(), None, 40, 96)
    wide = torch.zeros(50, 100, dtype=torch.bfloat16)
    wide[:, :96] = block.data
    parts = [Block("BF16", wide[i:j, :96], None, j - i, 96) for i, j in ((0, 17), (17, 18), (18, 50))]
    for n in (1, 5, 40):
        x = inputs(n, 96, torch.bfloat16)
        whole = linear(x, block, True)
        assert torch.equal(torch.cat([linear(x, part, True) for part in parts], dim=1), whole)
        together = Together({"q": parts, "k": parts[:1], "v": [half]}).call(("q", "v", "k"), x, True)
        assert together is not None
        q, v, k = together.times(x, torch.bfloat16)
        assert torch.equal(q, whole)
        assert torch.equal(v, linear(x, half, True))
        assert torch.equal(k, whole[:, :17])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_without_these_instructions_torch_multiplies(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With AVX-512 BF16 alone its own matmul is faster; classes keep a row's bits."""
    compiled.level(compiled.LEVELS.index("portable C"))
    assert not compiled.available("BF16")
    assert not one_class("BF16", 96)
    block, x = block_of(normal(48, 96)), inputs(64, 96, dtype)

    def refused(*_: object) -> Tensor:
        raise AssertionError("compiled")

    monkeypatch.setattr(compiled, "linear", refused)
    assert Together({"q": [block]}).call(("q",), x, True) is None
    whole = linear(x, block, True)
    size = (x.double().square() @ block.data.double().square().t()).sqrt()
    assert ((whole.double() - exact(x, block)).abs() <= size * 2**-7).all()
    for n in (1, 2, 7, 33, 63):
        assert torch.equal(linear(x[:n], block, True), whole[:n])
