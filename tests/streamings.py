"""Streaming and SPD drafters for random models, made by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file

from edgespec.core.acceptance import Outcome
from edgespec.core.schedule import Context, TreeBudget
from edgespec.drafters.base import Root
from edgespec.drafters.streaming.drafter import StreamingDrafter
from edgespec.runtimes.formats.describe import describe_model
from edgespec.runtimes.torch import spd, streaming
from edgespec.runtimes.torch.spd import Spd, SpdShape
from edgespec.runtimes.torch.streaming import Streaming, StreamingShape
from edgespec.runtimes.torch.streaming_draft import StreamingDraft
from edgespec.runtimes.torch.trained_files import save_module

SHAPE = StreamingShape(layers=2, streams=2, stream_layers=1)
SPD_SHAPE = SpdShape(layers=2, streams=2, stream_layers=1, tracks=2)


def write_streaming(path: Path, kind: str = "exits", out: Path | None = None) -> Path:
    """For the model in `path`: "random", or "exits", which says what the target's head says of the embedding
    alone, in all its streams: often right where layers change little."""
    files = describe_model(path)
    return _written(Streaming(files.config, SHAPE), streaming.KIND, path, kind, out)


def write_spd(path: Path, kind: str = "exits", out: Path | None = None) -> Path:
    """As `write_streaming`."""
    files = describe_model(path)
    return _written(Spd(files.config, SPD_SHAPE), spd.KIND, path, kind, out)


def _written(module: Streaming, drafter: str, path: Path, kind: str, out: Path | None) -> Path:
    files = describe_model(path)
    random_streaming(module)
    if kind == "exits":
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                if name.endswith(("o_proj", "down_proj", "stream_bias", "_entry")):
                    parameter.zero_()
            module.stream_proj.copy_(torch.eye(files.config.hidden_size))
            module.norm.copy_(load_file(path / "model.safetensors")["model.norm.weight"])
    out = out or path / f"{drafter}-{kind}"
    save_module(out, drafter, module.shape, module, files, {"held_out": {"agreement": 0.5}}, files.dtype)
    return out


def random_streaming(module: Streaming) -> Streaming:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(noise / noise.shape[-1] ** 0.5 if noise.dim() == 2 else 1 + noise / 4)
    return module


def run(draft: StreamingDraft, tokens: list[int], parents: list[int]) -> NDArray[np.float32]:
    """[n, 1 + gamma, V]"""
    under_way = draft.begin(tokens, parents)
    while not under_way.advance():
        pass
    said = np.concatenate([under_way.logits[:, None], draft.beyond], 1)
    del under_way
    assert draft.beyond.size == 0, "logits are nobody's behind their pass"
    return said


def drafted_logits(draft: StreamingDraft, count: Callable[[], int]) -> dict[str, NDArray[Any]]:
    """Of a prompt, a tree, its commit and one token more: what every pass says, and how much each counted."""
    for _ in draft.prefill([3 + 7 * i % 90 for i in range(70)]):
        pass
    before = count()
    tree = run(draft, [3, 4, 5, 6], [-1, 0, 0, 2])
    between = count()
    draft.commit([0, 2, 3], [])
    one = run(draft, [7], [-1])
    return {"tree": tree, "one": one, "counts": np.array([before, between - before, count() - between])}


def drafted_tree(drafter: StreamingDrafter) -> dict[str, NDArray[Any]]:
    """Of a prompt, and what follows a token: the tree, and that behind its likeliest node."""
    drafter.prefill(Context([3 + 7 * i % 90 for i in range(20)]))
    found: dict[str, NDArray[Any]] = {}
    root = 5
    for name in ("first", "second"):
        drafting = drafter.start([Root((root,))], TreeBudget(16, 6, 3))
        while drafting.step():
            pass
        tree = drafting.tree()
        drafting.stop()
        found |= {f"{name} tokens": tree.tokens, f"{name} logprobs": tree.logprobs}
        best = int(tree.children(0)[0])
        drafter.commit(root, Outcome(np.array([0, best]), (int(tree.tokens[best]), 9)))
        root = 9
    return found
