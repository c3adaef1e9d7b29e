"""Tracks of an SPD drafter on several workers, which meet by torch.distributed: see `runtimes.torch.spd`.

Every worker has as many tracks, and runs the same passes in the same order, each of them on its own copy of
embedding and head. A synchronisation is one all-reduce of the whole state, in which each worker has its own
shards and zeros elsewhere. So each number of the sum is one worker's, and the bits are those of one process.
"""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor

from edgespec.errors import OptionError


class TrackGroup:
    """See `runtimes.torch.spd.Meeting`. collectives: those that this worker has taken part in."""

    def __init__(self, tracks: int, group: dist.ProcessGroup | None = None) -> None:
        """group: None = all processes. Raises OptionError for workers that cannot have equal shares."""
        workers, rank = dist.get_world_size(group), dist.get_rank(group)
        if tracks % workers:
            raise OptionError(f"{workers} workers cannot share {tracks} tracks; take a divisor of {tracks}")
        share = tracks // workers
        self.own = range(rank * share, (rank + 1) * share)
        self.group, self.rank, self.collectives = group, rank, 0

    def assemble(self, shards: Tensor, width: int) -> Tensor:
        """Raises RuntimeError, as torch.distributed does, when another worker is gone or late."""
        own = shards.shape[-1]
        whole = shards.new_zeros(*shards.shape[:-1], width)
        whole[..., self.rank * own : (self.rank + 1) * own] = shards
        dist.all_reduce(whole, group=self.group)
        self.collectives += 1
        return whole
