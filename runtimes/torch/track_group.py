"""Tracks of an SPD drafter on several workers, which meet by torch.distributed: see `runtimes.torch.spd`.

Every worker has as many tracks, and runs the same passes in the same order, each of them on its own copy of
embedding and head. A synchronisation is one all-reduce of the whole state, in which each worker has its own
shards and zeros elsewhere. So each number of the sum is one worker's, and the bits are those of one process.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist
from torch import Tensor

from edgespec.errors import DeviceError, OptionError

START = timedelta(seconds=100)  # until all have come: each loads torch first
LOOPBACK = ("lo", "lo0")  # Linux, macOS


def join(store: Path, workers: int, rank: int) -> None:
    """Meet the others of so many processes on this machine; `store`: a file that does not exist yet, and that
    nobody needs afterwards. Raises DeviceError where they do not come, or torch has no such means."""
    if not dist.is_available():
        raise DeviceError("this torch has no torch.distributed, by which tracks meet; use draft_worker=1")
    with suppress(OSError):
        names = {name for _, name in socket.if_nameindex()}
        for name in LOOPBACK:
            if name in names:
                os.environ.setdefault("GLOO_SOCKET_IFNAME", name)  # nobody else is to reach it
    try:
        dist.init_process_group("gloo", store.as_uri(), timeout=START, world_size=workers, rank=rank)
        dist.barrier()  # until the others have met each other, too
    except (RuntimeError, ValueError) as error:
        raise DeviceError(f"the workers of the drafter's tracks did not meet: {_first_line(error)}") from None


class TrackGroup:
    """See `runtimes.torch.spd.Meeting`. collectives: those that this worker has taken part in."""

    def __init__(self, tracks: int, group: dist.ProcessGroup | None = None) -> None:
        """group: None = all processes. Raises OptionError for workers that cannot have equal shares."""
        workers, rank = dist.get_world_size(group), dist.get_rank(group)
        share = tracks_of_each(tracks, workers)
        self.own = range(rank * share, (rank + 1) * share)
        self.group, self.rank, self.collectives = group, rank, 0

    def assemble(self, shards: Tensor, width: int) -> Tensor:
        """Raises DeviceError when another worker is gone or late."""
        own = shards.shape[-1]
        whole = shards.new_zeros(*shards.shape[:-1], width)
        whole[..., self.rank * own : (self.rank + 1) * own] = shards
        self._meet(whole)
        self.collectives += 1
        return whole

    def wait(self) -> None:
        """Until all are here. Raises DeviceError when another is not coming."""
        self._meet(Tensor([0.0]))

    def _meet(self, whole: Tensor) -> None:
        try:
            dist.all_reduce(whole, group=self.group)
        except RuntimeError as error:
            raise DeviceError(
                f"a worker of the drafter's tracks is gone, or late: {_first_line(error)}"
            ) from None


def tracks_of_each(tracks: int, workers: int) -> int:
    """Raises OptionError for workers that cannot have equal shares."""
    if tracks % workers:
        divisors = [str(n) for n in range(1, tracks + 1) if tracks % n == 0]
        raise OptionError(f"{workers} workers cannot share {tracks} tracks; take {' or '.join(divisors)}")
    return tracks // workers


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0][:300]
