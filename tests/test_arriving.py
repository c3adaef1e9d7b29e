"""Small layers that stream are one call, as those in memory are, with the same bits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from edgespec.errors import Cancelled
from edgespec.kernels import compiled
from edgespec.kernels.layer import LayerPass, WholeLayer, run_layers
from edgespec.kernels.matmul import Block
from edgespec.offload.chunks import Chunk, Piece
from edgespec.runtimes.torch import target as target_module
from edgespec.runtimes.torch.arriving import Arriving
from edgespec.runtimes.torch.whole_layer import PRODUCTS
from tests.test_exactness import KINDS, random_tree
from tests.tiny import fill, open_tiny, run_tree, write_checkpoint

pytestmark = pytest.mark.skipif(bool(compiled.unavailable()), reason=compiled.unavailable())

Called = list[list[int]]


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> Called:
    """The layers of each call."""
    calls: Called = []

    def counted(layers: list[WholeLayer], first: int, hidden: Tensor, shared: LayerPass) -> Tensor:
        calls.append([*range(first, first + len(layers))])
        return run_layers(layers, first, hidden, shared)

    monkeypatch.setattr(target_module, "run_layers", counted)
    return calls


def logits(target: Any, passes: int, observer: Any = None) -> list[Tensor]:
    """Of some passes over trees of different sizes."""
    rng = np.random.default_rng(5)
    cache = target.new_cache(400)
    fill(target, cache, rng.integers(0, 160, 70))
    found = []
    for n in range(1, passes + 1):
        found.append(run_tree(target, cache, rng.integers(0, 160, n), random_tree(rng, n), observer))
        cache.commit(np.arange(1))
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("pinned", "calls"),
    [
        (lambda chunk: chunk.layer == 1, [[0], [1], [2]]),
        (lambda chunk: chunk.layer < 2, [[0, 1], [2]]),
        (lambda chunk: chunk.index % 3 == 1, [[0], [1], [2]]),  # some of each layer's matrices
        (lambda chunk: False, [[0], [1], [2]]),
    ],
)
def test_layers_that_stream_are_one_call_each(
    tmp_path: Path, kind: str, pinned: Callable[[Chunk], bool], calls: Called, called: Called
) -> None:
    path = write_checkpoint(tmp_path, torch_dtype="float16", **KINDS[kind])
    resident, streamed = open_tiny(path), open_tiny(path, pinned, ring_chunks=60)
    passes = 12  # the ring comes round, to the same places and others
    expected = logits(resident, passes)
    called.clear()
    found = logits(streamed, passes)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert called == calls * passes
    assert streamed.weights.streamer is not None
    assert not streamed.weights.streamer._held
    for target in (resident, streamed):
        target.weights.close()


def test_a_ring_that_is_too_small_for_a_layer_gives_it_matrix_by_matrix(
    tmp_path: Path, called: Called
) -> None:
    path = write_checkpoint(tmp_path, torch_dtype="float16")
    resident, streamed = open_tiny(path), open_tiny(path, lambda chunk: chunk.layer == 1, ring_chunks=3)
    expected = logits(resident, 3)
    called.clear()
    assert all(torch.equal(a, b) for a, b in zip(logits(streamed, 3), expected, strict=True))
    assert called == [[1]] * 3


class Stopping:
    """Of a pass, which it ends before a chunk, counting from the first."""

    hears: frozenset[int] = frozenset()

    def __init__(self, at: int, error: type[BaseException]) -> None:
        self.left, self.error = at, error

    def on_chunk(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise self.error("stop")

    def on_layer(self, *args: Any) -> None:
        pass

    def on_wait(self) -> bool:
        return False


@pytest.mark.parametrize("error", [Cancelled, KeyboardInterrupt])
def test_a_pass_ends_before_any_chunk_of_a_layer(tmp_path: Path, error: type[BaseException]) -> None:
    """And what it held goes back to the ring."""
    path = write_checkpoint(tmp_path, torch_dtype="float16")
    resident, streamed = open_tiny(path), open_tiny(path, lambda chunk: False, ring_chunks=60)
    table = streamed.weights.table
    for at in range(1, sum(chunk.layer < table.layers for chunk in table.chunks) + 1):
        with pytest.raises(error):
            logits(streamed, 1, Stopping(at, error))
        streamed.weights.release()
        assert streamed.weights.streamer is not None
        assert not streamed.weights.streamer._held
    assert all(torch.equal(a, b) for a, b in zip(logits(streamed, 2), logits(resident, 2), strict=True))


@pytest.mark.parametrize("first", ["F16", "F32"])
def test_a_layer_is_one_call_only_if_what_stays_of_it_can_be(first: str) -> None:
    """F32 has no compiled kernel: such a layer is multiplied one by one, whichever matrix that is."""
    names = [f"model.layers.0.{matrix}.weight" for product in PRODUCTS for matrix in product]
    sizes = [32 * 32 * (4 if first == "F32" and not i else 2) for i in range(len(names))]
    pieces = [Piece(n, "F16" if i else first, (32, 32), 0, 0, sizes[i]) for i, n in enumerate(names)]
    chunks = [Chunk(i, 0, Path("x"), i * 4096, sizes[i], (piece,)) for i, piece in enumerate(pieces)]
    blocks: Any = {n: [(c, p, None)] for n, c, p in zip(names, chunks, pieces, strict=True)}
    resident = {(names[0], 0): Block(first, torch.zeros(32, 32), None, 32, 32)}
    table: Any = SimpleNamespace(chunks=chunks, layers=1)
    streamed = range(1, len(chunks))
    assert bool(Arriving(table, blocks, resident, streamed, 2**20).chunks) == (first == "F16")
