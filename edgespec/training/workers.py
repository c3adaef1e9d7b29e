"""Several processes that train one model: torch.distributed, started by torchrun or accelerate."""

from __future__ import annotations

import gc
import os
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from edgespec.errors import OptionError

PATIENCE = timedelta(days=30)  # the first worker makes the data while the others wait


class Workers:
    """This process's place among those that torchrun started; alone when it started none."""

    def __init__(self) -> None:
        """Joins the others. Raises OptionError when the environment is only half there."""
        try:
            self.count = int(os.environ.get("WORLD_SIZE", "1"))
            self.rank = int(os.environ["RANK"]) if self.count > 1 else 0
            self.local_rank = int(os.environ["LOCAL_RANK"]) if self.count > 1 else 0
        except (KeyError, ValueError) as error:
            raise OptionError(
                f"WORLD_SIZE is set, but {error} is missing or no number; start with torchrun"
            ) from None
        if self.count > 1:
            backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
            dist.init_process_group(backend, timeout=PATIENCE)

    @staticmethod
    def several() -> bool:
        """Whether this process is one of several."""
        return os.environ.get("WORLD_SIZE", "1") != "1"

    @staticmethod
    def on_this_machine() -> int:
        """How many share its memory."""
        return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))

    @property
    def first(self) -> bool:
        """The one that writes, evaluates and reports."""
        return self.rank == 0

    def device(self, device: torch.device) -> torch.device:
        """This worker's own accelerator, when several share a machine."""
        if self.count == 1 or device.type != "cuda":
            return device
        torch.cuda.set_device(self.local_rank)
        return torch.device("cuda", self.local_rank)

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model as it is to be called, so that gradients are averaged over workers."""
        return model if self.count == 1 else DistributedDataParallel(model)

    def sum(self, value: float, device: torch.device) -> float:
        """Of all workers."""
        if self.count == 1:
            return value
        total = torch.tensor(value, dtype=torch.float64, device=device)
        dist.all_reduce(total)
        return float(total)

    def apart(self, model: nn.Module, last: bool) -> AbstractContextManager[None]:
        """Gradients stay this worker's own until the `last` pass of a step."""
        if last or not isinstance(model, DistributedDataParallel):
            return nullcontext()
        return model.no_sync()

    def wait(self) -> None:
        """Until all are here."""
        if self.count > 1:
            dist.barrier()

    def close(self) -> None:
        """Leave the others. What was wrapped has to be let go before: a process that ends while its threads
        still run is aborted."""
        if self.count > 1:
            gc.collect()
            dist.destroy_process_group()
