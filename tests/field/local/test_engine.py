"""The engine: errors that a person must resolve, stops, options and figures of a running job."""

from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from barrier_runtime import CallableSink, CollectSink, Dataflow, Tumbling, count, sum_
from barrier_runtime.coordinator.option_table import OPTIONS
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.kv.rocksdb import SlotMemory


# Source: our own trial
def test_the_least_memory_for_state_that_an_option_takes_is_enough_for_a_slot() -> None:
    least = int(OPTIONS["state_memory_mb"].low or 0)
    assert SlotMemory(least << 20).total_bytes == least << 20
    flow = Dataflow("little")
    flow.from_iterator("rows", lambda index, of: iter(()), schema={"x": int}).sink("out", CollectSink())
    with pytest.raises(InvalidJob, match="state_memory_mb"):
        flow.run_local(state_memory_mb=least - 1)


def numbers(index: int, of: int) -> Iterator[dict[str, int]]:
    return ({"value": value} for value in range(index, 1 << 40, of))


# Source: our own trial
@pytest.mark.slow
@pytest.mark.parametrize("drain", [False, True], ids=["stopped", "drained"])
def test_an_at_least_once_sink_writes_no_row_twice_after_a_graceful_stop(tmp_path: Path, drain: bool) -> None:
    rows: list[tuple[object, ...]] = []

    def taken(name: str) -> CallableSink:
        return CallableSink(lambda batch: rows.extend((name, *row.values()) for row in batch.to_pylist()))

    for _ in range(2):
        flow = Dataflow("stopped")
        flow.rate("rate", 20_000).select(["value"]).sink("rates", taken("rate"))
        read = flow.from_iterator("iterator", numbers, schema={"value": int})
        read.rebalance().sink("numbers", taken("iterator"))
        parity = read.select({"odd": "value % 2"}).key_by("odd")
        windows = parity.window("by-time", Tumbling(timedelta(milliseconds=20)), clock="processing").aggregate(
            n=count()
        )
        windows.select(["odd", "window_start"]).sink("windows", taken("window"))
        before = len(rows)
        job = flow.start_local(
            parallelism=2, checkpoint_interval=0.05, checkpoints=str(tmp_path / "checkpoints"), allow_drained=True
        )
        while job.status().checkpoints.completed < 3 or len(rows) < before + 1_000:
            assert not job.done, job
        job.stop(drain=drain)
        job.wait(60)
    assert {row[0] for row in rows} == {"rate", "iterator", "window"}
    if drain:  # docs/windows.md: after a drained job, a successor may emit a window again, without earlier rows
        rows = [row for row in rows if row[0] != "window"]
    assert [row for row, times in Counter(rows).items() if times > 1] == []


# Source: our own trial
@pytest.mark.slow
def test_an_aggregate_of_a_running_aggregate_counts_every_update_and_says_so() -> None:
    def per_city(first: bool) -> list[int]:
        rows = [{"user": user, "at": datetime(2026, 1, 1)} for user in ("ada", "ada", "ada", "bob")]
        flow, out = Dataflow("cities"), CollectSink()
        read = flow.from_iterator("rows", lambda i, of: iter(rows), schema={"user": str, "at": datetime}, splits=1)
        users = read.with_watermarks("at").key_by("user")
        counted = (
            users.aggregate("per_user", n=count())
            if first
            else users.window("per_user", Tumbling(timedelta(days=1)), event_time="at").aggregate(n=count())
        )
        counted.select({"all": "1", "n": "n"}).key_by("all").aggregate("total", total=sum_("n")).sink("out", out)
        flow.run_local(parallelism=1)
        return [row["total"] for row in out.rows()]

    with pytest.warns(UserWarning, match="total=sum.n. counts every update of running aggregate 'per_user'"):
        assert per_city(first=True)[-1] == 1 + 2 + 3 + 1
    assert per_city(first=False)[-1] == 4
