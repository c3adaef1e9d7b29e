"""The Triton kernels against the reference: in its interpreter, and compiled where there is a GPU.

The interpreter knows no bf16 dot products and cuts instead of rounding, so there bf16 is compared loosely.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="triton (the extra `cuda`) is not installed")

from edgespec.kernels import reference
from edgespec.kernels.matmul import Block
from edgespec.kernels.quantize import quantize_int4, quantize_int8
from edgespec.kernels.reference import Mask
from edgespec.kernels.triton import attention, low_bit, norm

ROOT = Path(__file__).resolve().parents[1]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = [torch.bfloat16, torch.float16, torch.float32]
TOLERANCE = {torch.bfloat16: 8e-3, torch.float16: 1e-3, torch.float32: 2e-6}  # of the result's norm


def make(encoding: str, m: int, k: int) -> Block:
    w = torch.randn(m, k, generator=torch.Generator().manual_seed(0)) * 0.02
    data, scale = (quantize_int8 if encoding == "I8" else quantize_int4)(w)
    return Block(encoding, data.to(DEVICE), scale.to(DEVICE), m, k)


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype).to(DEVICE)


def check_linear(n: int, block: Block, dtype: torch.dtype, exact: bool) -> None:
    assert block.scale is not None
    x = random(n, block.inner, dtype=dtype)
    out = low_bit.linear(x, block.data, block.scale, exact)
    expected = reference.linear(x, block.numbers(0, block.rows), block.scale)
    assert out.dtype == dtype
    assert out.shape == (n, block.rows)
    assert (out.double() - expected).norm() <= TOLERANCE[dtype] * expected.norm()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("encoding", ["I8", "U8"])
@pytest.mark.parametrize(("m", "k"), [(70, 100), (64, 192), (1, 64)])
@pytest.mark.parametrize("n", [1, 5, 33])
def test_linear(n: int, m: int, k: int, encoding: str, dtype: torch.dtype) -> None:
    check_linear(n, make(encoding, m, k), dtype, exact=False)


@pytest.mark.parametrize("encoding", ["I8", "U8"])
def test_exact_rows_do_not_depend_on_each_other(encoding: str) -> None:
    block = make(encoding, 65, 128)
    assert block.scale is not None
    x = random(40, 128)
    whole = low_bit.linear(x, block.data, block.scale, True)
    check_linear(1, block, torch.float32, exact=True)
    for n in (1, 2, 16, 17, 33):
        assert torch.equal(low_bit.linear(x[:n], block.data, block.scale, True), whole[:n])


def test_rows_of_a_larger_matrix() -> None:
    """Activations and weights may be views: part of the columns, part of a chunk's rows."""
    block = make("U8", 48, 128)
    assert block.scale is not None
    x = random(3, 256)[:, 64:192]
    out = low_bit.linear(x, block.data[16:40], block.scale[16:40], False)
    expected = reference.linear(x, block.numbers(16, 40), block.scale[16:40])
    assert (out.double() - expected).norm() <= 2e-6 * expected.norm()


def check_attention(found: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor]) -> None:
    out, lse = found
    assert out.dtype == expected[0].dtype
    assert torch.equal(torch.isinf(lse), torch.isinf(expected[1]))
    bound = TOLERANCE[out.dtype]
    assert torch.allclose(out.float(), expected[0].float(), rtol=bound, atol=bound)
    assert torch.allclose(lse, expected[1], rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("masked", [(1, 1, 5), (2, 3, 5), (1, 3, 1), None])
@pytest.mark.parametrize("keys", [1, 64, 130])
def test_attend(keys: int, masked: tuple[int, int, int] | None, dtype: torch.dtype) -> None:
    q, k, v = (random(2, 3, t, 20, dtype=dtype, seed=t) for t in (5, keys, keys))
    mask = None
    if masked is not None:
        visible = random(*masked, keys, seed=9) > 0
        visible[:, :, -1] = False  # a row that sees nothing
        mask = Mask(visible)
    check_attention(attention.attend(q, k, v, mask, 0.3), reference.attend(q, k, v, mask, 0.3))


def test_attend_takes_large_scores() -> None:
    q, k, v = random(1, 1, 3, 16), random(1, 1, 100, 16, seed=2) * 1000, random(1, 1, 100, 16, seed=3)
    check_attention(attention.attend(q, k, v, None, 1.0), reference.attend(q, k, v, None, 1.0))


def test_attend_strided_blocks() -> None:
    """As the runtime calls it: whole blocks of a cache, and one query for all of them."""
    cache = random(2, 256, 16)
    k, v = cache[:, :128].view(2, 2, 64, 16), cache[:, 128:].view(2, 2, 64, 16)
    q = random(2, 1, 3, 16, seed=4).expand(2, 2, 3, 16)
    check_attention(attention.attend(q, k, v, None, 0.25), reference.attend(q, k, v, None, 0.25))


def ancestors(parents: list[int]) -> Tensor:
    """[n, n]: true for each node's ancestors and itself."""
    n = len(parents)
    seen = torch.zeros(n, n, dtype=torch.bool)
    for node, parent in enumerate(parents):
        if parent >= 0:
            seen[node] = seen[parent]
        seen[node, node] = True
    return seen.to(DEVICE)


def check_tree(parents: list[int], committed: int, group: int, dtype: torch.dtype, width: int = 16) -> None:
    n, kv_heads = len(parents), 2
    q = random(n, kv_heads * group, width, dtype=dtype)
    k, v = (random(kv_heads, committed + n, width, dtype=dtype, seed=s) for s in (2, 3))
    seen = ancestors(parents)
    out, lse = attention.tree_attend(q, k, v, committed, seen, width**-0.5)
    assert out.shape == q.shape
    visible = torch.cat((torch.ones(n, committed, dtype=torch.bool, device=DEVICE), seen), dim=1)
    for head in range(kv_heads * group):
        one = q[None, :, head].unsqueeze(1)  # [1, 1, n, e]
        block = k[head // group][None, None], v[head // group][None, None]
        expected = reference.attend(one, *block, Mask(visible[None, None]), width**-0.5)
        check_attention((out[None, None, :, head], lse[None, None, :, head]), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("committed", [0, 1, 64, 150])
@pytest.mark.parametrize("parents", [[-1], [-1, 0, 0, 1, 1, 2, -1, 6], [-1, *range(19)]])
def test_tree_attend(parents: list[int], committed: int, dtype: torch.dtype) -> None:
    check_tree(parents, committed, 3, dtype)


def test_tree_attend_does_not_see_siblings() -> None:
    """Another key in a slot off the path changes no bit."""
    seen = ancestors([-1, 0, 0, 1])
    q, k, v = random(4, 2, 16), random(2, 74, 16, seed=2), random(2, 74, 16, seed=3)
    out, lse = attention.tree_attend(q, k, v, 70, seen, 0.25)
    k[:, 72], v[:, 72] = 100, 100  # node 2: no ancestor of 0, 1 and 3
    again, again_lse = attention.tree_attend(q, k, v, 70, seen, 0.25)
    others = [0, 1, 3]
    assert torch.equal(out[others], again[others])
    assert torch.equal(lse[others], again_lse[others])
    assert not torch.equal(out[2], again[2])


def test_tree_attend_refuses_a_mask_of_another_tree() -> None:
    q, k = random(3, 2, 16), random(2, 70, 16)
    with pytest.raises(ValueError, match="3 nodes and 6 slots"):
        attention.tree_attend(q, k, k, 64, ancestors([-1, 0, 1]), 0.25)


def test_kernels_are_off_without_a_gpu() -> None:
    from edgespec.kernels.dispatch import has_triton

    assert not has_triton(torch.device("cpu"))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("encoding", ["I8", "U8"])
@pytest.mark.parametrize(("m", "k"), [(4096, 4096), (4096, 11008)])
@pytest.mark.parametrize("n", [1, 8, 64, 256])
def test_linear_of_real_shapes(n: int, m: int, k: int, encoding: str, dtype: torch.dtype) -> None:
    block = make(encoding, m, k)
    for exact in (True, False):
        check_linear(n, block, dtype, exact)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_tree_attend_of_real_shapes(dtype: torch.dtype) -> None:
    check_tree([-1, *(i // 2 for i in range(63))], 2000, 4, dtype, width=128)


@pytest.mark.gpu
def test_dispatch_takes_them_on_a_gpu() -> None:
    from edgespec.kernels.dispatch import attend, has_triton
    from edgespec.kernels.matmul import linear

    if torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("older than Ampere")
    assert has_triton(torch.device("cuda"))
    block, x = make("U8", 256, 256), random(4, 256)
    assert block.scale is not None
    assert torch.equal(linear(x, block, True), low_bit.linear(x, block.data, block.scale, True))
    q = random(1, 2, 3, 64)
    assert torch.equal(attend(q, q, q, None, 0.1)[0], attention.attend(q, q, q, None, 0.1)[0])


COMPILE = """
import sys
import triton, triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from edgespec.kernels.triton import attention, low_bit, norm

def compile(kernel, pointers, constants):
    names = [name for name in kernel.arg_names if name not in constants]
    signature = {name: pointers.get(name, "i32") for name in names} | dict.fromkeys(constants, "constexpr")
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    assert triton.compile(source, target=GPUTarget("cuda", int(sys.argv[1]), 32)).asm["cubin"]

matrix = {"x": "*bf16", "data": "*u8", "scale": "*fp32", "out": "*bf16"}
for int4 in (True, False):
    compile(low_bit._gemm, matrix, {"INT4": int4, "ROWS": 64, "OUT": 64, "TYPE": tl.bfloat16})
    compile(low_bit._gemv, matrix, {"INT4": int4, "OUT": 16})
tree = {"q": "*bf16", "k": "*bf16", "v": "*bf16", "out": "*bf16", "visible": "*u8", "lse": "*fp32"}
sizes = {"WIDTH": 128, "PADDED": 128, "ROWS": attention.ROWS, "KEYS": attention.KEYS[2]}
compile(attention._attend, tree | {"scale": "fp32"}, {"MASKED": True, "TYPE": tl.bfloat16, **sizes})
states = dict.fromkeys(("x", "weight", "out"), "*bf16")
compile(norm._norm, states | {"eps": "fp32"}, {"PADDED": 4096})
"""


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 90])
def test_kernels_compile_without_a_gpu(capability: int) -> None:
    """For Ampere and Hopper: the interpreter takes more than the compiler does."""
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    subprocess.run([sys.executable, "-c", COMPILE, str(capability)], env=env, cwd=ROOT, check=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "groups", "width"), [(1, 4, 64), (5, 4, 100), (3, 1, 33), (0, 4, 8)])
def test_grouped_norm(rows: int, groups: int, width: int, dtype: torch.dtype) -> None:
    x, weight = random(rows, groups, width, dtype=dtype), random(groups, width, dtype=dtype, seed=2)
    found = norm.grouped_rms_norm(x, weight, 1e-5)
    expected = reference.rms_norm(x.double(), weight.double(), 1e-5)
    assert found.dtype == dtype
    assert found.shape == x.shape
    assert (found.double() - expected).norm() <= TOLERANCE[dtype] * expected.norm()


def test_a_group_has_its_own_norm() -> None:
    """Of states that differ by orders of magnitude, as a model's first and last; and of a view of them."""
    x = random(6, 8, 32)[:, ::2] * torch.tensor([1e-3, 1.0, 1e3, 30.0], device=DEVICE)[:, None]
    weight = random(4, 32, seed=2)
    found = norm.grouped_rms_norm(x, weight, 1e-12)
    each = [reference.rms_norm(x[:, group], weight[group], 1e-12) for group in range(4)]
    assert torch.allclose(found, torch.stack(each, 1), rtol=1e-5)
