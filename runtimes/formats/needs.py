"""What a model needs beside its matrices, known by its headers, and its plan. Nothing is measured here.

Needs no torch.
"""

from __future__ import annotations

from edgespec.devices.allocator import LARGE
from edgespec.devices.arithmetic import Arithmetic
from edgespec.devices.machine import Machine
from edgespec.offload.plan.costs import Rates
from edgespec.offload.plan.device import DeviceMemory, make_device_plan
from edgespec.offload.plan.fill import make_plan
from edgespec.offload.plan.needs import Extras, Needs, Request
from edgespec.offload.plan.plan import Plan
from edgespec.runtimes.base import EXIT_ROWS, PREFILL_ROWS, TREE_ROWS
from edgespec.runtimes.config import ModelConfig
from edgespec.runtimes.formats.describe import ModelFiles
from edgespec.runtimes.formats.passes import BLOCK, pass_bytes

SHARED_POSITIONS = 512  # that most prompts take with their replies
# What the first pass leaves in the process: code of libraries that nothing before it ran, 7.5 MB, and holes
# in the heap, which differ by some megabytes from run to run; where torch multiplies, what it keeps for that:
# oneDNN compiled code by shape, MKL the room that it arranges matrices in.
FIRST_PASS = 12_500_000
KEPT = 3 * 10**6
DEVICE_SLOTS = 3  # device buffers: one computed on, one being copied to, one between

# Page cache of programs and libraries that a cold start reads but does not map, and the kernel's own tables:
# 70 MB beyond the resident set in a memory cgroup (measured, Linux, torch 2.13).
PROGRAM_CACHE = 80 * 10**6

# The resident set differs from start to start by 0.6 MB, but by 6 MB between the first, which measures
# kernels, and the others, and by as much from a small bf16 model's process to a large GGUF file's.
DRIFT = 15 * 10**6


def plan_model(files: ModelFiles, machine: Machine, request: Request, extras: Extras | None = None) -> Plan:
    """Where every byte goes on this machine, `extras` beside the model among them.

    Raises BudgetError or OptionError before any weight is read.
    """
    config, sequences, trees = files.config, request.sequences, request.trees
    how = machine.arithmetic
    needs = Needs(
        baseline=machine.baseline,
        small=sum(t.nbytes for t in files.table.small),
        activations=pass_bytes(files, how, 0, sequences, trees) + first_pass_bytes(files, how),
        kv=lambda positions: context_bytes(files, how, positions, sequences, trees),
        max_context=config.max_context,
        extras=(extras or Extras()).for_many(sequences - 1, SHARED_POSITIONS),
        program_cache=PROGRAM_CACHE,
        drift=DRIFT,
    )
    rates = Rates(machine.read_gbps, machine.memory_gbps, machine.matmuls, machine.raced)
    if (device := machine.accelerator) is None:
        return make_plan(files.table, needs, rates, request)
    memory = DeviceMemory(device.total, device.used, DEVICE_SLOTS)
    return make_device_plan(files.table, needs, rates, request, memory)


def round_up(positions: int) -> int:
    """To whole blocks of attention."""
    return -(-positions // BLOCK) * BLOCK


def cache_bytes(config: ModelConfig, context: int, slots: int, element: int) -> int:
    """Bytes of a cache for `context` positions and `slots` uncommitted rows, of `element`-byte numbers."""
    return config.kv_bytes(round_up(context + slots), element)


def pool_positions(context: int, sequences: int) -> int:
    """Positions that caches have memory for: one of the whole context and a tree, or those of so many
    sequences: one of the whole context, the others of SHARED_POSITIONS, if that is less. Each takes what it
    needs of them, in whole blocks; its trees lie where the rest of its reply will be, and have as many
    nodes."""
    if sequences == 1:
        return round_up(context + TREE_ROWS)
    return round_up(context) + (sequences - 1) * round_up(min(context, SHARED_POSITIONS))


def context_of(sequences: int, positions: int) -> int:
    """The context that a plan needs for so many sequences of so many positions at once."""
    if sequences == 1 or positions <= SHARED_POSITIONS:
        return positions
    return sequences * round_up(positions) - (sequences - 1) * round_up(SHARED_POSITIONS)


def overlay_positions(rows: int) -> int:
    """Positions that an overlay with so many slots has memory for: the prefix's last block is copied."""
    return BLOCK + rows


def overlay_bytes(config: ModelConfig, rows: int, element: int) -> int:
    """Bytes of an overlay with so many slots, of `element`-byte numbers."""
    return config.kv_bytes(overlay_positions(rows), element)


def exit_bytes(config: ModelConfig, element: int) -> int:
    """What an early exit of the target keeps while it speaks: a tree's states, of `element`-byte numbers, and
    the logits of some of its nodes."""
    return TREE_ROWS * config.hidden_size * element + EXIT_ROWS * config.vocab_size * 4


def context_bytes(
    files: ModelFiles, how: Arithmetic, positions: int, sequences: int = 1, trees: bool = False
) -> int:
    """What grows with the context: KV caches, and what passes over so many positions take beyond others."""
    longer = pass_bytes(files, how, positions, sequences, trees) - pass_bytes(files, how, 0, sequences, trees)
    return files.config.kv_bytes(pool_positions(positions, sequences), files.element) + longer


def first_pass_bytes(files: ModelFiles, how: Arithmetic) -> int:
    """What the first pass leaves behind, whatever model runs."""
    all_ours = how.prompts >= files.table.stored.keys()
    # Small blocks stay with the heap when they are freed: a prompt's queries, outputs, and what lies between.
    block = PREFILL_ROWS * files.config.q_size * files.element
    holes = 6 * block if block < LARGE else 0
    return FIRST_PASS + holes + (0 if all_ours else KEPT)


def resident_bytes(files: ModelFiles, context: int, rows: int, how: Arithmetic) -> int:
    """A whole model in memory, with one conversation of `context` positions and `rows` uncommitted rows."""
    config, table, element = files.config, files.table, files.element
    weights = sum(c.read_bytes for c in table.chunks) + sum(t.nbytes for t in table.small)
    if not table.tied:
        weights += table.embedding.nbytes
    positions = min(context, config.max_context)
    return weights + cache_bytes(config, positions, rows, element) + pass_bytes(files, how, positions)
