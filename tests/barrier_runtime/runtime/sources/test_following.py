"""`followed_by`: history is read to its end in all slots before a live row is read, also across restores."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from barrier_runtime import CollectSink, Dataflow, InvalidJob, Stream, Tumbling, count
from barrier_runtime.connectors.source import Polled, Split
from barrier_runtime.testing import check
from tests.waiting import until

SCHEMA = pa.schema([("part", pa.string()), ("n", pa.int64()), ("at", pa.int64())])


class Stage:
    """What a test sees of a source and does to it: polls with rows, and how many rows a split may give for now."""

    def __init__(self) -> None:
        self.polls: list[str] = []
        self.may_give = 1_000_000


STAGES: dict[str, Stage] = {}


class Rows:
    """`splits` splits of `rows` rows from event time `from_ms` on, a second apart; one row per poll."""

    schema = SCHEMA
    exactly_once = True

    def __init__(self, part: str, splits: int, rows: int, from_ms: int = 0) -> None:
        self.part = part
        self.count = splits
        self.rows = rows
        self.from_ms = from_ms

    def splits(self, parallelism: int) -> Sequence[Split]:
        return [Split(f"{self.part}-{index}", b"%d" % index) for index in range(self.count)]

    def reader(self, split: Split) -> "RowsReader":
        return RowsReader(self, int(split.payload))


class RowsReader:
    def __init__(self, source: Rows, split: int) -> None:
        self._source = source
        self._split = split
        self._next = 0

    @property
    def finished(self) -> bool:
        return self._next == self._source.rows

    def poll(self, max_rows: int, now_ns: int) -> Polled | None:
        source, stage = self._source, STAGES[self._source.part]
        if self._next >= stage.may_give:
            return None
        stage.polls.append(source.part)
        number, self._next = self._next, self._next + 1
        columns = [[source.part], [self._split * source.rows + number], [source.from_ms + number * 1_000]]
        arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
        return Polled(pa.RecordBatch.from_arrays(arrays, schema=SCHEMA), now_ns)

    def next_due_ns(self) -> int | None:
        return None

    def position(self) -> bytes:
        return b"%d" % self._next

    def seek(self, position: bytes) -> None:
        self._next = int(position)

    def close(self) -> None:
        """Nothing is open."""


@pytest.fixture(autouse=True)
def stages() -> dict[str, Stage]:
    order: list[str] = []
    STAGES.update(history=Stage(), live=Stage())
    STAGES["history"].polls = STAGES["live"].polls = order
    return STAGES


def both(flow: Dataflow, history: int = 3, live: int = 3, rows: int = 40) -> Stream:
    before = flow.source("history", Rows("history", history, rows), event_time="at")
    after = flow.source("live", Rows("live", live, rows, from_ms=rows * 1_000), event_time="at")
    return before.followed_by("orders", after)


def every(history: int = 3, live: int = 3, rows: int = 40) -> list[tuple[str, int]]:
    numbers = [("history", n) for n in range(history * rows)] + [("live", n) for n in range(live * rows)]
    return sorted(numbers)


@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize(("history", "live"), [(1, 5), (5, 1)])
def test_no_live_row_is_read_before_the_last_row_of_history(parallelism: int, history: int, live: int) -> None:
    flow, out = Dataflow("backfill"), CollectSink()
    both(flow, history, live).sink("out", out)
    flow.run_local(parallelism=parallelism)
    assert STAGES["live"].polls == ["history"] * (40 * history) + ["live"] * (40 * live)
    assert sorted((row["part"], row["n"]) for row in out.rows()) == every(history, live)


def test_every_row_is_there_once_with_restores_on_both_sides_of_the_switch(tmp_path: Path) -> None:
    seen: list[tuple[str, int]] = []

    def run(parallelism: int, history: int, live: int, rows: int | None) -> None:
        """Runs until `rows` rows are visible, then stops with a checkpoint; None: to the end."""
        STAGES["history"].may_give, STAGES["live"].may_give = history, live
        STAGES["live"].polls.clear()
        flow, part = Dataflow("backfill"), CollectSink()
        both(flow).sink("out", part)
        job = flow.start_local(checkpoints=str(tmp_path), parallelism=parallelism, checkpoint_interval=0.05)
        if rows is not None:
            until(lambda: len(part.rows()) == rows)
            job.stop()
        job.wait()
        seen.extend((row["part"], row["n"]) for row in part.rows())
        order = STAGES["live"].polls
        assert order == sorted(order), "history, then live"

    run(3, 10, 1_000, 3 * 10)  # before the switch
    run(2, 25, 1_000, 3 * 15)  # before the switch, at another parallelism
    run(3, 1_000, 10, 3 * 15 + 3 * 10)  # across the switch
    run(1, 1_000, 20, 3 * 10)  # behind the switch
    run(2, 1_000, 1_000, None)
    assert sorted(seen) == every()


def test_windows_close_during_history_and_no_row_is_late_at_the_switch() -> None:
    flow, out = Dataflow("backfill"), CollectSink()
    windows = both(flow).window_all("w", Tumbling(10)).aggregate(late=True, n=count())
    late = CollectSink()
    windows.main.sink("out", out)
    windows.late.sink("late", late)
    STAGES["history"].may_give = 35
    job = flow.start_local(parallelism=2, checkpoint_interval=0.05)
    until(lambda: len(out.rows()) >= 3)
    assert "live" not in STAGES["live"].polls
    STAGES["history"].may_give = 1_000
    job.wait()
    assert [row["n"] for row in out.rows()] == [30] * 8
    assert late.rows() == []


def windows_of_both() -> Dataflow:
    flow = Dataflow("backfill")
    windows = both(flow).key_by("part").window("w", Tumbling(10)).aggregate(late=True, n=count())
    windows.main.sink("out", CollectSink())
    windows.late.sink("late", CollectSink())
    return flow


def test_a_crash_in_any_phase_before_or_after_the_switch_changes_no_row() -> None:
    def rows(part: str, split: int, from_ms: int) -> list[dict[str, Any]]:
        return [{"part": part, "n": split, "at": from_ms + number * 1_000} for number in range(30)]

    history = [rows("history", split, 0) for split in range(3)]
    live = [rows("live", split, 30_000) for split in range(2)]
    checked = check(windows_of_both, {"history": history, "live": live}, parallelism=3)
    assert checked.rows["late"] == 0


def test_the_plan_says_what_is_read_first() -> None:
    flow = Dataflow("backfill")
    both(flow).sink("out", CollectSink())
    assert "read after the first input of 'orders' has ended" in flow.explain()


def test_streams_that_cannot_follow_one_another_are_refused(tmp_path: Path) -> None:
    flow = Dataflow("backfill")
    rows = flow.source("history", Rows("history", 1, 1))
    with pytest.raises(InvalidJob, match="followed_by 'a': source 'history' is above both streams"):
        rows.followed_by("a", rows.filter("n > 1"))
    with pytest.raises(InvalidJob, match="followed_by 'b': one input has"):
        rows.followed_by("b", flow.source("other", Rows("live", 1, 1)).drop("n"))
    other: Any = Dataflow("other").source("in", Rows("live", 1, 1))
    with pytest.raises(InvalidJob, match=r"followed_by 'c': .* is not a stream of flow 'backfill'"):
        rows.followed_by("c", other)
    (tmp_path / "a.jsonl").write_text('{"part": "a", "n": 1, "at": 1}\n')
    watched = flow.read_jsonl("watched", str(tmp_path), schema=SCHEMA, watch=1)
    with pytest.raises(InvalidJob, match="source 'watched' looks for new rows for ever, so the later stream"):
        watched.followed_by("d", rows)
