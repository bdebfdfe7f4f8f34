"""`barrier-runtime state`: output for a checkpoint, and refusals."""

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from barrier_runtime import CollectSink, Dataflow, ValueState, write_savepoint
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.tools.state import export, show, tables


class Last:
    last = ValueState(int)

    def process(self, key: tuple[str, int], row: dict[str, Any], ctx: Any) -> list[dict[str, Any]]:
        self.last.value = row["n"]
        return []


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = str(tmp_path_factory.mktemp("state") / "ck")
    flow = Dataflow("kept")
    rows = [{"user": str(n % 3), "room": n % 2, "n": n} for n in range(60)]
    schema = {"user": str, "room": int, "n": int}
    keyed = flow.from_iterator("in", lambda index, of: iter(rows), schema=schema, splits=1).key_by("user", "room")
    keyed.process("last", Last, schema={"user": str}).sink("out", CollectSink())
    flow.run_local(checkpoints=folder, parallelism=2)
    return folder


def test_states_are_listed(folder: str) -> None:
    head, *lines = tables(folder, "kept", None).splitlines()
    assert head.split() == ["operator", "state", "kind", "key", "values"]
    assert any(line.split()[:3] == ["last", "last", "value"] and "user: string, room: int64" in line for line in lines)


def test_entries_are_shown_by_key_and_up_to_a_limit(folder: str) -> None:
    assert len(show(folder, "kept", None, "last.last", (), 4)[0].splitlines()) == 4
    shown, of = show(folder, "kept", None, "last.last", ("user=2", "room=1"), 20)
    assert re.fullmatch(r"checkpoint \d+ of job kept, \d+\.\d s old", of)
    assert [json.loads(line) for line in shown.splitlines()] == [{"user": "2", "room": 1, "value": 59}]
    assert show(folder, "kept", None, "last.last", ("user=7", "room=1"), 20)[0] == ""
    assert len(show(folder, "kept", None, "last.last", ("room=1",), 20)[0].splitlines()) == 3


def test_a_state_is_exported_whole(folder: str, tmp_path: Path) -> None:
    assert export(folder, "kept", None, "last.last", tmp_path / "last.parquet").endswith(": 6 rows")
    rows = pq.read_table(tmp_path / "last.parquet").to_pylist()
    assert {(row["user"], row["room"]): row["value"] for row in rows} == {(str(n % 3), n % 2): n for n in range(54, 60)}
    with pytest.raises(InvalidJob, match="exists already"):
        export(folder, "kept", None, "last.last", tmp_path / "last.parquet")
    with pytest.raises(InvalidJob, match=r"no/a\.parquet cannot be written: No such file or directory: choose"):
        export(folder, "kept", None, "last.last", tmp_path / "no" / "a.parquet")
    assert [each.name for each in tmp_path.iterdir()] == ["last.parquet"]


def test_wrong_names_and_conditions(folder: str) -> None:
    with pytest.raises(InvalidJob, match=r"write it as operator\.state"):
        show(folder, "kept", None, "last", (), 20)
    with pytest.raises(InvalidJob, match="write it as column=value"):
        show(folder, "kept", None, "last.last", ("user",), 20)


class Asked:
    huge = ValueState(int)

    def process(self, key: str, row: dict[str, Any], ctx: Any) -> list[dict[str, Any]]:
        self.huge.value = row["n"] * 2**63
        return []

    def on_timer(self, key: str, at_ms: int, ctx: Any) -> list[dict[str, Any]]:
        return []


def asked_flow() -> Dataflow:
    flow, rows = Dataflow("asked"), [{"user": user, "n": n} for n, user in enumerate(["ann", "bob"])]
    schema = {"user": str, "n": int}
    read = flow.from_iterator("in", lambda index, of: iter(rows), schema=schema, splits=1, event_time="n")
    read.key_by("user").process("asked", Asked, schema={"user": str}).sink("out", CollectSink())
    return flow


def test_timers_that_fire_never_are_shown(tmp_path: Path) -> None:
    url = str(tmp_path / "boot")
    timers = pa.table({"user": ["ann", "ann"], "at": [1_000, 2**62]})
    write_savepoint(url, flow=asked_flow(), states={("asked", "@timers"): timers}, parallelism=1)
    lines = show(url, "", None, "asked.@timers", (), 5)[0].splitlines()
    assert [json.loads(line)["at"] for line in lines] == ["1970-01-01 00:00:01+00:00", 2**62]


@pytest.mark.slow
def test_a_number_that_no_column_holds_is_refused_by_name_and_others_are_shown(tmp_path: Path) -> None:
    asked_flow().run_local(checkpoints=tmp_path, parallelism=1)
    with pytest.raises(InvalidJob, match=r"job asked, asked.huge: a value does not fit .*9223372036854775808"):
        show(str(tmp_path), "asked", None, "asked.huge", (), 5)
    shown, _ = show(str(tmp_path), "asked", None, "asked.huge", ("user=ann",), 5)
    assert json.loads(shown) == {"user": "ann", "value": 0}
