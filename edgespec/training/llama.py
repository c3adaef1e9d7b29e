"""A differentiable Llama in plain torch: small, for training; `save` writes what Hugging Face's loader reads.

RMSNorm, rotary embedding in the half-split layout, grouped-query attention, SwiGLU (Touvron et al. 2023,
arXiv 2302.13971; GQA: arXiv 2305.13245). Parameter names are those of `LlamaForCausalLM`, so a state dict
moves between the two unchanged.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from edgespec.errors import CorruptFileError, OptionError


@dataclass(frozen=True)
class LlamaConfig:
    """Shape and constants of the model; field names follow Hugging Face's `config.json`."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int = 2048
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    tie_word_embeddings: bool = True
    bos_token_id: int = 0
    eos_token_id: int = 1

    def __post_init__(self) -> None:
        if self.num_attention_heads % self.num_key_value_heads:
            raise OptionError(
                f"{self.num_attention_heads} attention heads cannot share {self.num_key_value_heads} "
                "key-value heads evenly; choose a divisor"
            )
        if self.head_dim % 2:
            raise OptionError(f"head_dim {self.head_dim} is odd; rotary embedding needs pairs")

    def to_hf(self, dtype: str) -> dict[str, Any]:
        """The `config.json` of a checkpoint stored as `dtype` (a torch name such as "bfloat16")."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
            "torch_dtype": dtype,
            **{name: getattr(self, name) for name in self.__dataclass_fields__},
        }


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


def rotary(positions: Tensor, head_dim: int, theta: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and sines [B, 1, T, head_dim] of `positions` [B, T], computed in fp32."""
    inverse = theta ** (-torch.arange(0, head_dim, 2, device=positions.device).float() / head_dim)
    angles = positions[..., None].float() * inverse  # [B, T, head_dim / 2]
    angles = torch.cat([angles, angles], dim=-1)[:, None]
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates pairs (i, i + head_dim / 2) of x [B, heads, T, head_dim]."""
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-high, low], dim=-1) * sin


class Attention(nn.Module):
    def __init__(self, c: LlamaConfig) -> None:
        super().__init__()
        self.head_dim = c.head_dim
        self.groups = c.num_attention_heads // c.num_key_value_heads
        q, kv = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
        self.q_proj = nn.Linear(c.hidden_size, q, bias=False)
        self.k_proj = nn.Linear(c.hidden_size, kv, bias=False)
        self.v_proj = nn.Linear(c.hidden_size, kv, bias=False)
        self.o_proj = nn.Linear(q, c.hidden_size, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        b, t, _ = x.shape
        d = self.head_dim
        q = rotate(self.q_proj(x).view(b, t, -1, d).transpose(1, 2), cos, sin)
        k = rotate(self.k_proj(x).view(b, t, -1, d).transpose(1, 2), cos, sin)
        v = self.v_proj(x).view(b, t, -1, d).transpose(1, 2)  # [B, kv_heads, T, head_dim]
        # Query heads that share a key head become rows of one product. On a CPU, with rows this short, plain
        # products train two to three times as fast as the fused attention, whose backward pass is slow there.
        g = self.groups
        grouped = q.reshape(-1, g * t, d) * d**-0.5  # [B * kv_heads, groups * T, head_dim]
        scores = torch.bmm(grouped, k.reshape(-1, t, d).mT).view(b, -1, g, t, t) + mask[:, :, None]
        weights = torch.softmax(scores, -1).view(-1, g * t, t)
        y = torch.bmm(weights, v.reshape(-1, t, d)).view(b, -1, t, d)
        out: Tensor = self.o_proj(y.transpose(1, 2).reshape(b, t, -1))
        return out


class MLP(nn.Module):
    def __init__(self, c: LlamaConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(c.hidden_size, c.intermediate_size, bias=False)
        self.up_proj = nn.Linear(c.hidden_size, c.intermediate_size, bias=False)
        self.down_proj = nn.Linear(c.intermediate_size, c.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class DecoderLayer(nn.Module):
    def __init__(self, c: LlamaConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.self_attn = Attention(c)
        self.post_attention_layernorm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.mlp = MLP(c)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, mask)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class Backbone(nn.Module):
    def __init__(self, c: LlamaConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(c.vocab_size, c.hidden_size)
        self.layers = nn.ModuleList([DecoderLayer(c) for _ in range(c.num_hidden_layers)])
        self.norm = RMSNorm(c.hidden_size, c.rms_norm_eps)


class Llama(nn.Module):
    """The model. `forward` gives logits; initial weights come from torch's global random state."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Backbone(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight
        self._initialise()

    def _initialise(self) -> None:
        # GPT-2's rule: what writes to the residual stream shrinks with depth, so its variance does not grow.
        depth_scale = (2 * self.config.num_hidden_layers) ** -0.5
        for name, p in self.named_parameters():
            if p.dim() == 2:
                scale = depth_scale if name.endswith(("o_proj.weight", "down_proj.weight")) else 1.0
                nn.init.normal_(p, std=scale * min(0.02, self.config.hidden_size**-0.5 * 0.6))

    def forward(self, tokens: Tensor, positions: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """Logits [B, T, V] of `tokens` [B, T].

        `positions` [B, T] are the rotary positions (default 0..T-1). `mask` [B, 1, T, T] is added to the
        attention scores; without one, attention is causal.
        """
        logits: Tensor = self.lm_head(self.hidden(tokens, positions, mask))
        return logits

    def hidden(self, tokens: Tensor, positions: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """Final hidden states [B, T, d], normalised: what the head multiplies."""
        if positions is None:
            positions = torch.arange(tokens.shape[1], device=tokens.device)[None]
        x = self.model.embed_tokens(tokens)
        if mask is None:
            t = tokens.shape[1]
            mask = torch.full((t, t), float("-inf"), dtype=x.dtype, device=x.device).triu(1)[None, None]
        cos, sin = rotary(positions, self.config.head_dim, self.config.rope_theta, x.dtype)
        for layer in self.model.layers:
            x = layer(x, cos, sin, mask)
        out: Tensor = self.model.norm(x)
        return out


def save(model: Llama, directory: Path, dtype: torch.dtype = torch.bfloat16) -> None:
    """Writes `config.json`, `generation_config.json` and `model.safetensors` in `dtype` to `directory`."""
    c = model.config
    directory.mkdir(parents=True, exist_ok=True)
    state = {name: p.detach().to("cpu", dtype).contiguous() for name, p in model.state_dict().items()}
    if c.tie_word_embeddings:
        del state["lm_head.weight"]
    save_file(state, directory / "model.safetensors", metadata={"format": "pt"})
    generation = {"bos_token_id": c.bos_token_id, "eos_token_id": c.eos_token_id, "do_sample": False}
    for file, content in (
        ("config.json", c.to_hf(str(dtype).removeprefix("torch."))),
        ("generation_config.json", generation),
    ):
        (directory / file).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def load(directory: Path, dtype: torch.dtype = torch.float32) -> Llama:
    """A model that `save` wrote, its parameters as `dtype`.

    Raises CorruptFileError when the files are missing, or do not fit each other.
    """
    try:
        raw = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        config = LlamaConfig(**{name: raw[name] for name in LlamaConfig.__dataclass_fields__})
        state = load_file(directory / "model.safetensors")
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise CorruptFileError(f"{directory}: not a model that this trainer wrote ({error!r})") from error
    model = Llama(config)
    if config.tie_word_embeddings:
        state["lm_head.weight"] = state.get("model.embed_tokens.weight", torch.empty(0))
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        raise CorruptFileError(f"{directory}: the weights do not fit config.json: {error}") from error
    return model.to(dtype)
