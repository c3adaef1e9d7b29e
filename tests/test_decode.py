"""Verification that takes nodes up where they are: any start layers in one ragged pass, to the same bits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from edgespec.config import GenerationOptions
from edgespec.core.acceptance import Outcome, make_acceptance
from edgespec.core.batch import Verification
from edgespec.core.sampling import Noise
from edgespec.core.tree import Computed, TokenTree
from edgespec.runtimes.rows import Rows
from edgespec.runtimes.target import EVERY_LAYER, Layers
from edgespec.runtimes.torch.kv_cache import TorchKVCache
from edgespec.runtimes.torch.target import TorchTarget
from tests.tiny import fill, open_tiny, verify, write_checkpoint

LAYERS = 4


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TorchTarget[Any]:
    path = tmp_path_factory.mktemp("target")
    write_checkpoint(path, num_hidden_layers=LAYERS, torch_dtype=request.param)
    return open_tiny(path, pinned=lambda chunk: chunk.layer < 2)


def cache_of(target: TorchTarget[Any], length: int = 61, seed: int = 0) -> TorchKVCache:
    cache = target.new_cache(120)
    fill(target, cache, np.random.default_rng(seed).integers(0, 160, length))
    return cache


def random_tree(rng: np.random.Generator, n: int) -> TokenTree:
    parents = np.array([-1, *(int(rng.integers(max(0, i - 3), i)) for i in range(1, n))])
    tokens = np.arange(n) * 7 % 160  # no two siblings alike
    return TokenTree(tokens, parents, np.where(parents < 0, 0.0, -0.5))


def drafted_inside(
    target: TorchTarget[Any], cache: TorchKVCache, tree: TokenTree, rng: np.random.Generator
) -> TokenTree:
    """The tree with a connected part of it run through some of the layers, at slots in another order, among
    slots of nodes that did not stay."""
    fork = cache.inside()
    n = len(tree)
    known = np.zeros(n, dtype=np.bool_)
    for node in range(n):
        known[node] = (node == 0 or known[tree.parents[node]]) and rng.random() < 0.8
    slots = np.full(n, -1)
    layers = np.zeros(64, dtype=np.int64)
    hidden = torch.zeros(64, target.config.hidden_size, dtype=target.dtype)
    for node in np.flatnonzero(known).tolist():
        if rng.random() < 0.5:  # a draft that is dropped again
            inside(target, fork, -1, 150, 1, layers, hidden)
        parent = -1 if node == 0 else int(slots[tree.parents[node]])
        deepest = LAYERS - 1 if node == 0 else int(layers[parent])
        depth = int(rng.integers(1, deepest + 1))
        slots[node] = inside(target, fork, parent, int(tree.tokens[node]), depth, layers, hidden)
    return replace(tree, computed=Computed(slots, layers, hidden))


def inside(
    target: TorchTarget[Any],
    fork: TorchKVCache,
    parent: int,
    token: int,
    depth: int,
    layers: np.ndarray[Any, Any],
    hidden: Tensor,
) -> int:
    rows = Rows.append(fork, [parent])
    slot = int(rows.slots[0])
    hidden[slot] = target.run(target.embed([token]), rows, range(depth))[0]
    layers[slot] = depth
    return slot


class Passes:
    """What is run: (layer, rows)."""

    hears: Layers = EVERY_LAYER

    def __init__(self) -> None:
        self.seen: list[tuple[int, int]] = []

    def on_chunk(self) -> None:
        pass

    def on_layer(self, index: int, hidden: Tensor, rows: Rows) -> None:
        assert rows.n == len(hidden) == sum(len(s) for s in rows.segments)
        self.seen.append((index, rows.n))

    def on_wait(self) -> bool:
        return False


class AllLogits:
    """Keeps the logits; accepts the deepest node."""

    name = "all"
    lossless = False

    def walk(self, tree: TokenTree, logits: np.ndarray[Any, Any], noise: Noise, position: int) -> Outcome:
        self.logits = logits.copy()
        path = tree.path_to(int(np.argmax(tree.depths)))
        return Outcome(path, (*tree.tokens[path[1:]].tolist(), 1), len(tree) - 1)


def test_mixed_starts_have_the_bits_of_a_plain_pass(target: TorchTarget[Any]) -> None:
    rng = np.random.default_rng(0)
    for trial in range(6):
        trees = [random_tree(rng, n) for n in (9, 1, 20)]
        judged: list[list[AllLogits]] = []
        caches: list[list[TorchKVCache]] = []
        watch = Passes()
        for plain in (True, False):
            own = [cache_of(target, 61 + trial, seed) for seed in range(3)]
            judges = [AllLogits() for _ in own]
            made = (
                trees
                if plain
                else [drafted_inside(target, c, t, rng) for c, t in zip(own, trees, strict=True)]
            )
            if not plain and trial % 2:
                made[1] = trees[1]  # somebody who does not draft inside shares the pass
            parts = [Verification(c, t, a, Noise(0)) for c, t, a in zip(own, made, judges, strict=True)]
            verify(target, parts, None if plain else watch)
            caches.append(own)
            judged.append(judges)
        starts = np.concatenate([t.starts for t in made])
        assert watch.seen == [
            (layer, count) for layer in range(LAYERS) if (count := int((starts <= layer).sum()))
        ]
        for a, b in zip(*judged, strict=True):
            assert np.array_equal(a.logits, b.logits)
        for a, b in zip(*caches, strict=True):
            assert a.length == b.length
            for layer in range(LAYERS):
                for mine, other in zip(a.view(layer), b.view(layer), strict=True):
                    assert torch.equal(mine, other)


def test_all_that_is_known_is_not_embedded_again(
    target: TorchTarget[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, rng = cache_of(target), np.random.default_rng(1)
    tree = drafted_inside(target, cache, random_tree(rng, 12), rng)
    tree = tree.select(np.flatnonzero(tree.starts > 0))
    asked: list[int] = []
    embed = target.embed
    monkeypatch.setattr(target, "embed", lambda tokens: asked.append(len(tokens)) or embed(tokens))
    part = Verification(cache, tree, make_acceptance("greedy", GenerationOptions()), Noise(0))
    verify(target, [part])
    assert asked == []


@pytest.mark.parametrize("moment", ["adopted", "on the way", "judged"])
def test_what_is_raised_leaves_the_prefix(target: TorchTarget[Any], moment: str) -> None:
    cache, rng = cache_of(target), np.random.default_rng(2)
    tree = drafted_inside(target, cache, random_tree(rng, 12), rng)
    before = [kv.clone() for layer in range(LAYERS) for kv in cache.view(layer)]

    class Breaks(Passes):
        def on_layer(self, index: int, hidden: Tensor, rows: Rows) -> None:
            if moment == "adopted" or (moment == "on the way" and index == LAYERS - 1):
                raise KeyboardInterrupt

    class Judge(AllLogits):
        def walk(self, *args: Any) -> Any:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        verify(target, [Verification(cache, tree, Judge(), Noise(0))], Breaks())
    assert len(cache.parents) == 0
    after = [kv for layer in range(LAYERS) for kv in cache.view(layer)]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_rows_are_taken_by_cache(target: TorchTarget[Any]) -> None:
    caches = [cache_of(target, n) for n in (5, 9, 13)]
    rows = Rows.concat([Rows.append(c, [-1, 0, 1]) for c in caches])
    part = rows.take(np.array([1, 2, 7]))
    assert part.caches == (caches[0], caches[2])
    assert part.segments == (range(2), range(2, 3))
    assert part.slots.tolist() == [1, 2, 1]
    assert part.positions.tolist() == [6, 7, 14]
    for place, segment in enumerate(rows.segments):
        own, taken = rows.of_cache(place), rows.take(np.array(segment))
        assert (own.caches, own.segments, own.prompts) == (taken.caches, taken.segments, taken.prompts)
        assert np.array_equal([own.slots, own.positions], [taken.slots, taken.positions])
