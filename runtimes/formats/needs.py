"""What a model needs beside its matrices, known by its headers, and its plan. Nothing is measured here.

Needs no torch.
"""

from __future__ import annotations

from edgespec.devices.machine import Machine
from edgespec.offload.plan.costs import Rates
from edgespec.offload.plan.device import DeviceMemory, make_device_plan
from edgespec.offload.plan.fill import make_plan
from edgespec.offload.plan.needs import Extras, Needs, Request
from edgespec.offload.plan.plan import Plan
from edgespec.runtimes.base import EXIT_ROWS, PREFILL_ROWS, TREE_ROWS
from edgespec.runtimes.config import ModelConfig
from edgespec.runtimes.formats.describe import ModelFiles
from edgespec.runtimes.formats.gguf import PLAIN

BLOCK = 64  # positions per attention block; see torch/attention.py
SHARED_POSITIONS = 512  # that most prompts take with their replies
SHARED_ROWS = 4  # of each of many trees in a pass, on average: a root and three drafts; some have more
# Weights of another type than activations, as a prompt's block is multiplied by them: kernels/matmul.py's
# PROMPT_TILE_BYTES, which stay with the thread; where kernels unpack them, as much is taken by what they
# arrange (1b shape, Q4_K and Q8_0: a conversation of 512 to 2048 positions took 75 to 139 MB, of 79 to 122).
UNPACKED_TILE = 8 * 2**20
DEVICE_SLOTS = 3  # device buffers: one computed on, one being copied to, one between

# Page cache of programs and libraries that a cold start reads but does not map, and the kernel's own tables:
# 70 MB beyond the resident set in a memory cgroup (measured, Linux, torch 2.13).
PROGRAM_CACHE = 80 * 10**6

# The resident set differs from start to start: demo model by 0.6 MB, but by 23 MB between the first, which
# measures kernels, and the others.
DRIFT = 20 * 10**6


def plan_model(files: ModelFiles, machine: Machine, request: Request, extras: Extras | None = None) -> Plan:
    """Where every byte goes on this machine, `extras` beside the model among them.

    Raises BudgetError or OptionError before any weight is read.
    """
    config, element, sequences, trees = files.config, files.element, request.sequences, request.trees
    needs = Needs(
        baseline=machine.baseline,
        small=sum(t.nbytes for t in files.table.small),
        activations=activation_bytes(files, files.activations in machine.converts, sequences, trees),
        kv=lambda positions: context_bytes(config, positions, element, sequences, trees),
        max_context=config.max_context,
        extras=(extras or Extras()).for_many(sequences - 1, SHARED_POSITIONS),
        program_cache=PROGRAM_CACHE,
        drift=DRIFT,
    )
    rates = Rates(machine.read_gbps, machine.memory_gbps, machine.matmuls)
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


def pass_rows(sequences: int, trees: bool) -> int:
    """Most rows of a pass: of so many, all have their trees beside a block of a newcomer's prompt."""
    return PREFILL_ROWS + (judged_rows(sequences, trees) if sequences > 1 else 0)


def judged_rows(sequences: int, trees: bool) -> int:
    """Most rows of a pass whose logits are looked at: one tree's, or those of each of so many sequences."""
    return max(TREE_ROWS, sequences * (SHARED_ROWS if trees else 1))


def pool_positions(context: int, sequences: int) -> int:
    """Positions that caches have memory for: one of the whole context and a tree, or those of so many
    sequences: one of the whole context, the others of SHARED_POSITIONS, if that is less. Each takes what it
    needs of them, in whole blocks; its trees lie where the rest of its reply will be, and have as many
    nodes."""
    if sequences == 1:
        return round_up(context + TREE_ROWS)
    return round_up(context) + (sequences - 1) * round_up(min(context, SHARED_POSITIONS))


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
    config: ModelConfig, positions: int, element: int, sequences: int = 1, trees: bool = False
) -> int:
    """What grows with the context: KV caches, and attention's temporaries over that many keys: each block's
    outputs and mask for a tree's rows, and the mask of a prompt's block. One cache attends after the other;
    of many, the masks of all are kept."""
    blocks, e = -(-positions // BLOCK) + 2, element
    outputs = TREE_ROWS * blocks * (config.q_size * e + config.heads * 8)
    tree_mask = judged_rows(sequences, trees) * (config.heads // config.kv_heads) * positions * (1 + e)
    prompt_mask = PREFILL_ROWS * positions * (1 + e)
    attention = outputs + tree_mask + prompt_mask if sequences > 1 else max(outputs + tree_mask, prompt_mask)
    return config.kv_bytes(pool_positions(positions, sequences), e) + attention


def activation_bytes(files: ModelFiles, converts: bool, sequences: int = 1, trees: bool = False) -> int:
    """Temporaries of the largest pass, at their peak: in the MLP, in attention, or at the head; weights being
    converted to fp32 or not."""
    config, n, e = files.config, pass_rows(sequences, trees), files.element
    d, f = config.hidden_size, config.intermediate_size
    stream = n * d * e * 3
    mlp = n * f * (3 * e + 8)  # gate, up, product; two in fp32 inside swiglu
    attention = n * (config.q_size * (3 * e + 4) + config.kv_size * 4 * e)
    tile = max(config.matrix_shapes(0).values(), key=lambda s: s[0] * s[1])
    unpacks = any(PLAIN.get(encoding) != files.activations for encoding in files.table.stored)
    unpacked = tile[1] * 4 * 4096 if converts else UNPACKED_TILE if unpacks else 0
    head = judged_rows(sequences, trees) * config.vocab_size * (e + 4)
    # A third more: kernels' scratch, and holes in the heap (measured, 7B shape: 80 MB beside 92).
    return (stream + max(mlp, attention, head)) * 4 // 3 + unpacked


def resident_bytes(files: ModelFiles, context: int, rows: int, converts: bool) -> int:
    """A whole model in memory, with one conversation of `context` positions and `rows` uncommitted rows."""
    config, table, element = files.config, files.table, files.element
    weights = sum(c.read_bytes for c in table.chunks) + sum(t.nbytes for t in table.small)
    if not table.tied:
        weights += table.embedding.nbytes
    kv = cache_bytes(config, min(context, config.max_context), rows, element)
    return weights + kv + activation_bytes(files, converts)
