"""Rotary angles by absolute position."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from edgespec.runtimes.base import IntArray
from edgespec.runtimes.config import Rope

TABLE = 1024  # positions computed at a time


def inverse_frequencies(rope: Rope, head_dim: int) -> Tensor:
    """[head_dim / 2] fp32, with the config's long-context rescaling."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    inverse = 1.0 / (rope.theta ** exponents.double()).float()  # in fp64 because of what `RopeTable` says
    if rope.factors:  # GGUF stores Llama 3.x's rescaling as divisors
        return inverse / torch.tensor(rope.factors, dtype=torch.float32)
    if rope.kind == "linear":
        return inverse / rope.factor
    if rope.kind == "llama3":
        # Long wavelengths are stretched by `factor`, short ones kept, those between blended.
        wavelength = 2 * math.pi / inverse
        low = rope.original_context / rope.low_freq_factor
        high = rope.original_context / rope.high_freq_factor
        blend = (rope.original_context / wavelength - rope.low_freq_factor) / (
            rope.high_freq_factor - rope.low_freq_factor
        )
        blended = (1 - blend) * inverse / rope.factor + blend * inverse
        return torch.where(
            wavelength > low, inverse / rope.factor, torch.where(wavelength < high, inverse, blended)
        )
    return inverse


class RopeTable:
    """cos and sin of every position, made once and in fp64: the last bit of an fp32 cosine depends on its
    place in a vector loop, and differed in 1 process of 20."""

    def __init__(self, rope: Rope, head_dim: int, device: torch.device) -> None:
        self.inverse = inverse_frequencies(rope, head_dim)
        self.device = device
        self.cos = torch.empty(0, head_dim // 2, device=device)
        self.sin = torch.empty(0, head_dim // 2, device=device)

    def __call__(self, positions: IntArray) -> tuple[Tensor, Tensor]:
        """cos, sin [n, head_dim / 2] fp32."""
        while len(self.cos) <= positions.max():
            start = len(self.cos)
            angles = torch.arange(start, start + TABLE).float()[:, None] * self.inverse
            self.cos = torch.cat([self.cos, angles.double().cos().float().to(self.device)])
            self.sin = torch.cat([self.sin, angles.double().sin().float().to(self.device)])
        rows = torch.from_numpy(positions).to(self.device)
        # Indexing, as in cos[rows], wakes all threads for a few kilobytes: 20 ms beside busy programs.
        return self.cos.index_select(0, rows), self.sin.index_select(0, rows)
