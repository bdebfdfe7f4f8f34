"""What operators of a job do with its stored state: put it on savepoints, change its steps."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from barrier_runtime import CollectSink, Dataflow, InvalidJob, ValueState
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
