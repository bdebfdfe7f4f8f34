"""Joins under test: subtasks side by side, which are restored at other parallelisms, fed with random streams."""

import random
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from barrier_runtime.data.elements import WATERMARK_MAX, WATERMARK_MIN, Batch
from barrier_runtime.data.keys import hash_partition
from barrier_runtime.operators.joins.base import LATE_LEFT, LATE_RIGHT, JoinOperator, Side
from barrier_runtime.state.snapshots.snapshot import OperatorSnapshot
from tests.barrier_runtime.operator_harness import Driven, Kind, World

MS = timedelta(milliseconds=1)
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
Row = dict[str, Any]
Event = tuple[int, Row]  # port, row
MAX_PARALLELISM = 128


def sides(key: pa.DataType | None = None, time: pa.DataType | None = None) -> tuple[Side, Side]:
    """Left rows have k, t and the number a; right rows kk, t and the number b."""
    key, time = key or pa.string(), time or pa.int64()
    left = Side(("k",), "t", pa.schema([("k", key), ("t", time), ("a", pa.int64())]))
    right = Side(("kk",), "t", pa.schema([("kk", key), ("t", time), ("b", pa.int64())]))
    return left, right


class Subtasks:
    def __init__(
        self,
        make: Callable[[], JoinOperator],
        of: tuple[Side, Side],
        parallelism: int = 1,
        restored: tuple[OperatorSnapshot, ...] = (),
        old: "Subtasks | None" = None,
        kind: Kind = "memory",
    ) -> None:
        self.make, self.of, self.parallelism, self.kind = make, of, parallelism, kind
        self.subtasks: list[Driven] = []
        for subtask in range(parallelism):
            world = World(kind, subtask, parallelism)
            shared = old.subtasks[0].world if old else (self.subtasks[0].world if self.subtasks else world)
            world.store, world._numbers = shared.store, shared._numbers
            self.subtasks.append(Driven(make(), world, restored, name="j", tags=[LATE_LEFT, LATE_RIGHT]))

    def feed(self, port: int, rows: list[Row], reached: npt.NDArray[np.int64] | None = None) -> None:
        side = self.of[port]
        batch = Batch(pa.RecordBatch.from_pylist(rows, schema=side.schema), 0, reached)
        for subtask, part in hash_partition(batch, side.keys, self.parallelism, MAX_PARALLELISM):
            self.subtasks[subtask].feed(part.rows, reached=part.reached, port=port)

    def watermark(self, ms: int) -> None:
        for it in self.subtasks:
            it.watermark(ms)

    def take(self) -> list[Row]:
        return [row for it in self.subtasks for row in it.take()]

    def late(self, port: int) -> list[Row]:
        tag = (LATE_LEFT, LATE_RIGHT)[port]
        return [row for it in self.subtasks for batch in it.side[tag] for row in batch.rows.to_pylist()]

    def rescaled(self, checkpoint: int, parallelism: int) -> "Subtasks":
        snapshots = self.snapshots(checkpoint)
        for it in self.subtasks:
            it.operator.close()
        return Subtasks(self.make, self.of, parallelism, snapshots, self, self.kind)

    def snapshots(self, checkpoint: int) -> tuple[OperatorSnapshot, ...]:
        return tuple(it.snapshot(checkpoint) for it in self.subtasks)

    @property
    def held(self) -> tuple[int, int]:
        both = [it.operator.held for it in self.subtasks if isinstance(it.operator, JoinOperator)]
        return sum(left for left, _ in both), sum(right for _, right in both)


def random_events(rng: random.Random, rows: int, keys: int, disorder: int, step: int, null: bool = True) -> list[Event]:
    """Rows of both sides: each advances event time by up to `step` ms, and is up to `disorder` ms behind."""
    at, events = rng.randint(-300, 300), []
    share = rng.choice([0.0, 0.5, 0.5, 0.2, 0.9, 1.0])
    for number in range(rows):
        at += rng.randint(0, step)
        key = None if null and rng.random() < 0.05 else f"k{rng.randrange(keys)}"
        time = at - rng.randint(0, disorder)
        if rng.random() < share:
            events.append((0, {"k": key, "t": time, "a": number}))
        else:
            events.append((1, {"kk": key, "t": time, "b": number}))
    return events


def play(
    rng: random.Random, subtasks: Subtasks, events: list[Event], disorder: int, restarts: int
) -> Iterator[tuple[str, Any]]:
    """Feeds `events` in random batches, with watermarks that make some rows late, and restarts at other parallelisms.

    Yields ("fed", (port, row, in time)), ("rows", rows emitted so far and the watermark before them), and at the end
    ("held", number of rows still held).
    """
    watermark, greatest = WATERMARK_MIN, [WATERMARK_MIN, WATERMARK_MIN]
    behind = disorder if rng.random() < 0.6 else disorder // 2
    checkpoint = 0
    while events:
        cut = rng.randint(1, max(1, min(len(events), rng.choice([3, 40, 400]))))
        now, events = events[:cut], events[cut:]
        for port in rng.sample([0, 1], 2):
            rows = [row for its, row in now if its == port]
            if rows:
                subtasks.feed(port, rows)
                greatest[port] = max(greatest[port], *(row["t"] for row in rows))
                for row in rows:
                    yield "fed", (port, row, row["t"] > watermark)
        yield "rows", (subtasks.take(), watermark)
        if rng.random() < 0.7 and max(greatest) > WATERMARK_MIN:
            watermark = max(watermark, max(greatest) - behind - 1)
            before = watermark
            subtasks.watermark(watermark)
            yield "fired", (subtasks.take(), before)
        if restarts and rng.random() < 0.3:
            checkpoint += 1
            restarts -= 1
            late = [subtasks.late(0), subtasks.late(1)]
            yield "late", late
            subtasks = subtasks.rescaled(checkpoint, rng.randint(1, 3))
    subtasks.watermark(WATERMARK_MAX)
    yield "fired", (subtasks.take(), WATERMARK_MAX)
    yield "late", [subtasks.late(0), subtasks.late(1)]
    yield "held", subtasks.held
