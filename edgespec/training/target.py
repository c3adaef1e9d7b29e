"""The frozen target under the memory dial, beside what training needs, and its features on the fly.

Nothing is dumped: each pass runs whole sequences through the target, resident or streamed, and keeps the
hidden states that somebody trains on. A streamed pass costs the same flash reads however many sequences share
it, so it takes as many as the ledger allows.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from edgespec.config import EngineOptions
from edgespec.devices.machine import Machine
from edgespec.errors import BudgetError, OptionError
from edgespec.kernels.cpu import matmul_dtype
from edgespec.kernels.reference import rms_norm
from edgespec.models.planning import choose_dial
from edgespec.offload.plan.ledger import gigabytes, smallest_dial_text
from edgespec.offload.plan.needs import Extras, Request
from edgespec.offload.plan.plan import Plan
from edgespec.progress import Progress, ProgressCallback
from edgespec.runtimes.base import TREE_ROWS
from edgespec.runtimes.formats.describe import ModelFiles
from edgespec.runtimes.formats.needs import plan_model
from edgespec.runtimes.rows import Rows
from edgespec.runtimes.target import EVERY_LAYER
from edgespec.runtimes.torch.blocks import swiglu_bytes
from edgespec.runtimes.torch.machine import measure_machine
from edgespec.runtimes.torch.moa import written_states
from edgespec.runtimes.torch.open import open_target
from edgespec.runtimes.torch.target import TorchTarget
from edgespec.runtimes.torch.weights import Weights
from edgespec.training.corpus import Sample
from edgespec.training.data import padded
from edgespec.training.workers import Workers

KERNELS = 32  # matmuls that torch and oneDNN keep compiled: one for each shape, and passes have ever new ones
KERNELS_BYTES = 96 * 10**6  # of those, and of freed small blocks (measured)
STREAMED_SHARE = 4  # one part in so many of the dial goes to a pass's rows when the target streams


def measure_for_training(files: ModelFiles, device: torch.device) -> Machine:
    """`measure_machine`, in a process whose matmuls will be of ever new shapes."""
    for cache in ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"):  # read at the first matmul
        os.environ.setdefault(cache, str(KERNELS))
    return measure_machine(files, device)


def open_beside(
    files: ModelFiles,
    options: EngineOptions,
    device: torch.device,
    count: int,
    least: int,
    nbytes: Callable[[int], int],
    pass_rows: Callable[[int], int],
    progress: ProgressCallback | None = None,
    judged_rows: Callable[[int], int] = lambda count: TREE_ROWS,
) -> tuple[TorchTarget[Weights], Plan, int]:
    """Open the target beside `nbytes(count)` bytes of other memory: (target, plan, count), by `plan_beside`.
    It then takes passes of up to `pass_rows(count)` rows, whose memory is among those bytes, as are logits of
    `judged_rows(count)` of them beyond TREE_ROWS.

    Raises what `plan_beside` raises, StorageError and CorruptFileError.
    """
    machine = measure_for_training(files, device)
    plan, chosen = plan_beside(files, options, machine, count, least, nbytes)
    done = 0

    def advance(read: int) -> None:
        nonlocal done
        done += read
        if progress is not None:
            progress(Progress("load", done, plan.pinned_bytes, "bytes"))

    rows = pass_rows(chosen), judged_rows(chosen)
    return open_target(files, plan, machine.read_settings, advance, device, *rows), plan, chosen


def plan_beside(
    files: ModelFiles,
    options: EngineOptions,
    machine: Machine,
    count: int,
    least: int,
    nbytes: Callable[[int], int],
) -> tuple[Plan, int]:
    """What of the target stays in memory beside `nbytes(count)` bytes of other memory: (plan, count).

    `count` (rows or sessions a pass) is halved, down to `least`, until the whole target fits beside it, or,
    if it cannot, until the rest takes no more than its share of the dial.

    Raises BudgetError when `least` does not fit, or the LM head would have to be streamed.
    """
    dial = choose_dial(options, machine)
    if options.memory is None:
        dial //= Workers.on_this_machine()
    request = Request(dial, context=1, device_dial=options.device_memory)

    def plan_for(count: int) -> Plan:
        extras = Extras({"training": lambda positions: nbytes(count)})
        return plan_model(files, machine, request, extras)

    counts = [count]
    while counts[-1] > least:
        counts.append(max(least, counts[-1] // 2))
    plan = plan_for(least)  # says what is missing when even this does not fit
    chosen = least
    for tried in counts:
        try:
            plan = plan_for(tried)
        except BudgetError:
            continue
        chosen = tried
        if not plan.streamed_bytes or nbytes(tried) * STREAMED_SHARE <= dial:
            break
    head = sum(c.read_bytes for c in plan.streamed if c.layer == files.config.layers)
    if head:
        smallest = dial + head
        raise BudgetError(
            f"the dial is {gigabytes(dial)}, and the target's LM head, which training uses at every step, "
            f"does not fit beside the rest ({gigabytes(head)} short); use memory="
            f"{smallest_dial_text(smallest)}",
            plan.owners,
            dial,
            smallest,
        )
    return plan, chosen


@dataclass(frozen=True)
class Features:
    """What one pass over b sequences of at most t tokens gives.

    hidden: by depth, the residual stream after that many layers, [b, t, d], zero behind a sequence's end.
    final: the target's normed last state at the n supervised positions, [n, d]: what its LM head multiplies.
    supervised: [b, t] bool, where `final` belongs, row by row.
    layers: keys (after RoPE) and values of all layers, [tokens, L, 2 E_kv], where somebody learns from them.
    """

    hidden: dict[int, Tensor]
    final: Tensor
    supervised: Tensor
    layers: Tensor | None = None


class FrozenTarget:
    """Features of whole sequences, and the LM head as a differentiable function.

    dtype: of what drafters compute with, and of features but for `final`: the target's own, or fp32.
    """

    def __init__(self, target: TorchTarget[Weights], depths: Sequence[int]) -> None:
        """`depths`: layers below each hidden state that is wanted, 0 (the embeddings) to layers."""
        self.target = target
        self.depths = frozenset(depths)
        head = target.weights.resident_blocks("lm_head")
        if head is None:  # on a discrete accelerator it may be pinned in host memory
            raise OptionError("training needs the LM head on the device; use a larger device_memory=")
        self._head = head
        # Where the CPU has no bf16, gradients in it took 50 times as long as in fp32 (Zen 3, AVX2).
        self.dtype = matmul_dtype(target.dtype) if target.device.type == "cpu" else target.dtype

    def head(self, normed: Tensor) -> Tensor:
        """[m, d] -> logits [m, V]; gradients reach `normed` alone."""
        x = normed.to(self.dtype)
        parts = [F.linear(x, tile) for block in self._head for tile in block.tiles(self.dtype)]
        return torch.cat(parts, dim=1)

    @property
    def final_norm(self) -> Tensor:
        """[d]"""
        return self.target.weights.small["model.norm.weight"]

    def __call__(self, samples: Sequence[Sample], layers: bool = False) -> Features:
        """One pass over all of these sequences; `layers`: with what they have in all layers."""
        target, lengths = self.target, [len(s.tokens) for s in samples]
        target.threads = torch.get_num_threads()  # the trainer's, which may change
        # The bits are nobody's: all sequences are multiplied in one piece.
        rows = replace(Rows.concat([self._rows(n) for n in lengths]), apart=False)
        watch = _Watch(self.depths, layers)
        embedded = target.embed(np.concatenate([s.tokens for s in samples]))
        watch.on_layer(-1, embedded, rows)
        last = target.run(embedded, rows, range(target.config.layers), watch)
        supervised = torch.zeros(len(samples), max(lengths), dtype=torch.bool, device=target.device)
        for i, sample in enumerate(samples):
            for start, stop in sample.spans:
                supervised[i, start - 1 : stop - 1] = True
        # clone(): tensors made in inference mode cannot take part in a gradient.
        hidden = {d: _padded(x.to(self.dtype, copy=True), lengths) for d, x in watch.states.items()}
        final = _padded(last.clone(), lengths)[supervised]
        normed = rms_norm(final, self.final_norm, target.config.norm_eps)
        kept = torch.cat(watch.layers, 1).to(self.dtype) if layers else None
        return Features(hidden, normed, supervised, kept)

    def _rows(self, n: int) -> Rows:
        """A sequence in a cache of its own, computed in one pass."""
        return Rows.append(self.target.pass_cache(n), np.arange(-1, n - 1), prefill=True)

    def close(self) -> None:
        self._head.clear()
        self.target.weights.close()


@torch.no_grad()
def target_matrix(target: TorchTarget[Weights], name: str) -> Tensor:
    """One of the target's matrices [out, in] in its type, whatever it is stored as."""
    weights = target.weights
    _, piece, _ = weights.blocks[name + ".weight"][0]
    unit = torch.eye(piece.shape[1], dtype=target.dtype, device=target.device)
    [rows] = weights.linear((name,), unit, False)  # W^T, and the bias
    matrix = (rows - weights.small.get(name + ".bias", 0)).T
    weights.release()
    return matrix


def element(files: ModelFiles) -> int:
    """Bytes of a number of what drafters of this target compute, at most: see `FrozenTarget.dtype`."""
    return matmul_dtype(files.dtype).itemsize


def pass_bytes(files: ModelFiles, rows: int, depths: int) -> int:
    """Memory of `FrozenTarget` for a pass of so many (padded) rows, at its peak."""
    c, e = files.config, files.dtype.itemsize
    kept = c.hidden_size * (4 * e + depths * (e + element(files))) + 2 * c.kv_size * e
    mlp = c.intermediate_size * swiglu_bytes(e)
    attention = c.q_size * (4 * e + 4) + c.kv_size * 4 * e
    return rows * (kept + max(mlp, attention)) + padded(rows) // 64


def _padded(states: Tensor, lengths: list[int]) -> Tensor:
    """[sum of lengths, d] -> [b, t, d], zero behind each sequence's end."""
    return pad_sequence(list(torch.split(states, lengths)), batch_first=True)


class _Watch:
    """Keeps states behind some layers, and keys and values of all; see `runtimes.target.PassObserver`."""

    def __init__(self, depths: frozenset[int], layers: bool) -> None:
        self.hears = EVERY_LAYER if layers else frozenset(depth - 1 for depth in depths)
        self.depths, self.wanted = depths, layers
        self.states: dict[int, Tensor] = {}
        self.layers: list[Tensor] = []  # [tokens, 1, 2 E_kv] each

    def on_layer(self, index: int, hidden: Tensor, rows: Rows) -> None:
        if index + 1 in self.depths:
            self.states[index + 1] = hidden
        if self.wanted and index >= 0:  # all layers write into one layer's memory
            self.layers.append(torch.cat([written_states(cache, index) for cache in rows.caches]))

    def on_chunk(self) -> None:
        pass

    def on_wait(self) -> bool:
        return False
