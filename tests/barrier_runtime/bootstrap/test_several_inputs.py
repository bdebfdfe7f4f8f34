"""Savepoints from DataFrames for steps that `connect` several inputs with differently named key columns."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from barrier_runtime import BroadcastState, CollectSink, Dataflow, ValueState, connect, open_checkpoint, write_savepoint


class Limits:
    limits = BroadcastState(str, int)
    seen = ValueState(int, default=0)

    def on_rules(self, row: dict[str, Any], ctx: Any) -> None:
        self.limits[row["user"]] = row["n"]

    def on_rows(self, user: str, row: dict[str, Any], ctx: Any) -> Iterator[dict[str, Any]]:
        self.seen.value += 1
        yield {"user": user, "said": f"{self.seen.value}"}


def read_back(url: str) -> list[dict[str, Any]]:
    with open_checkpoint(url) as stored:
        return sorted(stored.table("step", "seen").read_all().to_pylist(), key=lambda row: row["key_1"])


def test_state_of_a_multi_input_step_is_written_by_the_names_of_its_table(tmp_path: Path) -> None:
    def connected(sink: CollectSink) -> Dataflow:
        made = Dataflow("limits")
        schema = {"user": str, "n": int}
        rows = made.from_iterator("rows", lambda part, of: [{"user": "a", "n": 1}], schema=schema, splits=1)
        rules = made.from_iterator("rules", lambda part, of: [{"user": "a", "n": 7}], schema=schema, splits=1)
        inputs = connect(rows=rows.key_by("user"), rules=rules.broadcast())
        inputs.process("step", Limits, schema={"user": str, "said": str}).sink("out", sink)
        return made

    connected(CollectSink()).run_local(checkpoints=tmp_path / "job", parallelism=2)
    with open_checkpoint(str(tmp_path / "job"), "limits") as stored:
        assert stored.table("step", "seen").read_all().to_pylist() == [{"key_1": "a", "value": 1}]
    url, out = str(tmp_path / "boot"), CollectSink()
    known = pa.table({"key_1": ["a", "b"], "value": [41, 5]})
    write_savepoint(url, flow=connected(out), states={("step", "seen"): known})
    assert read_back(url) == known.to_pylist()
    connected(out).run_local(checkpoints=tmp_path / "next", restore=url, parallelism=3)
    assert out.rows() == [{"user": "a", "said": "42"}]
    edited = str(tmp_path / "edited")
    write_savepoint(edited, flow=connected(out), base=url, states={("step", "seen"): known.slice(1)})
    assert read_back(edited) == [{"key_1": "b", "value": 5}]
