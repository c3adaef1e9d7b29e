"""Opens a target as its plan has it: reads what is pinned, and starts the stream of the rest."""

from __future__ import annotations

from collections.abc import Callable

import torch

from edgespec.devices.disk import ReadSettings
from edgespec.offload.plan.plan import Plan
from edgespec.runtimes.base import PREFILL_ROWS, TREE_ROWS
from edgespec.runtimes.formats.describe import ModelFiles
from edgespec.runtimes.torch.target import TorchTarget
from edgespec.runtimes.torch.weights import CPU, Weights


def open_target(
    files: ModelFiles,
    plan: Plan,
    settings: ReadSettings | None = None,
    progress: Callable[[int], None] | None = None,
    device: torch.device = CPU,
    pass_rows: int = PREFILL_ROWS,
    judged_rows: int = TREE_ROWS,
) -> TorchTarget[Weights]:
    """Read what the plan pins and start the stream of the rest; `progress` gets bytes pinned. Memory is
    planned for passes of up to `pass_rows`, of which `judged_rows` are looked at: see
    `runtimes.target.Target`.
    """
    weights = Weights(files.table, plan.ring_bytes, files.dtype, settings, device)
    try:
        weights.pin(plan.pinned, plan.on_device, progress)
        if plan.pin_embedding:
            weights.embedding.keep(True)
    except BaseException:
        weights.close()
        raise
    return TorchTarget(files.config, weights, TREE_ROWS, pass_rows, judged_rows)
