"""Muon for matrices and AdamW for the rest, with fp32 master weights for a bf16 model.

Muon (Jordan et al. 2024, kellerjordan.github.io/posts/muon) replaces a matrix's momentum by its nearest
semi-orthogonal matrix, found by a few Newton-Schulz steps. It needs fewer tokens than AdamW at this size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from edgespec.errors import TrainingError

_A, _B, _C = 3.4445, -4.7750, 2.0315  # Jordan's quintic: singular values go near 1 in five steps


def orthogonalise(g: Tensor, steps: int = 5) -> Tensor:
    """The semi-orthogonal matrix near each of g [k, m, n], in bf16."""
    x = g.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        s = x @ x.mT
        x = _A * x + (_B * s + _C * s @ s) @ x
    out: Tensor = x.mT if tall else x
    return out


class Optimizer:
    """Updates `parameters` (bf16 or fp32) from their gradients, through fp32 masters.

    Matrices inside the layers go to Muon, stacked by shape; embeddings, head and norms to AdamW.
    """

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        muon_rate: float = 0.02,
        adam_rate: float = 3e-3,
        weight_decay: float = 0.02,
        clip: float = 1.0,
    ) -> None:
        self.parameters = dict(parameters)
        self.muon_rate, self.adam_rate, self.weight_decay, self.clip = (
            muon_rate,
            adam_rate,
            weight_decay,
            clip,
        )
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
    def step(self, factor: float, index: int) -> float:
        """One update at `factor` times the rates; `index` counts from 0. Returns the gradients' norm.

        Raises TrainingError, before anything changes, when that is not finite.
        """
        grads = {n: p.grad.float() for n, p in self.parameters.items() if p.grad is not None}
        norm = float(torch.stack([g.norm() for g in grads.values()]).norm())
        if not math.isfinite(norm):
            raise TrainingError(f"the gradient's norm is {norm} at step {index}; nothing was changed by it")
        scale = min(1.0, self.clip / (norm + 1e-6))
        for shape, names in self.shapes.items():
            for n in names:
                self.momentum[n].lerp_(grads[n] * scale, 0.05)
            g = torch.stack([(grads[n] * scale).lerp(self.momentum[n], 0.95) for n in names])  # Nesterov
            update = orthogonalise(g).float()
            rate = factor * self.muon_rate * max(1.0, shape[0] / shape[1]) ** 0.5
            for n, u in zip(names, update, strict=True):
                self.master[n].mul_(1 - rate * self.weight_decay).sub_(u, alpha=rate)
        for n in self.plain:
            g = grads[n] * scale
            m, v = self.momentum[n].lerp_(g, 0.1), self.square[n].lerp_(g * g, 0.02)
            unbiased = (m / (1 - 0.9 ** (index + 1))) / ((v / (1 - 0.98 ** (index + 1))).sqrt() + 1e-8)
            self.master[n].sub_(unbiased, alpha=factor * self.adam_rate)
        for n, p in self.parameters.items():
            p.copy_(self.master[n])
            p.grad = None
        return norm

    def state(self) -> dict[str, Tensor]:
        """Everything that a resumed run needs, by flat names."""
        groups = {"master": self.master, "momentum": self.momentum, "square": self.square}
        return {f"{group}/{n}": t for group, tensors in groups.items() for n, t in tensors.items()}

    @torch.no_grad()
    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restores what `state` gave, and the parameters."""
        for name, tensor in self.state().items():
            tensor.copy_(state[name])
        for n, p in self.parameters.items():
            p.copy_(self.master[n])
