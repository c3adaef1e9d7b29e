"""Measurements that survive an interruption: each is written when it is made and not made again."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.common import Row, machine


class Store:
    """A JSON file of named measurements. Delete it, or name another, to measure afresh."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.rows: Row = json.loads(file.read_text())["measured"] if file.exists() else {}

    def get(self, key: str, measure: Callable[[], Row]) -> Row:
        """The measurement called `key`, made now if it is not there.

        One that fails is kept with its `error`, so that the others go on; it is tried again the next time.
        """
        if key not in self.rows or "error" in self.rows[key]:
            began = time.perf_counter()
            try:
                self.rows[key] = measure()
            except (RuntimeError, OSError, ValueError) as error:
                self.rows[key] = {"error": str(error)}
            seconds = time.perf_counter() - began
            failed = self.rows[key].get("error", "")
            print(f"{key}: {failed or 'done'} ({seconds:.0f} s)", file=sys.stderr, flush=True)
            self.save()
        row: Row = self.rows[key]
        return row

    def save(self) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        partial = self.file.with_suffix(".partial")
        partial.write_text(json.dumps({"machine": machine(), "measured": self.rows}) + "\n")
        partial.rename(self.file)
