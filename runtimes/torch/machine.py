"""This machine as plans see it, once torch and its kernels are there."""

from __future__ import annotations

from dataclasses import replace

import torch

from edgespec.devices.arithmetic import Arithmetic
from edgespec.devices.machine import Accelerator, Machine, remember_process
from edgespec.devices.matmuls import recall_matmuls
from edgespec.kernels import compiled
from edgespec.kernels.choice import AMX, ARM, AVX2, AVX_VNNI, CHOSEN, LOW_BIT
from edgespec.kernels.cpu import matmul_dtype
from edgespec.runtimes.formats.describe import ModelFiles
from edgespec.runtimes.torch.choices import kernels_at_work, raced
from edgespec.runtimes.torch.warm_up import warm_up
from edgespec.runtimes.torch.weights import CPU

CONVERTED = {"bfloat16": torch.bfloat16, "float16": torch.float16}  # where the CPU has no arithmetic for it


def measure_machine(files: ModelFiles, device: torch.device = CPU) -> Machine:
    """This machine as it is now, with all code loaded that the first pass needs."""
    if device.type == "cpu":
        warm_up(files.table, files.dtype)
    accelerator = None
    if device.type != "cpu" and not torch.cuda.get_device_properties(device).is_integrated:
        torch.zeros(1, device=device)  # the driver's context exists from here on, and counts as used
        free, total = torch.cuda.mem_get_info(device)
        accelerator = Accelerator(total, total - free)
    found = Machine.measure(next(files.table.files()), accelerator)
    if device.type == "cpu":
        by_these = recall_matmuls(kernels_at_work())
        found = replace(found, arithmetic=arithmetic(), matmuls=by_these, raced=raced(files.table))
    else:
        found = replace(found, arithmetic=Arithmetic(compiled=False))
    remember_process(found)
    return found


def arithmetic() -> Arithmetic:
    """Who multiplies in this process."""
    converts = frozenset(name for name, dtype in CONVERTED.items() if matmul_dtype(dtype) != dtype)
    prompts = frozenset(
        encoding
        for encoding in compiled.FORMATS
        if compiled.own_prompt(encoding, torch.float16 if encoding == "F16" else torch.bfloat16)
    )
    there = not compiled.unavailable()
    ways = {way for encoding in LOW_BIT if encoding in CHOSEN for way in CHOSEN[encoding].ways}
    packing = (AVX2, AVX_VNNI, AMX)  # x once more, for weights side by side
    beside = compiled.level() in packing or not ways.isdisjoint(2 * level for level in packing)
    widened = there and compiled.as_trees(compiled.order("BF16"))
    threads = torch.get_num_threads()
    return Arithmetic(converts, there, prompts, threads, there and not ARM and beside, widened)
