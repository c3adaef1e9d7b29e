"""A Mixture-of-Attentions drafter on disk that was never trained, for tests."""

from __future__ import annotations

from pathlib import Path

import torch

from edgespec.runtimes.formats.describe import ModelFiles, describe_model
from edgespec.runtimes.formats.moa_sizes import KIND, MoaSizes, choose_sizes
from edgespec.runtimes.torch.draft import open_draft
from edgespec.runtimes.torch.moa import Moa
from edgespec.runtimes.torch.trained_files import save_module


def random_moa(files: ModelFiles, sizes: MoaSizes, dtype: torch.dtype = torch.float32) -> Moa:
    """With every parameter random, so that a forgotten one is seen."""
    generator = torch.Generator().manual_seed(5)
    moa = Moa(files.config, sizes, dtype)
    with torch.no_grad():
        for parameter in moa.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(noise / noise.shape[-1] ** 0.5 if noise.dim() == 2 else 1 + noise / 4)
    return moa


def write_moa(path: Path, out: Path, noise: float = 0.1, target_layers: int = 0) -> Path:
    """For the model in `path`: it says what the model's embedding and head alone would, but for some noise by
    what it remembers. Of a model whose layers add little that is often right."""
    files = describe_model(path)
    moa = Moa(files.config, choose_sizes(files.config, target_layers=target_layers))
    target = open_draft(files, 1)
    generator = torch.Generator().manual_seed(3)
    moa.initialise(target.weights.small["model.norm.weight"], generator)
    target.weights.close()
    with torch.no_grad():
        for name, parameter in moa.named_parameters():
            if name.endswith(("o_proj", "down_proj")):
                parameter.add_(
                    noise * torch.randn(parameter.shape, generator=generator) / parameter.shape[1] ** 0.5
                )
    save_module(out, KIND, moa.sizes, moa, files, {}, files.dtype)
    return out
