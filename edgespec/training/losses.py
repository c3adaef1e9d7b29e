"""What an adapter's distribution costs against the target's, and how to sum that without [n, V] in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

BLOCK_ROWS = 128  # rows whose logits exist at a time
BLOCK_BYTES = 28  # of temporaries for each of a block's logits: the target's, ours, their logs and gradients

RowsLoss = Callable[
    [Tensor, Tensor], Tensor
]  # logits of adapter and target, [m, V] fp32 each -> sum over rows
Head = Callable[[Tensor], Tensor]  # normed [m, d] -> logits [m, V]


def full_kl(logits: Tensor, target: Tensor) -> Tensor:
    """-sum_v p(v) log q(v) over the whole vocabulary, summed over rows (CATS, Eq. 1)."""
    return -(target.softmax(-1) * logits.log_softmax(-1)).sum()


def reduced_kl(k: int) -> RowsLoss:
    """The loss on the target's `k` likeliest tokens (CATS, Eq. 2 and Eq. 8).

    Their probabilities are renormalised over these k; the adapter's stay those of the whole vocabulary, so
    that mass on all other tokens is still penalised.
    """

    def loss(logits: Tensor, target: Tensor) -> Tensor:
        top = target.topk(min(k, target.shape[-1]), dim=-1)
        return -(top.values.softmax(-1) * logits.log_softmax(-1).gather(-1, top.indices)).sum()

    return loss


def make_loss(name: str, k: int) -> RowsLoss:
    """ "reduced" or "full"."""
    return {"reduced": reduced_kl(k), "full": full_kl}[name]


def distill(
    head: Head, target: Tensor, students: Mapping[str, Tensor], loss: RowsLoss
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Losses of several students against one target, a block of rows at a time.

    target [n, d] and each student [n, d] are normed states: what the head multiplies. Returns, by student,
    the loss summed over rows, whose gradient reaches the student, and which rows' likeliest token is the
    target's [n] bool. The head's own gradient is never made: it is frozen.
    """
    sums = {name: torch.zeros((), device=target.device) for name in students}
    agree: dict[str, list[Tensor]] = {name: [] for name in students}
    slopes: dict[str, list[Tensor]] = {name: [] for name in students}
    wants_gradient = torch.is_grad_enabled()
    for start in range(0, len(target), BLOCK_ROWS):
        rows = slice(start, start + BLOCK_ROWS)
        with torch.no_grad():
            wanted = head(target[rows]).float()
            best = wanted.argmax(-1)
        for name, student in students.items():
            x = student[rows].detach().requires_grad_(wants_gradient)
            logits = head(x).float()
            value = loss(logits, wanted)
            if wants_gradient:
                slopes[name] += torch.autograd.grad(value, x)
            sums[name] += value.detach()
            agree[name].append(logits.detach().argmax(-1) == best)
            del logits, value
    if wants_gradient:
        for name, student in students.items():
            # A sum with the loss's value and, by construction, its gradient.
            linear = (student.float() * torch.cat(slopes[name]).float()).sum()
            sums[name] = linear + (sums[name] - linear).detach()
    return sums, {name: torch.cat(parts) for name, parts in agree.items()}


def name_tokens(head: Head, drafts: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Cross-entropy of drafts [n, l, d], normed states, to the tokens that come there, labels [n, l]; -1 =
    none.

    Position by position, a block of rows at a time: memory for logits does not grow with l. Returns the sum,
    whose gradient reaches all drafts at once, and which of them say their token, [n, l] bool.
    """
    wants_gradient = torch.is_grad_enabled()
    total, hits = torch.zeros((), device=drafts.device), torch.zeros_like(labels, dtype=torch.bool)
    slopes = torch.zeros_like(drafts) if wants_gradient else None
    for position in range(labels.shape[1]):
        rows = torch.nonzero(labels[:, position] >= 0)[:, 0]
        for start in range(0, len(rows), BLOCK_ROWS):
            block = rows[start : start + BLOCK_ROWS]
            wanted = labels[block, position]
            x = drafts[block, position].detach().requires_grad_(wants_gradient)
            logits = head(x).float()
            value = F.cross_entropy(logits, wanted, reduction="sum")
            if slopes is not None:
                slopes[block, position] = torch.autograd.grad(value, x)[0]
            total += value.detach()
            hits[block, position] = logits.detach().argmax(-1) == wanted
            del logits, value
    if slopes is not None:
        linear = (drafts.float() * slopes.float()).sum()
        total = linear + (total - linear).detach()
    return total, hits
