"""Sources with `mode="at_most_once"`: positions before rows, and the skip to the end after a failure.

The last test draws interleavings of rows, checkpoints, transactions of the sink, and kills. Judged are the two promises
of the mode: no row is doubled, and the skipped rows are exactly the missing ones.
"""

import collections
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from operator_harness import World
from source_harness import NAME, spec_of

from barrier_runtime.connectors.source import Polled, Split
from barrier_runtime.operators.base import SplitPosition
from barrier_runtime.runtime.sources.driver import SourceDriver
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.snapshots.snapshot import OperatorSnapshot
from tests.drawn import seeds

SCHEMA = pa.schema([("n", pa.int64())])
SPLITS = ("a", "b")


class Log:
    """A source like a topic: row `i` of a split is `i`; splits grow and never end."""

    schema = SCHEMA
    exactly_once = True

    def __init__(self) -> None:
        self.ends = dict.fromkeys(SPLITS, 0)

    def splits(self, parallelism: int) -> Sequence[Split]:
        return [Split(id) for id in SPLITS]

    def reader(self, split: Split) -> "Reader":
        return Reader(self, split.id)

    def not_to_end(self) -> str:
        return ""

    def to_end(self, positions: Mapping[str, bytes]) -> Mapping[str, tuple[bytes, int]]:
        return {
            id: (json.dumps(self.ends[id]).encode(), self.ends[id] - json.loads(at)) for id, at in positions.items()
        }


class Reader:
    finished = False

    def __init__(self, log: Log, split: str) -> None:
        self._log = log
        self._split = split
        self._next = 0

    def poll(self, max_rows: int, now_ns: int) -> Polled | None:
        until = min(self._log.ends[self._split], self._next + max_rows)
        if until == self._next:
            return None
        rows = pa.record_batch({"n": range(self._next, until)}, schema=SCHEMA)
        self._next = until
        return Polled(rows, now_ns)

    def next_due_ns(self) -> int | None:
        return None

    def position(self) -> bytes:
        return json.dumps(self._next).encode()

    def seek(self, position: bytes) -> None:
        self._next = json.loads(position)

    def close(self) -> None:
        pass


@dataclass
class Sink:
    """What a target keeps: rows and positions, written together."""

    rows: collections.Counter[tuple[str, int]] = field(default_factory=collections.Counter)
    positions: dict[str, SplitPosition] = field(default_factory=dict)

    def write(self, split: str, numbers: Sequence[int], at: SplitPosition) -> None:
        self.rows.update((split, number) for number in numbers)
        self.positions[split] = at


class Generation:
    """A driver and the batches that the sink has taken but not written."""

    def __init__(self, folder: Path, log: Log, sink: Sink, restored: tuple[OperatorSnapshot, ...]) -> None:
        self.world = World(folder)
        self.sink = sink
        self.driver = SourceDriver()
        context = self.world.context(NAME, restored)
        self.driver.open(replace(context, at_most_once=True, written=lambda: dict(sink.positions)), spec_of(log))
        self.taken: list[tuple[str, list[int], SplitPosition]] = []

    def poll(self, most: int = 100) -> list[int]:
        batch = self.driver.poll(0, most)
        if batch is None:
            return []
        split, at = self.driver.reached()
        numbers: list[int] = batch.rows.column("n").to_pylist()
        self.taken.append((split, numbers, at))
        return numbers

    def write(self, batches: int | None = None) -> None:
        """A transaction of the oldest batches."""
        many = len(self.taken) if batches is None else batches
        for each in self.taken[:many]:
            self.sink.write(*each)
        del self.taken[:many]

    def checkpoint(self, number: int) -> OperatorSnapshot:
        """The snapshot, after the rows before the barrier are written."""
        captured = self.driver.snapshot(number)
        self.write()
        return self.world.finish(NAME, number, captured)

    def close(self) -> None:
        self.driver.close()


class Job:
    """Successive generations over a log and a sink."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log, self.sink = folder, Log(), Sink()
        self.decided: tuple[OperatorSnapshot, ...] = ()
        self.number = 0
        self.generations = 0
        self.now = self.begun()

    def begun(self) -> Generation:
        self.generations += 1
        return Generation(self.folder / str(self.generations), self.log, self.sink, self.decided)

    def kill(self) -> None:
        self.now.close()
        self.now = self.begun()

    def checkpoint(self, *, told: bool = True) -> None:
        self.number += 1
        self.decided = (self.now.checkpoint(self.number),)
        if told:
            self.now.driver.completed(self.number)


@pytest.fixture
def job(tmp_path: Path) -> Any:
    job = Job(tmp_path)
    yield job
    job.now.close()


def test_no_row_is_read_before_a_checkpoint_holds_the_position(job: Job) -> None:
    job.log.ends["a"] = 5
    assert job.now.poll() == []
    job.checkpoint(told=False)
    assert job.now.poll() == []
    job.now.driver.completed(1)
    assert job.now.poll() == [0, 1, 2, 3, 4]


def test_an_aborted_checkpoint_releases_nothing_and_a_later_one_does(job: Job) -> None:
    job.log.ends["a"] = 2
    job.now.checkpoint(1)
    job.now.checkpoint(2)
    job.now.driver.completed(0)
    assert job.now.poll() == []
    job.now.driver.completed(2)
    assert job.now.poll() == [0, 1]


def test_a_kill_before_the_first_checkpoint_skips_nothing(job: Job) -> None:
    job.log.ends["a"] = 3
    job.kill()
    job.checkpoint()
    assert job.now.poll() == [0, 1, 2]
    assert job.now.driver.skipped == 0


def test_after_a_failure_reading_goes_on_at_the_end_as_it_is_then(job: Job) -> None:
    job.checkpoint()
    job.log.ends["a"] = 4
    assert job.now.poll() == [0, 1, 2, 3]
    job.now.write()
    job.log.ends["a"] = 10
    job.kill()
    job.log.ends["a"] = 12
    assert job.now.poll() == []
    job.log.ends["a"] = 15
    job.checkpoint()
    assert job.now.poll() == [12, 13, 14]
    assert job.now.driver.skipped == 8


def test_without_a_written_position_rows_since_the_checkpoint_count(job: Job) -> None:
    """Behind an exchange: an upper bound."""
    job.checkpoint()
    job.log.ends["a"] = 4
    job.now.poll()
    job.now.write()
    job.sink.positions.clear()
    job.kill()
    job.now.poll()
    assert job.now.driver.skipped == 4


def test_skipped_rows_of_earlier_failures_stay_counted(job: Job) -> None:
    job.checkpoint()
    for end in (3, 5, 9):
        job.log.ends["b"] = end
        job.kill()
        job.now.poll()
        job.checkpoint()
        assert job.now.driver.skipped == end


def test_a_split_that_ends_is_refused(job: Job) -> None:
    job.checkpoint()
    job.log.ends["a"] = 1
    Reader.finished = True
    try:
        with pytest.raises(InvalidJob, match="is for splits that never end"):
            job.now.poll()
    finally:
        Reader.finished = False


@pytest.mark.draws
@pytest.mark.parametrize("seed", seeds(40))
def test_the_skipped_rows_are_the_missing_ones_and_none_is_doubled(job: Job, seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(150):
        action = draw.randrange(10)
        if action < 3:
            job.log.ends[draw.choice(SPLITS)] += draw.randrange(4)
        elif action < 6:
            job.now.poll(draw.randrange(1, 4))
        elif action == 6:
            job.now.write(draw.randrange(3))
        elif action == 7:
            job.checkpoint(told=draw.random() < 0.7)
        elif action == 8:
            job.now.checkpoint(job.number + 1)  # not decided
            job.number += 1
        else:
            job.kill()
    job.kill()
    job.now.poll()
    for number in range(2):
        job.checkpoint()
        job.log.ends[SPLITS[number]] += 3
        while job.now.poll():
            pass
    job.now.write()
    assert [row for row, times in job.sink.rows.items() if times > 1] == []
    assert job.now.driver.skipped == sum(job.log.ends.values()) - len(job.sink.rows)
