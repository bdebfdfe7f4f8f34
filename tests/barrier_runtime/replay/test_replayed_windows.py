"""Sliding windows between two checkpoints, replayed and verified: state in slices, and state in whole windows."""

import datetime as dt
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from barrier_runtime import Dataflow, JsonlSink, ParquetSink, Sliding, Tumbling, first, sum_
from barrier_runtime.operators.windows.sliding import SLICES, Slices
from barrier_runtime.replay import replay, verify
from barrier_runtime.state_tables.finding import find_checkpoint
from tests.barrier_runtime.replay.two_checkpoints import ROWS, USERS, two_checkpoints, until_covered

BEGIN = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)
SECOND = dt.timedelta(seconds=1)
WINDOWS = {
    "in slices": (Sliding(60 * SECOND, slide=20 * SECOND), {"total": sum_("n")}),
    "whole": (Sliding(60 * SECOND, slide=20 * SECOND), {"total": sum_("n"), "first": first("n")}),
}


def flow_of(kind: str, out: Path) -> Dataflow:
    def rows(index: int, of: int) -> Iterator[dict[str, Any]]:
        for at in range(0, len(ROWS), 20):
            until_covered(at)
            for row in ROWS[at : at + 20]:
                yield {**row, "at": BEGIN + row["n"] * SECOND}
            time.sleep(0.02)

    flow = Dataflow("replayed")
    schema = {"user": str, "n": int, "at": dt.datetime}
    read = flow.from_iterator("rows", rows, schema=schema, splits=1, event_time="at")
    window, aggregates = WINDOWS[kind]
    windows = read.key_by("user").window("windows", window, event_time="at")
    windows.aggregate(**aggregates).sink("out", ParquetSink(str(out)))
    return flow


def total_of(row: dict[str, Any]) -> int:
    """Returns the total of the input rows of the window in `row`."""
    begins = (row["window_start"] - BEGIN) // SECOND
    return sum(each["n"] for each in ROWS if each["user"] == row["user"] and 0 <= each["n"] - begins < 60)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["in slices", "whole"])
def test_sliding_windows_come_out_again_as_they_were_committed(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if windows still fire after the last row has been read again: at that point the replay must not end."""
    job = two_checkpoints(str(tmp_path / "ckpt"), lambda: flow_of(kind, tmp_path / "out"))
    reach = Slices.reach

    def slowly(self: Slices, *arguments: Any) -> Iterator[None]:
        for _ in reach(self, *arguments):
            time.sleep(0.005)
            yield

    monkeypatch.setattr(Slices, "reach", slowly)
    found = verify(job.flow, after=job.before, until=job.until, checkpoints=job.folder)
    assert found.same, found.differences
    assert (found.read, found.read_back) == (job.rows_until - job.rows_before, ("out",))
    stored = find_checkpoint(job.folder, "replayed", job.before).manifest.operators
    assert any(SLICES in each.values for each in stored) is (kind == "in slices")
    done = replay(job.flow, "windows", USERS[0], after=job.before, until=job.until, checkpoints=job.folder)
    assert len({row["window_start"] for row in done.emitted}) == len(done.emitted) > 0
    assert [row["total"] for row in done.emitted] == [total_of(row) for row in done.emitted]


def held_flow(kind: str, out: Path) -> Dataflow:
    """Rows are out of order, so their order in an open window depends on batch borders."""

    def rows(index: int, of: int) -> Iterator[dict[str, Any]]:
        for at in range(0, len(ROWS), 20):
            until_covered(at)
            for row in reversed(ROWS[at : at + 20]):
                yield {**row, "at": BEGIN + row["n"] * SECOND}
                if row["n"] % 7 == 0:
                    time.sleep(0.007)

    flow = Dataflow("replayed")
    read = flow.from_iterator(
        "rows",
        rows,
        schema={"user": str, "n": int, "at": dt.datetime},
        splits=1,
        event_time="at",
        max_out_of_orderness=30 * SECOND,
    )
    windows = read.key_by("user").window("windows", Tumbling(120 * SECOND), event_time="at")
    if kind == "apply":
        held = windows.apply(lambda key, window, rows: [{"n": rows.column("n").to_pylist()}], schema={"n": list[int]})
    else:
        held = windows.top(3, by="n")
    held.sink("out", JsonlSink(str(out)))
    return flow


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["apply", "top"])
def test_windows_that_hold_rows_are_the_same_wherever_batches_ended(kind: str, tmp_path: Path) -> None:
    job = two_checkpoints(str(tmp_path / "ckpt"), lambda: held_flow(kind, tmp_path / "out"))
    for after, until in ((job.before, job.until), (0, job.before)):
        found = verify(job.flow, after=after, until=until, checkpoints=job.folder)
        assert found.same, found.differences
        assert found.read_back == ("out",)
