"""Random streams of keyed rows in event time, and their properties that hold under every schedule.

A row is `{"k": key or None, "t": event time in ms, "v": number of the row}`. A stream has splits, each with rows in
arrival order. Disorder stays within the source's declared bound, except for rows that are *far behind*: these arrive so
late that all or nearly all of their windows and sessions are gone.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

Row = dict[str, Any]
SCHEMA = pa.schema([("k", pa.string()), ("t", pa.int64()), ("v", pa.int64())])


@dataclass(frozen=True)
class Stream:
    splits: tuple[tuple[Row, ...], ...]
    bound_ms: int

    @property
    def rows(self) -> list[Row]:
        return [row for split in self.splits for row in split]

    def batches(self) -> tuple[pa.RecordBatch, ...]:
        return tuple(pa.RecordBatch.from_pylist(list(split), schema=SCHEMA) for split in self.splits)

    def watermarks(self) -> dict[int, int]:
        """By number of a row, the maximum event time at the row's arrival: that of the row's own split."""
        found = {}
        for split in self.splits:
            greatest = -(2**62)
            for row in split:
                greatest = max(greatest, row["t"])
                found[row["v"]] = greatest - self.bound_ms - 1
        return found


def drawn(
    rng: random.Random,
    rows: int,
    splits: int,
    far_ms: int = 0,
    nulls: bool = True,
    distinct: bool = False,
    keys_of: Sequence[int] = (1, 3, 12),
) -> Stream:
    """Draws a stream. `far_ms`: some rows are behind by more than that; 0: no row is behind the bound. `distinct`: rows
    of a key have different times. `keys_of`: numbers of keys.
    """
    bound_ms = rng.choice((0, 10, 60))
    keys = rng.choice(keys_of)
    step = rng.choice((0, 3, 20)) or 1
    numbers = iter(range(rows))
    made: list[tuple[Row, ...]] = []
    taken: set[tuple[Any, int]] = set()
    for split in range(splits):
        at, its = rng.randint(0, 100), []
        for _ in range(rows // splits + (split < rows % splits)):
            at += rng.randint(0, 2 * step)
            behind = rng.randint(0, bound_ms)
            if far_ms and rng.random() < 0.15:
                behind = bound_ms + rng.randint(1, far_ms)
            key = None if nulls and rng.random() < 0.08 else f"k{rng.randrange(keys)}"
            time = at - behind
            while distinct and (key, time) in taken:
                time -= 1
                time = time if time >= at - bound_ms else at + rng.randint(1, 10_000)
                at = max(at, time)
            taken.add((key, time))
            its.append({"k": key, "t": time, "v": next(numbers)})
        made.append(tuple(its))
    return Stream(tuple(made), bound_ms)


def ordered(rows: Sequence[Row]) -> list[tuple[Any, ...]]:
    """Multisets of values, for comparison."""
    return sorted((tuple(row.values()) for row in rows), key=repr)
