"""What turns gradients into steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor, nn

EPSILON = 1e-8


class Optimizer(Protocol):
    """Of parameters that it was made with."""

    def step(self, rate: float) -> None:
        """One step along their gradients."""

    def clear(self) -> None:
        """Drop the gradients."""

    def state(self) -> dict[str, Tensor]:
        """All that a resumed run needs beside the number of steps, parameters included."""

    def restore(self, tensors: Mapping[str, Tensor], steps: int) -> None:
        """The inverse. Raises KeyError and RuntimeError for another model's."""


class AdamW:
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019, arXiv 1711.05101, algorithm 2).

    The arithmetic of torch.optim.AdamW, without its import of torch's compiler: 150 MB that the memory dial
    would have to pay for. Keeps the `steps` taken, and by parameter name the gradient's mean and mean square,
    `moments`.
    """

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], betas: tuple[float, float], decay: float
    ) -> None:
        self.parameters = dict(parameters)
        self.betas = betas
        self.decay = decay
        self.steps = 0
        self.moments = {n: (torch.zeros_like(p), torch.zeros_like(p)) for n, p in self.parameters.items()}

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """One step along the parameters' gradients."""
        self.steps += 1
        first, second = self.betas
        for name, p in self.parameters.items():
            if p.grad is None:
                continue
            mean, square = self.moments[name]
            mean.lerp_(p.grad, 1 - first)
            square.mul_(second).addcmul_(p.grad, p.grad, value=1 - second)
            scale = square.sqrt().div_((1 - second**self.steps) ** 0.5).add_(EPSILON)
            p.mul_(1 - rate * self.decay)
            p.addcdiv_(mean, scale, value=-rate / (1 - first**self.steps))

    def clear(self) -> None:
        """Drop the gradients."""
        for p in self.parameters.values():
            p.grad = None

    def state(self) -> dict[str, Tensor]:
        """Everything but `steps`, parameters included, to be saved."""
        tensors = {f"model.{name}": p.detach() for name, p in self.parameters.items()}
        for name, (mean, square) in self.moments.items():
            tensors |= {f"mean.{name}": mean, f"square.{name}": square}
        return {name: tensor.cpu() for name, tensor in tensors.items()}

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, Tensor], steps: int) -> None:
        """The inverse of `state`. Raises KeyError and RuntimeError for another model's."""
        self.steps = steps
        for name, p in self.parameters.items():
            p.copy_(tensors[f"model.{name}"])
            for kind, moment in zip(("mean", "square"), self.moments[name], strict=True):
                moment.copy_(tensors[f"{kind}.{name}"])
