"""The torch target: runs ranges of layers over rows, with weights from memory or from flash."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from math import isfinite
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from edgespec.errors import Call, ModelError, OptionError
from edgespec.kernels.dispatch import add, add_norm, rms_norm, rotate, swiglu
from edgespec.kernels.layer import LayerPass, run_layers
from edgespec.kernels.matmul import Block, Together
from edgespec.kernels.threads import use_threads
from edgespec.kernels.tree_attention import GROUP
from edgespec.runtimes.base import PREFILL_ROWS, TREE_ROWS, IntArray
from edgespec.runtimes.config import ModelConfig
from edgespec.runtimes.rows import Rows
from edgespec.runtimes.target import NO_LAYER, PassObserver
from edgespec.runtimes.torch.attention import AttentionPlan
from edgespec.runtimes.torch.exit import HeadExit, HeadPass
from edgespec.runtimes.torch.kv_cache import TorchKVCache
from edgespec.runtimes.torch.rope import RopeTable
from edgespec.runtimes.torch.whole_layer import whole_layers, whole_pass


class ModelWeights(Protocol):
    """Weights by canonical name, wherever their bytes are."""

    dtype: torch.dtype  # of activations
    device: torch.device  # where matmuls run
    small: dict[str, Tensor]  # norms and biases
    together: Together  # of the matrices that are in memory

    @property
    def chains(self) -> int:
        """So many rows of a prompt have a tree's bits when they are multiplied, and may attend as a tree."""

    def linear(
        self,
        names: tuple[str, ...],
        x: Tensor,
        exact: bool,
        observer: PassObserver | None = None,
        apart: Sequence[range] = (),
    ) -> list[Tensor]:
        """x [n, in] @ W^T (+ bias) -> [n, out] for each of the matrices called `names` (without ".weight").

        `exact`: a row's bits do not depend on n. `apart`: the last rows of x are these spans, each of which
        has the bits of a call of its own that is not exact.
        """

    def embed(self, tokens: Sequence[int] | IntArray) -> Tensor:
        """Rows of the embedding, [n] -> [n, d]."""

    def resident_blocks(self, name: str) -> Sequence[Block] | None:
        """The matrix called `name` (without ".weight") as blocks of its rows, in order, if all of them are
        where matmuls run, to stay; else None."""

    def layer_together(self, layer: int, observer: PassObserver | None = None) -> Together | None:
        """The matrices of a layer that streams, all at once until `release`; None where they are asked for
        one by one, and nothing was held then."""

    def times(self, x: Tensor, block: Block) -> Tensor:
        """x [n, in] -> [n, rows] by one of these blocks, for drafts, whose bits are nobody's."""

    def release(self) -> None:
        """A pass has ended, or was given up."""


@dataclass(frozen=True)
class Prepared:
    """What all layers of a pass share."""

    rows: Rows
    angles: tuple[Tensor, Tensor]  # cosines and sines of the rotary embedding, [n, 1, head_dim / 2] each
    attention: AttentionPlan
    whole: LayerPass | None  # for layers that are one call


W = TypeVar("W", bound=ModelWeights)


class TorchTarget(Generic[W]):
    """See `runtimes.target.Target`. `slots` is the most uncommitted rows (tree nodes) that a cache has room
    for beside its context; `pass_rows` the most rows of a pass, `judged_rows` (None: `slots`) those of trees.

    `run` raises OptionError for a pass of more rows, `logits` ModelError for outputs that are not finite.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: W,
        slots: int,
        pass_rows: int = PREFILL_ROWS,
        judged_rows: int | None = None,
    ) -> None:
        self.config = config
        self.weights = weights
        self.slots = slots
        self.pass_rows = pass_rows
        self.judged_rows = slots if judged_rows is None else judged_rows
        # Of a pass whose layers are one call. A draft model's further slots are not planned for.
        self.whole_rows = judged_rows or TREE_ROWS
        self.dtype = weights.dtype
        self.device = weights.device
        self.grows = self.device.type == "cpu"
        self.threads = torch.get_num_threads()
        self.rope = RopeTable(config.rope, config.head_dim, self.device)

    def new_cache(self, context: int, slots: int | None = None, most: int | None = None) -> TorchKVCache:
        slots = self.slots if slots is None else slots
        return TorchKVCache(self.config, context, slots, self.dtype, self.device, most)

    def pass_cache(self, n: int) -> TorchKVCache:
        """A cache for one pass over n rows of a prompt: nobody reads a layer's keys after the layer, so all
        layers share one layer's memory."""
        cache = TorchKVCache(replace(self.config, layers=1), n, 0, self.dtype, self.device)
        cache.k, cache.v = (kv.expand(self.config.layers, -1, -1, -1) for kv in (cache.k, cache.v))
        return cache

    @torch.inference_mode()
    def embed(self, tokens: Sequence[int] | IntArray) -> Tensor:
        return self.weights.embed(tokens)

    @torch.inference_mode()
    def run(self, hidden: Tensor, rows: Rows, layers: range, observer: PassObserver | None = None) -> Tensor:
        shared = self.prepare(rows)
        try:
            while layers:
                hidden, ran = self._some(layers, hidden, shared, observer)
                layers = layers[ran:]
                if observer is not None:
                    observer.on_layer(layers.start - 1, hidden, rows)
        finally:
            self.weights.release()
        return hidden

    @torch.inference_mode()
    def prepare(self, rows: Rows) -> Prepared:
        """What a pass over these rows needs in every layer; `run_layer` then runs them one by one."""
        trees = sum(len(s) for s, prompt in zip(rows.segments, rows.prompts, strict=True) if not prompt)
        for n, most in ((trees, self.judged_rows), (rows.n, max(self.pass_rows, self.judged_rows))):
            if n > most:
                raise OptionError(
                    f"a pass of {n} rows is larger than the {most} that memory is planned for; take fewer "
                    "conversations, or smaller trees, at a time"
                )
        cos, sin = self.rope(rows.positions)
        angles = cos[:, None].to(self.dtype), sin[:, None].to(self.dtype)
        chains = self.weights.chains if self.config.heads <= GROUP * self.config.kv_heads else 0
        attention = AttentionPlan(rows, self.device, chains)
        whole = whole_pass(attention, self.config, self.whole_rows, *angles)
        return Prepared(rows, angles, attention, whole)

    @torch.inference_mode()
    def run_layer(self, index: int, hidden: Tensor, shared: Prepared) -> Tensor:
        """One layer of a pass that others may interrupt, [n, d] -> [n, d]."""
        try:
            return self._some(range(index, index + 1), hidden, shared, None)[0]
        finally:
            self.weights.release()

    @torch.inference_mode()
    def run_resident_layer(self, index: int, hidden: Tensor, shared: Prepared) -> Tensor:
        """As `run_layer`, within another pass's waits: of a layer that is in memory."""
        return self._some(range(index, index + 1), hidden, shared, None)[0]

    def logits(self, hidden: Tensor, observer: PassObserver | None = None) -> Tensor:
        return self.head(self.normed(hidden), observer)

    @torch.inference_mode()
    def normed(self, hidden: Tensor) -> Tensor:
        """What the head multiplies, [n, d] -> [n, d]. Raises ModelError where it is not finite."""
        normed = self._norm("model.norm", hidden)
        if not isfinite(float(normed.sum(dtype=torch.float32))):  # what is NaN or infinite, so is the sum
            fact = "the layers' outputs are not finite numbers"
            if self.dtype == torch.float16:
                raise ModelError(
                    f"{fact}; they passed the range of float16, so the model was made for bfloat16; pack it "
                    "so, and use DIR",
                    hint=Call("pack_model", {"model": "MODEL", "out": "DIR", "precision": "bf16"}),
                )
            raise ModelError(f"{fact}; the weights are damaged: fetch or pack the model again")
        return normed

    def head_pass(self, normed: Tensor) -> HeadPass:
        """The head, which is in memory, over [n, d] in parts, for drafts."""
        return HeadPass(normed, partial(self.weights.resident_blocks, "lm_head"), self.weights.times)

    @torch.inference_mode()
    def head(self, normed: Tensor, observer: PassObserver | None = None) -> Tensor:
        use_threads(self.threads)
        try:
            return self.weights.linear(("lm_head",), normed, True, observer)[0].float()
        finally:
            self.weights.release()

    def early_exit(self, layers: int, norm: Callable[[Tensor], Tensor] | None = None) -> HeadExit:
        head = partial(self.weights.resident_blocks, "lm_head")
        return HeadExit(layers, norm or partial(self._norm, "model.norm"), head, self.weights.times)

    def _some(
        self, layers: range, hidden: Tensor, shared: Prepared, observer: PassObserver | None
    ) -> tuple[Tensor, int]:
        """The first of these decoder layers, or several in one call: [n, d] -> [n, d], and how many."""
        use_threads(self.threads)
        if shared.whole is not None:
            heard = NO_LAYER if observer is None else observer.hears
            unheard = takewhile(lambda index: index == layers.start or index - 1 not in heard, layers)
            small = self.weights.small
            wholes = whole_layers(unheard, len(hidden), self.config, self.weights.together, small)
            if wholes and observer is not None:
                observer.on_chunk()  # once: nothing is heard within the call
            together = None if wholes else self.weights.layer_together(layers.start, observer)
            if together is not None:
                wholes = whole_layers(layers[:1], len(hidden), self.config, together, small)
                assert wholes
            if wholes:
                shared.attention.check_free()
                return run_layers(wholes, layers.start, hidden, shared.whole), len(wholes)
        return self._layer(layers.start, hidden, shared, observer), 1

    def _layer(
        self,
        index: int,
        hidden: Tensor,
        shared: Prepared,
        observer: PassObserver | None,
    ) -> Tensor:
        """One decoder layer, [n, d] -> [n, d]."""
        c, name, n = self.config, f"model.layers.{index}.", len(hidden)
        rows, angles = shared.rows, shared.angles
        apart = rows.blocks

        def linear(x: Tensor, *matrices: str) -> list[Tensor]:
            names = tuple(name + matrix for matrix in matrices)
            return self.weights.linear(names, x, not rows.prefill, observer, apart)

        x = self._norm(name + "input_layernorm", hidden)
        qkv = linear(x, "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
        q, k, v = (part.view(n, -1, c.head_dim) for part in qkv)
        if c.qk_norm:
            q = self._norm(name + "self_attn.q_norm", q)
            k = self._norm(name + "self_attn.k_norm", k)
        q, k = rotate(q, k, *angles, c.rope.interleaved)
        [attended] = linear(shared.attention(index, q, k, v, c.window(index)), "self_attn.o_proj")
        weight = self.weights.small[name + "post_attention_layernorm.weight"]
        hidden, x = add_norm(hidden, attended, weight, c.norm_eps)
        [down] = linear(swiglu(*linear(x, "mlp.gate_proj", "mlp.up_proj")), "mlp.down_proj")
        return add(hidden, down)

    def _norm(self, name: str, x: Tensor) -> Tensor:
        return rms_norm(x, self.weights.small[name + ".weight"], self.config.norm_eps)
