"""16-bit weights by the compiled kernels: sums in one order, for every row count and thread count. What is
fp16's own: a prompt's rows have AMX's; bf16's is in `test_bf16.py`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from edgespec.kernels import compiled, reference
from edgespec.kernels.choice import AMX, LEVELS
from edgespec.kernels.matmul import Block, Together, linear, one_class

pytestmark = [
    pytest.mark.skipif(bool(compiled.unavailable()), reason=compiled.unavailable()),
    pytest.mark.usefixtures("best_level"),
]

TYPES = [torch.float16, torch.bfloat16, torch.float32]
SHAPES = [(1, 1), (3, 15), (16, 16), (37, 512), (9, 1100), (24, 1025), (5, 33)]
WIDER = [*SHAPES, (63, 97), (49, 64), (128, 321)]  # tiles, pairs of tiles, and what is left over
COUNTS = (1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 16, 31, 33, 63, 64, 65, 67, 128, 255, 256)


@dataclass(frozen=True)
class Half:
    """An encoding of 16 bits, and its numbers."""

    encoding: str
    dtype: torch.dtype

    def block(self, w: Tensor) -> Block:
        return Block(self.encoding, w.to(self.dtype), None, *w.shape)

    def multiply(
        self, x: Tensor, block: Block, dtype: torch.dtype = torch.float32, prompt: bool = False
    ) -> Tensor:
        return compiled.linear(x, self.encoding, block.data, None, dtype, prompt)


FP16, BF16 = Half("F16", torch.float16), Half("BF16", torch.bfloat16)
both = pytest.mark.parametrize("half", [FP16, BF16], ids=lambda half: half.encoding)


def bf16_order() -> str:
    """What the order of sums of bf16 rows by bf16 weights is called after."""
    best = LEVELS[compiled.level()]
    return best if best in ("AVX-512 BF16", "AMX") else "fp16"


def levels() -> Iterator[int]:
    """Each instruction set that this CPU has, in use."""
    compiled.level(len(LEVELS))
    for level in compiled.levels():
        assert compiled.level(level) == level
        yield level


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def inputs(n: int, columns: int, dtype: torch.dtype) -> Tensor:
    """A few columns are a hundred times the rest."""
    x = normal(n, columns, seed=1)
    x[:, 3::97] *= 100
    return x.to(dtype)


def exact(x: Tensor, block: Block) -> Tensor:
    return reference.linear(x, block.data, torch.ones(block.rows))


@both
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", WIDER)
def test_values_are_the_references(shape: tuple[int, int], dtype: torch.dtype, half: Half) -> None:
    """Off by what fp32 sums lose, of any type of activations; rounded once to the output's."""
    block, x = half.block(normal(*shape)), inputs(70, shape[1], dtype)
    for _ in levels():
        for n in (1, 9, 17, 33, 49, 70):
            found = half.multiply(x[:n], block)
            size = (x[:n].double().square() @ block.data.double().square().t()).sqrt()
            assert ((found.double() - exact(x[:n], block)).abs() <= size * 2**-20).all()
            for out in TYPES:
                assert torch.equal(half.multiply(x[:n], block, out), found.to(out))


@both
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", WIDER)
def test_a_rows_bits_depend_on_nothing_else(shape: tuple[int, int], dtype: torch.dtype, half: Half) -> None:
    block, x = half.block(normal(*shape)), inputs(300, shape[1], dtype)
    used = half is FP16 or compiled.available("BF16")  # else torch multiplies
    assert not used or one_class(half.encoding, shape[1])
    whole = half.multiply(x, block)
    for n in COUNTS:
        assert torch.equal(half.multiply(x[:n], block), whole[:n])
        assert torch.equal(half.multiply(x[-n:], block), whole[-n:])
        assert not used or torch.equal(linear(x[:n], block, True), whole[:n].to(dtype))
    assert not used or torch.equal(linear(x, block, True), whole.to(dtype))
    own = half is BF16 and dtype == torch.bfloat16  # CPUs' instructions for these have orders of their own
    in_order = {bf16_order() if own else "": whole}
    for _ in levels():
        same = in_order.setdefault(bf16_order() if own else "", half.multiply(x, block))
        for n in (1, 2, 3, 4, 5, 6, 70):
            assert torch.equal(half.multiply(x[:n], block), same[:n])


@both
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_do_not_change_it(threads: int, half: Half) -> None:
    block, x = half.block(normal(421, 700)), inputs(70, 700, half.dtype)
    before = torch.get_num_threads()
    whole = half.multiply(x, block)
    try:
        torch.set_num_threads(threads)
        for n in (1, 3, 20, 70) * 5:
            assert torch.equal(half.multiply(x[:n], block), whole[:n])
    finally:
        torch.set_num_threads(before)


@both
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("at", [(2, 5), (7, 40), (17, 40), (36, 42)])
def test_what_is_not_finite_shows_where_it_is(at: tuple[int, int], bad: float, half: Half) -> None:
    """A weight's in its own output, an activation's in its row, not beside it or in the next row."""
    w, x = normal(37, 43), inputs(40, 43, half.dtype)
    worse = w.clone()
    worse[at] = bad
    hot = x.clone()
    hot[2, at[1]] = bad
    for _ in levels():
        for n in (1, 3, 6, 17, 40):
            clean = half.multiply(x[:n], half.block(w))
            found = half.multiply(x[:n], half.block(worse))
            column = exact(x[:n], half.block(worse))[:, at[0]].float()
            assert torch.equal(found[:, at[0]].nan_to_num(7), column.nan_to_num(7))
            assert not column.isfinite().any()
            found[:, at[0]] = clean[:, at[0]]
            assert torch.equal(found, clean)
        found, clean = half.multiply(hot, half.block(w)), half.multiply(x, half.block(w))
        assert not found[2].isfinite().any()
        found[2] = clean[2]
        assert torch.equal(found, clean)


@both
def test_blocks_of_rows_and_strides_do_not_change_it(half: Half) -> None:
    """Of a matrix in blocks, of rows that lie apart, and of q, k and v in one call, one of them fp16."""
    if half is BF16 and not compiled.available("BF16"):
        pytest.skip("torch multiplies bf16 here")
    block, other = half.block(normal(50, 96)), FP16.block(normal(40, 96))
    wide = torch.zeros(50, 100, dtype=half.dtype)
    wide[:, :96] = block.data
    parts = [Block(half.encoding, wide[i:j, :96], None, j - i, 96) for i, j in ((0, 17), (17, 18), (18, 50))]
    for n in (1, 5, 40):
        x = inputs(n, 96, half.dtype)
        whole = linear(x, block, True)
        assert torch.equal(torch.cat([linear(x, part, True) for part in parts], dim=1), whole)
        together = Together({"q": parts, "k": parts[:1], "v": [other]}).call(("q", "v", "k"), x, True)
        assert together is not None
        q, v, k = together.times(x, half.dtype)
        assert torch.equal(q, whole)
        assert torch.equal(v, linear(x, other, True))
        assert torch.equal(k, whole[:, :17])


# What is fp16's own.


def padded(numbers: Tensor, columns: int) -> Tensor:
    """fp32, with zeros behind the columns up to a multiple of `columns`."""
    return F.pad(numbers.float(), (0, -numbers.shape[1] % columns))


def in_places(x: Tensor, w: Tensor) -> Tensor:
    """Sixteen places, column by column, and then in halves: products of fp16 numbers are exact in fp32."""
    products = padded(x, 16)[:, None] * padded(w, 16)
    places = torch.zeros(len(x), len(w), 16)
    for some in products.split(16, dim=-1):
        places = places + some
    for half in (8, 4, 2, 1):
        places = places[..., :half] + places[..., half:]
    return places[..., 0]


def in_tiles(x: Tensor, w: Tensor) -> Tensor:
    """By AMX, first 8 bits and rest: of 32 columns first by first, rest of x by first, rest by rest, ..."""

    def halves(numbers: Tensor) -> tuple[Tensor, Tensor]:
        wide = padded(numbers, 32)
        first = (wide.view(torch.int32) & -65536).view(torch.float32)
        return first, wide - first

    total = torch.zeros(len(x), len(w))
    xs, ws = halves(x), halves(w)
    for at in range(0, xs[0].shape[1], 32):
        for i, j in ((0, 0), (1, 0), (1, 1), (0, 1)):
            products = xs[i][:, None, at : at + 32] * ws[j][:, at : at + 32]
            sums = torch.zeros(2, *total.shape)
            for column in range(16):
                sums += torch.stack([products[..., column], products[..., 16 + column]])
            total = total + (sums[0] + sums[1])
    return total


@pytest.mark.parametrize("shape", SHAPES)
def test_sums_are_in_the_order_that_is_defined(shape: tuple[int, int]) -> None:
    block, x = FP16.block(normal(*shape)), inputs(7, shape[1], torch.float16)
    expected, tiles = in_places(x, block.data), in_tiles(x, block.data)
    for _ in levels():
        prompts = tiles if compiled.level() == AMX else expected
        for n in (1, 2, 7):
            assert torch.equal(FP16.multiply(x[:n], block), expected[:n])
            assert torch.equal(FP16.multiply(x[:n], block, prompt=True), prompts[:n])


@pytest.mark.parametrize("shape", [(1, 30), (33, 100), (300, 300), (31, 1000)])
def test_a_prompts_rows_have_bits_of_their_own_alone(shape: tuple[int, int]) -> None:
    """By whatever multiplies them: AMX, a tree's kernels, else torch."""
    block, x = FP16.block(normal(*shape)), inputs(700, shape[1], torch.float16)
    whole = FP16.multiply(x, block, prompt=True)
    size = (x.double().square() @ block.data.double().square().t()).sqrt()
    assert ((whole.double() - exact(x, block)).abs() <= size * 2**-19).all()
    for n in (1, 15, 16, 17, 33, 256, 257, 300):
        assert torch.equal(FP16.multiply(x[:n], block, prompt=True), whole[:n])
        assert torch.equal(FP16.multiply(x[-n:], block, prompt=True), whole[-n:])
    out = linear(x, block, False)
    assert ((out.double() - exact(x, block)).abs() <= size * 2**-9).all()
    if compiled.own_prompt("F16", torch.float16):
        assert torch.equal(out, whole.half())


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("at", [(2, 5), (31, 40), (36, 42)])
def test_a_prompts_numbers_are_not_finite_where_any_rows_are(at: tuple[int, int], bad: float) -> None:
    """AMX multiplies infinity in parts, which may make it NaN, but in no other output."""
    w, x = normal(37, 43), inputs(270, 43, torch.float16)
    worse, hot = w.clone(), x.clone()
    worse[at] = hot[at] = bad
    w[7] = worse[7] = 0
    for _ in levels():
        clean = FP16.multiply(x, FP16.block(w), prompt=True)
        assert clean.isfinite().all()
        for rows, weights in ((hot, w), (x, worse), (hot, worse)):
            found = FP16.multiply(rows, FP16.block(weights), prompt=True)
            finite = FP16.multiply(rows, FP16.block(weights)).isfinite()
            assert not finite.all()
            assert torch.equal(found.isfinite(), finite)
            assert torch.equal(found[finite], clean[finite])


def test_numbers_of_any_size() -> None:
    """Subnormal fp16 numbers, the largest, and a sum that no fp16 number holds."""
    sizes = torch.tensor([0.0, 2**-24, -(2**-24), 3 * 2**-24, 2**-14, 1.0, 65504.0, -65504.0])
    w, x = sizes.repeat_interleave(8)[None], sizes.repeat(8)[None].half()
    products = (x.double() * w.double())[0]
    for _ in levels():
        for column in range(64):
            one = torch.zeros_like(x)
            one[0, column] = x[0, column]
            assert FP16.multiply(one, FP16.block(w)).double().item() == products[column]
        large = FP16.multiply(x.abs().expand(3, -1), FP16.block(w.abs()), torch.float16)
        assert (large == torch.inf).all()
