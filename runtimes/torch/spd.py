"""The SPD drafter's module: a streaming drafter whose layers are cut into tracks that rarely meet.

Mirror-SD (arXiv 2510.13161, section 3.3 and F.2), after Kim et al. 2025 (arXiv 2502.20727). A state of width
d has G shards of d / G, and each layer a track for each of them: a layer as narrow as its shard, with heads
and an MLP of its own. The layers are two segments; tracks meet at the end of each, and nowhere else:

    track g, segment s    x = a[shard g] + E_{s,g} norm_s(a)      a: all shards [d], of the embedding at first
                          x = layer(x), layer(x), ...             through the segment, without the others
    synchronisation s     a = [x of track 1, ..., x of track G]

Behind the second one are the drafter's norm and the target's head. Lookahead streams, if there are any, enter
between the segments, of what has just met: they take no synchronisation of their own. So a forward has two of
them, however many layers, streams and rows. A worker that has some of the tracks holds these, their keys and
values, and what is of no track (norms, W, p). The paper does not say how a track begins its segment; E is
ours: without it no track would ever see another's shard.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Protocol, cast

import msgspec
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edgespec.kernels import dispatch
from edgespec.kernels.reference import rms_norm
from edgespec.runtimes.config import ModelConfig
from edgespec.runtimes.rows import Rows
from edgespec.runtimes.torch.attention import AttentionPlan
from edgespec.runtimes.torch.blocks import CPU, Multiplying, Shapes, add_parameters, within
from edgespec.runtimes.torch.streaming import (
    DraftLayer,
    Seen,
    Streaming,
    StreamingShape,
    layer_shapes,
    own_shapes,
)

KIND = "spd"
MOST_TRACKS = 64
ENTRIES = ("first_entry", "second_entry")  # of the two segments


class SpdShape(StreamingShape, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """stream_layers: of the second segment. mlp: width of each track's; None = its part of the target's."""

    tracks: Annotated[int, msgspec.Meta(ge=1, le=MOST_TRACKS)]

    def layer(self, config: ModelConfig) -> ModelConfig:
        """The target's config with the sizes of a track's layer: its part of the heads, one at least."""
        kv_heads = max(1, config.kv_heads // self.tracks)
        return replace(
            config,
            hidden_size=config.hidden_size // self.tracks,
            heads=kv_heads * max(1, config.heads // self.tracks // kv_heads),
            kv_heads=kv_heads,
            intermediate_size=self.mlp or max(1, config.intermediate_size // self.tracks),
        )

    def cached(self, config: ModelConfig, tracks: int | None = None) -> ModelConfig:
        """As the cache of so many tracks sees it, of all by default."""
        count = self.tracks if tracks is None else tracks
        return replace(self.layer(config), layers=self.layers * count, windows=())

    def parameters(self, config: ModelConfig) -> Shapes:
        if self.stream_layers >= self.layers:
            raise ValueError(
                f"stream_layers is {self.stream_layers}, of the second segment; of {self.layers} layers one "
                "at least is the first"
            )
        if config.hidden_size % self.tracks:
            raise ValueError(
                f"tracks is {self.tracks}; a width of {config.hidden_size} has no equal shards for so many"
            )
        layer = self.layer(config)
        track = layer_shapes(layer, self.layers) | entry_shapes(config, layer)
        shapes = own_shapes(config, self) | entry_norms(config)
        for index in range(self.tracks):
            shapes |= within(f"tracks.{index}", track)
        return shapes


class Meeting(Protocol):
    """Which tracks are here, and how they meet the others."""

    @property
    def own(self) -> Sequence[int]: ...

    def assemble(self, shards: Tensor, width: int) -> Tensor:
        """Of the own tracks' shards, one behind the other [..., w], those of all tracks [..., width]."""
        ...


class AllHere:
    """See `Meeting`: all tracks of a drafter, one after the other."""

    def __init__(self, tracks: int) -> None:
        self.own = range(tracks)

    def assemble(self, shards: Tensor, width: int) -> Tensor:
        return shards


class Track(Multiplying):
    """One of the tracks, through both segments."""

    first_entry: nn.Parameter  # E_1 [d / G, d]
    second_entry: nn.Parameter  # E_2 [d / G, d]

    def __init__(
        self, config: ModelConfig, shape: SpdShape, index: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        """config: the target's."""
        super().__init__()
        layer = shape.layer(config)
        self.shard = slice(index * layer.hidden_size, (index + 1) * layer.hidden_size)
        self.layers = nn.ModuleList(DraftLayer(layer, dtype, device) for _ in range(shape.layers))
        add_parameters(self, entry_shapes(config, layer), dtype, device)

    def layer(self, index: int) -> DraftLayer:
        return cast(DraftLayer, self.layers[index])

    @torch.inference_mode()
    def enter(self, whole: Tensor, normed: Tensor, segment: int) -> Tensor:
        """All shards and their norm [n, d] -> the own one [n, d / G], as it begins this segment."""
        [mixed] = self.times(normed, True, ENTRIES[segment])
        return whole[:, self.shard] + mixed

    def train_enter(self, whole: Tensor, normed: Tensor, segment: int) -> Tensor:
        """`enter` of [..., d]. Differentiable."""
        matrix: Tensor = getattr(self, ENTRIES[segment])
        return whole[..., self.shard] + F.linear(normed, matrix.to(whole.dtype))


class Spd(Streaming):
    """See the module. Within a segment a state has the shards of this worker's tracks alone."""

    shape: SpdShape
    entry_norm: nn.Parameter  # [2, d]

    def __init__(
        self,
        config: ModelConfig,
        shape: SpdShape,
        dtype: torch.dtype = torch.float32,
        device: torch.device = CPU,
        meeting: Meeting | None = None,
    ) -> None:
        """config: the target's. meeting: None = all tracks are here."""
        self.meeting = AllHere(shape.tracks) if meeting is None else meeting
        super().__init__(config, shape, dtype, device)
        add_parameters(self, entry_norms(config), dtype, device)

    def add_layers(self, dtype: torch.dtype, device: torch.device) -> None:
        self.tracks = nn.ModuleDict(
            {str(g): Track(self.config, self.shape, g, dtype, device) for g in self.meeting.own}
        )

    @property
    def cached(self) -> ModelConfig:
        return self.shape.cached(self.config, len(self.tracks))

    @property
    def own(self) -> list[Track]:
        """The tracks that are here."""
        return [cast(Track, track) for track in self.tracks.values()]

    @torch.inference_mode()
    def run_layer(self, index: int, hidden: Tensor, rows: Rows, attention: AttentionPlan) -> Tensor:
        own, segment = self.own, self._begins(index)
        if segment is None:
            parts = list(hidden.chunk(len(own), -1))
        else:
            normed = dispatch.rms_norm(hidden, self.entry_norm[segment], self.config.norm_eps)
            parts = [track.enter(hidden, normed, segment) for track in own]
        for place, track in enumerate(own):
            cached = index * len(own) + place
            parts[place] = track.layer(index).run(cached, parts[place].contiguous(), rows, attention)
        return self._ended(index, parts)

    def train_layer(self, index: int, hidden: Tensor, seen: Seen | None) -> Tensor:
        own, segment = self.own, self._begins(index)
        if segment is None:
            parts = list(hidden.chunk(len(own), -1))
        else:
            weight = self.entry_norm[segment].to(hidden.dtype)
            normed = rms_norm(hidden, weight, self.config.norm_eps)
            parts = [track.train_enter(hidden, normed, segment) for track in own]
        return self._ended(
            index, [track.layer(index)(part, seen) for track, part in zip(own, parts, strict=True)]
        )

    def _begins(self, index: int) -> int | None:
        """The segment that begins with this layer, if one does: then its input is all shards."""
        return {0: 0, self.before: 1}.get(index)

    def _ended(self, index: int, parts: list[Tensor]) -> Tensor:
        """What a layer gives: all shards, if a segment ends with it."""
        own = torch.cat(parts, -1)
        ends = index + 1 in (self.before, self.shape.layers)
        return self.meeting.assemble(own, self.config.hidden_size) if ends else own


def entry_shapes(config: ModelConfig, layer: ModelConfig) -> Shapes:
    """Of a track whose layers are so narrow."""
    return dict.fromkeys(ENTRIES, (layer.hidden_size, config.hidden_size))


def entry_norms(config: ModelConfig) -> Shapes:
    """Of all tracks."""
    return {"entry_norm": (len(ENTRIES), config.hidden_size)}
