"""Splits, order between splits, watermarks, positions and schedules, independent of any file format."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from operator_harness import World
from source_harness import drained, opened, rows_of, snapshot_of, spec_of

from barrier_runtime.connectors.memory import iterator
from barrier_runtime.connectors.memory.iterator import IteratedRows
from barrier_runtime.connectors.memory.rate import GeneratedRows
from barrier_runtime.connectors.pacing import Schedule
from barrier_runtime.connectors.source import Polled, Split
from barrier_runtime.state.errors import InvalidJob, UserCodeError
from tests.drawn import examples


@pytest.fixture(autouse=True)
def full_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Iterators fill a batch before they return rows, on a machine of any speed."""
    monkeypatch.setattr(iterator, "_TIMEOUT_S", 30.0)


SECOND_NS = 1_000_000_000
SCHEMA = pa.schema([("split", pa.int64()), ("n", pa.int64()), ("t", pa.int64())])


def numbers(rows: int, step_ms: tuple[int, ...] = (1,)) -> IteratedRows:
    """`rows` rows per split; event time rises by `step_ms[split]` per row."""

    def make(index: int, of: int) -> Iterator[dict[str, Any]]:
        step = step_ms[index % len(step_ms)]
        return ({"split": index, "n": n, "t": n * step} for n in range(rows))

    return IteratedRows("src", make, SCHEMA, True, None)


# ---------------------------------------------------------------- splits and order


def test_split_i_belongs_to_subtask_i_modulo_parallelism() -> None:
    spec = spec_of(numbers(3), 5)
    for subtask in range(2):
        driver = opened(spec, World(subtask=subtask, parallelism=2))
        assert {row["split"] for row in rows_of(drained(driver))} == set(range(subtask, 5, 2))


def test_a_subtask_without_splits_is_finished_at_once() -> None:
    driver = opened(spec_of(numbers(3), 1), World(subtask=1, parallelism=2))
    assert driver.finished
    assert driver.watermark() is None
    assert driver.poll(0) is None


def test_the_split_whose_event_time_is_furthest_behind_is_read_first() -> None:
    driver = opened(spec_of(numbers(100, (10, 1)), 2, event_time="t"), World())
    order = []
    while (batch := driver.poll(0, 10)) is not None:
        order.append(batch.rows.column("split")[0].as_py())
    assert order[:4] == [0, 1, 1, 1]  # split 0 is at 90 ms; split 1 catches up in steps of 10 ms …
    assert order.index(0, 1) == 11  # … to 90 ms or more


def test_without_event_time_splits_take_turns() -> None:
    driver = opened(spec_of(numbers(4), 3), World())
    order = [driver.poll(0, 2).rows.column("split")[0].as_py() for _ in range(6)]  # type: ignore[union-attr]
    assert order == [0, 1, 2, 0, 1, 2]


# ---------------------------------------------------------------- watermarks


def test_the_watermark_is_the_lowest_of_the_unfinished_splits_minus_the_bound() -> None:
    driver = opened(spec_of(numbers(20, (10, 1)), 2, event_time="t", max_out_of_orderness_ms=5), World())
    assert driver.watermark() is None
    driver.poll(0, 10)
    assert driver.watermark() is None  # split 1 has no row yet
    driver.poll(0, 10)
    assert driver.watermark() == 9 - 5 - 1
    drained(driver)
    assert driver.watermark() == 190 - 5 - 1


def test_a_finished_split_does_not_hold_the_watermark_back() -> None:
    driver = opened(spec_of(numbers(5, (1, 100)), 2, event_time="t"), World())
    driver.poll(0, 3)
    driver.poll(0, 3)
    driver.poll(0, 3)  # ends split 0 at 4 ms
    driver.poll(0, 1)
    assert driver.watermark() == 300 - 1


def test_null_event_times_are_ignored_and_untimed_sources_have_no_watermark() -> None:
    source = IteratedRows("src", lambda i, n: iter([{"t": None}, {"t": 7}, {"t": None}, {"t": 9}]), SCHEMA, True, None)
    driver = opened(spec_of(source, 1, event_time="t"), World())
    driver.poll(0, 1)
    assert driver.watermark() is None
    driver.poll(0, 2)
    assert driver.watermark() == 6
    driver = opened(spec_of(source, 1), World())
    driver.poll(0, 1)
    assert driver.watermark() is None


def test_a_split_that_is_silent_for_long_is_not_waited_for() -> None:
    class Silent(GeneratedRows):
        """Source whose split 1 never yields a row."""

        def reader(self, split: Any) -> Any:
            made = super().reader(split)
            if split.id.startswith("1"):
                made.poll = lambda max_rows, now_ns: None
            return made

    source = Silent("src", 2_000, None, None, None)
    spec = spec_of(source, 2, event_time="intended_at", idle_timeout_ms=50)
    driver = opened(spec, World())
    driver.poll(0)
    assert driver.watermark() is None
    for ms in range(1, 70):
        driver.poll(ms * 1_000_000)
    assert driver.watermark() == 68
    assert not driver.idle


@pytest.mark.parametrize(("interval_ms", "told"), [(0, list(range(-1, 99))), (10, [*range(-1, 99, 10), 98])])
def test_operators_that_do_not_wait_for_watermarks_hear_of_few(interval_ms: int, told: list[int]) -> None:
    """A row per millisecond: the first row's watermark is emitted at once, and the last row's before the end."""
    source = GeneratedRows("src", 1_000, 100, None, 1)
    spec = spec_of(source, 1, event_time="intended_at")
    driver = opened(dataclasses.replace(spec, watermark_interval_ms=interval_ms), World())
    found, last_ms, now_ms = [], -2, -1
    while not driver.finished:
        now_ms += 1
        driver.poll(now_ms * 1_000_000, 1)
        watermark_ms = driver.watermark_to_tell(last_ms, now_ms * 1_000_000)
        if watermark_ms is not None:
            found.append(watermark_ms)
            last_ms = watermark_ms
    assert now_ms == 99
    assert found == told


def test_a_wrong_event_time_column_is_named() -> None:
    with pytest.raises(InvalidJob, match="no event-time column 'at': it has split, n, t"):
        opened(spec_of(numbers(1), 1, event_time="at"), World())


# ---------------------------------------------------------------- positions


@examples(40)
@given(st.lists(st.one_of(st.integers(1, 40), st.none()), max_size=20), st.integers(1, 4))
def test_polls_and_restarts_in_any_order_give_every_row_once_in_order(polls: list[int | None], splits: int) -> None:
    spec, world = spec_of(numbers(50), splits, event_time="t"), World()
    driver, batches = opened(spec, world), []
    for rows in [*polls, None]:
        if rows is None:
            restored = (snapshot_of(driver, world),)
            before = driver.records
            driver.close()
            driver = opened(spec, world, restored)
            assert driver.records == before
        elif (batch := driver.poll(0, rows)) is not None:
            batches.append(batch)
    rows = rows_of(batches + drained(driver))
    for split in range(splits):
        assert [row["n"] for row in rows if row["split"] == split] == list(range(50))
    assert driver.records == 50 * splits


def test_a_finished_split_stays_finished_after_a_restore() -> None:
    """C18"""
    spec, world = spec_of(numbers(3), 2), World()
    driver = opened(spec, world)
    drained(driver)
    driver = opened(spec, world, (snapshot_of(driver, world),))
    assert driver.finished
    assert driver.records == 6


def test_the_watermark_goes_on_where_it_was_after_a_restore() -> None:
    spec, world = spec_of(numbers(10), 1, event_time="t"), World()
    driver = opened(spec, world)
    driver.poll(0, 5)
    driver = opened(spec, world, (snapshot_of(driver, world),))
    assert driver.watermark() == 4 - 1


def test_positions_are_found_when_the_splits_are_spread_over_other_subtasks() -> None:
    """R1, for sources: 2 subtasks become 3."""
    source = IteratedRows("src", lambda i, n: ({"split": i, "n": k} for k in range(10)), SCHEMA, True, 6)
    old = [World(subtask=subtask, parallelism=2) for subtask in range(2)]
    snapshots = []
    for world in old:
        driver = opened(spec_of(source, 2), world)
        driver.poll(0, 4)
        driver.poll(0, 10)
        driver.poll(0, 10)
        snapshots.append(snapshot_of(driver, world))
    rest, records = [], 0
    for subtask in range(3):
        driver = opened(spec_of(source, 3), World(subtask=subtask, parallelism=3), tuple(snapshots))
        rest += rows_of(drained(driver))
        records += driver.records
    assert records == 60
    assert len(rest) == 60 - 2 * (4 + 10 + 10)


def test_a_split_that_is_gone_before_it_was_read_to_its_end_is_an_error() -> None:
    world = World()
    driver = opened(spec_of(numbers(5), 2), world)
    driver.poll(0, 3)
    with pytest.raises(InvalidJob, match=r"split '0-of-2' was read up to row 3 but is not there any more"):
        opened(spec_of(numbers(5), 1), world, (snapshot_of(driver, world),))


@pytest.mark.parametrize("read", [2, 3])
def test_changed_number_of_shares_is_refused_if_earlier_shares_were_read_to_the_end(read: int) -> None:
    """Shares divide the same rows. A share that was never polled is in no snapshot."""
    world = World()
    before = IteratedRows("src", lambda i, n: iter([{"n": i}]), SCHEMA, True, 3)
    driver = opened(spec_of(before), world)
    if read == 3:
        drained(driver)
    else:
        driver.poll(0, 1)
        driver.poll(0, 1)
    snapshots = (snapshot_of(driver, world),)
    with pytest.raises(InvalidJob, match=r"has 2 splits now.*of another number.*rows would be read again: give it as"):
        opened(spec_of(IteratedRows("src", lambda i, n: iter([{"n": i}]), SCHEMA, True, 2)), world, snapshots)
    assert len(drained(opened(spec_of(before), world, snapshots))) == 3 - read


def test_files_that_were_read_to_their_end_may_be_gone_and_others_may_have_come() -> None:
    class Files(IteratedRows):
        """Source whose splits are not shares."""

    def listed(*names: str) -> Any:
        spec = spec_of(Files("src", lambda i, n: iter([{"n": i}]), SCHEMA, True, 1))
        return dataclasses.replace(spec, splits=tuple(Split(name, spec.splits[0].payload) for name in names))

    world = World()
    driver = opened(listed("a", "b"), world)
    drained(driver)
    assert len(drained(opened(listed("b", "c"), world, (snapshot_of(driver, world),)))) == 1


def test_finished_split_that_vanished_is_remembered_and_not_read_on_its_return() -> None:
    world, source = World(), IteratedRows("src", lambda i, n: iter([{"n": i}]), SCHEMA, True, 2)
    spec = spec_of(source)
    driver = opened(spec, world)
    drained(driver)
    shorter = type(spec)(spec.name, spec.source, spec.splits[1:])
    driver = opened(shorter, world, (snapshot_of(driver, world),))
    driver = opened(spec, world, (snapshot_of(driver, world),))
    assert driver.finished


def test_moved_split_with_a_changed_list_is_refused_rather_than_read_twice() -> None:
    world = World(subtask=0, parallelism=2)
    source = IteratedRows("src", lambda i, n: iter([{"n": i}] * 3), SCHEMA, True, 4)
    spec = spec_of(source)
    driver = opened(spec, world)
    driver.poll(0, 1)
    moved = type(spec)(spec.name, spec.source, (spec.splits[3], *spec.splits[:3]))
    with pytest.raises(InvalidJob, match="now belongs to another subtask"):
        opened(moved, world, (snapshot_of(driver, world),))


# ---------------------------------------------------------------- iterators


def test_an_exception_in_an_iterator_is_the_users_error_with_the_row_number() -> None:
    def make(index: int, of: int) -> Iterator[dict[str, Any]]:
        yield {"n": 1}
        raise ZeroDivisionError("oops")

    driver = opened(spec_of(IteratedRows("src", make, SCHEMA, True, None)), World())
    assert rows_of([driver.poll(0)]) == [{"split": None, "n": 1, "t": None}]  # type: ignore[list-item]
    with pytest.raises(UserCodeError, match=r"row 1 of split 0.*of operator 'src'.*ZeroDivisionError: oops"):
        driver.poll(0)


def test_a_row_that_does_not_fit_the_schema_is_named() -> None:
    source = IteratedRows("src", lambda i, n: iter([{"n": "x"}]), SCHEMA, True, None)
    with pytest.raises(InvalidJob, match="column 'n' is int64, but a row has 'x'"):
        opened(spec_of(source), World()).poll(0)


# ---------------------------------------------------------------- schedules and the rate source


@examples(100)
@given(st.floats(0.1, 1e7), st.integers(0, 10**7), st.integers(0, 10**13))
def test_exactly_the_rows_whose_time_has_come_are_due(rate: float, row: int, later_ns: int) -> None:
    schedule = Schedule(rate)
    schedule.begin(10**18, 0)
    now_ns = 10**18 + later_ns
    due = schedule.due_rows(row, now_ns)
    assert due == 0 or schedule.due_ns(row + due - 1) <= now_ns
    assert schedule.due_ns(row + due) > now_ns


def test_the_rate_source_emits_each_value_once_when_it_is_due() -> None:
    spec = spec_of(GeneratedRows("src", 1_000, 250, 7, None), 2)
    values, now_ns = [], 5 * SECOND_NS
    drivers = [opened(spec, World(subtask=subtask, parallelism=2)) for subtask in range(2)]
    for step in range(0, 260, 10):
        for driver in drivers:
            batch = driver.poll(now_ns + step * 1_000_000)
            if batch is not None:
                rows = batch.rows.to_pydict()
                values += rows["value"]
                assert rows["key"] == [value % 7 for value in rows["value"]]
                first = batch.rows.column("intended_at").cast(pa.int64())[0].as_py()
                assert batch.emit_ns == first == now_ns + rows["value"][0] // 2 * 2 * 1_000_000
    assert sorted(values) == list(range(250))
    assert all(driver.finished for driver in drivers)


def test_next_due_says_when_to_come_back() -> None:
    driver = opened(spec_of(GeneratedRows("src", 100, None, None, None)), World())
    assert driver.next_due_ns() is None  # the schedule begins with the first poll
    driver.poll(SECOND_NS)
    assert driver.next_due_ns() == SECOND_NS + 10_000_000
    assert driver.poll(SECOND_NS + 9_999_999) is None


def test_rows_of_a_schedule_are_due_for_a_poll_when_they_have_waited_for_others() -> None:
    """A poll returns all due rows: the slot decides how long rows wait."""
    driver = opened(spec_of(GeneratedRows("src", 100_000, None, None, None)), World())
    assert driver.poll(SECOND_NS) is not None
    assert driver.next_due_ns() == SECOND_NS + 10_000
    assert driver.next_due_ns(gathering_ns=500_000) == SECOND_NS + 510_000
    batch = driver.poll(SECOND_NS + 100_000)
    assert batch is not None
    assert batch.rows.num_rows == 10


def test_a_backlog_is_read_without_a_rest() -> None:
    driver = opened(spec_of(GeneratedRows("src", 100_000, None, None, None)), World())
    assert driver.poll(SECOND_NS) is not None
    late_ns = 2 * SECOND_NS
    batches = [driver.poll(late_ns, 1_000) for _ in range(100)]
    assert [batch.rows.num_rows for batch in batches if batch is not None] == [1_000] * 100


def test_schedule_continues_after_an_outage_and_backlog_keeps_its_intended_times() -> None:
    spec, world = spec_of(GeneratedRows("src", 1_000, None, None, None)), World()
    driver = opened(spec, world)
    driver.poll(SECOND_NS)
    driver = opened(spec, world, (snapshot_of(driver, world),))
    batch = driver.poll(3 * SECOND_NS, 10_000)
    assert batch is not None
    assert batch.rows.num_rows == 2_000
    assert batch.emit_ns == SECOND_NS + 1_000_000


@pytest.mark.parametrize("arguments", [(0, None, None), (-1, None, None), (5, 0, None), (5, 5, 0)])
def test_a_rate_of_nothing_is_refused(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(InvalidJob, match="give a number above 0"):
        GeneratedRows("src", *arguments, None)


class Backlog:
    """A source of two splits to which the test adds rows (event times in ms)."""

    exactly_once = True
    schema = pa.schema({"t": pa.int64()})

    def __init__(self) -> None:
        self.waiting: dict[str, list[list[int]]] = {"a": [], "b": []}

    def splits(self, parallelism: int) -> list[Split]:
        return [Split(name) for name in self.waiting]

    def reader(self, split: Split) -> "BacklogReader":
        return BacklogReader(self.waiting[split.id])


class BacklogReader:
    finished = False

    def __init__(self, waiting: list[list[int]]) -> None:
        self._waiting = waiting

    def poll(self, max_rows: int, now_ns: int) -> Polled | None:
        if not self._waiting:
            return None
        return Polled(pa.RecordBatch.from_pydict({"t": self._waiting.pop(0)}, schema=Backlog.schema), now_ns)

    def next_due_ns(self) -> int | None:
        return None

    def position(self) -> bytes:
        return b"0"

    def seek(self, position: bytes) -> None: ...
    def close(self) -> None: ...


class Fetching(Backlog):
    def reader(self, split: Split) -> "BacklogReader":
        return FetchingReader(self.waiting[split.id])


class FetchingReader(BacklogReader):
    """Knows whether rows are available and polls again soon if none are, like readers that fetch on a thread."""

    asked_ns = 0

    def poll(self, max_rows: int, now_ns: int) -> Polled | None:
        self.asked_ns = now_ns
        return super().poll(max_rows, now_ns)

    def next_due_ns(self) -> int | None:
        return None if self._waiting else self.asked_ns + 1_000_000


def test_rows_that_are_there_are_given_whatever_the_clock_did_since_the_last_ones() -> None:
    source = Fetching()
    driver = opened(spec_of(source, 2), World())
    now_ns = 10**18
    source.waiting["a"] += [[1]]
    assert driver.poll(now_ns) is not None
    source.waiting["a"] += [[2]]
    assert driver.next_due_ns(gathering_ns=1_000_000) is None  # at once
    assert driver.poll(now_ns - 3_600 * SECOND_NS) is not None


def test_a_split_whose_rows_wait_for_their_turn_is_not_idle() -> None:
    """The other split is behind in event time and is read first for longer than the timeout."""
    source = Backlog()
    driver = opened(spec_of(source, 2, event_time="t", idle_timeout_ms=1_000), World())
    source.waiting["a"] += [[10_000], [10_001]]
    source.waiting["b"] += [[8_000 + 100 * step] for step in range(19)] + [[9_990, 15_000]]
    for step in range(21):
        driver.poll(step * 150_000_000)
    assert source.waiting == {"a": [[10_001]], "b": []}
    assert driver.watermark() == 9_999


def test_a_source_whose_splits_are_all_silent_is_idle_until_rows_come() -> None:
    source = Backlog()
    driver = opened(spec_of(source, 2, event_time="t", idle_timeout_ms=1_000), World())
    source.waiting["a"] += [[10]]
    source.waiting["b"] += [[20]]
    for step in range(4):
        driver.poll(step * 400_000_000)
    assert (driver.idle, driver.idle_splits(9)) == (False, ([], 0))
    for step in range(4, 8):
        driver.poll(step * 400_000_000)
    assert (driver.idle, driver.idle_splits(9), driver.idle_splits(1)) == (True, (["a", "b"], 2), (["a"], 2))
    assert driver.watermark() is None
    source.waiting["b"] += [[30]]
    driver.poll(3_300_000_000)
    assert (driver.idle, driver.idle_splits(9)) == (False, (["a"], 1))


def test_a_source_that_is_asked_only_when_it_is_due_is_idle_too() -> None:
    """The rows are due in an hour, and no other split causes a poll."""

    class Hourly(BacklogReader):
        def next_due_ns(self) -> int | None:
            return None if self._waiting else 3_600 * SECOND_NS

    class Source(Backlog):
        def reader(self, split: Split) -> BacklogReader:
            return Hourly(self.waiting[split.id])

    source = Source()
    source.waiting["a"] += [[10]]
    driver = opened(spec_of(source, 2, event_time="t", idle_timeout_ms=1_000), World())
    now_ns = asked = 0
    while now_ns < 3_600 * SECOND_NS:
        driver.poll(now_ns)
        if driver.idle:
            break
        now_ns, asked = max(now_ns, driver.next_due_ns() or 0), asked + 1
        assert asked < 20
    assert SECOND_NS < now_ns < 3 * SECOND_NS
    assert driver.next_due_ns() == 3_600 * SECOND_NS


def test_what_was_not_asked_for_long_has_not_been_silent_for_long() -> None:
    """After back-pressure or a stalled process, the first poll says nothing about the time before."""
    source = Backlog()
    driver = opened(spec_of(source, 2, event_time="t", idle_timeout_ms=1_000), World())
    for now_ns in (0, 400_000_000, 60_000_000_000):
        driver.poll(now_ns)
    assert not driver.idle
