"""Savepoints made of DataFrames: reading returns the frames, and a job continues as from state that the job wrote."""

import datetime
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from barrier_runtime import (
    TTL,
    CollectSink,
    Dataflow,
    InvalidJob,
    ListState,
    MapState,
    ProcessContext,
    ReducingState,
    Sliding,
    Tumbling,
    ValueState,
    count,
    sum_,
)
from barrier_runtime.bootstrap import write_savepoint
from barrier_runtime.coordinator.savepoint_files import read_savepoint
from barrier_runtime.data.elements import Batch
from barrier_runtime.data.keys import KeyCodec
from barrier_runtime.state import scratch
from barrier_runtime.state.keys.key_groups import key_group, key_groups_of
from barrier_runtime.state_tables import open_checkpoint

USERS = [f"user-{n}" for n in range(200)]
NEW = [{"user": USERS[n % 200], "n": n, "at": 10_000 + n} for n in range(400)]


@dataclass
class Line:
    price: float
    note: str | None = None


class Everything:
    last = ValueState(int)
    line = ValueState(Line)
    kept = ListState(int)
    pages = MapState(str, float)
    most = ReducingState(int, max)
    fresh = ValueState(str, ttl=TTL(datetime.timedelta(days=400), clock="processing"))

    def process(self, user: str, row: dict[str, Any], ctx: ProcessContext) -> Iterator[dict[str, Any]]:
        self.last.value = (self.last.value or 0) + row["n"]
        self.kept.append(row["n"])
        self.pages["new"] = self.pages.get("new", 0.0) + 1
        self.most.add(row["n"])
        price = self.line.value.price if self.line.value is not None else 0.0
        home, fresh = self.pages.get("home"), self.fresh.value
        yield {"user": user, "said": f"{self.last.value} {len(self.kept)} {home} {self.most.value} {price} {fresh}"}

    def on_timer(self, user: str, at_ms: int, ctx: ProcessContext) -> Iterator[dict[str, Any]]:
        yield {"user": user, "said": f"timer {at_ms}"}


def flow(
    rows: list[dict[str, Any]] | None = None,
    sink: CollectSink | None = None,
    windows: CollectSink | None = None,
    window: Tumbling | Sliding = Tumbling(datetime.timedelta(seconds=100)),
) -> Dataflow:
    flow = Dataflow("boot")
    given = NEW if rows is None else rows
    schema = {"user": str, "n": int, "at": int}
    read = flow.from_iterator("rows", lambda index, of: iter(given), schema=schema, splits=1, event_time="at")
    said = {"user": str, "said": str}
    read.key_by("user").process("all", Everything, schema=said, event_time="at").sink("out", sink or CollectSink())
    read.key_by("user").aggregate("sums", rows=count(), total=sum_("n")).sink("totals", CollectSink())
    hourly = read.key_by("user").window("hourly", window, event_time="at")
    hourly.aggregate(rows=count()).sink("windows", windows or CollectSink())
    return flow


def frames() -> dict[tuple[str, str], Any]:
    numbers = list(range(200))
    elements = [(user, at) for n, user in enumerate(USERS) for at in range(n % 3)]
    return {
        ("all", "last"): pa.table({"user": USERS, "value": [n * 1_000 for n in numbers]}),
        ("all", "line"): pa.table({"user": USERS, "value": [{"price": n / 2, "note": None} for n in numbers]}),
        ("all", "kept"): pa.table(
            {
                "user": [user for user, _ in elements],
                "position": [at for _, at in elements],
                "value": [at * 10 for _, at in elements],
            }
        ),
        ("all", "pages"): pd.DataFrame({"user": USERS, "entry": ["home"] * 200, "value": [n / 4 for n in numbers]}),
        ("all", "most"): pd.DataFrame({"user": USERS, "value": numbers}),
        ("all", "fresh"): pa.table({"user": USERS, "value": ["new"] * 200}),
        ("all", "@timers"): pa.table({"user": USERS[:3], "at": [10_001, 10_002, 99_999]}),
        ("sums", "sums"): pa.table({"user": USERS, "rows": [5] * 200, "values:n": [5] * 200, "sum:n": [50] * 200}),
    }


def read_back(url: str, operator: str, state: str) -> list[dict[str, Any]]:
    with open_checkpoint(url) as stored:
        rows = stored.table(operator, state).read_all().to_pylist()
    return sorted(rows, key=lambda row: (row["user"], str(row.get("position", row.get("entry", row.get("at"))))))


def columns_state(url: str, operator: str) -> str:
    with open_checkpoint(url) as stored:
        return next(each.state for each in stored.tables() if each.operator == operator and each.kind == "columns")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> str:
    return written(tmp_path_factory.mktemp("boot"))


def written(folder: Path, **more: Any) -> str:
    given = frames()
    sums = given.pop(("sums", "sums"))
    given[("sums", SUMS)] = sums
    url = str(folder / "savepoint")
    done = write_savepoint(url, flow=flow(), states=given, **more)
    assert done.entries[("all", "last")] == 200
    assert done.bytes > 0
    return url


SUMS = "running"


@pytest.mark.slow
def test_what_was_written_is_read_back(made: str) -> None:
    given = frames()
    for state in ("last", "most", "kept", "line"):
        wanted = given[("all", state)]
        table = wanted if isinstance(wanted, pa.Table) else pa.Table.from_pandas(wanted, preserve_index=False)
        rows = sorted(table.to_pylist(), key=lambda row: (row["user"], str(row.get("position"))))
        assert read_back(made, "all", state) == rows
    assert [row["entry"] for row in read_back(made, "all", "pages")] == ["home"] * 200
    assert len(read_back(made, "all", "@timers")) == 3
    assert {row["value"] for row in read_back(made, "all", "fresh")} == {"new"}
    assert {(row["rows"], row["sum:n"]) for row in read_back(made, "sums", SUMS)} == {(5, 50)}


@pytest.mark.slow
@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_job_goes_on_from_it_at_any_parallelism(made: str, tmp_path: Path, parallelism: int) -> None:
    out = CollectSink()
    flow(sink=out).run_local(checkpoints=tmp_path, restore=made, parallelism=parallelism)
    said = [row for row in out.rows() if row["user"] == "user-4" and not row["said"].startswith("timer")]
    assert said[0]["said"] == f"{4_004} 2 1.0 4 2.0 new"
    assert said[1]["said"] == f"{4_004 + 204} 3 1.0 204 2.0 new"
    timers = {(row["user"], row["said"]) for row in out.rows() if row["said"].startswith("timer")}
    assert timers == {("user-0", "timer 10001"), ("user-1", "timer 10002"), ("user-2", "timer 99999")}
    assert len(out.rows()) == len(NEW) + 3
    with open_checkpoint(str(tmp_path), "boot") as stored:
        sums = stored.table("sums", SUMS).read_all().to_pylist()
    assert {(row["rows"], row["sum:n"] - 2 * int(row["user"][5:])) for row in sums} == {(7, 250)}


@pytest.mark.slow
def test_an_edit_replaces_one_state_and_copies_the_rest_unread(made: str, tmp_path: Path) -> None:
    edited = str(tmp_path / "edited")
    write_savepoint(
        edited, flow=flow(), base=made, states={("all", "last"): pa.table({"user": ["user-7"], "value": [1]})}
    )
    assert read_back(edited, "all", "last") == [{"user": "user-7", "value": 1}]
    for state in ("kept", "most", "pages", "line", "fresh", "@timers"):
        assert read_back(edited, "all", state) == read_back(made, "all", state)

    def files(url: str) -> set[str]:
        operators = read_savepoint(url).taken.operators
        return {ref.sha256 for each in operators if each.operator == "sums" for ref in each.files}

    assert files(edited) == files(made)


@pytest.mark.slow
def test_an_edit_keeps_positions_of_sources_and_the_job_goes_on_exactly_there(tmp_path: Path) -> None:
    out = CollectSink()
    job = flow(sink=out)
    job.run_local(checkpoints=tmp_path / "job", parallelism=2)
    url = tmp_path / "saved"
    from barrier_runtime.coordinator.log.savepoint import savepoint_copy
    from barrier_runtime.coordinator.savepoint_files import write_savepoint as copy_to
    from barrier_runtime.state.store.open import open_store
    from barrier_runtime.state_tables.finding import find_checkpoint

    found = find_checkpoint(str(tmp_path / "job"), "boot")
    sinks = ["out", "totals", "windows"]
    copy_to(open_store(str(tmp_path / "job")), str(url), savepoint_copy(found.manifest, sinks, "x"))
    edited = str(tmp_path / "edited")
    write_savepoint(
        edited, flow=flow(), base=str(url), states={("all", "last"): pa.table({"user": USERS, "value": [0] * 200})}
    )
    again = CollectSink()
    flow(sink=again).run_local(checkpoints=tmp_path / "fork", restore=edited, parallelism=1)
    assert again.rows() == []


@pytest.mark.parametrize(
    ("states", "said"),
    [
        ({("all", "last"): pa.table({"user": [1], "value": [1]})}, "key column 'user' is int64.*key is string"),
        ({("all", "last"): pa.table({"users": ["a"], "value": [1]})}, "no column 'user', a column of the key"),
        ({("all", "last"): pa.table({"user": ["a"], "value": ["x"]})}, "state all.last: column 'value' is string.*int"),
        ({("all", "last"): pa.table({"user": ["a"], "value": pa.array([None], pa.int64())})}, "1 nulls"),
        ({("all", "lost"): pa.table({"user": ["a"], "value": [1]})}, "no state of this name"),
        ({("none", "last"): pa.table({"user": ["a"], "value": [1]})}, "has no step 'none'"),
        ({("all", "kept"): pa.table({"user": ["a"], "position": [3], "value": [1]})}, "positions up to 3"),
        (
            {("all", "kept"): pa.table({"user": ["a"] * 3, "position": [0, 2, 2], "value": [1, 2, 3]})},
            r"list of key \('a',\) has 3 elements, and 2 positions up to 2",
        ),
        ({("all", "kept"): pa.table({"user": ["a"], "position": [0.0], "value": [1]})}, "'position' is double: give"),
        (
            {("all", "kept"): pa.table({"user": ["a", "a"], "position": [0, None], "value": [1, 2]})},
            "'position' is int64",
        ),
        (
            {("all", "pages"): pa.table({"user": ["a"], "entry": [1], "value": [1.0]})},
            "all.pages.*'entry' is int64.*str",
        ),
        ({("all", "pages"): pa.table({"user": ["a"], "entry": [None], "value": [1.0]})}, "'entry' has 1 nulls"),
        ({("all", "@timers"): pa.table({"user": ["a"], "at": ["noon"]})}, "'at' is string: give a timestamp, a date"),
        ({("all", "@timers"): pa.table({"user": ["a"], "at": [1.5]})}, "'at' is double: give a timestamp, a date"),
        (
            {("all", "fresh"): pa.table({"user": ["a"], "value": ["x"], "written_at": ["noon"]})},
            "'written_at' is string: give a timestamp",
        ),
        (
            {"all.last": pa.table({"user": ["a"], "value": [1]})},
            r"'all.last'.* names no state: write \(\"step\", \"state\"\)",
        ),
        ({("all", "line"): pa.table({"user": ["a"], "value": [{"cost": "x"}]})}, "does not fit its declared type"),
        ({("all", "last"): [1]}, "list is no DataFrame"),
        ({("all", "last"): pa.table({"user": [], "value": []})}, "its types are not known"),
        (
            {("hourly", "windows"): pa.table({"user": ["a"], "rows": [5]})},
            "no column 'namespace_1', of a window's start",
        ),
        ({("hourly", "windows"): pa.table({"user": ["a"], "namespace_1": ["0"], "rows": [5]})}, "is string: give each"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(states: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidJob, match=said):
        write_savepoint(str(tmp_path / "never"), flow=flow(), states=states)
    assert not (tmp_path / "never" / "savepoint.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parallelism", "window"),
    [
        (1, Tumbling(datetime.timedelta(seconds=100))),
        (3, Tumbling(datetime.timedelta(seconds=100))),
        (2, Sliding(datetime.timedelta(seconds=100), datetime.timedelta(seconds=50))),
    ],
)
def test_open_windows_go_on_from_what_was_written(tmp_path: Path, parallelism: int, window: Tumbling | Sliding) -> None:
    """4.6: each window has five rows from the savepoint and gets the job's rows once; `namespace_1` is the start of a
    window, also for a `Sliding`, whose own checkpoints contain slices.
    """
    out = CollectSink()
    job = flow(windows=out, window=window)
    open_windows = pa.table({"user": USERS, "namespace_1": [0] * 200, "rows": [5] * 200})
    url = str(tmp_path / "savepoint")
    write_savepoint(url, flow=job, states={("hourly", "windows"): open_windows})
    assert [{**row, "window": 0} for row in read_back(url, "hourly", "windows")] == [
        {"user": user, "namespace_1": 0, "rows": 5, "window": 0} for user in sorted(USERS)
    ]
    job.run_local(checkpoints=tmp_path / "job", restore=url, parallelism=parallelism)
    first = [row for row in out.rows() if row["window_start"].timestamp() == 0]
    assert sorted((row["user"], row["rows"]) for row in first) == [(user, 7) for user in sorted(USERS)]


class Pages:
    pages = MapState(str, int)

    def process(self, user: str, row: dict[str, Any], ctx: ProcessContext) -> Iterator[dict[str, Any]]:
        yield {"said": f"{user} {len(self.pages)} {dict(self.pages.items())}"}


def pages_flow(sink: CollectSink) -> Dataflow:
    flow = Dataflow("pages")
    users = [{"user": user} for user in ("ann", "bob", "cid")]
    rows = flow.from_iterator("rows", lambda index, of: iter(users), schema={"user": str}, splits=1)
    rows.key_by("user").process("pages", Pages, schema={"said": str}).sink("out", sink)
    return flow


@pytest.mark.slow
def test_an_entry_that_is_given_twice_counts_once_and_the_last_one_holds(tmp_path: Path) -> None:
    given = [("ann", "x", 1), ("ann", "y", 2), ("bob", "x", 3), ("ann", "x", 4), ("ann", "x", 5)]
    frame = pa.table(dict(zip(("user", "entry", "value"), map(list, zip(*given, strict=True)), strict=True)))
    batches = pa.RecordBatchReader.from_batches(frame.schema, frame.to_batches(max_chunksize=2))
    sink = CollectSink()
    done = write_savepoint(str(tmp_path / "boot"), flow=pages_flow(sink), states={("pages", "pages"): batches})
    assert done.entries == {("pages", "pages"): 3}
    pages_flow(sink).run_local(checkpoints=tmp_path / "job", restore=str(tmp_path / "boot"), parallelism=2)
    said = sorted(row["said"] for row in sink.rows())
    assert said == ["ann 2 {'x': 5, 'y': 2}", "bob 1 {'x': 3}", "cid 0 {}"]


@pytest.mark.slow
def test_rows_of_one_key_are_told_as_one_entry_of_each_kind_of_state(tmp_path: Path) -> None:
    url, sums = str(tmp_path / "boot"), {"rows": [1, 2, 3], "values:n": [1, 2, 3], "sum:n": [1, 2, 3]}
    given = {
        ("all", "last"): pa.table({"user": ["a", "b", "a"], "value": [1, 2, 3]}),
        ("all", "@timers"): pa.table({"user": ["a", "a", "a"], "at": [7, 8, 7]}),
        ("sums", SUMS): pa.table({"user": ["a", "b", "a"], **sums}),
    }
    done = write_savepoint(url, flow=flow(), states=given)
    assert done.entries == dict.fromkeys(given, 2)
    for operator, state in given:
        assert len(read_back(url, operator, state)) == 2


@pytest.mark.slow
def test_a_state_is_emptied_by_a_frame_without_rows(tmp_path: Path) -> None:
    full, empty = str(tmp_path / "full"), str(tmp_path / "empty")
    known = pa.table({"user": ["a", "b"], "value": [1, 2], "namespace_1": [7, 7]})  # missing columns are skipped
    write_savepoint(full, flow=flow(), states={("all", "last"): known})
    assert read_back(full, "all", "last") == [{"user": "a", "value": 1}, {"user": "b", "value": 2}]
    for nothing in (known.slice(0, 0), pa.RecordBatchReader.from_batches(known.schema, [])):
        written = write_savepoint(empty, flow=flow(), base=full, states={("all", "last"): nothing})
        assert written.entries == {("all", "last"): 0}
        assert read_back(empty, "all", "last") == []
        empty += "-again"


class Tallies:
    tally = ValueState(dict[str, list[dict[int, int]]])

    def process(self, user: str, row: dict[str, Any], ctx: ProcessContext) -> Iterator[dict[str, Any]]:
        yield {"user": user}


@pytest.mark.slow
def test_what_is_read_of_a_state_of_dicts_is_written_again(tmp_path: Path) -> None:
    job = Dataflow("tallies")
    stream = job.from_iterator("in", lambda part, of: [], schema={"user": str}, splits=1)
    stream.key_by("user").process("step", Tallies, schema={"user": str}).sink("out", CollectSink())
    kind = pa.map_(pa.string(), pa.list_(pa.map_(pa.int64(), pa.int64())))
    given = pa.table({"user": ["a"], "value": pa.array([[("x", [[(1, 2)], []])]], kind)})
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    write_savepoint(first, flow=job, states={("step", "tally"): given})
    with open_checkpoint(first) as stored:
        found = stored.table("step", "tally").read_all()
    assert found.to_pylist() == given.to_pylist()
    write_savepoint(second, flow=job, states={("step", "tally"): found})
    assert read_back(second, "step", "tally") == given.to_pylist()


_TYPES: dict[str, tuple[pa.DataType, Callable[[int], Any]]] = {
    "int64": (pa.int64(), lambda n: n * 7_919 - 10**9),
    "int32": (pa.int32(), lambda n: n - 500_000),
    "text": (pa.string(), lambda n: f"ключ-{n}"),
    "bytes": (pa.binary(), lambda n: n.to_bytes(5, "big")),
    "bool": (pa.bool_(), lambda n: n % 20 == 0),
    "float64": (pa.float64(), lambda n: n / 8),
    "date": (pa.date32(), lambda n: datetime.date(1, 1, 1) + datetime.timedelta(days=n)),
    "time": (
        pa.timestamp("us", tz="UTC"),
        lambda n: datetime.datetime.fromtimestamp(n * 1_009.5, datetime.timezone.utc),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", _TYPES)
def test_many_keys_of_each_type_are_where_the_job_looks_for_them(kind: str) -> None:
    """4.6: the bootstrap assigns key groups by column and the job assigns them by key, with the same result."""
    type_, make = _TYPES[kind]
    column = pa.array([make(n) for n in range(0, 1_000_000, 10)], type_)
    by_column = key_groups_of([column], 128).tolist()
    keys, _ = KeyCodec(pa.schema([("k", type_)]), ["k"], "here").keys(Batch(pa.record_batch({"k": column}), 0))
    one_by_one = [key_group(key, 128) for key in keys]
    assert one_by_one == by_column
    if kind != "bool":
        assert len(set(by_column)) == 128


_IS_WRITING = """
import signal, sys
import pyarrow as pa
from barrier_runtime import CollectSink, Dataflow, count
from barrier_runtime.bootstrap import write_savepoint
def batches():
    yield pa.record_batch({"user": ["a"], "rows": [1]})
    print("writes", flush=True)
    signal.pause()
flow = Dataflow("killed")
rows = flow.from_iterator("rows", lambda part, of: [], schema={"user": str}, splits=1)
rows.key_by("user").aggregate("sums", rows=count()).sink("out", CollectSink())
frame = pa.RecordBatchReader.from_batches(pa.schema({"user": pa.string(), "rows": pa.int64()}), batches())
write_savepoint(sys.argv[1], flow=flow, states={("sums", sys.argv[2]): frame})
"""


@pytest.mark.slow
def test_what_a_killed_write_has_left_goes_with_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(scratch, "_YOUNG_S", -1.0)
    command = [sys.executable, "-c", _IS_WRITING, str(tmp_path / "killed"), SUMS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "writes\n"
            assert [*temporary.iterdir()]
            written(tmp_path / "beside")
            assert [*temporary.iterdir()], "it lives"
        finally:
            process.kill()
    assert [*temporary.iterdir()]
    written(tmp_path / "next")
    assert [*temporary.iterdir()] == []


def test_what_is_no_flow_is_told(tmp_path: Path) -> None:
    with pytest.raises(InvalidJob, match=r"flow='app.py:flow' is no Dataflow"):
        write_savepoint(str(tmp_path), flow="app.py:flow", states={})  # type: ignore[arg-type]
