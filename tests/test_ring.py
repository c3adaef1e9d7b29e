"""The circular buffer: spans never overlap, wrap when the end is too short, come free oldest first."""

from __future__ import annotations

import random
from collections import deque

import numpy as np
import pytest

from edgespec.devices.disk import aligned_buffer
from edgespec.offload.chunks import PAGE
from edgespec.offload.ring import Ring


def test_buffer_is_page_aligned_zeroed_and_outlives_its_maker() -> None:
    part = aligned_buffer(3 * PAGE + 5)[PAGE : PAGE + 10]
    array = np.frombuffer(part, dtype=np.uint8)
    assert array.ctypes.data % PAGE == 0
    assert not array.any()
    array[:] = 7
    assert bytes(part) == b"\x07" * 10


def test_spans_are_contiguous_pages_and_wrap() -> None:
    ring = Ring(10 * PAGE)
    assert ring.allocate(4 * PAGE) == 0
    assert ring.allocate(3 * PAGE + 1) == 4 * PAGE  # takes 4 pages
    assert ring.allocate(3 * PAGE) is None  # 2 pages left at the end, none at the front
    ring.release(0)
    assert ring.allocate(5 * PAGE) is None  # never split: 2 at the end + 4 at the front do not hold 5
    assert ring.allocate(3 * PAGE) == 0
    assert ring.allocate(PAGE) == 3 * PAGE
    assert ring.allocate(1) is None  # full
    ring.release(4 * PAGE)
    assert ring.allocate(6 * PAGE) == 4 * PAGE


def test_a_span_as_large_as_the_ring_fits_whenever_it_is_empty() -> None:
    ring = Ring(4 * PAGE)
    for _ in range(3):
        ring.release(ring.allocate(3 * PAGE) or 0)
        assert ring.allocate(4 * PAGE) == 0
        assert not ring.fits(1)
        ring.release(0)


def test_room_comes_back_at_both_ends() -> None:
    ring = Ring(6 * PAGE)
    offsets = [ring.allocate(2 * PAGE) or 0 for _ in range(3)]
    ring.release(offsets[1])
    assert not ring.fits(PAGE)  # both neighbours are still out
    ring.release(offsets[2])  # the newest: it and its released neighbour are undone
    assert ring.allocate(4 * PAGE) == offsets[1]
    ring.release(offsets[0])
    assert ring.allocate(2 * PAGE) == 0


def test_impossible_requests_are_refused() -> None:
    ring = Ring(PAGE + 1)
    assert ring.nbytes == 2 * PAGE
    for nbytes in (0, -1, 2 * PAGE + 1):
        with pytest.raises(ValueError):
            ring.allocate(nbytes)
    with pytest.raises(ValueError):
        Ring(0)
    ring.allocate(1)
    ring.release(0)
    with pytest.raises(KeyError):
        ring.release(0)


@pytest.mark.parametrize("seed", range(20))
def test_random_use_never_overlaps_and_never_leaks(seed: int) -> None:
    rng = random.Random(seed)
    ring = Ring(rng.randint(1, 40) * PAGE)
    pages = np.frombuffer(ring.buffer, dtype=np.uint8).reshape(-1, PAGE)
    owner = np.zeros(len(pages), dtype=int)  # 0 = free
    live: deque[tuple[int, int, int]] = deque()  # (id, offset, nbytes), oldest first
    for i in range(1, 400):
        nbytes = rng.randint(1, ring.nbytes)
        if rng.random() < 0.7:
            fits = ring.fits(nbytes)
            offset = ring.allocate(nbytes)
            assert fits == (offset is not None)
            assert live or fits  # an empty ring takes anything up to its size
            if offset is not None:
                span = slice(offset // PAGE, -(-(offset + nbytes) // PAGE))
                assert offset % PAGE == 0
                assert span.stop <= len(pages)
                assert not owner[span].any()
                owner[span] = i
                ring.view(offset, nbytes)[:] = bytes([i % 256]) * nbytes
                live.append((i, offset, nbytes))
        elif live:
            released = live[0] if rng.random() < 0.7 else rng.choice(live)
            live.remove(released)
            i, offset, nbytes = released
            assert bytes(ring.view(offset, nbytes)) == bytes([i % 256]) * nbytes
            ring.release(offset)
            owner[owner == i] = 0
    for _, offset, _ in live:
        ring.release(offset)
    assert ring.allocate(ring.nbytes) == 0
