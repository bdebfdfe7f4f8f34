"""Jobs in one process with stored rows, rescaled, replaced, and stopped with a savepoint while rows wait."""

import collections
import itertools
import random
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from barrier_runtime import Dataflow, UpsertSink, count
from barrier_runtime.connectors.sink import SinkContext
from barrier_runtime.state.errors import Fenced
from tests.barrier_runtime.running_job import KEYS, ROWS_PER_S, RunningJob


class Writes:
    """The target: all writes of all subtasks, in order. Refuses earlier generations, and earlier jobs."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.lock = threading.Lock()
        self.newest = (0, 0)  # number of the job, and fencing token

    def take_over(self, newer: tuple[int, int]) -> None:
        with self.lock:
            self.newest = max(self.newest, newer)

    def add(self, writer: tuple[int, int], rows: list[dict[str, Any]]) -> None:
        with self.lock:
            if writer < self.newest:
                raise Fenced(f"{self.newest} writes now; {writer} stops")
            self.rows += rows

    async def more_by(self, job: RunningJob, many: int) -> None:
        """Waits until `many` rows were written for the first time."""
        wanted = self.first_writes + many
        await job.until(lambda status: self.first_writes >= wanted)

    @property
    def first_writes(self) -> int:
        return len({(row["key"], row["n"]) for row in list(self.rows)})


class Table(UpsertSink):
    def __init__(self, writes: Writes, job: int) -> None:
        super().__init__(after_decision=True)
        self.writes, self.job = writes, job

    def __deepcopy__(self, memo: dict[int, Any]) -> "Table":
        return Table(self.writes, self.job)

    def open(self, context: SinkContext) -> None:
        super().open(context)
        self.me = (self.job, context.token)
        self.writes.take_over(self.me)

    def upsert(self, rows: pa.RecordBatch) -> None:
        self.writes.add(self.me, rows.to_pylist())


SCHEMA = {"key": int, "value": int, "n": int, "drawn": float}


def flow(writes: Writes, read: list[int], scale: int = 1, number: int = 1) -> Dataflow:
    """Numbers the rows of each key, draws a number for each, and overwrites by key. `read`: values as often as read."""
    flow = Dataflow("job")
    rows = flow.rate("numbers", ROWS_PER_S, keys=KEYS, splits=5).filter(lambda row: read.append(row["value"]) or True)
    counted = rows.key_by("key").aggregate("count", n=count()).select(["key", "value", "n"])
    drawn = counted.map(lambda row: {**row, "drawn": scale + random.random()}, schema=SCHEMA)
    drawn.key_by("key").sink("table", Table(writes, number))
    return flow


def check_writes(writes: Writes) -> None:
    """Asserts that each row has one value, that none is missing, and that each key ends with the last row.

    After a restart rows of a key are repeated from an earlier row on, without gaps."""
    values, by_key = collections.defaultdict(set), collections.defaultdict(list)
    for row in writes.rows:
        values[row["key"], row["n"]].add(row["drawn"])
        by_key[row["key"]].append(row["n"])
    assert [row for row, drawn in values.items() if len(drawn) > 1] == [], "a row was written with other values"
    assert set(by_key) == set(range(KEYS))
    for key, numbers in by_key.items():
        assert numbers[0] == 1
        gaps = [(one, other) for one, other in itertools.pairwise(numbers) if other > one + 1]
        assert gaps == [], f"key {key}"
        assert numbers[-1] == max(numbers), f"key {key} ends with an older row"


@pytest.mark.slow
@pytest.mark.parametrize("unaligned", [False, True])
async def test_stored_rows_survive_rescale_replace_savepoint_and_drain(tmp_path: Path, unaligned: bool) -> None:
    writes, read, read_at_last = Writes(), list[int](), list[int]()
    options = {"unaligned": unaligned, "parallelism": 2}
    job = RunningJob(flow(writes, read), tmp_path / "job", {"other": flow(writes, read, scale=5)}, **options)
    await writes.more_by(job, 300)
    for parallelism in (4, 1, 3):
        assert (await job.rescale(parallelism)).state == "done"
        await writes.more_by(job, 300)
    assert (await job.replace("other")).state == "done"
    await writes.more_by(job, 300)
    await job.stop(str(tmp_path / "savepoint"))
    options = {**options, "parallelism": 5}
    restored = {**options, "restore": str(tmp_path / "savepoint")}
    successor = RunningJob(flow(writes, read_at_last, number=2), tmp_path / "new", **restored)
    await writes.more_by(successor, 300)
    await successor.stop(mode="drain")
    check_writes(writes)
    assert set(read_at_last) <= {row["value"] for row in writes.rows}, "a drain writes all rows"
