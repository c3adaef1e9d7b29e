"""How fast a file streams that is too small to tell of its disk.

A model of some MB is read again and again, so it may come out of a disk's own cache, or a hypervisor's; and
its reads are small. Both make its rate another than the disk's: 12 MB that a virtual machine's host had
cached came at 2.5 GB/s, 0.6 from its disk in reads of 3 MB, 0.2 in reads of a matrix each. So it is measured
as it will be used, at every start: that takes as long as ROUNDS passes over it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from statistics import median

import numpy as np

from edgespec.devices.disk import ReadSettings, aligned_buffer, forget, open_for_reading
from edgespec.devices.rates import SMALLEST_FILE, ReadRate, read_part
from edgespec.errors import DeviceError

# As the stream reads it: requests of some layers of a small model together, two at once.
SETTINGS = ReadSettings()
REQUEST = 2 * 2**20
LEAST = 4 * REQUEST  # bytes of a file; a smaller one is nothing to plan by
ROUNDS = 5  # over all of it, the first of which is not counted; the median of the others
SECONDS = 0.5  # of all of them: a large file's rounds end earlier


def own_rate(path: Path) -> ReadRate | None:
    """Measured with the file itself. None for a file that is large enough to tell of its disk, or too small
    for anything, and where it cannot be read."""
    reads = ReadSettings(SETTINGS.threads, REQUEST)
    try:
        size = path.stat().st_size
        if not LEAST <= size < SMALLEST_FILE or sys.platform == "win32":
            return None
        memory = aligned_buffer(LEAST)
        np.frombuffer(memory, dtype=np.uint8)[:] = 0  # really there before any clock runs
        descriptor, direct = open_for_reading(path)
        try:
            if not direct:
                forget(descriptor, 0, size)
            rounds = [
                read_part(descriptor, direct, reads, 0, size, memory, SECONDS / ROUNDS) for _ in range(ROUNDS)
            ]
        finally:
            os.close(descriptor)
    except (OSError, DeviceError):
        return None
    return ReadRate(median(nbytes / seconds for nbytes, seconds in rounds[1:]) / 1e9, SETTINGS)
