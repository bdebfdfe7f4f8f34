"""Writes each row's arrival time into the row, so that a reader of the output sees the stream's pauses.

A module, because the workers import this code.
"""

import json
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from harness import visible_files


def stamped(row):
    """`late_ms`: from the row's intended emission to now; `at`: now, in seconds."""
    now = time.time()
    late_ms = (now - row["intended_at"].timestamp()) * 1000
    return {"value": row["value"], "key": row["key"], "n": row["n"], "at": now, "late_ms": late_ms}


@dataclass(frozen=True)
class Latency:
    rows: int
    p50_ms: float
    p99_ms: float
    max_ms: float
    longest_gap_ms: float  # between the arrivals of two successive rows, over all slots

    def __str__(self) -> str:
        return (
            f"{self.rows} rows, processed latency p50 {self.p50_ms:.1f} ms, p99 {self.p99_ms:.1f} ms, "
            f"max {self.max_ms:.0f} ms; longest gap {self.longest_gap_ms:.0f} ms"
        )


def latency_between(out: Path, began: float, ended: float) -> Latency:
    """Latencies of all rows that arrived between two moments (seconds since the epoch)."""
    rows = [json.loads(line) for file in visible_files(out) for line in file.read_text().splitlines()]
    inside = sorted((row["at"], row["late_ms"]) for row in rows if began <= row["at"] <= ended)
    assert inside, "no row arrived in between: the stream stood still"
    times = [began, *(at for at, _ in inside), ended]
    late = sorted(late_ms for _, late_ms in inside)
    gaps = [later - earlier for earlier, later in pairwise(times)]
    return Latency(len(late), late[len(late) // 2], late[len(late) * 99 // 100], late[-1], max(gaps) * 1000)
