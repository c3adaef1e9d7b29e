"""SpecFormer drafters for random models, made by hand."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file

from edgespec.runtimes.formats.describe import describe_model
from edgespec.runtimes.torch.specformer import KIND, SpecFormer, SpecFormerShape, hooks_of
from edgespec.runtimes.torch.trained_files import save_module


def write_specformer(path: Path, length: int = 5, causal: bool = False, out: Path | None = None) -> Path:
    """For the model in `path`, with every parameter random."""
    files = describe_model(path)
    norm = load_file(path / "model.safetensors")["model.norm.weight"].float()
    shape = SpecFormerShape(length, hooks_of(files.config.layers), causal)
    module = random_specformer(SpecFormer(files.config, shape, norm))
    out = out or path / "specformer"
    save_module(out, KIND, shape, module, files, {}, files.dtype)
    return out


def random_specformer(module: SpecFormer) -> SpecFormer:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(noise / noise.shape[-1] ** 0.5 if noise.dim() == 2 else 1 + noise / 4)
        module.hook_norm.add_(1.0)
    return module
