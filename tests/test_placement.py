"""Chunks on an accelerator, with a stand-in for CUDA that does the copies late and checks the ordering.

What it cannot show is speed, and CUDA itself: tests marked `gpu` do that where there is one.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from edgespec.errors import BudgetError
from edgespec.offload.plan.costs import Rates
from edgespec.offload.plan.device import DeviceMemory, make_device_plan
from edgespec.offload.plan.needs import Request
from edgespec.offload.reader import DirectFile
from edgespec.runtimes.formats.needs import DEVICE_SLOTS
from edgespec.runtimes.torch.placement import OnDevice
from tests.test_plan import MB, needs, table
from tests.tiny import open_tiny, write_checkpoint


class Mark:
    """One recording of an event: done when the stream has run up to it."""

    def __init__(self, stream: FakeStream | None) -> None:
        self.stream = stream
        self.done = stream is None

    def synchronize(self) -> None:
        if self.stream is not None and not self.done:
            self.stream.run(until=self)


class FakeEvent:
    """Like CUDA's: waiting means the latest recording before the wait; never recorded counts as done."""

    def __init__(self) -> None:
        self.mark = Mark(None)

    def record(self, stream: FakeStream) -> None:
        self.mark = Mark(stream)
        stream.queue.append(("mark", self.mark))

    def query(self) -> bool:
        return self.mark.done

    def synchronize(self) -> None:
        self.mark.synchronize()


class FakeStream:
    """Work in order, done only when somebody waits for it."""

    def __init__(self) -> None:
        self.queue: list[tuple[str, Any]] = []

    def wait_event(self, event: FakeEvent) -> None:
        self.queue.append(("wait", event.mark))

    def run(self, until: Mark | None = None) -> None:
        while self.queue:
            kind, item = self.queue.pop(0)
            if kind == "wait":
                item.synchronize()
            elif kind == "mark":
                item.done = True
                if item is until:
                    return
            else:
                item()


class FakeCuda:
    """What OnDevice uses of torch.cuda."""

    def __init__(self) -> None:
        self.compute = FakeStream()
        self.active = self.compute
        self.registered: list[int] = []
        self.Event = FakeEvent

    def Stream(self, device: torch.device) -> FakeStream:
        return FakeStream()

    def current_stream(self, device: torch.device) -> FakeStream:
        return self.compute

    @contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        before, self.active = self.active, stream
        yield
        self.active = before


class LateCopies(torch.Tensor):
    """A device buffer whose copies join the active stream instead of happening at once."""

    cuda: FakeCuda

    def copy_(self, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:  # type: ignore[override]
        plain, cuda = self.as_subclass(torch.Tensor), LateCopies.cuda
        assert non_blocking
        cuda.active.queue.append(("copy", lambda: plain.copy_(source)))
        return self


def queue_matmul(cuda: FakeCuda, data: torch.Tensor, results: list[int]) -> None:
    """Read the chunk's first byte when the compute stream gets there."""
    cuda.compute.queue.append(("matmul", lambda: results.append(int(data.as_subclass(torch.Tensor)[0]))))


def test_copies_matmuls_and_releases_keep_their_order() -> None:
    cuda = FakeCuda()
    LateCopies.cuda = cuda
    ring = OnDevice(torch.device("cpu"), 8, cuda=cuda)
    ring.buffers = [buffer.as_subclass(LateCopies) for buffer in ring.buffers]
    host, results, released = [bytearray([i] * 8) for i in range(9)], [], []
    for i, memory in enumerate(host):
        data = ring.place(memoryview(memory))
        queue_matmul(cuda, data, results)

        def release(i: int = i) -> None:
            released.append(i)
            host[i][:] = b"\xff" * 8  # the ring reads the next chunk into this memory

        ring.finish(release)
        assert len(ring.queue) <= 1, "host memory of an older chunk is still held"
    ring.drain()
    cuda.compute.run()
    assert results == list(range(9)), "a matmul saw another chunk's bytes"
    assert released == list(range(9))


def test_device_buffers_are_not_overwritten_while_in_use() -> None:
    """The compute stream lags far behind: copies must wait for it, not the host."""
    cuda = FakeCuda()
    LateCopies.cuda = cuda
    ring = OnDevice(torch.device("cpu"), 4, cuda=cuda)
    ring.buffers = [buffer.as_subclass(LateCopies) for buffer in ring.buffers]
    results = []
    for i in range(DEVICE_SLOTS + 2):
        data = ring.place(memoryview(bytearray([i] * 4)))
        queue_matmul(cuda, data, results)
        ring.finish(lambda: None)
    assert results, "the fourth copy had to wait for the first matmul"
    cuda.compute.run()
    assert results == list(range(DEVICE_SLOTS + 2))


def test_host_memory_on_the_way_to_the_device_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However slow the device is: reading waits for it."""
    weights = open_tiny(write_checkpoint(tmp_path), pinned=lambda chunk: False).weights
    chunks = weights.table.chunks
    started, taken, everything = 0, 0, threading.Event()
    read = DirectFile.read

    def counted(file: DirectFile, offset: int, nbytes: int) -> memoryview:
        nonlocal started
        started += 1
        if started == len(chunks):
            everything.set()
        return read(file, offset, nbytes)

    def slow(nbytes: int) -> None:
        nonlocal taken
        if taken == 0:
            everything.wait(0.3)
        taken += 1
        assert started - taken < 2 * weights.settings.threads

    monkeypatch.setattr(DirectFile, "read", counted)
    weights.pin([], on_device=range(len(chunks)), progress=slow)
    assert started == taken == len(chunks) > 8
    assert weights.on_device.keys() == {c.index for c in chunks}
    weights.close()


DEVICE = DeviceMemory(10**10, 50 * MB, 3)


def test_both_dials_are_filled() -> None:
    size = table().chunks[0].read_bytes
    made = make_device_plan(
        table(),
        needs(),
        Rates(2.0, 10.0),
        Request(250 * MB, device_dial=200 * MB),
        DEVICE,
    )
    assert made.device_ledger is not None
    assert 0 <= made.ledger.free < size
    assert 0 <= made.device_ledger.free < size
    assert not made.pinned & made.on_device
    assert made.bytes_per_pass == size * (len(made.table.chunks) - len(made.pinned) - len(made.on_device))
    assert "device" in made.describe()


def test_a_device_that_holds_everything_streams_nothing() -> None:
    made = make_device_plan(
        table(),
        needs(),
        Rates(2.0, 10.0),
        Request(200 * MB, device_dial=10**9),
        DEVICE,
    )
    assert (made.bytes_per_pass, made.ring_bytes, made.pinned) == (0, 0, frozenset())


@pytest.mark.parametrize(("dial", "device"), [(100, 1000), (1000, 100), (110, 250)])
def test_the_dial_that_is_too_small_is_named(dial: int, device: int) -> None:
    with pytest.raises(BudgetError) as caught:
        make_device_plan(
            table(),
            needs(),
            Rates(2.0, 10.0),
            Request(dial * MB, device_dial=device * MB),
            DEVICE,
        )
    assert caught.value.dial in (dial * MB, device * MB)
    small = "device" if caught.value.dial == device * MB else "host"
    assert f"of {small} memory" in str(caught.value)
