"""Where a chunk's bytes must be for a matmul to use them, and when their memory may be used again.

On a CPU: where they are, until the matmul returns. On a discrete accelerator matmuls only *start* when they
are called, so a chunk is copied through page-locked memory into one of a few device buffers on a stream of
its own; events order the copy behind the buffer's last use and the matmul behind the copy, and the host's
memory is free once the copy has ended. The host runs ahead: it waits for flash, never for the device's
arithmetic. On unified memory (Jetson) there is no second copy: the device reads the host's buffer itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from edgespec.runtimes.formats.needs import DEVICE_SLOTS

Release = Callable[[], None]


class Placement(Protocol):
    """One chunk at a time: `place` it, use the tensor, `finish` it."""

    def register(self, buffer: memoryview) -> None:
        """Host memory that chunks will be placed from (the ring, pinned chunks)."""

    def place(self, buffer: memoryview) -> Tensor:
        """The bytes as uint8 [n] on the device that computes."""

    def finish(self, release: Release) -> None:
        """The matmuls on the placed chunk have been called; `release` when its host memory is free."""

    def drain(self) -> None:
        """Wait until everything placed is finished and released."""


class OnHost:
    """The CPU computes on host memory directly."""

    def register(self, buffer: memoryview) -> None:
        pass

    def place(self, buffer: memoryview) -> Tensor:
        return torch.frombuffer(buffer, dtype=torch.uint8)

    def finish(self, release: Release) -> None:
        release()

    def drain(self) -> None:
        pass


class _Pending:
    """Host memory that the device may still be reading, oldest first."""

    def __init__(self, cuda: Any) -> None:
        self.cuda = cuda  # torch.cuda, or what a test puts in its place
        self.queue: deque[tuple[Any, Release]] = deque()

    def register(self, buffer: memoryview) -> None:
        self.cuda.check_error(self.cuda.cudart().cudaHostRegister(_address(buffer), len(buffer), 0))

    def add(self, event: Any, release: Release) -> None:
        self.queue.append((event, release))
        self.reap(keep=1)  # one may be under way while the next chunk is awaited: the ring has room for it

    def reap(self, keep: int) -> None:
        while self.queue and (len(self.queue) > keep or self.queue[0][0].query()):
            event, release = self.queue.popleft()
            event.synchronize()
            release()

    def drain(self) -> None:
        self.reap(keep=0)


class OnDevice(_Pending):
    """A discrete accelerator, through a few device buffers of `slot_bytes` each."""

    def __init__(self, device: torch.device, slot_bytes: int, cuda: Any = torch.cuda) -> None:
        super().__init__(cuda)
        self.device = device
        self.stream = cuda.Stream(device)
        self.buffers = [
            torch.empty(slot_bytes, dtype=torch.uint8, device=device) for _ in range(DEVICE_SLOTS)
        ]
        self.used = [cuda.Event() for _ in range(DEVICE_SLOTS)]  # the last matmul on each buffer
        self.slot = 0
        self.copied: Any = None  # the placed chunk has left host memory

    def place(self, buffer: memoryview) -> Tensor:
        self.slot = (self.slot + 1) % len(self.buffers)
        target = self.buffers[self.slot][: len(buffer)]
        self.stream.wait_event(self.used[self.slot])
        with self.cuda.stream(self.stream):
            target.copy_(torch.frombuffer(buffer, dtype=torch.uint8), non_blocking=True)
            self.copied = self.cuda.Event()
            self.copied.record(self.stream)
        self.cuda.current_stream(self.device).wait_event(self.copied)
        return target

    def finish(self, release: Release) -> None:
        self.used[self.slot].record(self.cuda.current_stream(self.device))
        self.add(self.copied, release)


class OnUnified(_Pending):
    """One memory for CPU and accelerator: the device computes on registered host buffers, without a copy."""

    def __init__(self, device: torch.device, cuda: Any = torch.cuda) -> None:
        super().__init__(cuda)
        self.device = device

    def place(self, buffer: memoryview) -> Tensor:
        return torch.as_tensor(_DeviceView(buffer), device=self.device)

    def finish(self, release: Release) -> None:
        event = self.cuda.Event()
        event.record(self.cuda.current_stream(self.device))
        self.add(event, release)


class _DeviceView:
    """Registered host memory as CUDA sees it (unified addressing: the same address)."""

    def __init__(self, buffer: memoryview) -> None:
        self.keep = buffer
        self.__cuda_array_interface__ = {
            "shape": (len(buffer),),
            "typestr": "|u1",
            "data": (_address(buffer), False),
            "version": 3,
        }


def _address(buffer: memoryview) -> int:
    return int(np.frombuffer(buffer, dtype=np.uint8).ctypes.data)


def placement_for(device: torch.device, slot_bytes: int) -> Placement:
    """How chunks reach `device`; `slot_bytes` is the largest chunk."""
    if device.type == "cpu":
        return OnHost()
    if torch.cuda.get_device_properties(device).is_integrated:
        return OnUnified(device)
    return OnDevice(device, slot_bytes)
