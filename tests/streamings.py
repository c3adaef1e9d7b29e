"""Streaming drafters for random models, made by hand."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file

from edgespec.runtimes.formats.describe import describe_model
from edgespec.runtimes.torch.streaming import KIND, Streaming, StreamingShape
from edgespec.runtimes.torch.trained_files import save_module

SHAPE = StreamingShape(layers=2, streams=2, stream_layers=1)


def write_streaming(path: Path, kind: str = "exits", out: Path | None = None) -> Path:
    """For the model in `path`: "random", or "exits", which says what the target's head says of the embedding
    alone, in all its streams: often right where layers change little."""
    files = describe_model(path)
    module = random_streaming(Streaming(files.config, SHAPE))
    if kind == "exits":
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                if name.endswith(("o_proj", "down_proj", "stream_bias")):
                    parameter.zero_()
            module.stream_proj.copy_(torch.eye(files.config.hidden_size))
            module.norm.copy_(load_file(path / "model.safetensors")["model.norm.weight"])
    out = out or path / f"streaming-{kind}"
    save_module(out, KIND, SHAPE, module, files, {"held_out": {"agreement": 0.5}}, files.dtype)
    return out


def random_streaming(module: Streaming) -> Streaming:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(noise / noise.shape[-1] ** 0.5 if noise.dim() == 2 else 1 + noise / 4)
    return module
