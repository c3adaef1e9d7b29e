"""The compiled kernels: the right values, and the same bits for every row count, CPU and thread count."""

from __future__ import annotations

import importlib.machinery
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from edgespec.kernels import compiled
from edgespec.kernels.choice import LEVELS
from edgespec.kernels.gguf_blocks import BLOCKS, dequantize
from edgespec.kernels.matmul import Block, linear
from edgespec.kernels.quantize import dequantize_int4, dequantize_int8, quantize_int4, quantize_int8

pytestmark = [
    pytest.mark.skipif(bool(compiled.unavailable()), reason=compiled.unavailable()),
    pytest.mark.usefixtures("best_level"),
]

COUNTS = (1, 2, 3, 4, 5, 6, 7, 8, 11, 13, 16, 17, 31, 35, 63, 64, 65, 67, 128, 129, 256)
SHAPES = [(1, 256), (16, 256), (37, 512), (40, 1536), (37, 1280)]
ODD = {"I8": [(5, 1), (17, 36), (33, 300)], "U8": [(5, 1), (17, 36), (33, 300), (20, 576), (7, 64)]}
ODD |= {e: [(9, 32), (20, 320)] for e in ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")}
ODD["F16"] = ODD["BF16"] = [(1, 1), (5, 15), (17, 36), (33, 513), (9, 1100), (63, 33)]
CASES = [(encoding, shape) for encoding in compiled.FORMATS for shape in SHAPES + ODD.get(encoding, [])]
PLAIN = {"F16": torch.float16, "BF16": torch.bfloat16}
LOW_BIT = [case for case in CASES if case[0] not in PLAIN]
FACTORS = {  # where fp16 numbers lie in a block, if not first
    "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "Q4_1": (0, 2), "Q5_1": (0, 2), "Q3_K": (108,),
}  # fmt: skip

FORMATS = tuple(compiled.FORMATS)
ROWS = (1, 3, 37, 16, 200, 5, 64, 33, 17, 80, 2, 31, 48, 7, 21, 9)  # of each block in a call of many


def weights(encoding: str, rows: int, columns: int, seed: int = 0) -> tuple[Block, Tensor]:
    """A block, and its numbers as fp64 [rows, columns]."""
    if encoding in ("I8", "U8"):
        w = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))
        data, scale = (quantize_int8 if encoding == "I8" else quantize_int4)(w)
        back = dequantize_int8 if encoding == "I8" else dequantize_int4
        dense = back(data, scale, torch.float32)[:, :columns].double()
        return Block(encoding, data, scale, rows, columns), dense
    if encoding in PLAIN:
        half = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)).to(PLAIN[encoding])
        return Block(encoding, half, None, rows, columns), half.double()
    rng = np.random.default_rng(seed)
    size = BLOCKS[encoding]
    raw = rng.integers(0, 256, (rows * columns // size.elements, size.nbytes), dtype=np.uint8)
    for at in FACTORS.get(encoding, (0,)):
        raw[:, at : at + 2] = rng.uniform(-0.01, 0.01, (len(raw), 1)).astype(np.float16).view(np.uint8)
    raw = raw.reshape(rows, -1)
    block = Block.of_bytes(encoding, torch.from_numpy(raw), rows, columns)
    return block, torch.from_numpy(dequantize(encoding, raw, columns)).double()


def inputs(n: int, columns: int, seed: int = 1) -> Tensor:
    x = torch.randn(n, columns, generator=torch.Generator().manual_seed(seed))
    x[:, 3::97] *= 100  # as transformers have them
    return x.bfloat16()


def multiply(x: Tensor, block: Block) -> Tensor:
    return compiled.linear(x, block.encoding, block.data, block.scale)


@pytest.mark.parametrize(("encoding", "shape"), LOW_BIT)
def test_values_are_the_weights_times_the_activations(encoding: str, shape: tuple[int, int]) -> None:
    """Off by what 15 bits of a group's largest activation lose, far less than bf16's own rounding."""
    block, numbers = weights(encoding, *shape)
    x = inputs(9, shape[1])
    for n in (1, 9):
        exact = x[:n].double() @ numbers.t()
        size = (x[:n].double().square() @ numbers.square().t()).sqrt().norm()  # however much of it cancels
        bound = size * 2**-12
        if encoding == "Q3_K":  # where 0 often stands beside a group's largest, whose step all of it has
            steps = x[:n].double().abs().view(n, -1, 32).amax(2).repeat_interleave(32, 1)
            bound = (steps.square() @ numbers.square().t()).sqrt().norm() * 2**-13  # seven deviations
        assert (multiply(x[:n], block).double() - exact).norm() < bound
        fine = multiply(x[:n].float() * (1 + 2**-13), block).double() / (1 + 2**-13)
        assert (fine - exact).norm() < size * 2**-18  # of fp32 nothing that its sums would keep


@pytest.mark.parametrize(("encoding", "shape"), CASES)
def test_a_rows_bits_depend_on_nothing_else(encoding: str, shape: tuple[int, int]) -> None:
    """Neither on the other rows, nor on instructions, nor on threads. (bf16 by bf16 on AMX: test_bf16.py.)"""
    block, _ = weights(encoding, *shape)
    x = inputs(256, shape[1]).to(torch.float16 if encoding == "BF16" else torch.bfloat16)
    whole = multiply(x, block)
    for n in COUNTS:
        assert torch.equal(multiply(x[:n], block), whole[:n])
        assert torch.equal(multiply(x[-n:], block), whole[-n:])
    for level in compiled.levels():
        assert compiled.level(level) == level
        for n in (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 70):
            assert torch.equal(multiply(x[:n], block), whole[:n])


@pytest.mark.parametrize("encoding", sorted({encoding for encoding, _ in LOW_BIT}))
def test_both_terms_of_a_row_in_fp32_have_its_bits(encoding: str) -> None:
    """A kernel sees twice as many rows, and may take half of them at a time."""
    block, _ = weights(encoding, 37, 1280)
    x = inputs(70, 1280)
    whole = multiply(x, block)
    for level in compiled.levels():
        assert compiled.level(level) == level
        for n in (1, 2, 3, 4, 5, 6, 7, 8, 9, 16):
            assert torch.equal(multiply(x[:n], block), whole[:n])


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_threads_share_a_matrix_without_changing_it(threads: int) -> None:
    block, _ = weights("Q4_K", 400, 512)
    x = inputs(70, 512)
    before = torch.get_num_threads()
    alone = multiply(x, block)
    try:
        torch.set_num_threads(threads)
        for n in (1, 3, 5, 8, 70) * 20:
            assert torch.equal(multiply(x[:n], block), alone[:n])
    finally:
        torch.set_num_threads(before)


def test_callers_in_several_threads_do_not_meet() -> None:
    cases = [(weights(e, 64, 512, i)[0], inputs(5, 512, i)) for i, e in enumerate(compiled.FORMATS)]
    expected = [multiply(x, block) for block, x in cases]
    wrong: list[int] = []

    def work(i: int) -> None:
        torch.set_num_threads(2)
        for _ in range(100):
            if not torch.equal(multiply(cases[i][1], cases[i][0]), expected[i]):
                wrong.append(i)

    before = torch.get_num_threads()
    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(cases))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.set_num_threads(before)
    assert not wrong


@pytest.mark.parametrize("n", [1, 4, 5, 40])
def test_matrices_of_one_call_are_multiplied_as_if_alone(n: int) -> None:
    """Of every encoding, in any order, whole or as blocks of rows of several encodings."""
    made = [weights(e, rows, 512, i)[0] for i, (e, rows) in enumerate(zip(FORMATS * 2, ROWS, strict=False))]
    x = inputs(n, 512)
    for dtype in (torch.bfloat16, torch.float32, torch.float16):
        together = compiled.Matrices(
            [[(b.encoding, b.data, b.scale) for b in made[:1]],
             [(b.encoding, b.data, b.scale) for b in made[1:6]],
             [(b.encoding, b.data, b.scale) for b in made[6:]]], 512,
        )  # fmt: skip
        first, second, third = together.times(x, dtype)
        alone = [compiled.linear(x, b.encoding, b.data, b.scale, dtype) for b in made]
        assert torch.equal(first, alone[0])
        assert torch.equal(second, torch.cat(alone[1:6], dim=1))
        assert torch.equal(third, torch.cat(alone[6:], dim=1))


def test_a_call_of_more_blocks_than_it_takes_is_refused() -> None:
    block, _ = weights("Q4_K", 16, 256)
    with pytest.raises(ValueError, match="17 blocks"):
        compiled.Matrices([[(block.encoding, block.data, block.scale)]] * 17, 256)


@pytest.mark.skipif(sys.platform != "linux", reason="mprotect by its Linux numbers")
def test_nothing_behind_the_last_row_is_read() -> None:
    """The weights end where memory does, as a chunk's last matrix may; another process finds out."""
    code = """
import ctypes, mmap, sys
sys.path.insert(0, "tests")
import torch
from test_compiled import CASES, inputs, multiply, weights
from edgespec.kernels import compiled
from edgespec.kernels.matmul import Block, typed
libc = ctypes.CDLL(None, use_errno=True)
area = mmap.mmap(-1, 2**20)
memory = torch.frombuffer(area, dtype=torch.uint8)
end = len(memory) - mmap.PAGESIZE
assert not libc.mprotect(ctypes.c_void_p(memory.data_ptr() + end), mmap.PAGESIZE, 0)
for encoding, shape in CASES:
    block, _ = weights(encoding, *shape)
    raw = block.data.contiguous().view(torch.uint8).flatten()
    memory[end - len(raw) : end] = raw
    data = typed(memory[end - len(raw) : end], encoding, tuple(block.data.shape))
    last = Block(encoding, data, block.scale, block.rows, block.inner)
    for n in (1, 4, 5, 7, 8, 28, 40):
        x = inputs(n, shape[1])
        compiled.level(99)
        for level in compiled.levels():
            compiled.level(level)
            for typed_x in (x, x.half()):
                assert torch.equal(multiply(typed_x, last), multiply(typed_x, block)), (encoding, n, level)
                both = ((encoding, b.data, b.scale) for b in (last, block))
                twice = [compiled.linear(typed_x, *b, prompt=True) for b in both]
                assert torch.equal(*twice), (encoding, n, level)
"""
    done = subprocess.run([sys.executable, "-c", code], timeout=120, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.returncode}: {done.stderr}"


def test_a_child_that_was_forked_has_threads_of_its_own() -> None:
    code = """
import os, torch
from edgespec.kernels import compiled
from edgespec.kernels.quantize import quantize_int8
torch.set_num_threads(2)
w, scale = quantize_int8(torch.randn(300, 256))
x = torch.randn(2, 256)
first = compiled.linear(x, "I8", w, scale)
child = os.fork()
if child == 0:
    os._exit(0 if torch.equal(compiled.linear(x, "I8", w, scale), first) else 1)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("encoding", [encoding for encoding in compiled.FORMATS if encoding not in PLAIN])
def test_an_activation_that_is_not_finite_shows_in_its_row_alone(encoding: str, bad: float) -> None:
    block, _ = weights(encoding, 20, 512)
    x = inputs(6, 512)
    clean = multiply(x, block)
    x[2, 300] = bad
    for n in (3, 6):
        out = multiply(x[:n], block)
        assert torch.isnan(out[2]).all()
        others = [i for i in range(n) if i != 2]
        assert torch.equal(out[others], clean[others])


@pytest.mark.parametrize("size", [0.0, 1e-45, 1e-38, 1e-30, 1.0, 3.3e38])
def test_activations_of_any_size(size: float) -> None:
    """The largest sums fit: Q6_K's numbers go to 32 x 128."""
    raw = np.zeros((2, 2 * 210), dtype=np.uint8)
    for block in raw.reshape(-1, 210):
        block[192:208] = 128  # scales of -128, numbers of -32
        block[208:] = np.float16(2**-14).reshape(1).view(np.uint8)
    numbers = torch.from_numpy(dequantize("Q6_K", raw, 512)).double()
    assert (numbers == 0.25).all()
    x = torch.full((5, 512), size)
    x[1, ::2] *= -1
    out = multiply(x * 2**-10, Block.of_bytes("Q6_K", torch.from_numpy(raw), 2, 512))
    exact = (x * 2**-10).double() @ numbers.t()
    assert torch.allclose(out.double(), exact, rtol=1e-5, atol=max(1e-30, size * 1e-5))


@pytest.mark.parametrize("fill", [0x00, 0x0F, 0x7F, 0x80, 0xF0, 0xFF])
@pytest.mark.parametrize("encoding", sorted({encoding for encoding, _ in LOW_BIT}))
def test_the_largest_sums_are_exact(encoding: str, fill: int) -> None:
    """What AMX sums in fp32 stays below 2^24, and AVX2's sums of bytes below 2^15."""
    if encoding in BLOCKS:
        shape = (20, 512 // BLOCKS[encoding].elements, BLOCKS[encoding].nbytes)
        raw = torch.full(shape, fill, dtype=torch.uint8)
        for at in FACTORS.get(encoding, (0,)):
            raw[:, :, at : at + 2] = torch.tensor([0.1], dtype=torch.float16).view(torch.uint8)
        full = Block.of_bytes(encoding, raw, 20, 512)
    else:
        full, _ = weights(encoding, 20, 512)
        full.data.view(torch.uint8).fill_(fill)
    x = torch.ones(33, 512, dtype=torch.bfloat16)
    x[1::2] *= -1
    x[2::3, ::2] *= -0.998
    compiled.level(0)
    found = multiply(x, full)
    compiled.level(len(LEVELS))
    for level in reversed(compiled.levels()):
        compiled.level(level)
        for n in (1, 2, 3, 4, 5, 6, 8, 16, 33):
            assert torch.equal(multiply(x[:n], full), found[:n]), (level, n)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("encoding", "shape"), LOW_BIT)
def test_dense_numbers_are_the_definitions(encoding: str, shape: tuple[int, int], dtype: torch.dtype) -> None:
    block, numbers = weights(encoding, *shape)
    out = torch.full((shape[0], shape[1] + 3), 7.0, dtype=dtype)
    for level in compiled.levels():
        compiled.level(level)
        found = compiled.dense(encoding, block.data, block.scale, shape[1], out)
        assert torch.equal(found, numbers.float().to(dtype))
        assert (out[:, shape[1] :] == 7).all()


@pytest.mark.parametrize("encoding", compiled.FORMATS)
def test_bytes_may_begin_anywhere(encoding: str) -> None:
    """A piece's place in a chunk is the file's business."""
    block, _ = weights(encoding, 9, 512)
    raw = block.data.view(torch.uint8).flatten()
    place = 2 if encoding in PLAIN else 3  # numbers that torch knows lie at whole numbers' places
    shifted = torch.zeros(len(raw) + place, dtype=torch.uint8)
    shifted[place:] = raw
    moved = Block.of_bytes(encoding, shifted[place:], 9, 512, block.scale)
    x = inputs(7, 512)
    for exact in (True, False):
        assert torch.equal(linear(x, moved, exact), linear(x, block, exact))


def test_a_library_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    library, why = compiled._open(tmp_path)
    assert library is None
    assert "not built" in why
    file = tmp_path / f"_native{importlib.machinery.EXTENSION_SUFFIXES[0]}"
    file.write_bytes(b"\x7fELF of another machine")
    library, why = compiled._open(tmp_path)
    assert library is None
    assert str(file) in why
    assert "install.sh" in why


def test_a_library_of_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "VERSION", compiled.VERSION + 1)
    library, why = compiled._open(Path(compiled.__file__).parent)
    assert library is None
    assert "version" in why
