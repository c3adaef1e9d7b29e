"""The tensors of a streaming drafter as those of a small model with lookahead streams, for who exports it."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from edgespec.runtimes.config import EMBEDDING, FINAL_NORM, HEAD, ModelConfig
from edgespec.runtimes.onnx.design import Lookahead
from edgespec.runtimes.onnx.layout import STREAM_BIAS, STREAM_PROJ
from edgespec.runtimes.torch.dense import DenseTensors, in_halves
from edgespec.runtimes.torch.streaming import Streaming, StreamingShape
from edgespec.runtimes.torch.trained_files import ModuleFile

# Canonical names, and the module's.
_OF_LAYER = {"input_layernorm": "attention.input_norm", "post_attention_layernorm": "mlp.input_norm"}
_OF_LAYER |= {f"self_attn.{name}": f"attention.{name}" for name in ("q_proj", "k_proj", "v_proj", "o_proj")}
_OF_LAYER |= {f"mlp.{name}": f"mlp.{name}" for name in ("gate_proj", "up_proj", "down_proj")}
_OWN = {FINAL_NORM: "norm", STREAM_PROJ: "stream_proj", STREAM_BIAS: "stream_bias"}


def exported_config(config: ModelConfig, shape: StreamingShape) -> ModelConfig:
    """Of the small model that a streaming drafter for a target of this config is: without biases."""
    layer = shape.layer(shape.cached(config))
    return replace(layer, qkv_bias=False, o_bias=False, mlp_bias=False, qk_norm=False)


def lookahead(shape: StreamingShape) -> Lookahead | None:
    """None = it has no streams, and is an ordinary small model."""
    return Lookahead(shape.streams, shape.stream_layers) if shape.streams else None


class StreamingTensors:
    """A drafter's own, and its target's embedding and head."""

    def __init__(self, target: DenseTensors, module: ModuleFile[StreamingShape]) -> None:
        """Reads the module. Raises CorruptFileError and StorageError."""
        self.target = target
        read = Streaming(target.config, module.shape, torch.float32)
        module.read(read)
        self._own = dict(read.named_parameters())

    def tensor(self, name: str) -> NDArray[np.float32]:
        """See `DenseTensors.tensor`."""
        if name in (EMBEDDING, HEAD):
            return self.target.tensor(name)
        found = re.fullmatch(r"model\.layers\.(\d+)\.(.+)\.weight", name)
        own = self._own[f"layers.{found[1]}.{_OF_LAYER[found[2]]}" if found else _OWN[name]].detach()
        rotated = self.target.config.rope.interleaved and name.endswith((".q_proj.weight", ".k_proj.weight"))
        return (in_halves(own, self.target.config.head_dim) if rotated else own).numpy()
