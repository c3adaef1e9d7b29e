"""What a user may say of a training run. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from edgespec.errors import OptionError
from edgespec.values import MOST, Option, Options

ADAPTERS, TEXT, RUN = "Adapters", "Text", "Run"  # panels
TOP_K = 20


@dataclass(frozen=True)
class TrainingOptions(Options):
    """What every run has: text, length, pace."""

    from_: Annotated[
        Path | None,
        Option(
            "Adapters to begin with, of the same shape.", metavar="DIR", panel=ADAPTERS, default="none, anew"
        ),
    ] = None  # trained for this target, or for an earlier state of it
    generate: Annotated[
        int,
        Option(
            "Learn from N replies of the model itself; TEXT has the prompts.",
            metavar="N", panel=TEXT, default="0, from TEXT as it is", least=0, most=MOST,
        ),
    ] = 0  # fmt: skip
    temperature: Annotated[
        float,
        Option(
            "Temperature of the model's own replies.",
            metavar="T", panel=TEXT, default="0, greedy", least=0, most=100,
        ),
    ] = 0.0  # fmt: skip
    length: Annotated[
        int, Option("Longest training sequence.", metavar="TOKENS", panel=TEXT, least=2, most=MOST)
    ] = 1024
    held_out: Annotated[
        Path | None,
        Option("Text to measure on.", metavar="TEXT", panel=TEXT, default="the last 5 % of the data"),
    ] = None
    steps: Annotated[
        int,
        Option(
            "Training steps; more of them make a finished run longer.",
            metavar="N", panel=RUN, least=1, most=MOST,
        ),
    ] = 2000  # fmt: skip
    batch_tokens: Annotated[
        int, Option("Tokens of a step, about.", metavar="N", panel=RUN, least=1, most=MOST)
    ] = 8192
    rate: Annotated[
        float | None,
        Option("Learning rate.", metavar="R", panel=RUN, default="0.25 / the model's width"),
    ] = None
    seed: Annotated[
        int, Option("Seed of the order of the data.", metavar="N", panel=RUN, least=0, most=MOST)
    ] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.temperature and not self.generate:
            raise OptionError(
                "temperature is of the model's own replies; give generate=, their number, too", "temperature"
            )
        if self.rate is not None and not 0 < self.rate <= 1:
            raise OptionError(f"rate is {self.rate}; it must be above 0 and at most 1", "rate")


Mlp = Annotated[
    int | None,
    Option("Width of its MLP.", metavar="N", panel=ADAPTERS, default="the model's", least=1, most=2**20),
]


@dataclass(frozen=True)
class EagleOptions(TrainingOptions):
    """How an EAGLE drafter is trained: all other sizes are the target's."""

    mlp: Mlp = None


@dataclass(frozen=True)
class SpecFormerOptions(TrainingOptions):
    """How a SpecFormer drafter is trained."""

    positions: Annotated[
        int,
        Option(
            "Positions of a draft, all said at once.", metavar="N", panel=ADAPTERS, least=1, most=16
        ),
    ] = 8  # fmt: skip
    hooks: Annotated[
        tuple[int, ...],
        Option(
            "Layers below each of the states that it reads, up to four; 0 is the embedding.",
            metavar="N,...", panel=ADAPTERS, default="0, half of them, all but one, all",
        ),
    ] = ()  # fmt: skip
    causal: Annotated[
        bool,
        Option("Let a draft's positions look at those before them alone, not both ways.", panel=ADAPTERS),
    ] = False
    positional: Annotated[
        bool,
        Option("A matrix for each position of a draft; else they differ by a bias alone.", panel=ADAPTERS),
    ] = True
    draft_attention: Annotated[
        bool, Option("Attention over a draft's positions; else none.", panel=ADAPTERS)
    ] = True
    mlp: Mlp = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.causal and not self.draft_attention:
            raise OptionError(
                "causal is of the draft's attention, which is left out; give one of them", "causal"
            )


@dataclass(frozen=True)
class StreamingOptions(TrainingOptions):
    """How a speculative streaming drafter is trained. Heads and width are the target's."""

    layers: Annotated[
        int | None,
        Option(
            "Layers of the drafter.", metavar="N", panel=ADAPTERS, default="a fifth of the model's",
            least=1, most=256,
        ),
    ] = None  # fmt: skip
    streams: Annotated[
        int,
        Option(
            "Tokens that it names in a step beyond the next one; 0 makes an ordinary draft.",
            metavar="N", panel=ADAPTERS, least=0, most=8,
        ),
    ] = 3  # fmt: skip
    stream_layers: Annotated[
        int | None,
        Option(
            "Its last layers, that lookahead streams go through.",
            metavar="N", panel=ADAPTERS, default="half of them", least=1, most=256,
        ),
    ] = None  # fmt: skip
    mlp: Mlp = None


@dataclass(frozen=True)
class SpdOptions(StreamingOptions):
    """How an SPD drafter is trained. Its width is the target's, in as many shards as tracks."""

    tracks: Annotated[
        int,
        Option(
            "Tracks of each layer, which may be on as many workers.",
            metavar="G", panel=ADAPTERS, least=1, most=64,
        ),
    ] = 8  # fmt: skip
    stream_layers: Annotated[
        int | None,
        Option(
            "Layers of its second segment, that lookahead streams go through.",
            metavar="N", panel=ADAPTERS, default="half of them", least=1, most=255,
        ),
    ] = None  # fmt: skip
    mlp: Annotated[
        int | None,
        Option(
            "Width of each track's MLP.",
            metavar="N", panel=ADAPTERS, default="its part of the model's", least=1, most=2**20,
        ),
    ] = None  # fmt: skip


@dataclass(frozen=True)
class CascadeOptions(TrainingOptions):
    """How a cascade's adapters are trained. Depths that are not given follow from the target's layers."""

    draft_layers: Annotated[
        int | None,
        Option(
            "Layers of the draft: deeper drafts better, and each drafted token costs more.",
            metavar="N", panel=ADAPTERS, default="about 3/32 of them", least=1,
        ),
    ] = None  # fmt: skip
    verify_layers: Annotated[
        tuple[int, ...],
        Option(
            "Layers of the shallow verifier; several train an adapter each.",
            metavar="N,...", panel=ADAPTERS, default="about 15/32 of them",
        ),
    ] = ()  # fmt: skip
    loss: Annotated[
        str,
        Option(
            "Distillation loss: reduced (the target's likeliest tokens) or full.",
            metavar="NAME", panel=RUN, choices=("reduced", "full"),
        ),
    ] = "reduced"  # fmt: skip
    top_k: Annotated[
        int | None,  # None with the full loss
        Option("Tokens of the reduced loss.", metavar="K", panel=RUN, default=f"{TOP_K}", least=1, most=MOST),
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.loss == "full" and self.top_k is not None:
            raise OptionError("top_k is of the reduced loss; leave it out with the full one", "top_k")
        if self.loss == "reduced" and self.top_k is None:
            object.__setattr__(self, "top_k", TOP_K)  # what manifests say, and a resumed run is held to


@dataclass(frozen=True)
class MoaOptions(TrainingOptions):
    """How a Mixture-of-Attentions drafter is trained. Sizes that are not given follow from the target's."""

    kv_heads: Annotated[
        tuple[int, ...],
        Option(
            "Heads of keys and values of the attentions over layers, over tokens and to memory.",
            metavar="N,N,N", panel=ADAPTERS, default="as many as the model's layers have",
        ),
    ] = ()  # fmt: skip
    mlp: Annotated[
        tuple[int, ...],
        Option(
            "Widths of the MLPs behind these three.",
            metavar="N,N,N", panel=ADAPTERS, default="6 times the keys' width; 1/8 and 7/4 of the model's",
        ),
    ] = ()  # fmt: skip
    target_layers: Annotated[
        int,
        Option(
            "The model's own last layers that drafts go through, too: better drafts, for a model that does "
            "not stream.",
            metavar="N", panel=ADAPTERS, least=0, most=MOST,
        ),
    ] = 0  # fmt: skip
    layer_attention: Annotated[
        bool, Option("Attention over the layers; else the last one alone is seen.", panel=ADAPTERS)
    ] = True
    masks: Annotated[
        bool,
        Option("Draft 5 to 15 tokens from one memory, as in use; else one.", panel=RUN),
    ] = True
    stale: Annotated[
        float,
        Option(
            "Share of drafts that learn with the memory of one cycle before, as those have it that are made "
            "while the model verifies.",
            metavar="P", panel=RUN, least=0, most=1,
        ),
    ] = 0.0  # fmt: skip

    local_attention: Annotated[
        bool,
        Option(
            "At first let attention over tokens see those behind the memory alone, so that the rest is "
            "learned from memory: of ever fewer sequences, from half of the run on of none. Nothing without "
            "masks.",
            panel=RUN,
        ),
    ] = True  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stale and not self.masks:
            raise OptionError("stale is of cycles, which there are none of without masks", "stale")
