"""Tells a test that each slot processes rows that were emitted after a moment, while no coordinator can say so.

A module, because the workers import this code.
"""

import os
import time
from pathlib import Path

from tests.waiting import until


class Watched:
    """A step that counts, for each process, rows that were due after the mark of the test."""

    def __init__(self, out: Path) -> None:
        self._mark = f"{out}.mark"
        self._counts = f"{out}.rows-of"
        self._marked_s: float | None = None

    def __call__(self, row):
        if self._marked_s is None and os.path.exists(self._mark):
            self._marked_s = time.time()
        if self._marked_s is not None and row["intended_at"].timestamp() >= self._marked_s:
            with open(f"{self._counts}-{os.getpid()}", "ab") as counted:
                counted.write(b".")
        return {name: row[name] for name in ("value", "key", "n")}


def wait_for_new_rows(out: Path, pids: list[int], rows: int) -> None:
    """Waits until each process has processed `rows` rows that were emitted after this call."""
    Path(f"{out}.mark").touch()
    counts = [Path(f"{out}.rows-of-{pid}") for pid in pids]
    until(lambda: all(each.exists() and each.stat().st_size >= rows for each in counts), "new rows in each slot")
