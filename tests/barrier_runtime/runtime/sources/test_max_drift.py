"""`max_drift`: splits ahead of the job's slowest split pause until the slowest split catches up."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from operator_harness import Driven, World
from source_harness import CountedReader, opened, snapshot_of, spec_of

from barrier_runtime.connectors.source import Polled, Split
from barrier_runtime.coordinator.job.generation import NOBODY_MS, UNKNOWN_MS, ReachedEventTimes
from barrier_runtime.coordinator.wire.messages import HeldBack
from barrier_runtime.data.elements import WATERMARK_MAX, WATERMARK_MIN
from barrier_runtime.operators.joins.base import Side
from barrier_runtime.operators.joins.interval import IntervalJoinOperator
from barrier_runtime.runtime.sources.driver import SourceDriver
from barrier_runtime.runtime.sources.progress_reports import LOOK_S, EventTimeTelling
from tests.drawn import examples

SCHEMA = pa.schema([("split", pa.int64()), ("t", pa.int64())])
DRIFT_MS = 50


class Numbers:
    """`rows` rows per split; event time rises by `step_ms[split]` per row. All rows are available at once, except that
    the split `silent` has a row and never ends.
    """

    schema = SCHEMA
    exactly_once = True

    def __init__(self, rows: int, *step_ms: int, silent: int | None = None) -> None:
        self.rows = rows
        self.step_ms = step_ms
        self.silent = silent

    def splits(self, parallelism: int) -> Sequence[Split]:
        return [Split(str(index), b"%d" % index) for index in range(len(self.step_ms))]

    def reader(self, split: Split) -> "NumbersReader":
        number = int(split.payload)
        if number == self.silent:
            return SilentReader(1, number, self.step_ms[number])
        return NumbersReader(self.rows, number, self.step_ms[number])


class NumbersReader(CountedReader):
    def __init__(self, rows: int, split: int, step_ms: int) -> None:
        super().__init__(rows)
        self._split = split
        self._step_ms = step_ms

    def poll(self, max_rows: int, now_ns: int) -> Polled:
        end = min(self._rows, self._next + max_rows)
        times = [number * self._step_ms for number in range(self._next, end)]
        self._next = end
        split = pa.array([self._split] * len(times), pa.int64())
        return Polled(pa.RecordBatch.from_arrays([split, pa.array(times, pa.int64())], schema=SCHEMA), 0)


class SilentReader(NumbersReader):
    finished = False

    def poll(self, max_rows: int, now_ns: int) -> Polled | None:  # type: ignore[override]
        return None if self._next == self._rows else super().poll(max_rows, now_ns)


def drivers(source: Numbers, subtasks: int, **options: Any) -> list[SourceDriver]:
    """Returns a driver per subtask; the drivers wait for each other."""
    spec = spec_of(source, event_time="t", **options)
    made = [opened(spec, World(subtask=subtask, parallelism=subtasks)) for subtask in range(subtasks)]
    for driver in made:
        driver.wait_for_slower(DRIFT_MS)
    return made


def told(driver: SourceDriver) -> dict[str, HeldBack]:
    return {} if driver.finished else {"src": HeldBack(*driver.least_far(), driver.idle)}


def greatest(driver: SourceDriver, batch_of: int = 1) -> int | None:
    """The event time of the last row of the next batch."""
    batch = driver.poll(0, batch_of)
    return None if batch is None else batch.rows.column("t")[-1].as_py()


def test_until_the_job_has_told_no_split_is_read_on_that_has_had_rows() -> None:
    (driver,) = drivers(Numbers(10, 1, 1), 1)
    assert [greatest(driver), greatest(driver), greatest(driver)] == [0, 0, None]
    assert driver.waiting_splits == 2
    driver.lowest_in_job(-1)
    assert greatest(driver) == 1


@pytest.mark.parametrize("bound_ms", [0, 7])
def test_a_split_is_read_as_long_as_it_is_no_further_ahead_than_the_drift(bound_ms: int) -> None:
    (driver,) = drivers(Numbers(100, 10), 1, max_out_of_orderness_ms=bound_ms)
    driver.lowest_in_job(0 - bound_ms - 1)  # somewhere a split is at 0 ms
    assert [greatest(driver) for _ in range(8)] == [0, 10, 20, 30, 40, 50, 60, None]
    driver.lowest_in_job(11 - bound_ms - 1)
    assert [greatest(driver), greatest(driver)] == [70, None]


def test_a_split_that_waits_does_not_keep_the_slot_awake() -> None:
    (driver,) = drivers(Numbers(100, 10), 1)
    assert driver.next_due_ns() is None, "as soon as may be"
    greatest(driver)
    assert driver.poll(5) is None
    assert driver.next_due_ns() == 1_000_000_005
    driver.lowest_in_job(WATERMARK_MAX)
    assert driver.next_due_ns() is None


def test_a_split_with_rows_waits_also_after_a_restore() -> None:
    spec = spec_of(Numbers(100, 10), event_time="t")
    world = World()
    driver = opened(spec, world)
    driver.poll(0, 3)
    restored = opened(spec, World(), (snapshot_of(driver, world),))
    restored.wait_for_slower(DRIFT_MS)
    assert restored.poll(0) is None
    assert restored.waiting_splits == 1


def test_a_split_that_waits_for_longer_than_the_idle_timeout_is_not_idle() -> None:
    (driver,) = drivers(Numbers(100, 10), 1, idle_timeout_ms=20)
    driver.lowest_in_job(-1)
    assert [greatest(driver) for _ in range(8)] == [0, 10, 20, 30, 40, 50, 60, None]
    for now_ms in (10, 100, 1_000):
        assert driver.poll(now_ms * 1_000_000) is None
        assert (driver.idle, driver.idle_splits(9), driver.watermark()) == (False, ([], 0), 59)
        assert driver.least_far() == ("0", 59)


@pytest.mark.parametrize("subtasks", [1, 2])
@pytest.mark.parametrize("idle_timeout_ms", [20, None])
def test_a_silent_split_holds_the_others_until_it_is_idle(subtasks: int, idle_timeout_ms: int | None) -> None:
    made = drivers(Numbers(40, 10, 10, silent=1), subtasks, idle_timeout_ms=idle_timeout_ms)
    job, rows, now_ms = ReachedEventTimes(), list[int](), 0
    for _ in range(100):
        for subtask, driver in enumerate(made):
            job.reported(subtask, told(driver))
            driver.lowest_in_job(job.lowest_ms(subtasks))
            batch = driver.poll(now_ms * 1_000_000, 1)
            if batch is not None and batch.rows.column("split")[0].as_py() == 0:
                rows += batch.rows.column("t").to_pylist()
        now_ms += 5
    assert rows == [number * 10 for number in range(7 if idle_timeout_ms is None else 40)]


def test_a_source_without_event_time_and_a_job_without_drift_wait_for_nobody() -> None:
    without_time = opened(spec_of(Numbers(3, 10)), World())
    without_time.wait_for_slower(DRIFT_MS)
    without_time.lowest_in_job(WATERMARK_MIN)
    without_drift = opened(spec_of(Numbers(3, 10), event_time="t"), World())
    without_drift.lowest_in_job(WATERMARK_MIN)
    for driver in (without_time, without_drift):
        assert [greatest(driver) for _ in range(3)] == [0, 10, 20]
        assert driver.waiting_splits == 0


@given(
    steps=st.lists(st.integers(1, 200), min_size=2, max_size=5),
    order=st.lists(st.tuples(st.integers(0, 2), st.booleans(), st.integers(1, 4)), max_size=60),
)
@examples(25)
def test_however_slots_poll_and_tell_none_is_ahead_by_more_and_all_come_to_their_end(
    steps: list[int], order: list[tuple[int, bool, int]]
) -> None:
    subtasks, rows = 3, 8
    made = drivers(Numbers(rows, *steps), subtasks)
    job, reached = ReachedEventTimes(), dict.fromkeys(range(len(steps)), (-1, 0))  # greatest and rows

    def poll(subtask: int, most: int) -> None:
        batch = made[subtask].poll(0, most)
        if batch is None:
            return
        split = batch.rows.column("split")[0].as_py()
        before, count = reached[split]
        lowest = min((at for at, had in reached.values() if had < rows), default=0)
        assert before <= max(lowest, 0) + DRIFT_MS
        assert before < 0 or lowest >= 0, "one that has no row yet holds all others"
        reached[split] = batch.rows.column("t")[-1].as_py(), count + len(batch)

    def tell(subtask: int) -> None:
        job.reported(subtask, told(made[subtask]))
        made[subtask].lowest_in_job(job.lowest_ms(subtasks))

    for subtask, polls, most in order:
        poll(subtask, most) if polls else tell(subtask)
    for _ in range(len(steps) * rows * 2 + subtasks):  # in turns: some driver always advances
        for subtask in range(subtasks):
            tell(subtask)
            poll(subtask, 1)
    assert all(driver.finished for driver in made)


@pytest.mark.slow
def test_a_join_holds_what_the_drift_brings_of_the_fast_side_and_no_more() -> None:
    """3.14: at most 1.2 times the rows of the drift, while a fast stream catches up with a slow stream."""
    side = Side(("split",), "t", SCHEMA)
    join = IntervalJoinOperator("j", side, side, (timedelta(0), timedelta(0)))
    driven = Driven(join)
    fast, slow = (drivers(Numbers(1_000, 1), 1)[0] for _ in range(2))
    job, most = ReachedEventTimes(), 0
    while not slow.finished:
        job.reported(0, told(fast))
        job.reported(1, told(slow))
        for port, driver in enumerate((fast, slow)):
            driver.lowest_in_job(job.lowest_ms(2))
            for _ in range(1_000 if driver is fast else 1):  # the fast driver emits all allowed rows
                if driver.finished or (batch := driver.poll(0, 5)) is None:
                    break
                driven.feed(batch.rows, port=port)
        event_times = [driver.watermark() for driver in (fast, slow)]
        driven.watermark(min(WATERMARK_MIN if at is None else at for at in event_times))
        most = max(most, len(join._buffers[0]))
    assert DRIFT_MS * 0.8 <= most <= DRIFT_MS * 1.2
    assert len(driven.rows) == 1_000


# ---------------------------------------------------------------- the coordinator's answers


def test_nobody_goes_ahead_until_all_slots_have_told() -> None:
    job = ReachedEventTimes()
    job.reported(0, {"a": HeldBack("a-0", 7_000)})
    assert job.lowest_ms(2) == UNKNOWN_MS == WATERMARK_MIN
    job.reported(1, {"a": HeldBack("a-1", 9_000), "b": HeldBack("b-1", 6_000)})
    assert job.lowest_ms(2) == 6_000
    job.reported(1, {"a": HeldBack("a-1", 9_000)})  # `b` has ended there
    assert job.lowest_ms(2) == 7_000


def test_a_split_without_rows_holds_the_others_and_an_idle_one_does_not() -> None:
    job = ReachedEventTimes()
    job.reported(0, {"a": HeldBack("a-0", 7_000)})
    job.reported(1, {"a": HeldBack("a-1", None)})
    assert job.lowest_ms(2) == UNKNOWN_MS
    job.reported(1, {"a": HeldBack("", None, idle=True)})
    assert job.lowest_ms(2) == 7_000
    job.reported(0, {})
    assert job.lowest_ms(2) == NOBODY_MS == WATERMARK_MAX


# ---------------------------------------------------------------- when a slot tells


def test_a_slot_tells_what_has_changed_and_else_asks_ever_more_seldom() -> None:
    telling, here, later = EventTimeTelling(), {"a": HeldBack("a-0", 1)}, {"a": HeldBack("a-0", 2)}
    assert telling.due(here, 0.0)
    asked = [tick for tick in range(1, 200) if telling.due(here, tick * LOOK_S)]
    gaps = [after - before for before, after in zip([0, *asked], asked, strict=False)]
    assert gaps[:4] == [1, 2, 4, 8]
    assert 20 <= max(gaps) <= 21, "once a second"
    assert telling.due(later, 200 * LOOK_S)


def test_subtask_asks_at_once_when_others_move_or_the_coordinator_may_have_changed() -> None:
    telling, here = EventTimeTelling(), {"a": HeldBack("a-0", 1)}
    for tick in range(100):
        telling.due(here, tick * LOOK_S)
    telling.answered(5)
    assert telling.due(here, 100 * LOOK_S)
    telling.answered(5)
    assert not telling.due(here, 100 * LOOK_S)
    telling.forget()
    assert telling.due(here, 100 * LOOK_S)
