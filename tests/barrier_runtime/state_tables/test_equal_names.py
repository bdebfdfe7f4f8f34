"""A key column may have the name of a state column, and a step's name may contain dots."""

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from barrier_runtime import (
    CollectSink,
    Dataflow,
    InvalidJob,
    ListState,
    MapState,
    Tumbling,
    ValueState,
    count,
    open_checkpoint,
    write_savepoint,
)
from barrier_runtime.tools.state import count as count_of
from barrier_runtime.tools.state import differences, show

NAMES = ("value", "entry", "position", "at", "state", "change", "rows", "namespace_1")
STEP = "kept.of-key"


class Kept:
    last = ValueState(int)
    by_name = MapState(str, int)
    all = ListState(int)

    def process(self, key: str, row: dict[str, Any], ctx: Any) -> Iterator[dict[str, Any]]:
        self.last.value = row["n"]
        self.by_name["x"] = row["n"]
        self.all.append(row["n"])
        ctx.timers.register(10**9)
        yield {"key": key}

    def on_timer(self, key: str, at_ms: int, ctx: Any) -> list[dict[str, Any]]:
        return []


def flow_of(name: str) -> Dataflow:
    flow = Dataflow("job")
    rows = [{name: "a", "n": n} for n in range(3)]
    read = flow.from_iterator("in", lambda part, of: rows, schema={name: str, "n": int}, splits=1, event_time="n")
    keyed = read.key_by(name)
    keyed.process(STEP, Kept, schema={"key": str}).sink("out", CollectSink())
    windows = keyed.window("windows", Tumbling(timedelta(hours=1)), event_time="n")
    windows.aggregate(many=count()).sink("windows-out", CollectSink())
    return flow


def expected_of(name: str) -> dict[str, list[dict[str, Any]]]:
    free = {each: f"{each}_" if each == name else each for each in ("value", "entry", "position")}
    return {
        "last": [{name: "a", free["value"]: 2}],
        "by_name": [{name: "a", free["entry"]: "x", free["value"]: 2}],
        "all": [{name: "a", free["position"]: at, free["value"]: at} for at in range(3)],
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_column_is_there_and_is_written_again(name: str, tmp_path: Path) -> None:
    flow_of(name).run_local(checkpoints=tmp_path / "job", parallelism=1)
    states: dict[tuple[str, str], Any] = {}
    with open_checkpoint(str(tmp_path / "job"), "job") as stored:
        for state, rows in expected_of(name).items():
            states[STEP, state] = stored.table(STEP, state).read_all()
            assert states[STEP, state].to_pylist() == rows
            for column in rows[0]:
                assert stored.table(STEP, state, columns=[column]).read_all().to_pylist()[0] == {
                    column: rows[0][column]
                }
    at = "at_" if name == "at" else "at"
    rows_name, start = (f"{each}_" if each == name else each for each in ("rows", "namespace_1"))
    states[STEP, "@timers"] = pa.table({name: ["a"], at: [5]})
    states["windows", "windows"] = pa.table({name: ["a"], start: [0], rows_name: [7]})
    url = str(tmp_path / "savepoint")
    write_savepoint(url, flow=flow_of(name), states=states)
    with open_checkpoint(url) as stored:
        for state, rows in expected_of(name).items():
            assert stored.table(STEP, state).read_all().to_pylist() == rows
        assert stored.table(STEP, "@timers").schema.names == [name, at]
        of_windows = [{name: "a", start: 0, rows_name: 7}]
        assert stored.table("windows", "windows").read_all().to_pylist() == of_windows
        assert stored.table("windows", "windows", columns=[rows_name]).read_all().to_pylist() == [{rows_name: 7}]
    (first, *_) = differences((url, "", None), (str(tmp_path / "job"), "job", None), "windows", 10, ())
    told = {"state": "windows.windows", "change": "deleted", "beside": 0, "before": {"rows": 7}, "after": None}
    assert json.loads(first) == {**told, f"{name}_" if name in told else name: "a"}


@pytest.mark.slow
def test_a_state_of_a_step_with_a_dot_is_shown_and_what_neither_side_has_is_refused(tmp_path: Path) -> None:
    flow_of("k").run_local(checkpoints=tmp_path, parallelism=1)
    side = (str(tmp_path), "job", None)
    assert json.loads(show(*side, f"{STEP}.last", (), 10)[0]) == {"k": "a", "value": 2}
    assert count_of(*side, f"{STEP}.all", ()) == 3
    for known in (STEP, f"{STEP}.last", ""):
        assert list(differences(side, side, known, 10, ())) == ["0 inserted, 0 changed, 0 deleted"]
    for unknown in ("last", f"{STEP}.lost", "kept"):
        with pytest.raises(InvalidJob, match=f"has a step or state '{unknown}'; they have: {STEP}.@timers"):
            list(differences(side, side, unknown, 10, ()))
    with open_checkpoint(*side) as stored, pytest.raises(InvalidJob, match="has no part 1: it has 1, from 0 on"):
        stored.table(STEP, "last", part=1)


def test_a_frame_with_two_columns_of_one_name_is_refused(tmp_path: Path) -> None:
    frame = pa.table([["a"], [1], [2]], names=["k", "value", "value"])
    with pytest.raises(InvalidJob, match=f"state {STEP}.last: its DataFrame has several columns 'value'"):
        write_savepoint(str(tmp_path / "never"), flow=flow_of("k"), states={(STEP, "last"): frame})
