"""What a model needs beside its matrices, and its plan; nothing is measured but by `measure_machine`."""

from __future__ import annotations

import torch

from edgespec.devices.machine import Accelerator, Machine
from edgespec.kernels.cpu import matmul_dtype
from edgespec.offload.plan.costs import Rates
from edgespec.offload.plan.device import DeviceMemory, make_device_plan
from edgespec.offload.plan.fill import make_plan
from edgespec.offload.plan.needs import Extras, Needs, Request
from edgespec.offload.plan.plan import Plan
from edgespec.runtimes.base import PREFILL_ROWS, TREE_ROWS
from edgespec.runtimes.config import ModelConfig
from edgespec.runtimes.formats.describe import ModelFiles
from edgespec.runtimes.torch.kv_cache import BLOCK, cache_bytes
from edgespec.runtimes.torch.placement import DEVICE_SLOTS
from edgespec.runtimes.torch.warm_up import warm_up
from edgespec.runtimes.torch.weights import CPU

# Page cache of programs and libraries that a cold start reads but does not map, and the kernel's own tables:
# 70 MB beyond the resident set in a memory cgroup (measured, Linux, torch 2.13).
PROGRAM_CACHE = 80 * 10**6

# The resident set differs from start to start: demo model by 0.6 MB, but by 23 MB between the first, which
# measures kernels, and the others.
DRIFT = 20 * 10**6


def measure_machine(files: ModelFiles, device: torch.device = CPU) -> Machine:
    """This machine as it is now, with all code loaded that the first pass needs."""
    if device.type == "cpu":
        warm_up(files.table, files.dtype)
    accelerator = None
    if device.type != "cpu" and not torch.cuda.get_device_properties(device).is_integrated:
        torch.zeros(1, device=device)  # the driver's context exists from here on, and counts as used
        free, total = torch.cuda.mem_get_info(device)
        accelerator = Accelerator(total, total - free)
    return Machine.measure(next(files.table.files()), accelerator)


def plan_model(files: ModelFiles, machine: Machine, request: Request, extras: Extras | None = None) -> Plan:
    """Where every byte goes on this machine, `extras` beside the model among them.

    Raises BudgetError or OptionError before any weight is read.
    """
    config, dtype = files.config, files.dtype
    needs = Needs(
        baseline=machine.baseline + PROGRAM_CACHE,
        small=sum(t.nbytes for t in files.table.small),
        activations=activation_bytes(config, dtype),
        kv=lambda positions: context_bytes(config, positions, dtype),
        max_context=config.max_context,
        extras=extras or Extras(),
        drift=DRIFT,
    )
    rates = Rates(machine.read_gbps, machine.memory_gbps)
    if (device := machine.accelerator) is None:
        return make_plan(files.table, needs, rates, request)
    memory = DeviceMemory(device.total, device.used, DEVICE_SLOTS)
    return make_device_plan(files.table, needs, rates, request, memory)


def context_bytes(config: ModelConfig, positions: int, dtype: torch.dtype) -> int:
    """What grows with the context: a KV cache, and attention's temporaries over that many keys: each block's
    outputs and mask for a tree's rows, and the mask of a prompt's block."""
    blocks, e = -(-positions // BLOCK) + 2, dtype.itemsize
    outputs = TREE_ROWS * blocks * (config.q_size * e + config.heads * 8)
    tree_mask = TREE_ROWS * (config.heads // config.kv_heads) * positions * (1 + e)
    prompt_mask = PREFILL_ROWS * positions * (1 + e)
    return cache_bytes(config, positions, TREE_ROWS, dtype) + max(outputs + tree_mask, prompt_mask)


def activation_bytes(config: ModelConfig, dtype: torch.dtype) -> int:
    """Temporaries of the largest pass, at their peak: in the MLP, in attention, or at the head."""
    n, e = PREFILL_ROWS, dtype.itemsize
    d, f = config.hidden_size, config.intermediate_size
    stream = n * d * e * 3
    mlp = n * f * (3 * e + 8)  # gate, up, product; two in fp32 inside swiglu
    attention = n * (config.q_size * (3 * e + 4) + config.kv_size * 4 * e)
    tile = max(config.matrix_shapes(0).values(), key=lambda s: s[0] * s[1])
    unpacked = 0 if matmul_dtype(dtype) == dtype else tile[1] * 4 * 4096
    head = TREE_ROWS * config.vocab_size * (e + 4)
    # A third more: kernels' scratch, and holes in the heap (measured, 7B shape: 80 MB beside 92).
    return (stream + max(mlp, attention, head)) * 4 // 3 + unpacked
