"""How fast this machine reads: measured once, remembered in the user's cache folder.

A first run probes for about a second; later runs look the figures up. A disk's figures are measured again
when they are `STALE` (disks fill, age, and are replaced). The file is small, written atomically and never
trusted: what is malformed or absurd is measured again.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import platform
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter, sleep, time
from typing import Any

import numpy as np

from edgespec.devices.disk import ReadSettings, aligned_buffer, forget, open_for_reading, read_at
from edgespec.devices.files import held, read_bounded, replacing
from edgespec.devices.probe import cpu_count, cpu_name, disk_of
from edgespec.errors import DeviceError, EdgeSpecError

VERSION = 1
READS = 2  # the way of measuring reads: rates by another are not comparable
CACHE_LIMIT = 2**20  # bytes; a larger cache file is not ours

# What is tried, the default first. Another must beat it by TIE, or the difference is noise.
CANDIDATES = (
    ReadSettings(2, 4 * 2**20),
    ReadSettings(1, 4 * 2**20),
    ReadSettings(4, 4 * 2**20),
    ReadSettings(2, 2**20),
    ReadSettings(2, 8 * 2**20),
)
TIE = 1.15
ROUNDS = 2  # interleaved, so that a disturbance does not hit one candidate alone
TRIALS = ROUNDS * len(CANDIDATES)
SECONDS = 1.0  # of all trials together
BYTES = 10**9  # of all trials together
# Bytes that reads go into in turn, as the ring has them: private, in huge pages. With 16 MiB, which stay in
# the processor's cache, a virtual machine's disk gave 2.9 GB/s, with 32 2.4, with more 2.3; small pages, 1.7.
MEMORY = 64 * 2**20
SMALLEST_FILE = 256 * 2**20  # bytes; less says little about a disk
STALE = 30 * 86400.0  # seconds, after which a disk is measured again
LATEST = 1e12  # seconds, in tens of thousands of years: a JSON integer may be too large to subtract

# What a calibration tries: every size with every depth, which is a thread for each request under way.
DEPTHS = (1, 2, 4, 8)
SIZES = (256 * 2**10, 2**20, 4 * 2**20, 8 * 2**20)
GRID = tuple(ReadSettings(depth, size) for size in SIZES for depth in DEPTHS)


@dataclass(frozen=True, slots=True)
class ReadRate:
    """A disk's rate for direct reads, GB/s (10^9 bytes), and the settings that reach it."""

    gbps: float
    settings: ReadSettings


def read_rate(path: Path, fresh: bool = False) -> ReadRate | None:
    """The rate of the disk that holds `path`: remembered, or (also when `fresh`) measured with that file.

    Measuring takes about a second, moves at most 1 GB and needs 64 MiB of memory. None means unknown:
    nothing is remembered, and the file is too small or cannot be read.
    """
    path = Path(path)
    try:
        key = _disk_key("read", path)
        stored: Any = None if fresh else _load().get(key)
        known = _as_read_rate(stored)
        current = known is not None and is_fresh(stored["when"])
    except OSError:
        return None
    measured = None if current else measure_reads(path)
    if measured is None:
        return known
    _store(key, _record(measured))
    return measured


def read_table(path: Path, fresh: bool = False) -> tuple[ReadRate, ...] | None:
    """The rate of the disk that holds `path` for each of the `GRID` (settings, in its order): remembered, or
    measured with that file, when `read_rate` is set anew, too.

    Measuring takes two seconds, moves at most 2 GB and needs 64 MiB of memory. None means unknown, as for
    `read_rate`.
    """
    try:
        key = _disk_key("reads", path)
        known = None if fresh else _as_table(_load().get(key))
    except OSError:
        return None
    if known is not None or (found := _try_settings(path, GRID)) is None:
        return known
    _store(key, {"gbps": [rate.gbps for rate in found], "when": time()})
    _store(_disk_key("read", path), _record(_quickest(path, found)))
    return found


def _quickest(path: Path, found: Sequence[ReadRate]) -> ReadRate:
    """The best, as it is when it is tried again beside the default: one trial each flatters the luckiest."""
    finalist = max(found, key=lambda rate: rate.gbps).settings
    again = _try_settings(path, tuple(dict.fromkeys((CANDIDATES[0], finalist))), ROUNDS)
    return _best(again or found)


def is_fresh(when: Any) -> bool:
    """Whether what was measured then (seconds, as of time.time; unchecked) still holds."""
    return type(when) in (int, float) and 0 <= when < LATEST and 0 <= time() - when < STALE


def _disk_key(figure: str, path: Path) -> str:
    disk = disk_of(path)
    return f"{figure} {READS} {this_machine()} {disk.device} {disk.name} {disk.nbytes}"


def _record(rate: ReadRate) -> dict[str, Any]:
    return {"gbps": rate.gbps, **asdict(rate.settings), "when": time()}


def memory_rate(fresh: bool = False) -> float:
    """GB/s at which all processors together read memory: remembered, or (also when `fresh`) measured.

    Measuring needs 64 MiB of memory. It is a sum by numpy, each thread over its own part, which is near what
    a product with one row of activations reaches; where the last-level cache is larger than 64 MiB, it is
    the cache's rate.
    """
    key = f"memory {this_machine()} {cpu_count()}"
    known = None if fresh else _as_rate(_load().get(key))
    if known is None:
        known = measure_memory()
        _store(key, known)
    return known


def measure_reads(path: Path) -> ReadRate | None:
    """The best of CANDIDATES on `path`, now: nothing is remembered. None for a file that is too small or
    cannot be read, and where the system has no memory for it."""
    found = _try_settings(path, CANDIDATES, ROUNDS)
    return None if found is None else _best(found)


def _try_settings(
    path: Path, settings: Sequence[ReadSettings], rounds: int = 1
) -> tuple[ReadRate, ...] | None:
    """What each reaches on `path`, in interleaved rounds; no two trials read one part. None as for
    `measure_reads`."""
    moved, seconds = [0] * len(settings), [0.0] * len(settings)
    trials = rounds * len(settings)
    try:
        size = path.stat().st_size
        if size < SMALLEST_FILE or sys.platform == "win32":
            return None
        memory = aligned_buffer(max(MEMORY, *(one.threads * one.request_bytes for one in settings)))
        np.frombuffer(memory, dtype=np.uint8)[:] = 0  # really there before any clock runs
        descriptor, direct = open_for_reading(path)
        try:
            part = size // trials
            if not direct:
                forget(descriptor, 0, part * trials)  # or memory would be measured
            for trial in range(trials):
                i = trial % len(settings)
                nbytes = min(part, BYTES // TRIALS)
                got, took = read_part(descriptor, direct, settings[i], trial * part, nbytes, memory)
                moved[i] += got
                seconds[i] += took
        finally:
            os.close(descriptor)
    except (OSError, DeviceError):
        return None
    return tuple(ReadRate(n / s / 1e9, one) for n, s, one in zip(moved, seconds, settings, strict=True))


def _best(found: Sequence[ReadRate]) -> ReadRate:
    """The quickest; the default settings unless another beats them by TIE."""
    return max(found, key=lambda rate: rate.gbps * (TIE if rate.settings == CANDIDATES[0] else 1))


def read_part(
    descriptor: int,
    direct: bool,
    settings: ReadSettings,
    start: int,
    nbytes: int,
    memory: memoryview,
    most: float | None = None,
) -> tuple[int, float]:
    """(bytes moved, seconds) of reading `nbytes` bytes from about `start`, or as far as the time allows, into
    all of `memory` in turn: each thread has its part, which holds whole requests. most: seconds; None = a
    trial's."""
    most = SECONDS / TRIALS if most is None else most
    request = settings.request_bytes
    first, count = start // request, nbytes // request
    own = len(memory) // settings.threads // request * request  # bytes of a thread
    numbers = itertools.count()  # the requests, shared by the threads
    with ThreadPoolExecutor(settings.threads) as pool:
        began = perf_counter()

        def work(thread: int) -> int:
            moved = 0
            places = itertools.cycle(range(thread * own, (thread + 1) * own, request))
            while (number := next(numbers)) < count and perf_counter() - began < most:
                offset, at = (first + number) * request, next(places)
                moved += read_at(descriptor, memory[at : at + request], offset)
                if not direct:
                    forget(descriptor, offset, request)
            return moved

        moved = sum(pool.map(work, range(settings.threads)))
        return moved, perf_counter() - began


def measure_memory(nbytes: int = 64 * 2**20) -> float:
    """GB/s of summing `nbytes` bytes with all processors, the best of five tries."""
    threads = min(cpu_count(), 16)
    parts = np.array_split(np.ones(nbytes // 8), threads)
    best = math.inf
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(5):
            began = perf_counter()
            list(pool.map(np.sum, parts))
            best = min(best, perf_counter() - began)
    return nbytes / best / 1e9


def recall(key: str) -> Any:
    """What `remember` stored under `key` on this machine, unchecked; None when there is nothing."""
    return _load().get(f"{key} {this_machine()}")


def remember(key: str, value: Any) -> None:
    """Keep a small JSON value for this machine; silently not, where the folder cannot be written."""
    _store(f"{key} {this_machine()}", value)


def keep_first(key: str, value: Any, sound: Callable[[Any], bool]) -> Any:
    """`remember`, unless another process was first: what is kept now, of its values only a `sound` one. None
    where nothing can be kept."""
    return _store(f"{key} {this_machine()}", value, sound)


# The cache file: {"version": 1, "rates": {key: figures}}.


def cache_folder() -> Path:
    """Where EdgeSpec remembers things: $EDGESPEC_CACHE, else this system's place for caches."""
    if chosen := os.environ.get("EDGESPEC_CACHE"):
        return Path(chosen)
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "edgespec"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "edgespec"
    xdg = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (xdg if xdg.is_absolute() else Path.home() / ".cache") / "edgespec"


def _cache_file() -> Path:
    return cache_folder() / "rates.json"


def this_machine() -> str:
    """Home folders can be shared by machines."""
    return f"{platform.node()} {cpu_name()}"


def _load() -> dict[str, Any]:
    """All remembered figures, unchecked; {} when there are none or the file is not ours."""
    try:
        table = json.loads(read_bounded(_cache_file(), CACHE_LIMIT))
    except (EdgeSpecError, OSError, RuntimeError, ValueError, RecursionError):  # RuntimeError: no home folder
        return {}
    if not isinstance(table, dict) or table.get("version") != VERSION:
        return {}
    rates = table.get("rates")
    return rates if isinstance(rates, dict) else {}


def _store(key: str, figures: Any, unless: Callable[[Any], bool] = lambda kept: False) -> Any:
    """Remember one figure, `unless` what is kept already will do; returns what is kept. None where the folder
    cannot be written."""
    with contextlib.suppress(OSError, RuntimeError), contextlib.ExitStack() as stack:
        path = _cache_file()
        path.parent.mkdir(parents=True, exist_ok=True)
        _wait_for(path.parent, stack)
        rates = _load()
        if unless(kept := rates.get(key)):
            return kept
        rates.pop(key, None)
        rates[key] = figures  # the latest is the last
        while len(text := json.dumps({"version": VERSION, "rates": rates}, indent=1)) > CACHE_LIMIT:
            del rates[next(iter(rates))]  # of a machine, it may be, that nobody has seen for years
        with replacing(path, private=True, shared=True) as temporary:
            temporary.write_text(text, encoding="utf-8")
        return figures
    return None


def _wait_for(folder: Path, stack: contextlib.ExitStack) -> None:
    """Hold the folder, so that no figure is lost between reading and writing; after a second, and on a
    filesystem that cannot, go on so."""
    for _ in range(100):
        try:
            stack.enter_context(held(folder))
        except BlockingIOError:
            sleep(0.01)
        except OSError:
            return
        else:
            return


def _as_rate(value: Any) -> float | None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if number and 1e-3 <= value <= 1e4 else None  # GB/s; also refuses NaN


def _as_read_rate(value: Any) -> ReadRate | None:
    if not isinstance(value, dict) or set(value) != {"gbps", "threads", "request_bytes", "direct", "when"}:
        return None
    gbps, direct = _as_rate(value["gbps"]), value["direct"]
    whole = all(type(value[name]) is int for name in ("threads", "request_bytes"))
    if gbps is None or not whole or not isinstance(direct, bool):
        return None
    try:
        return ReadRate(gbps, ReadSettings(value["threads"], value["request_bytes"], direct))
    except ValueError:
        return None


def _as_table(value: Any) -> tuple[ReadRate, ...] | None:
    """A remembered one, if it is sound and fresh."""
    if not isinstance(value, dict):
        return None
    rates = value.get("gbps")
    if not is_fresh(value.get("when")) or not isinstance(rates, list) or len(rates) != len(GRID):
        return None
    sound = [rate for rate in map(_as_rate, rates) if rate is not None]
    if len(sound) < len(GRID):
        return None
    return tuple(ReadRate(rate, settings) for rate, settings in zip(sound, GRID, strict=True))
