"""Users' changes around the stored state of a job: savepoints, changed steps."""

import json
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from barrier_runtime import (
    CollectSink,
    CsvSink,
    Dataflow,
    InvalidJob,
    JobFailed,
    JsonlSink,
    Tumbling,
    ValueState,
    count,
)
from barrier_runtime.bootstrap import write_savepoint


class Seen:
    seen = ValueState(int, default=0)

    def process(self, key: int, row: dict[str, Any], ctx: Any) -> dict[str, Any]:
        self.seen.value += 1
        return {"key": key, "seen": self.seen.value}


def counting(out: CollectSink) -> Dataflow:
    flow = Dataflow("counting")
    rows = flow.from_iterator("rows", lambda index, of: iter([{"key": 1}]), schema={"key": int})
    rows.key_by("key").process("own", Seen, schema={"key": int, "seen": int}).sink("out", out)
    return flow


# Source: our own trial
@pytest.mark.slow
def test_a_job_put_on_another_savepoint_does_not_go_on_with_it_as_the_first(tmp_path: Path) -> None:
    s, t = str(tmp_path / "s"), str(tmp_path / "t")
    for url, seen in ((s, 10), (t, 100)):
        known = pa.table({"key": [1], "value": [seen]})
        write_savepoint(url, flow=counting(CollectSink()), states={("own", "seen"): known}, parallelism=1)

    def run(restore: str, **options: Any) -> list[int]:
        out = CollectSink()
        folder = str(tmp_path / "jobs")
        counting(out).run_local(checkpoints=folder, restore=restore, parallelism=1, **options)
        return [row["seen"] for row in out.rows()]

    assert run(s) == [11]
    assert run(s) == [], "the same command again goes on: all rows were read"
    assert run(t, allow_replay=True) == [101]
    with pytest.raises(InvalidJob, match="began with this savepoint, was put on another state since"):
        run(s)
    assert run(s, allow_replay=True) == [11]
    assert run(s, allow_replay=True) == [11], "a second rollback"


# Source: our own trial
@pytest.mark.slow
@pytest.mark.parametrize("checkpoint", ["latest", "1"])
def test_another_kind_of_step_under_an_old_name_does_not_begin_at_zero(tmp_path: Path, checkpoint: str) -> None:
    def totals(kind: str) -> Dataflow:
        flow = Dataflow("totals")
        rows = flow.from_iterator("rows", lambda index, of: iter([{"key": 1}]), schema={"key": int})
        if kind == "aggregate":
            out = rows.key_by("key").aggregate("totals", n=count())
        elif kind == "process":
            out = rows.key_by("key").process("totals", Seen, schema={"key": int, "seen": int})
        else:
            out = rows.map(lambda row: row, name="totals", schema={"key": int})
        out.sink("out", CollectSink())
        return flow

    folder = str(tmp_path)
    totals("aggregate").run_local(checkpoints=folder, parallelism=1)
    before = sorted(tmp_path.rglob("*"))
    for kind, said in (("process", "a process step"), ("map", "a map step without state")):
        with pytest.raises(JobFailed, match=f"'totals' as a running aggregate step, but the job now has it as {said}"):
            totals(kind).run_local(checkpoints=folder, restore=checkpoint, parallelism=1)
        assert sorted(tmp_path.rglob("*")) == before, "no FENCE was written"


# Source: our own trial
def test_a_sink_of_a_finished_job_may_become_another_kind_of_sink(tmp_path: Path) -> None:
    def flow(sink: Any, last: int) -> Dataflow:
        flow = Dataflow("sinks")
        files = [{"n": n} for n in range(last)]
        (tmp_path / "in").mkdir(exist_ok=True)
        (tmp_path / "in" / f"{last}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in files))
        flow.read_jsonl("in", str(tmp_path / "in"), schema={"n": int}).sink("out", sink)
        return flow

    options: dict[str, Any] = {"checkpoints": str(tmp_path / "jobs"), "parallelism": 1}
    flow(JsonlSink(str(tmp_path / "out")), 2).run_local(**options)
    flow(CsvSink(str(tmp_path / "others")), 3).run_local(**options)
    rows = {name: len(csv_or_json(tmp_path / name)) for name in ("out", "others")}
    assert rows == {"out": 2, "others": 3}


def csv_or_json(folder: Path) -> list[str]:
    lines = [line for file in folder.glob("[!.]*.*") for line in file.read_text().splitlines()]
    return [line for line in lines if line.strip('"') != "n"]  # the header


# Source: our own trial
@pytest.mark.slow
def test_a_job_of_the_same_name_elsewhere_does_not_own_a_claimed_savepoint(tmp_path: Path) -> None:
    url, known = str(tmp_path / "s"), pa.table({"key": [1], "value": [10]})
    write_savepoint(url, flow=counting(CollectSink()), states={("own", "seen"): known}, parallelism=1)

    def run(folder: str, **options: Any) -> list[int]:
        out = CollectSink()
        counting(out).run_local(checkpoints=str(tmp_path / folder), parallelism=1, **options)
        return [row["seen"] for row in out.rows()]

    assert run("elsewhere") == [1]
    assert run("here", restore=url, restore_mode="claim") == [11]
    assert run("here", restore=url, restore_mode="claim") == []
    with pytest.raises(InvalidJob, match=r"there is no savepoint in .* any more: job 'counting' claimed it"):
        run("elsewhere", restore=url, restore_mode="claim")


# Source: our own trial
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*cannot be copied")  # threads of this process are no part of a flow on Spark
def test_rows_held_by_windows_are_not_read_by_other_columns(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text('{"k": "a", "t": 0, "n": 1, "m": 10}\n')
    seen, schema = threading.Event(), {"k": str, "t": int, "n": int, "m": int}

    def flow(columns: list[str]) -> Dataflow:
        flow, minute = Dataflow("held"), timedelta(minutes=1)
        rows = flow.read_jsonl("in", str(tmp_path / "in"), schema=schema, event_time="t", watch=minute)
        chosen = rows.filter(lambda row: seen.set() is None).select(columns).key_by("k")
        chosen.window("top", Tumbling(minute), event_time="t").top(1, by="n").sink("out", CollectSink())
        return flow

    options: dict[str, Any] = {"checkpoints": str(tmp_path / "jobs"), "parallelism": 1}
    job = flow(["k", "t", "n", "m"]).start_local(**options)
    assert seen.wait(60)
    job.stop()
    job.wait(60)
    for columns in (["k", "t", "m", "n"], ["k", "t", "n"]):  # of the same types, or fewer
        with pytest.raises(JobFailed, match="keep the columns and types, or give the operator a new name"):
            flow(columns).run_local(**options)
