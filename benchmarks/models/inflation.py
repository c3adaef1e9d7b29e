"""A small trained model inside a big shape: every tensor of the big one (`inflate.py` writes them).

The result has the big shape's bytes and arithmetic and the small model's text, so speed and acceptance can be
measured on one model. What is added has no effect. It is filled with numbers drawn from the small model's own
matrices wherever a zero is not needed:

    channels    Added residual channels stay 0: no real head or neuron writes them. RMSNorm divides by the
                root of a mean over more channels, so its weights get sqrt(d/D) and its epsilon d/D: exact,
                because D/d is a power of 4.
    heads       A key-value head is repeated where the big shape shares one among fewer query heads. In a
                bigger head the small one's rotary pair i is pair i * E/e, which turns at the same rate; q is
                multiplied by sqrt(E/e), a power of 2, as scores are divided by sqrt(E). Added v rows are 0.
    neurons     Added rows of `up` are 0, so gate * up is.
    layers      The real ones lie evenly in the depth; all of v and `up` is 0 in the others.
    vocabulary  Added tokens have a probability of exactly 0: `enlarge.Guard`.

Low-bit copies: real columns are neighbours, and the filler in a real row repeats that row's own groups of 64
columns, so quantising finds the same scales in it. The int8 and int4 copies of the big model are therefore
those of the small one, as long as no group mixes real and added columns. (In the demo's o_proj, with 32 real
columns a head, groups hold 32 real numbers and 32 like them.) Zeros stay zeros. A low-bit *substitute* of the
inflated model is thus accepted as often as the small model's own low-bit copy: less often than a real 7B's,
because rounding hurts small models more.

An adapter is an attention block and two norms, so the same construction fits it. One behind m of n layers
lies behind about m L / n of L: the residual stream there is the one behind the m-th real layer.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from benchmarks.models.enlarge import FILLED, SILENT, ZERO, Guard, Matrix, Spread, filler, head_maps
from benchmarks.models.shapes import Shape
from edgespec.errors import EdgeSpecError
from edgespec.runtimes.config import EMBEDDING, FINAL_NORM, HEAD, ModelConfig, from_hf

# Entries of config.json that are the big shape's own.
SIZES = ("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads")
SIZES += ("num_key_value_heads", "head_dim", "vocab_size", "tie_word_embeddings", "torch_dtype")


class Source:
    """A small Hugging Face directory: its config, and its tensors, read when they are asked for."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.raw: dict[str, Any] = json.loads((directory / "config.json").read_text())
        try:
            self.config: ModelConfig = from_hf(self.raw)
        except EdgeSpecError as error:
            raise SystemExit(f"{directory}: {error}") from None
        self.files: dict[str, Path] = {}
        for file in sorted(directory.glob("*.safetensors")):
            with safe_open(file, "pt") as opened:
                self.files.update(dict.fromkeys(opened.keys(), file))

    def tensor(self, name: str) -> Tensor:
        if name == HEAD and self.config.tied_head:
            name = EMBEDDING
        with safe_open(self.files[name], "pt") as file:
            tensor: Tensor = file.get_tensor(name)
        return tensor


def check(small: ModelConfig, big: Shape) -> None:
    """Raises SystemExit when the small model cannot be enlarged to this shape, saying why."""
    reasons = []
    if small.architecture != "LlamaForCausalLM" or small.o_bias or small.mlp_bias:
        reasons.append(f"only plain Llama models without biases can be inflated, not {small.architecture}")
    for what, ours, theirs in (
        ("hidden size", small.hidden_size, big.hidden),
        ("head_dim", small.head_dim, big.head_dim),
    ):
        if theirs not in [ours * 4**k for k in range(8)]:
            reasons.append(f"{what} {theirs} is not {ours} times a power of 4, so rescaling would round")
    for what, ours, theirs in (
        ("layers", small.layers, big.layers),
        ("intermediate size", small.intermediate_size, big.ffn),
        ("vocabulary", small.vocab_size, big.vocab),
    ):
        if ours > theirs:
            reasons.append(f"{what}: {ours} do not fit into {theirs}")
    sharing = big.heads // big.kv_heads
    copies = -(-(small.heads // small.kv_heads) // sharing)
    if small.kv_heads * copies > big.kv_heads:
        reasons.append(
            f"{small.heads} heads over {small.kv_heads} key-value heads need {small.kv_heads * copies} "
            f"key-value heads of {sharing} heads each; the shape has {big.kv_heads}"
        )
    if big.tied and not small.tied_head:
        reasons.append("the shape's head is tied to its embedding and the small model's is not")
    if big.vocab > small.vocab_size and big.hidden == small.hidden_size:
        reasons.append("a larger vocabulary needs extra channels: choose a larger hidden size")
    if reasons:
        raise SystemExit("cannot inflate: " + "; ".join(reasons))


@dataclass
class Inflation:
    """Small model -> big shape: every tensor of the big one."""

    source: Source
    big: Shape
    seed: int = 0

    def __post_init__(self) -> None:
        small, big = self.source.config, self.big
        check(small, big)
        self.small = small
        self.dtype: torch.dtype = getattr(torch, small.dtype)
        self.ratio = (big.hidden / small.hidden_size) ** 0.5
        self.guard = Guard.of(small, big, self.dtype) if big.vocab > small.vocab_size else None
        self.eps = self.guard.eps if self.guard else small.norm_eps * small.hidden_size / big.hidden
        # Big layer -> small layer, the middle of each small layer's share of the depth.
        self.layers = {(2 * i + 1) * big.layers // (2 * small.layers): i for i in range(small.layers)}
        self.heads = head_maps(small, big)
        self.generator = torch.Generator().manual_seed(self.seed)

    def config(self) -> dict[str, Any]:
        """config.json of the big model: its own sizes, all else the small model's."""
        sizes = self.big.hf_config(self.small.dtype)
        raw = {key: value for key, value in self.source.raw.items() if key not in ("rope_theta", "dtype")}
        theta = {} if "rope_parameters" in raw else {"rope_theta": self.small.rope.theta}
        return {**raw, **theta, **{key: sizes[key] for key in SIZES}, "rms_norm_eps": self.eps}

    def tensor(self, name: str, dims: tuple[int, ...]) -> Tensor:
        """One of the big model's, by its canonical name."""
        if len(dims) == 1:
            return self.norm(self.source.tensor(self.origin(name)[0]), name == FINAL_NORM)
        return self.matrix(name).whole()

    def norm(self, small: Tensor, before_head: bool) -> Tensor:
        """Real channels' weights rescaled; the others' never meet anything but 0, the guards aside."""
        out = filler(small, self.big.hidden, self.generator)
        out[: self.small.hidden_size] = small
        out /= self.ratio
        if self.guard:
            out[-2:] = torch.tensor(self.guard.norm if before_head else (0.0, 0.0))
        return out

    def matrix(self, name: str) -> Matrix:
        """How a matrix of the big model comes from one of the small one's."""
        origin, real = self.origin(name)
        weights = self.source.tensor(origin)
        if name in (EMBEDDING, HEAD):
            return self.vocabulary(name, weights)
        return self.projection(name.split(".")[-2], weights, real)

    def projection(
        self, kind: str, weights: Tensor, real: bool = True, neurons: tuple[int, int] | None = None
    ) -> Matrix:
        """A layer's matrix `kind` ("q_proj", ...); one that is not `real` has no effect.

        neurons: of an MLP, of how many to how many; None = the models' own.
        """
        channels = (self.small.hidden_size, self.big.hidden)
        neurons = neurons or (self.small.intermediate_size, self.big.ffn)
        read = Spread.first(*channels, FILLED)  # added channels are 0, whatever they are multiplied by
        written = Spread.first(*channels, SILENT)
        rows, columns = {
            "q_proj": (self.heads.q, read),
            "k_proj": (self.heads.k, read),
            "v_proj": (self.heads.v, read),
            "o_proj": (written, self.heads.o),
            "gate_proj": (Spread.first(*neurons, FILLED), read),
            "up_proj": (Spread.first(*neurons, ZERO), read),
            "down_proj": (written, Spread.first(*neurons, FILLED)),
        }[kind]
        if kind == "q_proj":
            weights = weights * (self.big.head_dim / self.small.head_dim) ** 0.5
        if not real:
            rows, columns = rows.all(ZERO if kind in ("v_proj", "up_proj") else FILLED), columns.all(FILLED)
        return Matrix(weights, rows, columns, self.generator)

    def vocabulary(self, name: str, weights: Tensor) -> Matrix:
        """Embedding or head: real tokens first, then the added ones; the last two channels are the guards."""
        head = name == HEAD
        tokens = Spread.first(self.small.vocab_size, self.big.vocab, FILLED)
        channels = Spread.first(self.small.hidden_size, self.big.hidden, FILLED if head else ZERO)
        matrix = Matrix(weights, tokens, channels, self.generator)
        if self.guard:
            real = (0.0, 0.0) if head else self.guard.constant
            added = self.guard.refusal if head or self.big.tied else self.guard.constant
            matrix.last_columns = (real, added)
        return matrix

    def origin(self, name: str) -> tuple[str, bool]:
        """(the small model's tensor, whether it is represented or only lends its numbers)."""
        if not name.startswith("model.layers."):
            return name, True
        head, _, rest = name.removeprefix("model.layers.").partition(".")
        real = [big for big in self.layers if big <= int(head)]
        nearest = self.layers[max(real) if real else min(self.layers)]
        return f"model.layers.{nearest}.{rest}", int(head) in self.layers
