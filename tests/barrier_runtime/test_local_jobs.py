"""Whole small jobs in this process, at the edges: no rows, fewer splits than subtasks, input that ended before."""

import datetime
import json

import pyarrow as pa
import pytest

from barrier_runtime import CollectSink, Dataflow, JsonlSink, Tumbling, count
from barrier_runtime.job_result import JobFailed

SECOND = datetime.timedelta(seconds=1)


def numbers(splits, rows):
    def make(index, of):
        return ({"n": n} for n in range(rows) if n % of == index)

    flow = Dataflow("edges")
    sink = CollectSink()
    source = flow.from_iterator("numbers", make, schema={"n": pa.int64()}, splits=splits)
    source.key_by("n").aggregate("count", times=count()).sink("out", sink)
    return flow, sink


@pytest.mark.parametrize("rows", [0, 1, 1_000])
@pytest.mark.parametrize(("parallelism", "splits"), [(1, 1), (3, 1), (3, 7)])
def test_a_job_ends_with_all_its_rows_visible_whatever_its_splits_and_subtasks(parallelism, splits, rows):
    """C18, T7"""
    flow, sink = numbers(splits, rows)
    result = flow.run_local(parallelism=parallelism, checkpoint_interval=0.05)
    assert result.status.outcome == "finished"
    assert sorted(row["n"] for row in sink.rows()) == list(range(rows))
    assert result.records == rows


def windows(folder):
    flow = Dataflow("days")
    schema = pa.schema([("k", pa.string()), ("t", pa.int64())])
    rows = flow.read_jsonl("files", str(folder / "in"), schema=schema, event_time="t")
    rows.key_by("k").window("w", Tumbling(SECOND), event_time="t").aggregate(n=count()).sink(
        "out", JsonlSink(str(folder / "out"))
    )
    return flow


def write(folder, name, first_ms):
    (folder / "in").mkdir(exist_ok=True)
    lines = [json.dumps({"k": "a", "t": first_ms + at * 1_000}) for at in range(10)]
    (folder / "in" / name).write_text("\n".join(lines) + "\n")


def test_rows_added_after_every_window_was_closed_are_an_error_and_not_silently_late(tmp_path):
    """A finished job has let event time run to its end; what comes later would be dropped, row by row."""
    write(tmp_path, "1.jsonl", 1_000_000)
    options = {"parallelism": 1, "checkpoints": str(tmp_path / "checkpoints")}
    windows(tmp_path).run_local(**options)
    windows(tmp_path).run_local(**options)  # nothing new: nothing to complain of
    write(tmp_path, "2.jsonl", 2_000_000)
    with pytest.raises(JobFailed, match=r"had read all of its input .*another name"):
        windows(tmp_path).run_local(**options)
