"""EAGLE drafters for random models, made by hand."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file

from edgespec.runtimes.formats.describe import describe_model
from edgespec.runtimes.torch.eagle import KIND, Eagle, EagleShape
from edgespec.runtimes.torch.trained_files import save_module


def write_eagle(path: Path, kind: str, out: Path | None = None) -> Path:
    """For the model in `path`: "random", or "exits", which says what the target's head says of the embedding
    alone: often right where layers change little."""
    files = describe_model(path)
    norm = load_file(path / "model.safetensors")["model.norm.weight"].float()
    module = Eagle(files.config, EagleShape(), norm)
    d, generator = files.config.hidden_size, torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(noise / noise.shape[-1] ** 0.5 if noise.dim() == 2 else 1 + noise / 4)
            if kind == "exits" and name.endswith(("o_proj", "down_proj")):
                parameter.zero_()
        if kind == "exits":
            module.fuse.copy_(torch.cat([torch.zeros(d, d), torch.eye(d)], 1))
    out = out or path / f"eagle-{kind}"
    save_module(out, KIND, EagleShape(), module, files, {"held_out": {"agreement": 0.5}}, files.dtype)
    return out
