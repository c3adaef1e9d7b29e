"""Ctrl-C may raise KeyboardInterrupt anywhere in a pass: no room of the ring is lost, no bit is changed."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest
import torch

from edgespec.offload import ring, streamer
from edgespec.runtimes.torch import placement, weights
from edgespec.runtimes.torch.target import TorchTarget
from tests.tiny import open_tiny, run_tree, write_checkpoint

WHERE = {str(module.__file__) for module in (streamer, ring, weights, placement, contextlib)}


class Interrupt:
    """KeyboardInterrupt at the nth moment at which Python would deliver a signal: a function of these modules
    begins or ends, or one in C, called from there, has ended."""

    def __init__(self, nth: int) -> None:
        self.left = nth

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        if event in ("call", "return", "c_return") and frame.f_code.co_filename in WHERE:
            self.left -= 1
            if self.left < 0:
                sys.setprofile(None)
                raise KeyboardInterrupt


@contextlib.contextmanager
def interrupted(nth: int) -> Iterator[None]:
    sys.setprofile(Interrupt(nth))
    try:
        yield
    finally:
        sys.setprofile(None)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("m"), num_hidden_layers=1)


def one_pass(target: TorchTarget[weights.Weights]) -> torch.Tensor:
    return run_tree(target, target.new_cache(40), [7], [-1])


def test_an_interrupt_anywhere_leaves_the_ring_whole(path: Path) -> None:
    target = open_tiny(path, pinned=lambda chunk: chunk.index == 1, ring_chunks=1)
    stream = target.weights.streamer
    assert stream is not None
    expected = one_pass(target)
    survived = 0
    for nth in range(10**6):
        try:
            with interrupted(nth):
                assert torch.equal(one_pass(target), expected)
            break
        except KeyboardInterrupt:
            survived += 1
        assert torch.equal(one_pass(target), expected), f"after an interrupt at moment {nth}"
        assert not stream._held
    assert survived > 100
    target.weights.close()
