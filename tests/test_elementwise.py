"""Norms, rotation and SwiGLU, compiled: the right values, and a row's bits whatever is beside it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from edgespec.kernels import compiled, dispatch, elementwise, reference
from edgespec.kernels.choice import LEVELS
from tests.test_half import levels

pytestmark = [
    pytest.mark.skipif(bool(compiled.unavailable()), reason=compiled.unavailable()),
    pytest.mark.usefixtures("best_level"),
]

TYPES = tuple(compiled.SOURCES)
COLUMNS = (1, 2, 15, 16, 17, 64, 100, 511, 512, 513, 1000, 2048, 5632)
HALVES = (1, 3, 8, 32, 37, 64, 127, 128, 129, 300)
SPECIAL = (0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1.0)


def normal(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def wild(count: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Numbers of every size that the type has, subnormal ones, infinities and NaN among them."""
    generator = torch.Generator().manual_seed(seed)
    bits = torch.randint(0, 2 ** (8 * dtype.itemsize), (count,), generator=generator, dtype=torch.int64)
    return bits.to(torch.int32 if dtype.itemsize == 4 else torch.int16).view(dtype)


def same(a: Tensor, b: Tensor) -> bool:
    """Bit for bit, but for what a NaN carries."""
    whole = torch.int32 if a.dtype.itemsize == 4 else torch.int16
    return a.shape == b.shape and bool(((a.view(whole) == b.view(whole)) | (a.isnan() & b.isnan())).all())


def assert_last_place(found: Tensor, expected: Tensor) -> None:
    """`expected` is fp64: off by a rounding to the type (two on the way, in some), and by fp32's few."""
    places = {torch.float32: 2**-21, torch.float16: 2**-9.9, torch.bfloat16: 2**-6.9}[found.dtype]
    tiny = {torch.float32: 1e-37, torch.float16: 2**-23, torch.bfloat16: 1e-37}[found.dtype]
    assert torch.allclose(found.double(), expected, rtol=places, atol=tiny)


def angles(n: int, half: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    turned = normal(n, 1, half, seed=5)
    return turned.cos().to(dtype), turned.sin().to(dtype)


@pytest.mark.parametrize("dtype", TYPES)
def test_norms_are_the_definition(dtype: torch.dtype) -> None:
    for columns in COLUMNS:
        x, weight = normal(5, columns, dtype=dtype), normal(columns, dtype=dtype, seed=1)
        x[1] *= 1000
        x[2] = 0
        wide = x.double()
        exact = weight.double() * wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5)
        found = elementwise.rms_norm(x, weight, 1e-5)
        assert_last_place(found, exact)
        # In narrow types the reference rounds at the same two places, and differs where fp32 was near a tie.
        if dtype != torch.float32:
            other = reference.rms_norm(x, weight, 1e-5) != found
            assert other.sum() <= 1 + other.numel() // 500
        heads = normal(5, 3, columns, dtype=dtype)
        flat = elementwise.rms_norm(heads.view(15, columns), weight, 1e-5)
        assert same(elementwise.rms_norm(heads, weight, 1e-5).view(15, columns), flat)


@pytest.mark.parametrize("dtype", TYPES)
def test_a_sum_and_its_norm_are_those_one_by_one(dtype: torch.dtype) -> None:
    for columns in COLUMNS:
        x, added, weight = (
            normal(*s, dtype=dtype, seed=s[0]) for s in ((5, columns), (6, columns), (columns,))
        )
        x[1, columns // 2] = torch.inf
        for rows in (added[:5], added.T.contiguous().T[:5]):
            total = x + rows
            for _ in levels():
                found = elementwise.add_norm(x, rows.clone(), weight, 1e-5)
                assert same(found[0], total)
                assert same(found[1], elementwise.rms_norm(total, weight, 1e-5))


@pytest.mark.parametrize(
    "shape", [(1, 896), (36, 896), (37, 896), (64, 4096), (600, 4096), (3, 40000), (0, 8)]
)
def test_sums_in_pieces_are_torchs(shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = (torch.randn(shape, generator=torch.Generator().manual_seed(n)).bfloat16() for n in (0, 1))
    row = y.new_ones(shape[1])
    expected, wide = (x + y, x.T.contiguous().T + row), x.float() + y
    sizes, add = list[int](), torch.add

    def adds(*operands: Tensor, **where: Tensor) -> Tensor:
        sizes.append(operands[0].numel())
        return add(*operands, **where)

    monkeypatch.setattr(torch, "add", adds)
    for found, sum_ in zip((dispatch.add(x, y), dispatch.add(x, row)), expected, strict=True):
        assert torch.equal(found, sum_)
    assert max(sizes, default=0) < 2**15, "torch would wake its threads"
    assert torch.equal(dispatch.add(x.float(), y), wide)  # of two types: torch's own


@pytest.mark.parametrize("dtype", TYPES)
def test_swiglu_is_the_definition(dtype: torch.dtype) -> None:
    for columns in COLUMNS:
        gate, up = 4 * normal(5, columns, dtype=dtype), normal(5, columns, dtype=dtype, seed=1)
        exact = gate.double() / (1 + torch.exp(-gate.double())) * up.double()
        found = elementwise.swiglu(gate, up)
        assert_last_place(found, exact)
        if dtype != torch.float32:
            other = reference.swiglu(gate, up) != found
            assert other.sum() <= 1 + other.numel() // 500


def test_the_exponential_is_right_over_all_of_its_range() -> None:
    x = torch.cat(
        [torch.linspace(-88, 110, 400001), torch.logspace(-40, 1, 4000), -torch.logspace(-40, 1, 4000)]
    )
    exact = x.double() / (1 + torch.exp(-x.double()))
    for _ in levels():
        found = elementwise.swiglu(x[None], torch.ones(1, len(x)))[0].double()
        assert ((found - exact).abs() <= 2**-21.5 * exact.abs() + 1e-45).all()


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dtype", TYPES)
def test_rotation_is_the_references_bit_for_bit(dtype: torch.dtype, interleaved: bool) -> None:
    for half in HALVES:
        q, k = normal(3, 4, 2 * half, dtype=dtype), normal(3, 1, 2 * half, dtype=dtype, seed=1)
        cos, sin = angles(3, half, dtype)
        for _ in levels():
            found = elementwise.rotate(q.clone(), k.clone(), cos, sin, interleaved)
            for x, turned in zip((q, k), found, strict=True):
                assert same(turned, reference.rotate(x, cos, sin, interleaved))


@pytest.mark.parametrize("dtype", TYPES)
def test_numbers_of_every_size_are_rounded_as_torch_does(dtype: torch.dtype) -> None:
    """All of fp16's and bf16's, too: cosine 1 and sine 0 leave them as they are."""
    n, half = 64, 512
    x, y = wild(n * 2 * half, dtype).view(n, 1, -1), wild(n * 2 * half, dtype, 1).view(n, 1, -1)
    cos, sin = wild(n * half, dtype, 2).view(n, 1, half), wild(n * half, dtype, 3).view(n, 1, half)
    if dtype.itemsize == 2:
        x = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(dtype).view(n, 1, -1)
        cos, sin = torch.ones_like(cos), torch.zeros_like(sin)
        y = y * y.flip(0)
    for _ in levels():
        found = elementwise.rotate(x.clone(), y.clone(), cos, sin, False)
        for before, turned in zip((x, y), found, strict=True):
            assert same(turned, reference.rotate(before, cos, sin, False))
        cos, sin = wild(n * half, dtype, 4).view(n, 1, half), wild(n * half, dtype, 5).view(n, 1, half)
        found = elementwise.rotate(x.clone(), y.clone(), cos, sin, True)
        for before, turned in zip((x, y), found, strict=True):
            assert same(turned, reference.rotate(before, cos, sin, True))


Operation = Callable[[int, int], Tensor]  # first and last row -> their results


def operations(dtype: torch.dtype, n: int, columns: int) -> list[Operation]:
    x, y = normal(n, columns, dtype=dtype), normal(n, columns, dtype=dtype, seed=1)
    heads, less = normal(n, 6, columns, dtype=dtype), normal(n, 2, columns, dtype=dtype, seed=2)
    cos, sin = angles(n, columns // 2, dtype)

    def turned(a: int, b: int, interleaved: bool) -> Tensor:
        two = elementwise.rotate(heads[a:b].clone(), less[a:b].clone(), cos[a:b], sin[a:b], interleaved)
        return torch.cat(two, 1)

    return [
        lambda a, b: elementwise.rms_norm(x[a:b], y[0], 1e-6),
        lambda a, b: elementwise.rms_norm(heads[a:b], y[0], 1e-6),
        lambda a, b: torch.cat(elementwise.add_norm(x[a:b], y[a:b].clone(), y[0], 1e-6), 1),
        lambda a, b: elementwise.swiglu(x[a:b], y[a:b]),
        lambda a, b: turned(a, b, False),
        lambda a, b: turned(a, b, True),
    ]


@pytest.mark.parametrize("columns", [2, 34, 528, 1030])
@pytest.mark.parametrize("dtype", TYPES)
def test_a_rows_bits_depend_on_nothing_else(dtype: torch.dtype, columns: int) -> None:
    """Neither on the other rows, nor on instructions, nor on threads."""
    n = 300
    for operation in operations(dtype, n, columns):
        compiled.level(len(LEVELS))
        whole = operation(0, n)
        for count in range(1, 65):
            assert same(operation(0, count), whole[:count])
            assert same(operation(n - count, n), whole[n - count :])
        for _ in levels():
            assert same(operation(0, n), whole)
            assert same(operation(3, 4), whole[3:4])
        before = torch.get_num_threads()
        try:
            for threads in (1, 2, 3, 8):
                torch.set_num_threads(threads)
                assert same(operation(0, n), whole)
        finally:
            torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", TYPES)
def test_an_elements_bits_do_not_depend_on_its_place(dtype: torch.dtype) -> None:
    gate, up = 4 * normal(1, 100, dtype=dtype), normal(1, 100, dtype=dtype, seed=1)
    expected = elementwise.swiglu(gate, up)
    for start in range(100):
        assert same(elementwise.swiglu(gate[:, start:], up[:, start:]), expected[:, start:])


@pytest.mark.parametrize("dtype", TYPES)
def test_what_is_not_finite_shows_where_the_definition_shows_it(dtype: torch.dtype) -> None:
    """In its own row or element alone."""
    pairs = torch.cartesian_prod(
        torch.tensor((*SPECIAL, 60000.0, -60000.0, -91.0, 3.3)), torch.tensor(SPECIAL)
    )
    gate, up = pairs.to(dtype).repeat(5, 1).T.contiguous().unsqueeze(1)  # [1, 300] each
    for _ in levels():
        assert same(elementwise.swiglu(gate, up), reference.swiglu(gate, up))
        for bad in (torch.nan, torch.inf, -torch.inf):
            x, weight = normal(5, 70, dtype=dtype), normal(70, dtype=dtype, seed=1)
            clean = elementwise.rms_norm(x, weight, 1e-5)
            x[2, 33] = bad
            found = elementwise.rms_norm(x, weight, 1e-5)
            others = [0, 1, 3, 4]
            assert same(found[others], clean[others])
            assert same(found[2:3], reference.rms_norm(x[2:3], weight, 1e-5))  # inf * 0, and 0 elsewhere
            q = normal(2, 3, 8, dtype=dtype)
            q[0, 1, 2] = bad
            cos, sin = angles(2, 4, dtype)
            turned, _ = elementwise.rotate(q.clone(), q.clone(), cos, sin, False)
            assert same(turned, reference.rotate(q, cos, sin, False))


@pytest.mark.parametrize("dtype", TYPES)
def test_rows_may_lie_anywhere(dtype: torch.dtype) -> None:
    """Parts of wider rows, as fused projections give them, and transposed ones."""
    wide = normal(7, 3 * 48, dtype=dtype)
    a, b = wide[:, 1:49], wide[:, 96:]
    weight = normal(96, dtype=dtype)[::2]
    for x, y in ((a, b), (a.T.contiguous().T, b)):
        whole = x.contiguous(), y.contiguous()
        assert same(elementwise.swiglu(x, y), elementwise.swiglu(*whole))
        assert same(
            elementwise.rms_norm(x, weight, 1e-5), elementwise.rms_norm(whole[0], weight.clone(), 1e-5)
        )
    cos, sin = angles(7, 6, dtype)
    for interleaved in (False, True):
        expected = [reference.rotate(x.reshape(7, 4, 12), cos, sin, interleaved) for x in (a, b)]
        crossed = [x.reshape(7, 4, 12).transpose(1, 2).contiguous().transpose(1, 2) for x in (a, b)]
        own = wide.clone()
        views = [own[:, 1:49].unflatten(1, (4, 12)), own[:, 96:].unflatten(1, (4, 12))]
        for q, k in (crossed, views):
            found = elementwise.rotate(q, k, cos, sin, interleaved)
            assert all(same(x.contiguous(), y) for x, y in zip(found, expected, strict=True))
        assert same(own[:, 49:96], wide[:, 49:96])
        assert same(own[:, :1], wide[:, :1])


def test_nothing_may_be_empty_or_have_another_shape() -> None:
    assert elementwise.rms_norm(torch.empty(0, 8), torch.ones(8), 1e-5).shape == (0, 8)
    assert elementwise.swiglu(torch.empty(0, 8), torch.empty(0, 8)).shape == (0, 8)
    with pytest.raises(AssertionError):
        elementwise.rms_norm(torch.ones(2, 8), torch.ones(7), 1e-5)
    with pytest.raises(AssertionError):
        elementwise.swiglu(torch.ones(2, 8), torch.ones(1, 8))
    with pytest.raises(AssertionError):
        elementwise.rotate(
            torch.ones(2, 1, 8), torch.ones(2, 1, 8), torch.ones(1, 1, 4), torch.ones(2, 1, 4), False
        )


def test_without_the_library_or_for_other_tensors_torch_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight = normal(2, 64, dtype=torch.bfloat16), normal(64)
    double = x.double()
    q = normal(2, 2, 8)
    cos, sin = angles(2, 4, torch.float32)
    assert elementwise.suits(x, x)
    assert not elementwise.suits(x, weight)
    assert not elementwise.suits(double, double)
    assert not elementwise.suits(x.to("meta"), x)
    assert not elementwise.suits(x, x.to("meta"))
    assert same(dispatch.rms_norm(x, weight, 1e-5), reference.rms_norm(x, weight, 1e-5))
    assert torch.equal(dispatch.swiglu(double, double), reference.swiglu(double, double))
    expected = elementwise.swiglu(x, x)
    assert same(dispatch.swiglu(x, x), expected)
    with monkeypatch.context() as patch:
        patch.setattr(compiled, "_library", lambda: (None, "not built"))
        assert not elementwise.suits(x, x)
        assert same(dispatch.swiglu(x, x), reference.swiglu(x, x))
        assert same(
            dispatch.rms_norm(weight[None], weight, 1e-5), reference.rms_norm(weight[None], weight, 1e-5)
        )
        total, normed = dispatch.add_norm(x, x, x[0], 1e-5)
        assert same(total, x + x)
        assert same(normed, reference.rms_norm(x + x, x[0], 1e-5))
        turned, _ = dispatch.rotate(q, q, cos, sin, False)
        assert same(turned, reference.rotate(q, cos, sin, False))
