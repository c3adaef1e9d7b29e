"""The machine that is tuned for: this one, or one of the presets; and what is known of it. Needs no torch,
but to measure matmuls.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edgespec.devices.cgroup import memory_cgroups
from edgespec.devices.disk import open_for_reading
from edgespec.devices.filesystem import Filesystem, filesystem_of, largest_file
from edgespec.devices.matmuls import Matmuls
from edgespec.devices.presets import PRESETS, Preset
from edgespec.devices.probe import (
    Disk,
    cpu_count,
    cpu_features,
    cpu_name,
    disk_of,
    memory_available,
    memory_total,
    unified_memory,
)
from edgespec.devices.rates import SMALLEST_FILE, ReadRate, memory_rate, read_rate, read_table
from edgespec.errors import ModelError, OptionError, StorageError
from edgespec.kernels.choice import Choice
from edgespec.progress import Progress, ProgressCallback
from edgespec.values import did_you_mean, format_bytes

WRITTEN = 2 * SMALLEST_FILE  # bytes of the file that a directory without a large one is measured with
# Instruction sets that matmuls here care about, by Linux's names.
FEATURES = (
    *("avx2", "f16c", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16"),
    *("amx_int8", "amx_bf16", "asimddp", "i8mm", "bf16", "sve"),
)


@dataclass(frozen=True)
class DiskFacts:
    """What lies behind a path. rates: as `devices.rates.GRID`; () = unknown, and `notes` say why."""

    path: Path
    filesystem: Filesystem
    disk: Disk
    direct: bool | None  # reads go past the page cache; None = no file was tried
    best: ReadRate | None
    rates: tuple[ReadRate, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class MachineFacts:
    """Sizes in bytes, rates in GB/s."""

    processor: str
    cores: int
    features: tuple[str, ...]
    kernels: str
    total: int
    available: int
    limit: int | None  # of the tightest memory cgroup around this process
    memory_gbps: float
    matmuls: Matmuls
    choices: dict[str, Choice]  # by encoding: which kernels multiply
    accelerators: tuple[str, ...]
    unified: bool
    disk: DiskFacts


def find_preset(name: str) -> Preset:
    """The machine of this name. Raises OptionError, with the nearest names, when there is none."""
    known = {preset.name: preset for preset in PRESETS}
    if name not in known:
        near = [other for other in known if len(name) > 1 and name.lower() in other]
        hint = f"did you mean {' or '.join(near)}?" if near else did_you_mean(name, known)
        raise OptionError(f"preset {name[:80]!r} is unknown; {hint}", "preset")
    return known[name]


def measure_machine_facts(
    path: Path, fresh: bool = False, progress: ProgressCallback | None = None
) -> MachineFacts:
    """This machine, with the disk behind `path`; what was measured before is looked up, unless `fresh`.

    Raises ModelError when there is no such path, StorageError when it cannot be read.
    """
    disk = measure_disk(path, fresh, progress)
    gbps = memory_rate(fresh)
    from edgespec.runtimes.torch.choices import choices, kernels_name  # torch: seconds
    from edgespec.runtimes.torch.matmuls import matmuls
    from edgespec.runtimes.torch.thread_count import forget_threads

    def advance(done: int, total: int) -> None:
        if progress is not None:
            progress(Progress("matmuls", done, total, "steps"))

    if fresh:
        forget_threads()
    found = cpu_features()
    return MachineFacts(
        processor=cpu_name(),
        cores=cpu_count(),
        features=tuple(name for name in FEATURES if name in found),
        kernels=kernels_name(),
        total=memory_total(),
        available=memory_available(),
        limit=min((g.limit for g in memory_cgroups() if g.limit is not None), default=None),
        memory_gbps=gbps,
        choices=choices(fresh),
        matmuls=matmuls(fresh, advance),
        accelerators=accelerators(),
        unified=unified_memory(),
        disk=disk,
    )


def measure_disk(path: Path, fresh: bool = False, progress: ProgressCallback | None = None) -> DiskFacts:
    """The disk behind `path`. Where nothing is known of it, a directory without a large file gets one of
    `WRITTEN` bytes for the moment.

    Raises ModelError when there is no such path, StorageError when it cannot be read.
    """
    try:
        filesystem, disk = filesystem_of(path), disk_of(path)
        known = None if fresh or path.is_file() else read_table(path)
        with _large_file(path, known is None) as (file, notes):
            notes += place_notes(filesystem)
            if progress is not None:
                progress(Progress("disk", 0, 1, "steps"))
            rates = known or (() if file is None else read_table(file, fresh)) or ()
            best = read_rate(file or path)
            direct = None
            if file is not None:
                descriptor, direct = open_for_reading(file)
                os.close(descriptor)
                if not direct:
                    kind = filesystem.kind or "this filesystem"
                    notes += (
                        f"direct reads are refused on {kind}: reads go through the page cache, and what they "
                        "leave there is dropped",
                    )
    except FileNotFoundError:
        raise ModelError(f"{path} is not there; name a file or directory on the disk to measure") from None
    except OSError as error:
        raise StorageError(f"{path} cannot be measured: {error.strerror}") from None
    if not rates and file is not None and best is None:
        notes += (f"{file} cannot be measured here",)
    return DiskFacts(path, filesystem, disk, direct, best, rates, notes)


def place_notes(filesystem: Filesystem) -> tuple[str, ...]:
    """What is to be said of models that lie there."""
    if filesystem.place == "memory":
        return (
            f"{filesystem.mount} is {filesystem.kind}: its files lie in memory, which the dial should have; "
            "put models on a disk",
        )
    if filesystem.place == "network":
        return (
            f"{filesystem.mount} is {filesystem.kind or 'a network drive'}, storage of another machine: its "
            "rate is the network's, and changes with it",
        )
    return ()


@contextmanager
def _large_file(path: Path, write: bool) -> Iterator[tuple[Path | None, tuple[str, ...]]]:
    """A file on the disk of `path` that is large enough to measure with, and what to say of it; one may be
    written."""
    file = largest_file(path) if path.is_dir() else path
    if file is not None and file.stat().st_size >= SMALLEST_FILE:
        yield file, ()
        return
    if not path.is_dir():
        size = format_bytes(path.stat().st_size)
        yield None, (f"{path} has {size}, too little to tell; name a directory, or a file of 256 MB or more",)
        return
    if not write:
        yield None, ()
        return
    stat = os.statvfs(path) if hasattr(os, "statvfs") else None
    if stat is None or stat.f_bavail * stat.f_frsize < 4 * WRITTEN or not os.access(path, os.W_OK):
        why = "has no file of 256 MB or more, and none can be written there"
        yield None, (f"{path} {why}; name a directory with room, or a model's file",)
        return
    with tempfile.NamedTemporaryFile(prefix=".edgespec-", dir=path) as written:
        noise = np.random.default_rng(0).integers(0, 256, 2**22, dtype=np.uint8)  # no disk makes it smaller
        for part in range(WRITTEN // noise.nbytes):
            written.write((noise ^ (part & 255)).tobytes())
        written.flush()
        os.fsync(written.fileno())
        yield Path(written.name), (f"measured with a file of {format_bytes(WRITTEN)}, written for that",)


def accelerators() -> tuple[str, ...]:
    """What else could compute, by name, and whether EdgeSpec uses it."""
    import torch

    found = []
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        shown = torch.cuda.get_device_properties(index)
        found.append(f"{shown.name}, {format_bytes(shown.total_memory)} (device cuda)")
    if torch.backends.mps.is_available():
        found.append("Metal (not supported yet)")
        found.append("Apple's Neural Engine (for a draft model: docs/engines.md)")
    if not found and Path("/dev/nvidia0").exists():
        found.append("an NVIDIA GPU that this build of torch does not use; install.sh has one for CUDA")
    npus = sorted(Path("/dev/accel").glob("accel*")) if Path("/dev/accel").is_dir() else []
    found += [f"{npu} (an NPU, for a draft model: docs/engines.md)" for npu in npus]
    return tuple(found)
