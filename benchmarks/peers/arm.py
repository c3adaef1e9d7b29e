"""What every peer's script reports, in the same terms as `edgespec generate --json`.

These scripts run in the peers' own virtual environment, so they import nothing of EdgeSpec's.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

THREADS = 2
CONTEXT = 512  # positions


def arguments(doc: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(doc or "").split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--prompt-ids", type=numbers, required=True, help="token ids, BOS included: 1,2,3")
    parser.add_argument("--tokens", type=int, required=True)
    return parser


def numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def disk_bytes() -> int:
    """Bytes this process has read from the disk, page faults included."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))


class Clock:
    """Notes when each reply token appeared, and what had been read by then."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.stamps: list[float] = []
        self.bytes: list[int] = []

    def token(self, token: int) -> None:
        self.tokens.append(token)
        self.stamps.append(time.perf_counter())
        self.bytes.append(disk_bytes())

    def report(self) -> None:
        """One JSON line. Rates are over the tokens after the first, as everywhere in these benchmarks."""
        cycles = len(self.tokens) - 1
        speed = cycles / (self.stamps[-1] - self.stamps[0])
        stats = {"tokens_per_second": speed, "bytes_per_token": (self.bytes[-1] - self.bytes[0]) / cycles}
        print(json.dumps({"tokens": self.tokens, "stats": stats}))
