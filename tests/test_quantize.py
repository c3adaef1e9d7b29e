"""The int8 and int4 weight formats: error bounds, exact inverses, layout, edge cases."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from edgespec.errors import ModelError
from edgespec.kernels import compiled
from edgespec.kernels.low_bit import GROUP, int4_row_bytes, padded_columns
from edgespec.kernels.quantize import (
    dequantize_int4,
    dequantize_int8,
    quantize_int4,
    quantize_int8,
    reference_int4,
    reference_int8,
    unpack_int4,
)

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
REFERENCES = {"I8": reference_int8, "U8": reference_int4}
built = pytest.mark.skipif(bool(compiled.unavailable()), reason=compiled.unavailable())


def gaussian(n: int, k: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, k, generator=torch.Generator().manual_seed(seed)) * 0.02


def relative_error(w: torch.Tensor, back: torch.Tensor) -> float:
    return float((w - back.float()).norm() / w.norm())


def test_int8_error_stays_within_half_a_step() -> None:
    w = gaussian(37, 300)
    q, scale = quantize_int8(w)
    back = dequantize_int8(q, scale, torch.float32)
    # Rounding the scale to bf16 may clip the largest weight by up to 127 * 2^-9 of a step.
    assert ((w - back).abs() <= 0.5001 * scale[:, None]).all()
    assert relative_error(w, back) < 0.009


def test_int8_scale_is_a_bf16_number() -> None:
    _, scale = quantize_int8(gaussian(64, 128))
    assert torch.equal(scale, scale.bfloat16().float())


@pytest.mark.parametrize("dtype", DTYPES)
def test_int8_dequantised_is_the_product_rounded_once(dtype: torch.dtype) -> None:
    q, scale = quantize_int8(gaussian(70, 129))
    exact = q.double() * scale.double()[:, None]
    assert torch.equal(dequantize_int8(q, scale, dtype), exact.to(dtype))


def numbers(data: torch.Tensor, k: int) -> torch.Tensor:
    """The int4 format spelled out number by number. -> [n, K] int8"""
    columns = padded_columns(k)
    half = columns // 2
    out = torch.zeros(len(data), columns, dtype=torch.int8)
    signed = data.view(torch.int8)
    for row in range(len(data)):
        for j in range(half):
            byte = int(data[row, j])
            for column, nibble in ((j, byte & 15), (half + j, byte >> 4)):
                out[row, column] = (nibble - 8) * int(signed[row, half + column // GROUP])
    return out


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("k", [1, 64, 100, 172, 256])
def test_int4_dequantised_follows_the_written_format(dtype: torch.dtype, k: int) -> None:
    data, scale = quantize_int4(gaussian(3, k))
    assert data.shape == (3, int4_row_bytes(k))
    assert scale.shape == (3,)
    assert torch.equal(unpack_int4(data), numbers(data, k))
    exact = numbers(data, k).double() * scale.double()[:, None]
    assert torch.equal(dequantize_int4(data, scale, dtype, columns=k), exact.to(dtype)[:, :k])
    assert dequantize_int4(data, scale, dtype).shape == (3, padded_columns(k))


def test_int4_unpacks_every_byte_and_multiplier() -> None:
    generator = torch.Generator().manual_seed(2)
    data = torch.randint(0, 256, (16, int4_row_bytes(256)), dtype=torch.uint8, generator=generator)
    multipliers = torch.randint(-15, 16, (16, 4), dtype=torch.int8, generator=generator)
    data[:, 128:132] = multipliers.view(torch.uint8)
    data[:, :128] = torch.arange(2048).view(16, 128).to(torch.uint8)  # all 256 values
    assert torch.equal(unpack_int4(data), numbers(data, 256))
    out = torch.empty(16, 256, dtype=torch.int8)
    assert unpack_int4(data, out=out) is out
    assert torch.equal(out, numbers(data, 256))


def test_int4_error_and_that_the_search_pays() -> None:
    w = gaussian(64, 1024)
    error = relative_error(w, dequantize_int4(*quantize_int4(w), torch.float32))
    groups = w.view(-1, GROUP)
    step = groups.abs().amax(1, keepdim=True) / 7
    naive = relative_error(groups, (groups / step).round() * step)
    assert error < 0.094
    assert error < 0.88 * naive


def test_int4_groups_have_their_own_step() -> None:
    """A row with one large group: the others keep about int8's resolution, where one step for the whole row
    would leave nothing of them."""
    w = gaussian(64, 1024)
    w[:, :GROUP] *= 20
    back = dequantize_int4(*quantize_int4(w), torch.float32)
    small, small_back = w[:, GROUP:], back[:, GROUP:]
    eight = dequantize_int8(*quantize_int8(w), torch.float32)[:, GROUP:]
    assert relative_error(small, small_back) < 1.4 * relative_error(small, eight) < 0.3


def test_int4_weight_on_the_grid_comes_back_exactly() -> None:
    generator = torch.Generator().manual_seed(1)
    q = torch.randint(-8, 8, (5, 192), generator=generator)
    q[:, ::GROUP] = -8  # every group uses the whole range
    w = q.float() * torch.tensor([15.0, 4.0, -1.0]).mul(0.25).repeat_interleave(GROUP)
    assert torch.equal(dequantize_int4(*quantize_int4(w), torch.float32), w)


@pytest.mark.parametrize("rows", [1, 2, 700])
def test_blocks_do_not_change_the_result(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    w = gaussian(rows, 128)
    packed, scale4 = quantize_int4(w)
    q, scale8 = quantize_int8(w)
    whole = dequantize_int4(packed, scale4), dequantize_int8(q, scale8)
    monkeypatch.setattr("edgespec.kernels.quantize._QUANTISED", 3 * 128)
    assert all(torch.equal(a, b) for a, b in zip(quantize_int4(w), (packed, scale4), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(quantize_int8(w), (q, scale8), strict=True))
    monkeypatch.setattr("edgespec.kernels.quantize._BLOCK", 3 * 128)
    assert torch.equal(dequantize_int4(packed, scale4), whole[0])
    assert torch.equal(dequantize_int8(q, scale8), whole[1])


def test_rows_do_not_depend_on_each_other() -> None:
    w = gaussian(9, 192)
    for quantize, dequantize in ((quantize_int8, dequantize_int8), (quantize_int4, dequantize_int4)):
        stored = quantize(w)
        alone = quantize(w[4:6])
        assert all(torch.equal(a, b[4:6]) for a, b in zip(alone, stored, strict=True))
        assert torch.equal(dequantize(*alone), dequantize(*stored)[4:6])


def test_zero_and_tiny_rows() -> None:
    w = torch.zeros(3, 128)
    w[1] = 1e-40  # below the smallest normal number
    w[2, 5] = 3.0
    for quantize, dequantize in ((quantize_int8, dequantize_int8), (quantize_int4, dequantize_int4)):
        back = dequantize(*quantize(w), torch.float32)
        assert torch.isfinite(back).all()
        assert torch.equal(back[0], w[0])
        assert back[1].abs().max() < 1e-38
        # int8's scale is a bf16 number: the largest weight may be off by 127 * 2^-9 of its step
        assert back[2, 5] == pytest.approx(3.0, rel=2**-8)
        assert back[2].count_nonzero() == 1


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_weights_that_are_not_finite_are_refused(bad: float) -> None:
    w = gaussian(4, 128)
    w[2, 77] = bad
    for quantize in (quantize_int8, quantize_int4):
        with pytest.raises(ModelError, match="infinite or not a number"):
            quantize(w)


def test_out_is_written_in_place() -> None:
    w = gaussian(10, 128)
    out = torch.full((10, 128), float("nan"), dtype=torch.bfloat16)
    assert dequantize_int8(*quantize_int8(w), out=out) is out
    assert torch.equal(out, dequantize_int8(*quantize_int8(w)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_input(dtype: torch.dtype) -> None:
    w = gaussian(4, 128).to(dtype)
    for quantize in (quantize_int8, quantize_int4):
        assert all(torch.equal(a, b) for a, b in zip(quantize(w), quantize(w.float()), strict=True))


# --- the compiled kernels, and what both are defined by -------------------------------------------------


def values(kind: str, n: int, k: int) -> NDArray[np.float32]:
    rng = np.random.default_rng(n * 100_003 + k)
    normal = rng.standard_normal((n, k), dtype=np.float32)
    if kind == "heavy tails":
        return rng.standard_t(2, (n, k)).astype(np.float32)
    if kind == "ties":  # among the largest, of either sign, and half-way between two numbers
        return np.round(normal * 4) / 4
    if kind == "sparse":
        return normal * (rng.random((n, k)) < 0.05)
    if kind == "every size":
        return normal * (10.0 ** rng.integers(-44, 38, (n, k))).astype(np.float32)
    if kind == "a size for each row":
        return normal * (10.0 ** rng.integers(-44, 38, (n, 1))).astype(np.float32)
    if kind == "the largest":
        return rng.integers(-2, 3, (n, k)).astype(np.float32) * np.float32(1.7e38)
    if kind == "any bits":
        return rng.integers(0, 2**32, (n, k), dtype=np.uint64).astype(np.uint32).view(np.float32)
    return normal


KINDS = [
    "normal", "heavy tails", "ties", "sparse", "every size", "a size for each row", "the largest", "any bits",
]  # fmt: skip


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.view(torch.uint8), b.view(torch.uint8))


@built
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_compiled_is_the_reference_bit_for_bit(kind: str, dtype: torch.dtype) -> None:
    for n, k in [
        (1, 1),
        (3, 7),
        (5, 32),
        (4, 33),
        (9, 64),
        (7, 65),
        (3, 96),
        (5, 172),
        (3, 1000),
        (20, 4096),
    ]:
        w = torch.from_numpy(values(kind, n, k)).to(dtype)
        w[~torch.isfinite(w)] = 1
        for encoding, reference in REFERENCES.items():
            found = compiled.quantize(w, encoding)
            assert found is not None
            assert all(same_bits(a, b) for a, b in zip(found, reference(w), strict=True)), (encoding, n, k)


@built
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_compiled_reads_every_number_of_sixteen_bits(dtype: torch.dtype) -> None:
    w = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype).view(-1, GROUP).clone()
    w[~torch.isfinite(w)] = 0
    for encoding, reference in REFERENCES.items():
        for rows in (w, w[torch.randperm(len(w), generator=torch.Generator().manual_seed(0))].view(-1, 512)):
            found = compiled.quantize(rows, encoding)
            assert found is not None
            assert all(same_bits(a, b) for a, b in zip(found, reference(rows), strict=True))


@built
@pytest.mark.parametrize("dtype", DTYPES)
def test_compiled_refuses_what_the_reference_refuses(dtype: torch.dtype) -> None:
    for bad in (float("nan"), float("inf"), float("-inf")):
        for place in ((0, 0), (2, 99), (3, 63), (1, 64)):
            w = gaussian(4, 100).to(dtype)
            w[place] = bad
            assert compiled.quantize(w, "I8") is None
            assert compiled.quantize(w, "U8") is None


@built
def test_threads_share_rows_without_changing_them() -> None:
    w = gaussian(700, 1100)
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            for encoding, reference in REFERENCES.items():
                found = compiled.quantize(w, encoding)
                assert found is not None
                assert all(same_bits(a, b) for a, b in zip(found, reference(w), strict=True))
    finally:
        torch.set_num_threads(before)


@built
def test_rows_may_lie_anywhere() -> None:
    w = gaussian(9, 200).bfloat16()
    for view in (w[3:], w[:, 17:150], w.t()):
        for encoding, reference in REFERENCES.items():
            found = compiled.quantize(view, encoding)
            assert found is not None
            assert all(same_bits(a, b) for a, b in zip(found, reference(view), strict=True))


def test_without_the_compiled_kernels_the_bits_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    w = gaussian(20, 300).half()
    before = quantize_int8(w), quantize_int4(w)
    monkeypatch.setattr(compiled, "_library", lambda: (None, "not built"))
    monkeypatch.setattr(compiled, "quantize", lambda w, encoding: pytest.fail("not there"))
    for a, b in zip(before, (quantize_int8(w), quantize_int4(w)), strict=True):
        assert all(same_bits(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_groups_step_does_not_depend_on_the_order_of_its_weights(dtype: torch.dtype) -> None:
    """Its sums are exact: so no CPU's way of adding, nor torch's, is in the file."""
    w = torch.from_numpy(values("heavy tails", 200, GROUP)).to(dtype)
    data, scale = quantize_int4(w)
    rng = np.random.default_rng(0)
    for _ in range(5):
        order = torch.from_numpy(rng.permutation(GROUP))
        shuffled, scales = quantize_int4(w[:, order])
        assert same_bits(scales, scale)
        assert torch.equal(unpack_int4(shuffled), unpack_int4(data)[:, order])


@pytest.mark.parametrize("size", [1e-28, 1e-20, 1e20, 2e38])
def test_int4_is_as_good_for_weights_of_any_size(size: float) -> None:
    """Neither do squares run over, nor do they vanish."""
    w = gaussian(16, 512).mul_(10).clamp_(-1.5, 1.5)
    error = relative_error(w, dequantize_int4(*quantize_int4(w), torch.float32))
    large = w.double() * size
    back = dequantize_int4(*quantize_int4(large.float()), torch.float32).double()
    assert float((large - back).norm() / large.norm()) < 1.02 * error < 0.1
