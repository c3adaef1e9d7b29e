"""What a pass holds beside weights and caches: the most at any of its moments. Needs no torch.

A prompt's block holds most, and of its moments mostly the second half of the MLP, with gate and up there.
What a product takes meanwhile is the machine's: torch makes numbers of weights that are of another type than
activations, a tile at a time, and where the CPU has no arithmetic for that type, fp32 ones, of x and of the
product, too; the compiled kernels arrange x once.
"""

from __future__ import annotations

from edgespec.devices.arithmetic import Arithmetic
from edgespec.kernels.choice import ARM, LOW_BIT, RARE
from edgespec.offload.chunks import Cut
from edgespec.runtimes.base import PREFILL_ROWS, TREE_ROWS
from edgespec.runtimes.config import ModelConfig
from edgespec.runtimes.formats.describe import ModelFiles
from edgespec.runtimes.formats.gguf import PLAIN

BLOCK = 64  # positions per attention block; see torch/attention.py
SHARED_ROWS = 9  # of each of many trees in a pass, on average: a root and eight drafts; some have more
UNPACKED_TILE = 8 * 2**20  # bytes that torch unpacks at a time: kernels/matmul.py's PROMPT_TILE_BYTES
FEW = 256  # rows of a prompt that may be multiplied as a tree's: kernels/matmul.py's
# Encodings that kernels/compiled.py knows.
NATIVE = frozenset((*LOW_BIT, "F16", "BF16"))
ANGLES = 1024  # positions whose cosines and sines are made at a time: torch/rope.py's TABLE


def pass_rows(sequences: int, trees: bool) -> int:
    """Most rows of a pass: of so many, all have their trees beside a block of a newcomer's prompt."""
    return PREFILL_ROWS + (judged_rows(sequences, trees) if sequences > 1 else 0)


def judged_rows(sequences: int, trees: bool) -> int:
    """Most rows of a pass whose logits are looked at: one tree's, or those of each of so many sequences."""
    return max(TREE_ROWS, sequences * (SHARED_ROWS if trees else 1))


def pass_bytes(
    files: ModelFiles, how: Arithmetic, positions: int, sequences: int = 1, trees: bool = False
) -> int:
    """Of the largest pass over conversations of up to so many positions."""
    config, e = files.config, files.element
    n, judged = pass_rows(sequences, trees), judged_rows(sequences, trees)
    d, q, kv, f = config.hidden_size, config.q_size, config.kv_size, config.intermediate_size
    # The embedding's rows, which the caller has, what came into the layer, what is added to that, and normed.
    layer = n * (4 * d + q + 2 * kv) * e
    took = dict.fromkeys(("q_proj", "gate_proj", "up_proj", "down_proj"), 0)
    head = 0
    for cut in files.table.cuts:
        if cut.part == "lm_head":
            head = product_bytes(files, how, judged, cut, exact=True)
        elif cut.part in took:
            took[cut.part] = max(took[cut.part], product_bytes(files, how, n, cut))
    mlp = max(took["gate_proj"], n * f * e + max(took["up_proj"], took["down_proj"], 2 * n * f * e))
    attention = n * (3 * q * e + config.heads * 4)  # queries and outputs, each arranged anew
    prompt_mask, tree_masks, outputs = 0, 0, 0
    if positions:
        prompt_mask = PREFILL_ROWS * positions  # as bytes; in attention as numbers, too
        if not how.compiled:  # torch's attention, block by block
            blocks = -(-positions // BLOCK) + 2
            outputs = TREE_ROWS * blocks * (q * e + config.heads * 8)
            tree_masks = judged * (config.heads // config.kv_heads) * positions * (1 + e)
    numbers = PREFILL_ROWS * positions * e
    moments = layer + max(mlp, attention + numbers, took["q_proj"]), judged * config.vocab_size * 4 + head
    if sequences == 1:  # a tree's pass is another than a prompt's
        small = layer // n * TREE_ROWS
        largest = max(max(moments) + prompt_mask, small + tree_masks + outputs)
    else:
        largest = max(moments) + prompt_mask + tree_masks + outputs
    return largest + scratch_bytes(files, how, judged) + _angles(config, positions)


def _angles(config: ModelConfig, positions: int) -> int:
    """Cosines and sines, of each pair of a head's numbers."""
    return -(-positions // ANGLES) * ANGLES * config.head_dim * 4


def product_bytes(files: ModelFiles, how: Arithmetic, n: int, cut: Cut, exact: bool = False) -> int:
    """Of n rows times a matrix, beside the rows themselves: the product, and what is there while it is made.
    `exact`: as a tree's rows."""
    e, done, most = files.element, 0, 0
    own = cut.encoding in how.prompts or (exact and how.compiled)
    number = 4 if files.activations in how.converts else e
    plain = PLAIN.get(cut.encoding) == files.activations and number == e
    for rows in cut.rows:
        out = n * rows * e
        if own or plain:
            parts = n > FEW and _in_parts(cut, how)  # multiplied so, and joined
            held = out * (2 if own and parts else 1)
        else:
            tiles = -(-rows // tile_rows(cut.inner * number))
            held = n * rows * number * min(tiles, 2)  # tiles' products, and joined
            if number != e:
                held += n * cut.inner * number + out  # x and the product in the other type
        most = max(most, done + held)
        done += out
    return most if len(cut.rows) == 1 else max(most, 2 * done)


def tile_rows(row_bytes: int) -> int:
    """Rows of weights that torch unpacks at a time; see `kernels.matmul.tile_bounds`."""
    return max(16, UNPACKED_TILE // row_bytes // 16 * 16)


def scratch_bytes(files: ModelFiles, how: Arithmetic, judged: int = TREE_ROWS) -> int:
    """What stays with the thread that computes passes of so many rows of trees: torch's tile, unpacked, and
    the compiled kernels' room, attention's apart."""
    return _tile(files, how) + _room(files, how, judged) + _attention_room(files.config, how)


def _attention_room(config: ModelConfig, how: Arithmetic) -> int:
    """Of each thread, for rows that have a prompt's block of keys of their own: native/attention.c's."""
    if not how.compiled:
        return 0
    keys, queries, own, width = BLOCK, 32, PREFILL_ROWS + BLOCK, -(-config.head_dim // 16) * 16
    numbers = 2 * (keys + queries + own) * width
    return how.threads * (4 * keys * queries + 64 * queries + 4 * numbers + 4096)


def _tile(files: ModelFiles, how: Arithmetic) -> int:
    converted = files.activations in how.converts
    number = 4 if converted else files.element
    return max(
        (
            min(tile_rows(cut.inner * number), max(cut.rows)) * cut.inner * number
            for cut in files.table.cuts
            if cut.encoding not in how.prompts
            and (converted or PLAIN.get(cut.encoding) != files.activations)
            and not (how.compiled and cut.part == "lm_head")
        ),
        default=0,
    )


def _room(files: ModelFiles, how: Arithmetic, judged: int) -> int:
    """The most that the compiled kernels ask for: for trees' rows, those of prompts that are multiplied as
    these (`kernels.matmul.ragged`), a prompt's block, or a layer in one call, which has the numbers of trees'
    rows there, too."""
    if not how.compiled:
        return 0
    config, e = files.config, files.element
    q, kv = config.q_size, config.kv_size
    few, tree = [0], [0]
    for cut in files.table.cuts:
        if cut.encoding not in NATIVE:
            continue
        own = cut.encoding in how.prompts
        tree.append(room_bytes(cut, how, judged, e))
        if cut.part != "lm_head":
            few.append(room_bytes(cut, how, FEW, e, own))
            if own and not _in_parts(cut, how):
                few.append(packed_bytes(cut, how, e))
    layer = judged * (config.hidden_size + 2 * (q + kv + config.intermediate_size)) * e
    return max(*few, max(tree) + layer)


def _in_parts(cut: Cut, how: Arithmetic) -> bool:
    """Whether the kernels multiply FEW rows of a prompt's block at a time: by fp16, and in a tree's order, as
    by low-bit weights where torch would compute in fp32."""
    return cut.encoding == "F16" or "bfloat16" in how.converts


def room_bytes(cut: Cut, how: Arithmetic, n: int, element: int, prompt: bool = False) -> int:
    """Of n rows by a matrix, as native/native.c's `lay_out` has it: sums of each thread, and x arranged.
    `prompt`: of a block that has an order of its own."""
    plain, threads = cut.encoding in PLAIN, how.threads
    terms = 2 if element == 4 and not plain else 1
    task = 2**18 // cut.row_bytes  # TASK_BYTES
    own = 49152  # of a thread: ROOM
    half = prompt and cut.encoding == "F16" and "F16" in how.prompts  # by AMX
    if half:
        task = 256  # AMX_HALF_ROWS
    rows = max(16, min(task, cut.together // (4 * threads)) // 16 * 16)
    if half:  # `amx_half_room`
        own = 65536 + -(-rows // 32) * 2 * -(-min(n, 256) // 16) * 1024
    sums = threads * (own + 4 * cut.inner + 4 * rows * n * terms)
    if cut.encoding == "BF16" and "bfloat16" not in how.converts and not how.widened:  # x as bf16, in pairs
        return sums + n * -(-cut.inner // 32) * 32 * 2
    if plain:
        return sums + n * -(-cut.inner // 512) * 512 * 4
    numbers = -(-cut.inner // 256) * (512 + 64)
    packed = -(-n * terms // 16) * 16 * numbers if how.arranged or (cut.encoding in RARE and not ARM) else 0
    return sums + n * terms * numbers + packed


def packed_bytes(cut: Cut, how: Arithmetic, element: int) -> int:
    """Of a prompt's block by a matrix: the same, with x in the order of AMX or of AVX-512 BF16."""
    threads = how.threads
    rows = -(-max(16, min(256, cut.together // (4 * threads)) // 16 * 16) // 32) * 32
    sums = threads * (49152 + 4 * cut.inner + 4 * rows * PREFILL_ROWS)
    return sums + PREFILL_ROWS * -(-cut.inner // 512) * 512 * element
