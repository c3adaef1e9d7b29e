"""The speculative streaming drafter's module: a small model that names several tokens in one forward.

Mirror-SD (arXiv 2510.13161, section 3.2), after Bhendawade et al. 2024 (arXiv 2402.11131). Over the target's
own embedding and head, which are frozen, n decoder layers of the target's shape. The *main stream* M is an
ordinary language model. Into the last `stream_layers` layers go, beside each position t, gamma *lookahead
streams*, which name the tokens behind the next one:

    S_{t,j} = W M_t + p_j      M_t  attends to M_0 ... M_t
                               S_{t,j}  to M_0 ... M_t, S_{t,1} ... S_{t,j}, and stands at position t + j
    head(norm(M_t))       what follows t
    head(norm(S_{t,j}))   what follows t + j, whatever comes between

So a stream is to attention what a chain of j more tokens would be. No stream reaches the main one: what that
says, and what is kept of a token, is the same with and without them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, cast

import msgspec
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edgespec.kernels import dispatch
from edgespec.kernels.reference import rms_norm
from edgespec.runtimes.config import ModelConfig
from edgespec.runtimes.rows import Rows
from edgespec.runtimes.torch.attention import AttentionPlan
from edgespec.runtimes.torch.blocks import (
    CPU,
    CausalAttention,
    GatedMLP,
    Multiplying,
    Shapes,
    Width,
    add_parameters,
    attention_shapes,
    mlp_shapes,
    widened,
    within,
)

KIND = "streaming"
MOST_STREAMS = 8

Layers = Annotated[int, msgspec.Meta(ge=1, le=256)]
Seen = tuple[Tensor, np.ndarray]  # what `seen` says


class StreamingShape(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """layers: of the drafter. streams: tokens that it names beyond the next one; 0 = an ordinary small model.
    stream_layers: its last layers, that they go through. mlp: width of its MLPs; None = the target's."""

    layers: Layers
    streams: Annotated[int, msgspec.Meta(ge=0, le=MOST_STREAMS)]
    stream_layers: Layers
    mlp: Width | None = None

    def layer(self, config: ModelConfig) -> ModelConfig:
        """The target's config with the sizes of one of its layers."""
        return widened(config, self.mlp)

    def cached(self, config: ModelConfig) -> ModelConfig:
        """The target's config as the cache of this drafter sees it."""
        return replace(config, layers=self.layers, windows=())

    def parameters(self, config: ModelConfig) -> Shapes:
        """See `trained_files.Shapes`."""
        if self.stream_layers > self.layers:
            raise ValueError(f"streams go through {self.stream_layers} layers, but there are {self.layers}")
        return own_shapes(config, self) | layer_shapes(self.layer(config), self.layers)


class DraftLayer(nn.Module):
    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.attention = CausalAttention(config, None, dtype, device)
        self.mlp = GatedMLP(config, dtype, device)

    @torch.inference_mode()
    def run(self, index: int, hidden: Tensor, rows: Rows, attention: AttentionPlan) -> Tensor:
        """[n, d] -> [n, d], as layer `index` of the rows' caches."""
        return self.mlp.run(self.attention.run_layer(index, hidden, rows, attention))

    def forward(self, hidden: Tensor, seen: Seen | None) -> Tensor:
        """[b, t, d] -> [b, t, d]; by whom each is seen, None = by those behind it. Differentiable."""
        attended = self.attention(hidden) if seen is None else self.attention.attend(hidden, False, *seen)
        return cast(Tensor, self.mlp(attended))


class Streaming(Multiplying):
    """See the module."""

    norm: nn.Parameter  # [d]
    stream_proj: nn.Parameter  # W [d, d]
    stream_bias: nn.Parameter  # p [gamma, d]

    def __init__(
        self,
        config: ModelConfig,
        shape: StreamingShape,
        dtype: torch.dtype = torch.float32,
        device: torch.device = CPU,
    ) -> None:
        """config: the target's."""
        super().__init__()
        self.config, self.shape = config, shape
        self.add_layers(dtype, device)
        add_parameters(self, own_shapes(config, shape), dtype, device)

    def add_layers(self, dtype: torch.dtype, device: torch.device) -> None:
        layer = self.shape.layer(self.config)
        self.layers = nn.ModuleList(DraftLayer(layer, dtype, device) for _ in range(self.shape.layers))

    @property
    def cached(self) -> ModelConfig:
        """The target's config as a cache of this module sees it."""
        return self.shape.cached(self.config)

    @property
    def before(self) -> int:
        """Layers that streams do not go through."""
        return self.shape.layers - self.shape.stream_layers

    @torch.inference_mode()
    def run_layer(self, index: int, hidden: Tensor, rows: Rows, attention: AttentionPlan) -> Tensor:
        """[n, d] -> [n, d], of the parameters' type; `rows` are of caches of all layers."""
        layer = self.layers[index]
        assert isinstance(layer, DraftLayer)
        return layer.run(index, hidden, rows, attention)

    def train_layer(self, index: int, hidden: Tensor, seen: Seen | None) -> Tensor:
        """Sequences [b, t, d] -> [b, t, d]. Differentiable."""
        return cast(Tensor, self.layers[index](hidden, seen))

    @torch.inference_mode()
    def streams(self, main: Tensor) -> Tensor:
        """Of main states [n, d], as the streams begin: [n, gamma, d]."""
        [projected] = self.times(main, True, "stream_proj")
        return projected[:, None] + self.stream_bias

    @torch.inference_mode()
    def normed(self, hidden: Tensor) -> Tensor:
        """What the head multiplies, [n, d] -> [n, d]."""
        return dispatch.rms_norm(hidden, self.norm, self.config.norm_eps)

    def forward(self, embedded: Tensor) -> Tensor:
        """Sequences [b, t, d] -> what the head multiplies, [b, 1 + gamma, t, d]: the main stream's, and then
        each lookahead stream's. Differentiable; computes in the type of `embedded`."""
        b, t, d = embedded.shape
        dtype, gamma, hidden = embedded.dtype, self.shape.streams, embedded
        among: Seen | None = None
        for index in range(self.shape.layers):
            if index == self.before and gamma:
                begun = F.linear(hidden, self.stream_proj.to(dtype))[:, None]  # [b, 1, t, d]
                begun = begun + self.stream_bias.to(dtype)[:, None]
                hidden = torch.cat([hidden[:, None], begun], 1).flatten(1, 2)
                mask, positions = seen(t, gamma)
                among = torch.from_numpy(mask).to(embedded.device), positions
            hidden = self.train_layer(index, hidden, among)
        return rms_norm(hidden, self.norm.to(dtype), self.config.norm_eps).view(b, 1 + gamma, t, d)


def seen(t: int, streams: int) -> tuple[np.ndarray, np.ndarray]:
    """Of t main positions and then as many of each stream: what each sees, [n, n] bool, and where it stands,
    [n]; n = t (1 + streams)."""
    stream, place = (x.ravel() for x in np.indices((1 + streams, t)))
    main = (stream == 0) & (place <= place[:, None])
    own = (place == place[:, None]) & (stream <= stream[:, None])
    return main | own, place + stream


def streaming_shapes(config: ModelConfig, shape: StreamingShape) -> Mapping[str, tuple[int, ...]]:
    """See `trained_files.Shapes`."""
    return shape.parameters(config)


def layer_shapes(layer: ModelConfig, count: int) -> Shapes:
    """Of the parameters of so many `DraftLayer`s of this config."""
    one = within("attention", attention_shapes(layer)) | within("mlp", mlp_shapes(layer))
    return {name: shape for index in range(count) for name, shape in within(f"layers.{index}", one).items()}


def own_shapes(config: ModelConfig, shape: StreamingShape) -> Shapes:
    """Of the parameters that are of no layer."""
    d = config.hidden_size
    streams: Shapes = {"stream_proj": (d, d), "stream_bias": (shape.streams, d)}
    return {"norm": (d,)} | (streams if shape.streams else {})
