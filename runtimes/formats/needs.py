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
SHARED_ROWS = 9  # of each of many trees in a pass, on average: a root and eight drafts; some have more
# Weights of another type than activations, as a prompt's block is multiplied by them: kernels/matmul.py's
# PROMPT_TILE_BYTES, or where kernels unpack them the block in their order and sums, so many bytes a row. Both
# stay with the thread.
UNPACKED_TILE = 8 * 2**20
SUMS = 2 * 2**10
# What the first pass leaves in the process: code of libraries that nothing before it ran, 7.5 MB, and holes
# in the heap; where torch multiplies weights of activations' own type, what it compiles for their shapes.
FIRST_PASS = 13 * 10**6
COMPILED = 4 * 10**6
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
    converts = files.activations in machine.converts
    needs = Needs(
        baseline=machine.baseline,
        small=sum(t.nbytes for t in files.table.small),
        activations=activation_bytes(files, converts, sequences, trees) + first_pass_bytes(files),
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
    config: ModelConfig, positions: int, element: int, sequences: int = 1, trees: bool = False
) -> int:
    """What grows with the context: KV caches, and attention's temporaries over that many keys: each block's
    outputs and mask for a tree's rows, and the mask of a prompt's block. One cache attends after the other;
    of many, the masks of all are kept. Of one, a tree's outputs lie where a prompt's block has its numbers of
    an MLP (`activation_bytes`), as far as there is room."""
    blocks, e = -(-positions // BLOCK) + 2, element
    outputs = TREE_ROWS * blocks * (config.q_size * e + config.heads * 8)
    tree_mask = judged_rows(sequences, trees) * (config.heads // config.kv_heads) * positions * (1 + e)
    prompt_mask = PREFILL_ROWS * positions * (1 + e)
    attention = outputs + tree_mask + prompt_mask
    if sequences == 1:
        room = (PREFILL_ROWS - TREE_ROWS) * 3 * config.intermediate_size * e
        attention = max(prompt_mask, tree_mask + max(0, outputs - room))
    return config.kv_bytes(pool_positions(positions, sequences), e) + attention


def activation_bytes(files: ModelFiles, converts: bool, sequences: int = 1, trees: bool = False) -> int:
    """Temporaries of the largest pass, at their peak: in the MLP, in attention, or at the head; weights being
    converted to fp32 or not."""
    config, n, e = files.config, pass_rows(sequences, trees), files.element
    d, f = config.hidden_size, config.intermediate_size
    # Of a layer: what came in, what goes out, what of it is normed, queries, keys and values.
    layer = n * (3 * d + config.q_size + 2 * config.kv_size) * e
    mlp = n * 3 * f * e  # gate, up, product
    attention = n * (3 * config.q_size * e + config.heads * 4)  # queries and outputs, each arranged anew
    head = judged_rows(sequences, trees) * config.vocab_size * (e + 4)
    tile = max(config.matrix_shapes(0).values(), key=lambda s: s[0] * s[1])
    arranged = PREFILL_ROWS * (max(d, f) * e + SUMS)
    unpacked = tile[1] * 4 * 4096 if converts else max(UNPACKED_TILE, arranged) if _unpacks(files) else 0
    return layer + max(mlp, attention, head) + unpacked


def first_pass_bytes(files: ModelFiles) -> int:
    """What the first pass leaves behind, whatever model runs."""
    return FIRST_PASS if _unpacks(files) else FIRST_PASS + COMPILED


def _unpacks(files: ModelFiles) -> bool:
    """There are weights of another type than activations."""
    return any(PLAIN.get(encoding) != files.activations for encoding in files.table.stored)


def resident_bytes(files: ModelFiles, context: int, rows: int, converts: bool) -> int:
    """A whole model in memory, with one conversation of `context` positions and `rows` uncommitted rows."""
    config, table, element = files.config, files.table, files.element
    weights = sum(c.read_bytes for c in table.chunks) + sum(t.nbytes for t in table.small)
    if not table.tied:
        weights += table.embedding.nbytes
    kv = cache_bytes(config, min(context, config.max_context), rows, element)
    return weights + kv + activation_bytes(files, converts)
