"""What of a package Core ML runs where, as its compute plan has it. Needs no torch. NOT RUN on a Mac yet."""

from __future__ import annotations

from collections import Counter
from typing import Any

from edgespec.runtimes.coreml.package import runtime

_DEVICES = {"MLNeuralEngineComputeDevice": "the Neural Engine", "MLCPUComputeDevice": "the CPU"}


def placement(model: Any) -> str:
    """Operations by device, in words; model: coremltools' `MLModel`, open. Of functions that Core ML's plan
    has nothing on, nothing is said."""
    ct = runtime()
    try:
        plan = ct.models.compute_plan.MLComputePlan.load_from_path(  # of the package itself it would abort
            model.get_compiled_model_path(), compute_units=ct.ComputeUnit.CPU_AND_NE
        )
        found = [
            usage.preferred_compute_device
            for function in plan.model_structure.program.functions.values()
            for operation in function.block.operations
            if (usage := plan.get_compute_device_usage_for_mlprogram_operation(operation)) is not None
        ]
    except Exception as error:  # of its own; drafts do without
        return f"Core ML does not say what it runs where ({str(error)[:200]})"
    counts = Counter(_DEVICES.get(type(device).__name__, type(device).__name__) for device in found)
    parts = [f"{count} operations on {name}" for name, count in counts.most_common()]
    return f"Core ML runs {' and '.join(parts)}" if parts else "Core ML does not say what it runs where"
