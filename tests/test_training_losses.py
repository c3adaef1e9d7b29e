"""The losses against their equations, and the sum over blocks against the whole."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgespec.training import losses
from edgespec.training.held_out import Agreement
from edgespec.training.losses import distill, full_kl, make_loss, reduced_kl


def test_the_reduced_loss_is_equation_2() -> None:
    # p = (.5, .25, .125, .125); its top 2, renormalised: 2/3, 1/3. q = (.2, .4, .3, .1).
    target = torch.tensor([[0.5, 0.25, 0.125, 0.125]]).log() + 3.0
    logits = torch.tensor([[0.2, 0.4, 0.3, 0.1]]).log() - 5.0
    expected = -(2 / 3 * math.log(0.2) + 1 / 3 * math.log(0.4))
    assert math.isclose(float(reduced_kl(2)(logits, target)), expected, rel_tol=1e-5)
    whole = -sum(p * math.log(q) for p, q in ((0.5, 0.2), (0.25, 0.4), (0.125, 0.3), (0.125, 0.1)))
    assert math.isclose(float(full_kl(logits, target)), whole, rel_tol=1e-5)
    assert torch.allclose(make_loss("reduced", 99)(logits, target), make_loss("full", 1)(logits, target))


def test_both_losses_are_least_where_the_distributions_agree() -> None:
    target = torch.randn(5, 30, generator=torch.Generator().manual_seed(0))
    logits = target.clone().requires_grad_()
    (slope,) = torch.autograd.grad(full_kl(logits, target), logits)
    assert slope.abs().max() < 1e-6
    # Reduced: the gradient is q - p~, so mass outside the top K is pushed away.
    (slope,) = torch.autograd.grad(reduced_kl(4)(logits, target), logits)
    outside = slope.scatter(1, target.topk(4).indices, 0.0)
    assert (outside >= 0).all()
    assert outside.sum() > 0


@pytest.mark.parametrize("loss", [full_kl, reduced_kl(3)])
def test_blocks_give_the_loss_and_gradient_of_the_whole(
    loss: losses.RowsLoss, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(losses, "BLOCK_ROWS", 4)
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(20, 8, generator=generator)
    target = torch.randn(11, 8, generator=generator)
    noise = {n: torch.randn(11, 8, generator=generator) for n in ("a", "b")}
    students = {n: (target / 2 + x).requires_grad_() for n, x in noise.items()}

    def head(x: Tensor) -> Tensor:
        return x @ weight.T

    sums, agree = distill(head, target, students, loss)
    torch.stack(list(sums.values())).sum().backward()
    for name, student in students.items():
        copy = student.detach().clone().requires_grad_()
        expected = loss(head(copy), head(target))
        expected.backward()
        assert torch.allclose(sums[name], expected, rtol=1e-5)
        assert student.grad is not None
        assert copy.grad is not None
        assert torch.allclose(student.grad, copy.grad, atol=1e-5)
        assert torch.equal(agree[name], head(copy).argmax(-1) == head(target).argmax(-1))
    assert agree["a"].tolist() != agree["b"].tolist()


def test_without_gradients_only_values_are_made() -> None:
    x = torch.randn(3, 4)
    with torch.no_grad():
        sums, agree = distill(lambda x: x, x, {"same": x}, full_kl)
    assert not sums["same"].requires_grad
    assert agree["same"].all()


def hits(text: str) -> NDArray[np.bool_]:
    return np.array([c == "1" for c in text])


def test_agreement_by_draft_position_is_what_cycles_meet() -> None:
    agreement = Agreement(gamma=3)
    agreement.add([hits("1101"), hits("0")], loss=10.0)
    result = agreement.result()
    assert result["agreement"] == 3 / 5
    assert result["loss"] == 2.0
    # Two cycles: "110", whose first two agree, and "0". The last "1" is a chain that nobody saw the end of.
    assert result["positions"] == [0.5, 1.0, 0.0]
    assert result["accepted"] == (3 + 1) / 2


def test_hard_stretches_have_more_cycles() -> None:
    """Averaged over places instead of cycles, an easy half would be worth as much as a hard one."""
    agreement = Agreement(gamma=4)
    agreement.add([hits("1" * 50 + "0" * 50)], 0.0)
    assert math.isclose(agreement.result()["accepted"], (10 * 5 + 50) / (10 + 50))


def test_a_perfect_drafter_reaches_the_ceiling_and_none_stays_at_one() -> None:
    best, worst = Agreement(5), Agreement(5)
    best.add([hits("1" * 20)], 0.0)
    worst.add([hits("0" * 20)], 0.0)
    assert best.result()["accepted"] == 6.0
    assert worst.result()["accepted"] == 1.0
    assert Agreement(5).result()["agreement"] == 0.0  # nothing measured
