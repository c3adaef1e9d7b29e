"""A prompt's rows of bf16 times bf16 and low-bit weights by AMX or AVX-512 BF16, in orders of their own."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from edgespec.kernels import compiled
from edgespec.kernels.choice import AVX2, FEWS, RARE
from edgespec.kernels.matmul import PROMPT_ROWS, Block, Together, linear, ragged
from tests.test_compiled import CASES, inputs, weights

ENCODINGS = [encoding for encoding in compiled.FORMATS if encoding not in {"F16", *RARE}]
OURS = [case for case in CASES if case[0] in ENCODINGS]

pytestmark = [
    pytest.mark.skipif(
        not compiled.own_prompt("Q4_K", torch.bfloat16) or compiled.as_trees(compiled.order("Q4_K")),
        reason="a prompt is multiplied by torch here, or as a tree",
    ),
    pytest.mark.usefixtures("best_level"),
]


def multiply(x: Tensor, block: Block) -> Tensor:
    return compiled.linear(x, block.encoding, block.data, block.scale, torch.float32, prompt=True)


@pytest.mark.parametrize(("encoding", "shape"), OURS)
def test_values_are_the_unpacked_weights(encoding: str, shape: tuple[int, int]) -> None:
    """Weights are rounded to bf16 first; off by what fp32 sums lose."""
    block, numbers = weights(encoding, *shape)
    rounded = numbers.float().bfloat16().double()
    x = inputs(67, shape[1])
    exact = x.double() @ rounded.t()
    size = (x.double().square() @ rounded.square().t()).sqrt()
    for n in (1, 16, 33, 67):
        assert ((multiply(x[:n], block).double() - exact[:n]).abs() <= size[:n] * 2**-18).all()


@pytest.mark.parametrize(
    ("encoding", "shape"), [*OURS, ("Q4_K", (300, 768)), ("I8", (131, 1000)), ("BF16", (131, 1000))]
)
def test_a_rows_bits_depend_on_no_other_row(encoding: str, shape: tuple[int, int]) -> None:
    block, _ = weights(encoding, *shape)
    x = inputs(300, shape[1])
    whole = multiply(x, block)
    for n in (1, 15, 16, 17, 31, 32, 33, 64, 257):
        assert torch.equal(multiply(x[:n], block), whole[:n])
        assert torch.equal(multiply(x[-n:], block), whole[-n:])


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_do_not_change_it(threads: int) -> None:
    block, _ = weights("Q5_K", 421, 768)
    x = inputs(290, 768)
    whole = multiply(x, block)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        for _ in range(5):
            assert torch.equal(multiply(x, block), whole)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_it_multiplies_prompts_and_nothing_else(encoding: str) -> None:
    block, _ = weights(encoding, 48, 512)
    x = inputs(PROMPT_ROWS + 77, 512)
    assert torch.equal(linear(x, block, exact=False), multiply(x, block).bfloat16())
    exact = compiled.linear(x, encoding, block.data, block.scale, torch.bfloat16)
    assert torch.equal(linear(x, block, exact=True), exact)
    assert torch.equal(linear(x[: FEWS[0]], block, exact=False), exact[: FEWS[0]])
    more = x[: FEWS[0] + 1]
    assert torch.equal(linear(more, block, exact=False), multiply(more, block).bfloat16())
    compiled.level(AVX2)
    assert not compiled.own_prompt(encoding, torch.bfloat16)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_an_activation_that_is_not_finite_shows_in_its_row_alone(encoding: str, bad: float) -> None:
    block, _ = weights(encoding, 20, 512)
    x = inputs(40, 512)
    clean = multiply(x, block)
    x[2, 300] = bad
    found = multiply(x, block)
    assert not found[2].isfinite().all()
    others = [i for i in range(40) if i != 2]
    assert torch.equal(found[others], clean[others])


@pytest.mark.parametrize("columns", [31, 64, 513, 600])
def test_what_lies_behind_a_row_of_bf16_is_not_multiplied(columns: int) -> None:
    wide = torch.full((37, 700), float("nan"), dtype=torch.bfloat16)
    wide[:, :columns] = weights("BF16", 37, columns)[0].data
    x = inputs(40, columns)
    found = multiply(x, Block("BF16", wide[:, :columns], None, 37, columns))
    assert torch.equal(found, multiply(x, weights("BF16", 37, columns)[0]))


def test_several_matrices_share_a_call() -> None:
    """Of all encodings, fp16 and bf16 among them."""
    blocks = [weights(encoding, 20 + 31 * i, 512, i)[0] for i, encoding in enumerate(compiled.FORMATS)]
    x = inputs(40, 512)
    together = compiled.Matrices([[(b.encoding, b.data, b.scale)] for b in blocks], 512)
    for found, block in zip(together.times(x, torch.float32, prompt=True), blocks, strict=True):
        assert torch.equal(found, multiply(x, block))


@pytest.mark.parametrize("n", [FEWS[0], FEWS[0] + 1, 300])
def test_one_call_for_several_does_what_one_by_one_would(n: int) -> None:
    matrices = {e: [weights(e, 40, 512, i)[0]] for i, e in enumerate(ENCODINGS)}
    together, x = Together(matrices), inputs(n, 512)
    for exact in (True, False):
        found = together.call(tuple(matrices), x, exact)
        assert (found is None) == (not exact and n > FEWS[0])
        if found is not None:
            for out, blocks in zip(found.times(x, x.dtype), matrices.values(), strict=True):
                assert torch.equal(out, linear(x, blocks[0], exact))


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_prompts_beside_exact_rows_have_the_bits_of_their_own(encoding: str) -> None:
    block, _ = weights(encoding, 40, 512)
    x = inputs(3 + 20 + 60 + 300 + 7, 512)
    spans = [range(3, 23), range(23, 83), range(83, 383), range(383, 390)]
    own = [linear(x[:3], block, True), *(linear(x[s.start : s.stop], block, False) for s in spans)]
    assert torch.equal(ragged(x, block, spans), torch.cat(own))
