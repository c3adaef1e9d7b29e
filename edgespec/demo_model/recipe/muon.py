"""Muon for matrices and AdamW for the rest, with fp32 master weights for a bf16 model.

Muon (Jordan et al. 2024, kellerjordan.github.io/posts/muon) replaces a matrix's momentum by its nearest
semi-orthogonal matrix, found by a few Newton-Schulz steps. It needs fewer tokens than AdamW at this size.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from edgespec.kernels.cpu import matmul_dtype

_A, _B, _C = 3.4445, -4.7750, 2.0315  # Jordan's quintic: singular values go near 1 in five steps


def orthogonalise(g: Tensor, steps: int = 5) -> Tensor:
    """The semi-orthogonal matrix near each of g [k, m, n], in bf16 where the CPU has it."""
    x = g.to(matmul_dtype(torch.bfloat16))
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        s = x @ x.mT
        x = _A * x + (_B * s + _C * s @ s) @ x
    out: Tensor = x.mT if tall else x
    return out


ADAM_SHARE = 0.15  # of Muon's rate


class Muon:
    """An `Optimizer` of `parameters` (bf16 or fp32), through fp32 masters.

    Matrices inside the layers go to Muon, stacked by shape; embeddings, head and norms to AdamW.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], weight_decay: float = 0.02) -> None:
        self.parameters = dict(parameters)
        self.weight_decay = weight_decay
        self.steps = 0
        self.master = {n: p.detach().float().clone() for n, p in self.parameters.items()}
        self.shapes: dict[tuple[int, ...], list[str]] = {}
        for n, p in self.parameters.items():
            if p.dim() == 2 and ".layers." in n:
                self.shapes.setdefault(tuple(p.shape), []).append(n)
        matrices = {n for names in self.shapes.values() for n in names}
        self.plain = [n for n in self.parameters if n not in matrices]
        self.momentum = {n: torch.zeros_like(self.master[n]) for n in self.parameters}
        self.square = {n: torch.zeros_like(self.master[n]) for n in self.plain}

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """One step along the parameters' gradients."""
        self.steps += 1
        grads = {n: p.grad.float() for n, p in self.parameters.items() if p.grad is not None}
        for shape, names in self.shapes.items():
            for n in names:
                self.momentum[n].lerp_(grads[n], 0.05)
            g = torch.stack([grads[n].lerp(self.momentum[n], 0.95) for n in names])  # Nesterov
            update = orthogonalise(g).float()
            own = rate * max(1.0, shape[0] / shape[1]) ** 0.5
            for n, u in zip(names, update, strict=True):
                self.master[n].mul_(1 - own * self.weight_decay).sub_(u, alpha=own)
        for n in self.plain:
            m, v = self.momentum[n].lerp_(grads[n], 0.1), self.square[n].lerp_(grads[n] ** 2, 0.02)
            unbiased = (m / (1 - 0.9**self.steps)) / ((v / (1 - 0.98**self.steps)).sqrt() + 1e-8)
            self.master[n].sub_(unbiased, alpha=rate * ADAM_SHARE)
        for n, p in self.parameters.items():
            p.copy_(self.master[n])

    def clear(self) -> None:
        """Drop the gradients."""
        for p in self.parameters.values():
            p.grad = None

    def state(self) -> dict[str, Tensor]:
        """Everything but `steps`, to be saved."""
        groups = {"master": self.master, "momentum": self.momentum, "square": self.square}
        return {f"{group}/{n}": t for group, tensors in groups.items() for n, t in tensors.items()}

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, Tensor], steps: int) -> None:
        """The inverse of `state`. Raises KeyError and RuntimeError for another model's."""
        self.steps = steps
        for name, tensor in self.state().items():
            tensor.copy_(tensors[name])
        for n, p in self.parameters.items():
            p.copy_(self.master[n])
