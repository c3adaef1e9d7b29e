"""One worker of SPD drafters, by itself: opens each tiny target, and its own tracks, and drafts.

python -m tests.spd_worker STORE WORKERS RANK TARGET...
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from edgespec.runtimes.formats.describe import describe_model
from edgespec.runtimes.torch.spd import KIND, Spd, SpdShape
from edgespec.runtimes.torch.streaming import streaming_shapes
from edgespec.runtimes.torch.streaming_draft import StreamingDraft
from edgespec.runtimes.torch.track_group import TrackGroup
from edgespec.runtimes.torch.trained_files import describe_module
from tests.streamings import drafted_logits
from tests.tiny import open_tiny

PATIENCE = timedelta(seconds=30)
COLLECTIVES = [
    *("all_reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter", "broadcast", "reduce"),
    *("gather", "scatter", "all_to_all", "all_to_all_single", "barrier", "send", "recv"),
]


def main(store: str, workers: str, rank: str, *targets: str) -> None:
    torch.set_num_threads(1)
    files = dist.FileStore(store, int(workers))
    dist.init_process_group("gloo", timeout=PATIENCE, store=files, world_size=int(workers), rank=int(rank))
    called: Counter[str] = Counter()
    for name in COLLECTIVES:
        setattr(dist, name, counted(called, name, getattr(dist, name)))
    for target in map(Path, targets):
        called.clear()
        found = describe_module(target / KIND, KIND, SpdShape, streaming_shapes, describe_model(target))
        opened = open_tiny(target)
        meeting = TrackGroup(found.shape.tracks)
        module = Spd(opened.config, found.shape, opened.dtype, opened.device, meeting).eval()
        found.read(module)
        draft = StreamingDraft(module, opened, 100, 40, 8)
        logits = drafted_logits(draft, lambda: sum(called.values()))
        assert called == {"all_reduce": meeting.collectives}, called
        np.savez(target / f"said-{rank}.npz", own=list(meeting.own), cached=draft.cache.nbytes, **logits)
    dist.destroy_process_group()


def counted(called: Counter[str], name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **named: Any) -> Any:
        called[name] += 1
        return function(*args, **named)

    return call


if __name__ == "__main__":
    main(*sys.argv[1:])
