"""What passes hold beside weights and the cache, as the plan counts it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from edgespec.kernels import compiled, scratch
from edgespec.kernels.gguf_blocks import row_bytes
from edgespec.kernels.matmul import PROMPT_TILE_BYTES, Block, linear
from edgespec.models.packing import pack_model
from edgespec.runtimes.base import PREFILL_ROWS, TREE_ROWS
from edgespec.runtimes.formats.describe import describe_model
from edgespec.runtimes.formats.needs import UNPACKED_TILE, activation_bytes, context_bytes, pool_positions
from tests.models import make_checkpoint, write_gguf


def test_weights_of_another_type_take_a_tile_more(tmp_path: Path) -> None:
    """Of Q4_K_M and Q8_0 a conversation took up to 17 MB more than was planned."""
    plain = make_checkpoint(tmp_path / "m", dtype="bfloat16")
    pack_model(str(plain), tmp_path / "low", precision="int4")
    low = [tmp_path / "low", write_gguf(plain, tmp_path / "m.gguf", "Q8_0")]
    own = activation_bytes(describe_model(plain), converts=False)
    more = [activation_bytes(describe_model(path), converts=False) - own for path in low]
    assert more == [UNPACKED_TILE] * 2


def test_a_prompt_unpacks_no_more_than_that(monkeypatch: pytest.MonkeyPatch) -> None:
    assert UNPACKED_TILE == PROMPT_TILE_BYTES
    monkeypatch.setattr(scratch, "_BUFFERS", scratch._Buffers())
    monkeypatch.setattr(compiled, "own_prompt", lambda *arguments: False)
    inner, rows = 4096, 4096
    data = torch.zeros(rows, row_bytes("Q8_0", inner), dtype=torch.uint8)
    block, x = Block("Q8_0", data, None, rows, inner), torch.zeros(PREFILL_ROWS, inner, dtype=torch.bfloat16)
    linear(x, block, exact=False)
    taken = sum(len(buffer) for buffer in scratch._BUFFERS.by_use.values())
    assert UNPACKED_TILE / 2 < taken <= UNPACKED_TILE


def test_a_tree_s_outputs_lie_where_a_prompt_s_numbers_do_as_far_as_there_is_room(tmp_path: Path) -> None:
    """One is never there with the other, so that the larger of both is planned; of many sequences both."""
    wide = describe_model(make_checkpoint(tmp_path / "m", dtype="bfloat16", intermediate_size=2048))
    config, element = wide.config, wide.element
    room = activation_bytes(wide, converts=False) * TREE_ROWS // PREFILL_ROWS

    def held(positions: int, sequences: int = 1) -> int:
        """Beside keys and values."""
        pool = pool_positions(positions, sequences)
        return context_bytes(config, positions, element, sequences) - config.kv_bytes(pool, element)

    for positions in (512, 2**14, 2**18):
        outputs = TREE_ROWS * positions // 64 * (config.q_size * element + config.heads * 8)
        assert held(positions) >= PREFILL_ROWS * positions * (1 + element)
        assert held(positions) + activation_bytes(wide, converts=False) >= outputs + room
        assert held(positions, 2) >= held(positions) + outputs - room
    assert held(2**18) - held(2**17) > TREE_ROWS * 2**17 // 64 * config.q_size * element  # no room is left
