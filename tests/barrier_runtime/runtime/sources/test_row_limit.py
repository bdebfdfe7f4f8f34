"""`max_rows_per_second`: a limit over all subtasks, on a clock that the test sets."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from operator_harness import World
from slot_bench import Bench
from source_harness import CountedReader, opened, rows_of, snapshot_of, spec_of

from barrier_runtime import CollectSink, Dataflow, InvalidJob, RateSource
from barrier_runtime.connectors.name_set import NameSet
from barrier_runtime.connectors.source import Polled, Split
from barrier_runtime.coordinator.wire.messages import CheckpointComplete, Trigger
from barrier_runtime.runtime.sources.driver import SourceDriver

SECOND_NS = 1_000_000_000
SCHEMA = pa.schema([("split", pa.int64()), ("n", pa.int64())])


class Many:
    """Splits with `rows` rows each, all of them available at once."""

    schema = SCHEMA
    exactly_once = True

    def __init__(self, splits: int, rows: int) -> None:
        self.count = splits
        self.rows = rows

    def splits(self, parallelism: int) -> Sequence[Split]:
        return [Split(str(index), b"%d" % index) for index in range(self.count)]

    def reader(self, split: Split) -> "ManyReader":
        return ManyReader(int(split.payload), self.rows)


class ManyReader(CountedReader):
    def __init__(self, split: int, rows: int) -> None:
        super().__init__(rows)
        self._split = split

    def poll(self, max_rows: int, now_ns: int) -> Polled:
        end = min(self._rows, self._next + max_rows)
        numbers = list(range(self._next, end))
        self._next = end
        columns = [pa.array([self._split] * len(numbers), pa.int64()), pa.array(numbers, pa.int64())]
        return Polled(pa.RecordBatch.from_arrays(columns, schema=SCHEMA), now_ns)


class Growing(Many):
    """A source without splits at first; `found` are those that a discovery finds."""

    def __init__(self, rows: int) -> None:
        super().__init__(0, rows)
        self.found_splits: list[Split] = []

    def owner(self, split_id: str, parallelism: int) -> int:
        return int(split_id) % parallelism

    def discovery(self, known: NameSet) -> "Found":
        return Found(self.found_splits)


class Found:
    def __init__(self, splits: list[Split]) -> None:
        self._splits = splits
        self._told = 0

    def found(self) -> Sequence[Split]:
        new = self._splits[self._told :]
        self._told = len(self._splits)
        return new

    def close(self) -> None:
        """Nothing is open."""


def read(driver: SourceDriver, from_ns: int, to_ns: int) -> list[dict[str, Any]]:
    """Rows of all polls in this time, each poll when the driver says that it is due."""
    found, now_ns = [], from_ns
    while now_ns < to_ns and not driver.finished:
        batch = driver.poll(now_ns)
        if batch is not None:
            found.append(batch)
            continue
        due_ns = driver.next_due_ns()
        now_ns = now_ns + SECOND_NS // 1_000 if due_ns is None else max(due_ns, now_ns + 1)
    return rows_of(found)


def subtasks(source: Many, parallelism: int, restored: tuple[Any, ...] = ()) -> list[tuple[SourceDriver, World]]:
    made = []
    for subtask in range(parallelism):
        world = World(subtask=subtask, parallelism=parallelism)
        spec = spec_of(source, parallelism, max_rows_per_second=600.0)
        made.append((opened(spec, world, restored), world))
    return made


@pytest.mark.slow
@pytest.mark.parametrize(("splits", "parallelism"), [(1, 1), (6, 1), (6, 3), (7, 4), (2, 6)])
def test_all_subtasks_together_read_the_given_number_of_rows(splits: int, parallelism: int) -> None:
    slots = subtasks(Many(splits, 100_000), parallelism)
    rows = sum(len(read(driver, 0, 10 * SECOND_NS)) for driver, _ in slots)
    assert rows == pytest.approx(6_000, abs=10 * parallelism)


def test_a_poll_keeps_the_limit_of_the_caller_of_a_batch_and_of_the_rate() -> None:
    def sizes(per_second: float | None, requested: Sequence[int | None]) -> list[int]:
        spec = spec_of(Many(1, 10_000), max_rows_per_second=per_second, max_rows_per_batch=200)
        driver = opened(spec, World())
        driver.poll(0, 1)
        polled = [driver.poll((1 + at) * SECOND_NS, most) for at, most in enumerate(requested)]
        return [0 if batch is None else batch.count for batch in polled]

    assert sizes(None, (1, 150, 1_000, None)) == [1, 150, 200, 200]
    assert sizes(600.0, (1, 50, 1_000, None)) == [1, 50, 60, 60]


def test_a_batch_for_a_combiner_is_larger_if_it_takes_half_a_chunk() -> None:
    driver = opened(spec_of(Many(1, 10_000), max_rows_per_batch=200), World())

    def size(chunk: int | None) -> int:
        polled = driver.poll(0, chunk)
        return 0 if polled is None else polled.count

    assert [size(chunk) for chunk in (None, 150, 9_999)] == [200, 150, 200]
    driver.takes_more = True
    assert [size(chunk) for chunk in (None, 150, 300, 500, 700, 9_999)] == [200, 150, 200, 250, 350, 800]


@pytest.mark.slow
def test_the_total_is_the_same_after_a_rescale_and_every_row_is_read_once() -> None:
    source, restored = Many(6, 1_000), ()
    seen: list[tuple[int, int]] = []
    for parallelism in (2, 5, 1, 3):
        slots = subtasks(source, parallelism, restored)
        rows = [row for driver, _ in slots for row in read(driver, 0, 2 * SECOND_NS)]
        assert len(rows) == pytest.approx(1_200, abs=10 * parallelism)
        seen += [(row["split"], row["n"]) for row in rows]
        restored = tuple(snapshot_of(driver, world) for driver, world in slots)
    (last, _), *_ = subtasks(source, 1, restored)
    seen += [(row["split"], row["n"]) for row in read(last, 0, 100 * SECOND_NS)]
    assert last.finished
    assert sorted(seen) == [(split, n) for split in range(6) for n in range(1_000)]


def test_subtasks_whose_splits_have_ended_leave_no_share_unused_after_a_restore() -> None:
    worlds = subtasks(Many(4, 100), 4)
    for driver, _ in worlds[1:]:
        read(driver, 0, SECOND_NS)
    read(worlds[0][0], 0, SECOND_NS // 10)
    assert [driver.finished for driver, _ in worlds] == [False, True, True, True]
    restored = tuple(snapshot_of(driver, world) for driver, world in worlds)
    again = subtasks(Many(4, 100), 4, restored)
    left = read(again[0][0], 0, SECOND_NS // 10)
    assert len(left) == pytest.approx(60, abs=10)


def test_subtasks_that_find_their_first_split_later_take_a_share() -> None:
    source = Growing(100_000)
    slots = subtasks(source, 2)
    source.found_splits += [Split("0", b"0")]
    one = [len(read(driver, 0, SECOND_NS)) for driver, _ in slots]
    assert one == [pytest.approx(600, abs=20), 0]
    source.found_splits += [Split("1", b"1")]
    both = [len(read(driver, SECOND_NS, 2 * SECOND_NS)) for driver, _ in slots]
    assert both == [pytest.approx(300, abs=20), pytest.approx(300, abs=20)]


def test_a_limited_split_is_not_idle() -> None:
    spec = spec_of(Many(1, 10), max_rows_per_second=0.1, event_time="n", idle_timeout_ms=1_000)
    driver = opened(spec, World())
    read(driver, 0, 9 * SECOND_NS)
    assert driver.poll(9 * SECOND_NS) is None
    assert not driver.idle


async def test_a_barrier_does_not_wait_for_rows_that_the_limit_holds_back(tmp_path: Path) -> None:
    bench: Any = Bench(tmp_path, max_rows_per_second=1e-6)
    bench.feed.rows[0] += [1, 2, 3]
    await bench.running(5)
    await bench.until(lambda: bench.operators[0].total == 1)
    bench.tell(Trigger(5, 1, 0))
    _, target = await bench.acks(1, 5)
    bench.tell(CheckpointComplete(5, 1))
    assert target.operators[0].values == {"total": b"1"}
    await bench.close()


def limited(**given: Any) -> Dataflow:
    flow = Dataflow("limited")
    flow.source("in", RateSource(1e9, rows=50, splits=2), **given).sink("out", CollectSink())
    return flow


def test_explain_says_the_limit() -> None:
    assert "at most 12,000.5 rows per second, over all subtasks" in limited(max_rows_per_second=12_000.5).explain()
    assert "rows per second, over" not in limited().explain()


def test_a_job_with_a_limit_reads_every_row() -> None:
    flow, out = Dataflow("limited"), CollectSink()
    flow.rate("in", 1e9, rows=50, splits=2, max_rows_per_second=5_000).sink("out", out)
    flow.run_local(parallelism=2)
    assert sorted(row["value"] for row in out.rows()) == list(range(50))


def test_a_limit_that_is_none_is_refused_with_the_name_of_the_source() -> None:
    with pytest.raises(InvalidJob, match="source 'in': max_rows_per_second=0: give a number above 0"):
        limited(max_rows_per_second=0)
