"""An SPD drafter in several processes, whose collectives are counted: what leads them, and what follows.

python -m tests.spd_worker TARGET WORKERS
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist

from edgespec.drafters.channel import Load
from edgespec.drafters.process import command
from edgespec.drafters.streaming import spd
from edgespec.drafters.streaming.drafter import StreamingDrafter
from edgespec.runtimes.torch.spd import Spd
from tests.streamings import drafted_logits, drafted_tree

COUNTED = "SPD_COLLECTIVES"  # the directory of what each process counts
COLLECTIVES = [
    *("all_reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter", "broadcast", "reduce"),
    *("gather", "scatter", "all_to_all", "all_to_all_single", "barrier", "send", "recv"),
]


def lead(target: str, workers: str) -> None:
    os.environ[COUNTED] = target
    counts = count()
    spd.command = lambda program: command("tests.spd_worker:follow_counted")
    load = Load(target, int(workers), adapters=str(Path(target) / "spd"))
    opened = spd.spd_model(load, lambda nbytes: None)
    draft = opened.runtime(100)
    left = draft.prefill(range(3, 60))  # a prompt that is cancelled in its second segment,
    assert [next(left) for _ in range(3)] == [0, 0, 0]
    del left
    other = opened.runtime(50)  # a conversation that is over,
    for _ in other.prefill([1, 2, 3]):
        pass
    del other
    under_way = draft.begin([1, 2], [-1, 0])  # and a pass that nobody goes on with
    for _ in range(2):
        under_way.advance()
    del under_way
    draft.truncate(0)
    before = counts.stat().st_size
    said = drafted_logits(draft, lambda: counts.stat().st_size - before)
    tree = drafted_tree(StreamingDrafter(opened.runtime(100), 100))
    assert isinstance(draft.module, Spd)
    own = list(draft.module.meeting.own)
    np.savez(Path(target) / "said.npz", own=own, cached=draft.cache.nbytes, **said, **tree)
    print(opened.placement, opened.peak())
    dist.destroy_process_group()


def count() -> Path:
    """From now on, this process notes its collectives, a letter each, before they begin."""
    path = Path(os.environ[COUNTED]) / f"collectives-{os.getpid()}"
    path.touch()

    def counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            with path.open("a") as file:
                file.write("r" if name == "all_reduce" else "b" if name == "barrier" else "?")
            return function(*args, **named)

        return call

    for name in COLLECTIVES:
        setattr(dist, name, counted(name, getattr(dist, name)))
    return path


def follow_counted() -> None:
    """What the others run."""
    count()
    spd.follow_main()


if __name__ == "__main__":
    lead(*sys.argv[1:])
