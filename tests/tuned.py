"""Models for the tuner that are configurations alone, and a small real one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from edgespec.tuning.runs import Trial
from tests.machine import GB
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


def trial(reads: int, dial: int = 8 * GB, **changes: Any) -> Trial:
    """A reply of plain decoding, as it is kept."""
    values: dict[str, Any] = {
        "dial": dial, "drafter": "none", "files": "", "schedule": "serial", "cycles": 10, "tokens": 10,
        "seconds": 20.0, "predicted": 0.4, "when": 0.0, "reads": reads, "low": 0.3, "high": 0.6,
    }  # fmt: skip
    return Trial(**(values | changes))


@pytest.fixture
def seven(tmp_path: Path) -> str:
    return config_only(tmp_path / "seven", SEVEN)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("tune") / "m", dtype="bfloat16")
