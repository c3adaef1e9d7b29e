"""What a plan goes by: a machine and this process on it, measured, or given to plan for another one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from time import time

from edgespec.devices.arithmetic import USUAL, Arithmetic
from edgespec.devices.disk import ReadSettings
from edgespec.devices.matmuls import Matmuls, recall_matmuls
from edgespec.devices.own_rate import own_rate
from edgespec.devices.probe import cpu_count, cpu_features, memory_available, memory_total, process_memory
from edgespec.devices.rates import ReadRate, is_fresh, memory_rate, read_rate, recall, remember
from edgespec.kernels.choice import LOW_BIT, PLAIN, RARE

BASELINE = 350 * 10**6  # bytes of a process with torch: 300 to 400 MB (measured, Linux, torch 2.13)


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
    raced: Matmuls | None = None  # of a model's encodings, with weights in a cache
    arithmetic: Arithmetic = USUAL

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

        Takes seconds at the first start; rates are remembered (`devices.rates`), but for a small file's own
        (`devices.own_rate`). Measure when libraries and kernels are loaded, because whatever comes later is
        not in the baseline. How fast matrices are multiplied is asked where the kernels are known
        (`runtimes.torch.machine`).
        """
        disk = _disk(weights)  # whose buffers are freed before memory is counted
        speed = memory_rate()
        return Machine(
            total=memory_total(),
            available=memory_available(),
            baseline=process_memory().current,
            cores=cpu_count(),
            memory_gbps=speed,
            disk=disk,
            accelerator=accelerator,
        )

    @staticmethod
    def remembered(weights: Path) -> Machine:
        """This machine, with what processes that opened a model before have found and measured; where none
        has, that is assumed. Libraries need not be loaded."""
        baseline, arithmetic = _process()
        return Machine(
            total=memory_total(),
            available=memory_available() - baseline,
            baseline=baseline,
            cores=cpu_count(),
            memory_gbps=memory_rate(),
            disk=_disk(weights),
            matmuls=recall_matmuls(),
            arithmetic=arithmetic,
        )


def _disk(weights: Path) -> ReadRate | None:
    return own_rate(weights) or read_rate(weights)


_PROCESS = "process"
TYPES = ("bfloat16", "float16")


def remember_process(machine: Machine) -> None:
    """What a process that has loaded the libraries has found of itself. The smallest counts for a while: the
    others have loaded more than that; unless other kernels multiply by now."""
    known, how = _stored_process(), machine.arithmetic
    others = known is not None and how.compiled and how != replace(known[1], threads=how.threads)
    if known is None or machine.baseline < known[0] or others:
        converts, prompts = sorted(how.converts), sorted(how.prompts)
        remember(_PROCESS, {"baseline": machine.baseline, "converts": converts, "prompts": prompts,
                            "compiled": how.compiled, "arranged": how.arranged, "widened": how.widened,
                            "when": time()})  # fmt: skip


def _process() -> tuple[int, Arithmetic]:
    """Bytes of a process before it holds a model, and what multiplies in it: remembered, or assumed."""
    if (known := _stored_process()) is not None:
        return known
    features = cpu_features()
    converts = frozenset() if features & {"amx_bf16", "avx512_bf16", "bf16"} else frozenset(TYPES)
    prompts = frozenset(LOW_BIT) if features & {"amx_bf16", "avx512_bf16", "avx2"} else frozenset()
    if features & {"amx_bf16", "avx512_bf16"}:
        prompts = (prompts | {"BF16"}) - RARE
    arranged = "amx_int8" in features or ("avx2" in features and "avx512_vnni" not in features)
    return BASELINE, Arithmetic(converts, prompts=prompts, threads=cpu_count(), arranged=arranged)


def _stored_process() -> tuple[int, Arithmetic] | None:
    """What was remembered, if it is sound and fresh."""
    stored = recall(_PROCESS)
    fields = {"baseline", "converts", "prompts", "compiled", "arranged", "widened", "when"}
    if not isinstance(stored, dict) or set(stored) != fields:
        return None
    baseline, converts, prompts, when = (stored[key] for key in ("baseline", "converts", "prompts", "when"))
    sound = type(baseline) is int and 10**7 < baseline < 10**11
    sound = sound and all(type(stored[flag]) is bool for flag in ("compiled", "arranged", "widened"))
    if not sound or not is_fresh(when):
        return None
    for names, known in ((converts, TYPES), (prompts, (*LOW_BIT, *PLAIN))):
        if not isinstance(names, list) or any(name not in known for name in names):
            return None
    compiled, *packed = (stored[flag] for flag in ("compiled", "arranged", "widened"))
    return baseline, Arithmetic(frozenset(converts), compiled, frozenset(prompts), cpu_count(), *packed)
