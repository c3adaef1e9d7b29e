"""Models for the tuner that are configurations alone, and a small real one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.models import make_checkpoint

SEVEN = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}
SEVENTY = SEVEN | {
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}


def config_only(path: Path, config: dict[str, Any]) -> str:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    return str(path)


@pytest.fixture
def seven(tmp_path: Path) -> str:
    return config_only(tmp_path / "seven", SEVEN)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("tune") / "m", dtype="bfloat16")
