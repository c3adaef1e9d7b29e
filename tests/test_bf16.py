"""What is bf16's own, of the compiled kernels: tiles of AMX, pairs of AVX-512 BF16, fp32 sums as fp16 has, or
none of them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from edgespec.kernels import compiled
from edgespec.kernels.matmul import Together, linear, one_class
from tests.test_half import BF16, WIDER, bf16_order, exact, in_places, inputs, levels, normal, padded

pytestmark = [
    pytest.mark.skipif(bool(compiled.unavailable()), reason=compiled.unavailable()),
    pytest.mark.usefixtures("best_level"),
]


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


def in_pairs(x: Tensor, w: Tensor) -> Tensor:
    """By AVX-512 BF16: each of sixteen places adds its odd column of 32, then its even one; then halves."""
    products = padded(x, 32)[:, None] * padded(w, 32)
    places = torch.zeros(len(x), len(w), 16)
    for some in products.split(32, dim=-1):
        places = (places + some[..., 1::2]) + some[..., 0::2]
    for half in (8, 4, 2, 1):
        places = places[..., :half] + places[..., half:]
    return places[..., 0]


ORDERS = {"fp16": in_places, "AVX-512 BF16": in_pairs, "AMX": in_tiles}


@pytest.mark.parametrize("shape", [*WIDER, (50, 1100), (3, 4100)])
def test_sums_are_in_the_order_that_is_defined(shape: tuple[int, int]) -> None:
    block, x = BF16.block(normal(*shape)), inputs(70, shape[1], torch.bfloat16)
    for _ in levels():
        expected = ORDERS[bf16_order()](x, block.data)
        for n in (1, 2, 4, 5, 7, 8, 13, 25, 28, 29, 35, 70):
            assert torch.equal(BF16.multiply(x[:n], block), expected[:n])


def test_numbers_of_any_size() -> None:
    """The smallest and largest; bf16's own instructions take subnormal numbers as 0."""
    sizes = [0.0, 2**-133, -(2**-130), 2**-126, 1.0, 3.0, 2.0**127, -(2.0**127)]
    for _ in levels():
        for size in sizes:
            w = torch.zeros(3, 40)
            w[1, 33] = size
            found = BF16.multiply(torch.ones(2, 40, dtype=torch.bfloat16), BF16.block(w))
            small = bf16_order() != "fp16" and abs(size) < 2**-126
            assert found.tolist() == [[0.0, 0.0 if small else size, 0.0]] * 2
        large = BF16.multiply(torch.full((3, 40), 3e38).bfloat16(), BF16.block(torch.full((2, 40), 3e38)))
        assert (large == torch.inf).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_without_these_instructions_torch_multiplies(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In classes, which keep a row's bits."""
    compiled.level(0)
    assert not compiled.available("BF16")
    assert not one_class("BF16", 96)
    block, x = BF16.block(normal(48, 96)), inputs(64, 96, dtype)

    def refused(*_: object) -> Tensor:
        raise AssertionError("compiled")

    monkeypatch.setattr(compiled, "linear", refused)
    assert Together({"q": [block]}).call(("q",), x, True) is None
    whole = linear(x, block, True)
    size = (x.double().square() @ block.data.double().square().t()).sqrt()
    assert ((whole.double() - exact(x, block)).abs() <= size * 2**-7).all()
    for n in (1, 2, 7, 33, 63):
        assert torch.equal(linear(x[:n], block, True), whole[:n])
