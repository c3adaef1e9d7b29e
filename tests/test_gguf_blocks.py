"""GGUF blocks become the same numbers, bit for bit, as the gguf package's reference gives."""

from __future__ import annotations

import subprocess
import sys

import gguf
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from edgespec.kernels import gguf_torch
from edgespec.kernels.gguf_blocks import BLOCKS, dequantize, row_bytes
from edgespec.kernels.gguf_torch import dequantize_torch
from tests.test_compiled import FACTORS

PACKED = tuple(name for name, block in BLOCKS.items() if block.elements > 1)
COLS = 512


def oracle(encoding: str, raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    kind = gguf.GGMLQuantizationType[encoding]
    if encoding in ("F32", "F16"):
        raw = raw.view({"F32": np.float32, "F16": np.float16}[encoding])
    with np.errstate(all="ignore"):
        return np.asarray(gguf.quants.dequantize(raw, kind), dtype=np.float32)


def random_bytes(encoding: str, rows: int, seed: int = 0) -> NDArray[np.uint8]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (rows, row_bytes(encoding, COLS)), dtype=np.uint8)


def same(a: NDArray[np.float32], b: NDArray[np.float32]) -> bool:
    """Equal bits (so -0.0 differs from 0.0), any NaN equal to any other."""
    return bool(((a.view(np.uint32) == b.view(np.uint32)) | (np.isnan(a) & np.isnan(b))).all())


def test_block_sizes_are_ggmls() -> None:
    for encoding, block in BLOCKS.items():
        assert tuple(block) == gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[encoding]]


@pytest.mark.parametrize("encoding", BLOCKS)
def test_random_bytes_equal_the_reference(encoding: str) -> None:
    raw = random_bytes(encoding, rows=33)  # random scales: subnormal, infinite and NaN ones too
    expected = oracle(encoding, raw)
    with np.errstate(all="ignore"):
        assert same(dequantize(encoding, raw, COLS), expected)
    assert same(dequantize_torch(encoding, torch.from_numpy(raw), COLS, torch.float32).numpy(), expected)


@pytest.mark.parametrize("encoding", PACKED)
@pytest.mark.parametrize("fill", [0x00, 0x7F, 0x80, 0xFF, 0x0F, 0xF0])
def test_extreme_weights_under_extreme_scales(encoding: str, fill: int) -> None:
    for scale in (0.0, -0.0, 6e-8, -1.0, 65504.0):
        raw = np.full((2, row_bytes(encoding, COLS)), fill, dtype=np.uint8)
        blocks = raw.reshape(-1, BLOCKS[encoding].nbytes)
        for at in FACTORS.get(encoding, (0,)):
            blocks[:, at : at + 2] = np.frombuffer(np.float16(scale).tobytes(), np.uint8)
        expected = oracle(encoding, raw)
        assert np.isfinite(expected).all()
        assert same(dequantize(encoding, raw, COLS), expected)
        assert same(dequantize_torch(encoding, torch.from_numpy(raw), COLS, torch.float32).numpy(), expected)


@pytest.mark.parametrize("encoding", ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])  # not K blocks
def test_what_the_reference_packs_comes_back_close(encoding: str) -> None:
    weights = np.random.default_rng(1).normal(size=(8, COLS)).astype(np.float32)
    raw = gguf.quants.quantize(weights, gguf.GGMLQuantizationType[encoding])
    step = np.abs(weights).max() / {"Q8_0": 127, "Q4_0": 7, "Q4_1": 7, "Q5_0": 15, "Q5_1": 15}[encoding]
    assert np.abs(dequantize(encoding, raw, COLS) - weights).max() < step


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("encoding", PACKED)
def test_low_precision_is_the_fp32_result_rounded_once(encoding: str, dtype: torch.dtype) -> None:
    raw = torch.from_numpy(random_bytes(encoding, rows=4))
    exact = dequantize_torch(encoding, raw, COLS, torch.float32)
    low = dequantize_torch(encoding, raw, COLS, dtype)
    assert low.dtype == dtype
    assert torch.equal(low.nan_to_num(0), exact.to(dtype).nan_to_num(0))


@pytest.mark.parametrize("encoding", PACKED)
def test_tiles_and_unaligned_slices_change_nothing(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = torch.from_numpy(random_bytes(encoding, rows=7))
    whole = dequantize_torch(encoding, raw, COLS, torch.bfloat16)
    monkeypatch.setattr(gguf_torch, "TILE", COLS * 3)
    assert torch.equal(
        dequantize_torch(encoding, raw, COLS, torch.bfloat16).view(torch.int16), whole.view(torch.int16)
    )
    shifted = torch.empty(raw.numel() + 3, dtype=torch.uint8)
    shifted[3:] = raw.flatten()  # as in a ring, where a chunk starts at any byte
    one = dequantize_torch(encoding, shifted[3:].view_as(raw)[2:3], COLS, torch.bfloat16)
    assert torch.equal(one.view(torch.int16), whole[2:3].view(torch.int16))


@pytest.mark.parametrize("encoding", ["F32", "F16", "BF16"])
def test_plain_types_at_unaligned_addresses(encoding: str) -> None:
    raw = random_bytes(encoding, rows=3)
    shifted = torch.empty(raw.size + 1, dtype=torch.uint8)
    shifted[1:] = torch.from_numpy(raw.reshape(-1))
    out = dequantize_torch(encoding, shifted[1:].view(3, -1), COLS, torch.float32)
    assert same(out.numpy(), oracle(encoding, raw))


def test_sizes_that_do_not_fit_are_refused() -> None:
    raw = random_bytes("Q4_K", rows=2)
    for use in (dequantize, lambda e, r, c: dequantize_torch(e, torch.from_numpy(r), c, torch.float32)):
        with pytest.raises(ValueError, match="Q2_K"):
            use("Q2_K", raw, COLS)
        with pytest.raises(ValueError, match="do not hold rows of 256"):
            use("Q4_K", raw, 256)
        with pytest.raises(ValueError, match="whole number of Q4_K blocks of 256"):
            use("Q4_K", raw, 500)


def test_importing_the_table_needs_no_torch() -> None:
    code = "import edgespec.kernels.gguf_blocks, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
