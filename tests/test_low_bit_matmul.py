"""Matmuls with int8 and int4 weights: against the reference, and the bits of a row at every row count."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from edgespec.kernels import compiled, integer, reference
from edgespec.kernels.matmul import TILE_BYTES, Block, linear, one_class
from edgespec.kernels.quantize import quantize_int4, quantize_int8

DTYPES = [torch.bfloat16, torch.float16, torch.float32]
# Of the result's norm: the rounding of the output and, above FEW rows, of the weights; in fp32, what sums and
# digits lose beside large elements.
TOLERANCE = {torch.bfloat16: 2**-7, torch.float16: 2**-10, torch.float32: 2e-6}


@pytest.fixture(autouse=True, params=["compiled", "torch"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With the compiled kernels, and with torch's operations alone."""
    if request.param == "torch":
        monkeypatch.setattr(compiled, "available", lambda encoding: False)
    elif why := compiled.unavailable():
        pytest.skip(why)
    return str(request.param)


needs_integers = pytest.mark.skipif(not integer.available(), reason="this CPU has no int8 matmul (VNNI)")


def make(encoding: str, m: int, k: int, seed: int = 0) -> Block:
    w = torch.randn(m, k, generator=torch.Generator().manual_seed(seed)) * 0.02
    data, scale = (quantize_int8 if encoding == "I8" else quantize_int4)(w)
    return Block(encoding, data, scale, m, k)


def inputs(n: int, k: int, dtype: torch.dtype, seed: int = 1) -> Tensor:
    """Activations as transformers have them: a few columns are a thousand times the rest."""
    x = torch.randn(n, k, generator=torch.Generator().manual_seed(seed))
    x[:, 3::97] *= 1000
    return x.to(dtype)


def expected(x: Tensor, block: Block) -> Tensor:
    assert block.scale is not None
    return reference.linear(x, block.numbers(0, block.rows), block.scale)


def error(out: Tensor, exact: Tensor) -> float:
    return float((out.double() - exact).norm() / exact.norm())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("encoding", ["I8", "U8"])
@pytest.mark.parametrize(("m", "k"), [(64, 128), (1, 64), (37, 100), (200, 2), (3, 333)])
@pytest.mark.parametrize("n", [1, 3, 64, 256])
def test_linear_equals_the_reference(n: int, m: int, k: int, encoding: str, dtype: torch.dtype) -> None:
    block, x = make(encoding, m, k), inputs(n, k, dtype)
    for exact in (True, False):
        out = linear(x, block, exact)
        assert out.shape == (n, m)
        assert out.dtype == dtype
        assert error(out, expected(x, block)) < TOLERANCE[dtype]


@pytest.mark.parametrize("encoding", ["I8", "U8"])
def test_unpacked_tiles_equal_the_reference(encoding: str, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What CPUs without an exact int8 matmul do; bf16 rounds the weights, too."""
    monkeypatch.setattr(integer, "available", lambda: False)
    block = make(encoding, 70, 130)
    assert one_class(encoding, 130) == (way == "compiled")
    for dtype in DTYPES:
        x = inputs(5, 130, dtype)
        for exact in (True, False):
            assert error(linear(x, block, exact), expected(x, block)) < TOLERANCE[dtype]


@needs_integers
@pytest.mark.parametrize("encoding", ["I8", "U8"])
@pytest.mark.parametrize(("m", "k"), [(300, 1408), (33, 100)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_rows_bits_do_not_depend_on_the_others(m: int, k: int, encoding: str, dtype: torch.dtype) -> None:
    block, x = make(encoding, m, k), inputs(256, k, dtype)
    whole = linear(x, block, True)
    for n in (1, 2, 3, 5, 8, 15, 16, 17, 31, 33, 48, 63, 64, 65, 100, 255):
        assert torch.equal(linear(x[:n], block, True), whole[:n])
        assert torch.equal(linear(x[-n:], block, True), whole[-n:])


@needs_integers
@pytest.mark.parametrize("encoding", ["I8", "U8"])
def test_tiles_do_not_change_the_bits(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    block, x = make(encoding, 333, 256), inputs(9, 256, torch.bfloat16)
    whole = linear(x, block, True)
    monkeypatch.setattr("edgespec.kernels.matmul.TILE_BYTES", TILE_BYTES // 1000)
    assert torch.equal(linear(x, block, True), whole)


@needs_integers
def test_digits_hold_the_activations() -> None:
    x = inputs(7, 500, torch.bfloat16)
    digits, step = integer.split(x)
    high, middle, low = digits.view(3, 7, 500).double().unbind()
    back = (65536 * high + 256 * middle + low) * step.double()[:, None]
    assert ((back - x.double()).abs() <= step[:, None] / 2).all()
    large = x.abs() >= x.abs().amax(1, keepdim=True) * 2**-14
    assert large.sum() > 3000
    assert torch.equal(back[large], x.double()[large])


@needs_integers
@pytest.mark.parametrize("largest", [0.0, 1e-45, 1e-38, 1.0, 127.99999, 128.0, 3.4e38])
def test_rows_of_any_size(largest: float) -> None:
    """Nothing overflows: every digit's sum is at its largest here."""
    x = torch.full((2, 4096), largest)
    x[1, ::2] *= -1
    q = torch.full((3, 4096), -127, dtype=torch.int8)
    q[1] = 127
    scale = torch.tensor([1.0, 2.0, 2**-20])
    out = linear(x * 2**-13, Block("I8", q, scale, 3, 4096), True)
    exact = reference.linear(x * 2**-13, q, scale)
    if 0 < largest < 1e-30:  # below what the digits resolve: nothing, or nearly nothing
        assert (out.abs() <= exact.abs().amax()).all()
    elif largest < 1e38:
        assert torch.allclose(out.double(), exact, rtol=1e-6)
    else:
        assert not torch.isnan(out).any()


@needs_integers
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_row_that_is_not_finite_shows(bad: float) -> None:
    """As in any matmul, it does not become a number that looks like one, and the other rows are untouched."""
    block, x = make("U8", 16, 128), inputs(3, 128, torch.bfloat16)
    clean = linear(x, block, True)
    x[1, 5] = bad
    out = linear(x, block, True)
    assert torch.isnan(out[1]).all()
    assert torch.equal(out[::2], clean[::2])


def test_saturating_int8_matmuls_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """oneDNN's are, on CPUs before VNNI: pairs of products are added in 16 bits."""

    def saturating(a: Tensor, b: Tensor) -> Tensor:
        pairs = (a[:, 0::2, None].int() * b[None, 0::2].int()) + (
            a[:, 1::2, None].int() * b[None, 1::2].int()
        )
        return pairs.clamp(-(2**15), 2**15 - 1).sum(1).int()

    monkeypatch.setattr(integer, "is_native", lambda dtype: True)
    monkeypatch.setattr(torch, "_int_mm", saturating)
    assert not integer.available.__wrapped__()
    monkeypatch.setattr(torch, "_int_mm", lambda a, b: (a.double() @ b.double()).int())
    assert integer.available.__wrapped__()


def test_int4_bytes_may_begin_anywhere() -> None:
    """A piece's place in a chunk is the file's business."""
    block = make("U8", 8, 100)
    assert block.scale is not None
    shifted = torch.zeros(block.data.numel() + 3, dtype=torch.uint8)
    shifted[3:] = block.data.flatten()
    moved = Block.of_bytes("U8", shifted[3:], 8, 100, block.scale)
    x = inputs(2, 100, torch.bfloat16)
    assert torch.equal(linear(x, moved, True), linear(x, block, True))
