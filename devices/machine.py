"""What a plan goes by: a machine and this process on it, measured, or given to plan for another one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edgespec.devices.disk import ReadSettings
from edgespec.devices.matmuls import Matmuls, recall_matmuls
from edgespec.devices.probe import cpu_count, memory_available, memory_total, process_memory
from edgespec.devices.rates import ReadRate, memory_rate, read_rate


@dataclass(frozen=True, slots=True)
class Accelerator:
    """A discrete accelerator's own memory, in bytes."""

    total: int
    used: int  # already: by the driver's context, and by others


@dataclass(frozen=True, slots=True)
class Machine:
    """Memory in bytes, rates in GB/s (10^9 bytes)."""

    total: int  # memory that this process could ever have: the machine's, or the tightest cgroup's limit
    available: int  # that can be allocated now without swapping
    baseline: int  # what the process takes before it holds a model: interpreter and libraries
    cores: int  # logical processors that the process may run on
    memory_gbps: float  # at which all of them together read memory
    disk: ReadRate | None = None  # direct reads where the weights lie; None = unknown
    accelerator: Accelerator | None = None  # None also where it shares the processor's memory
    matmuls: Matmuls | None = None  # None = not measured

    @property
    def read_gbps(self) -> float | None:
        """Direct reads of the weights; None = unknown."""
        return None if self.disk is None else self.disk.gbps

    @property
    def read_settings(self) -> ReadSettings | None:
        """How to read the weights fastest; None = unknown."""
        return None if self.disk is None else self.disk.settings

    @staticmethod
    def measure(weights: Path, accelerator: Accelerator | None = None) -> Machine:
        """This machine as it is now, `weights` being a file of the model on its disk.

        Takes seconds at the first start; rates are remembered (`devices.rates`). Measure when libraries and
        kernels are loaded, because whatever comes later is not in the baseline.
        """
        disk = read_rate(weights)  # its buffers are freed before memory is counted
        speed = memory_rate()
        return Machine(
            total=memory_total(),
            available=memory_available(),
            baseline=process_memory().current,
            cores=cpu_count(),
            memory_gbps=speed,
            disk=disk,
            accelerator=accelerator,
            matmuls=recall_matmuls(),
        )
