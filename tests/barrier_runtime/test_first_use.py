"""A newcomer's natural code, line by line: right rows, or a message that names the thing and the remedy."""

import datetime
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import barrier_runtime
from barrier_runtime import (
    BarrierRuntimeError,
    CollectSink,
    Dataflow,
    IcebergSink,
    IcebergSource,
    JsonlSink,
    ParquetSink,
    Stream,
    Tumbling,
    TwoPhaseCommitSink,
    ValueState,
    committed_files,
    count,
    sum_,
)
from barrier_runtime.connectors.registry import CONNECTORS
from tests.barrier_runtime.command_line import run_here

MINUTE = datetime.timedelta(minutes=1)
UTC = datetime.timezone.utc
ROWS = [{"k": "a", "x": 1}, {"k": "b", "x": 2}, {"k": "a", "x": 3}]
FLOWS: list[Dataflow] = []  # of the test: the newest
NO_TIME = (
    "a window is over when the watermark has passed its end, but source 's' of its rows has none: pass event_time="
)


def flow() -> Dataflow:
    FLOWS[:] = [Dataflow("first")]
    return FLOWS[-1]


def stream(rows: list[dict[str, Any]] | None = None, **columns: Any) -> Stream:
    given = ROWS if rows is None else rows
    return flow().from_iterator("s", lambda index, _: iter(given), schema=columns or {"k": str, "x": int}, splits=1)


def run(made: Stream, sink: Any) -> None:
    made.sink("out", sink)
    FLOWS[-1].run_local(parallelism=1)


def come_out(made: Stream) -> list[dict[str, Any]]:
    out = CollectSink()
    run(made, out)
    return out.rows()


def processed(function: Any, rows: list[dict[str, Any]] | None = None, **columns: Any) -> list[dict[str, Any]]:
    return come_out(stream(rows).key_by("k").process("step", function, schema=columns))


# ---------------------------------------------------------------------------------------------- right rows


class Seen:
    seen = ValueState(list[int], default_factory=list)

    def process(self, key: str, row: dict[str, Any], ctx: Any) -> Iterator[dict[str, Any]]:
        value = self.seen.value
        value.append(row["x"])
        self.seen.update(value)
        yield {"seen": value}


def test_a_list_that_is_yielded_and_grows_later_is_kept_as_it_was() -> None:
    assert processed(Seen, [{"k": "a", "x": n} for n in range(3)], seen=list[int]) == [
        {"seen": [0]},
        {"seen": [0, 1]},
        {"seen": [0, 1, 2]},
    ]


def test_a_row_that_is_changed_after_it_was_yielded_is_kept_as_it_was() -> None:
    def twice(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield row
        row["x"] *= 10
        yield row

    assert [row["x"] for row in come_out(stream().flat_map(twice, schema={"k": str, "x": int}))] == [
        1,
        10,
        2,
        20,
        3,
        30,
    ]


@pytest.mark.parametrize(
    ("written", "type_"),
    [
        ("timestamp[ms, tz=UTC]", pa.timestamp("ms", "UTC")),
        ("timestamp", pa.timestamp("us", "UTC")),
        (datetime.datetime, pa.timestamp("us", "UTC")),
        ("list<string>", pa.list_(pa.string())),
        (list[float], pa.list_(pa.float64())),
        ("decimal(10, 2)", pa.decimal128(10, 2)),
    ],
)
def test_a_type_may_be_written_as_it_is_printed(written: Any, type_: pa.DataType) -> None:
    assert stream([], x=written).schema.field("x").type == type_


def test_leading_zeros_stay(tmp_path: Path) -> None:
    (tmp_path / "zip.csv").write_text("zip\n01234\n", encoding="utf-8")
    assert come_out(flow().read_csv("s", str(tmp_path / "zip.csv"))) == [{"zip": "01234"}]


def test_a_column_that_a_row_leaves_out_is_null_and_a_null_is_a_key_like_others() -> None:
    counted = stream([{"x": 1}, {"k": "a"}, {"x": 2}]).key_by("k").aggregate("t", n=count())
    assert [(row["k"], row["x"], row["n"]) for row in come_out(counted)] == [(None, 1, 1), ("a", None, 1), (None, 2, 2)]


def test_a_time_without_a_zone_is_of_utc() -> None:
    noon = datetime.datetime(2026, 3, 1, 12)
    assert come_out(stream([{"at": noon}], at=datetime.datetime)) == [{"at": noon.replace(tzinfo=UTC)}]


@pytest.mark.slow
def test_after_ctrl_c_what_was_committed_stays_for_the_next_cell() -> None:
    out = CollectSink()

    def numbers(index: int, _: int) -> Iterator[dict[str, Any]]:
        interrupted = False
        for n in itertools.count():
            if not interrupted and out.rows():  # once something was committed
                interrupted = True
                os.kill(os.getpid(), signal.SIGINT)
            yield {"n": n}

    flow().from_iterator("s", numbers, schema={"n": int}, splits=1).sink("out", out)
    told = "job first was stopped; what its last checkpoint covers is committed"
    with pytest.raises(KeyboardInterrupt, match=f"^{told}$") as interrupted:
        FLOWS[-1].run_local(parallelism=1, checkpoint_interval=0.01)
    assert [Path(frame.path).name for frame in interrupted.traceback] == ["test_first_use.py", "outcome.py"]
    assert [row["n"] for row in out.rows()] == list(range(len(out.rows())))
    assert out.rows()


# ------------------------------------------------------------------------------------ messages with a remedy


@dataclass
class Sum:
    n: int = 0


class Assigned:
    n = ValueState(int, default=0)

    def process(self, key: str, row: dict[str, Any], ctx: Any) -> Iterator[dict[str, Any]]:
        self.n = row["x"]
        yield {"n": 1}


class Added:
    n: Any = ValueState(int, default=0)

    def process(self, key: str, row: dict[str, Any], ctx: Any) -> Iterator[dict[str, Any]]:
        self.n += 1
        yield {"n": 1}


class ChangedInPlace:
    seen = ValueState(list[int], default_factory=list)

    def process(self, key: str, row: dict[str, Any], ctx: Any) -> Iterator[dict[str, Any]]:
        self.seen.value.append(row["x"])
        yield {"n": len(self.seen.value)}


class HalfASink(TwoPhaseCommitSink):
    def write(self, transaction: Any, rows: pa.RecordBatch) -> None:
        raise AssertionError


class Timers:
    def process(self, key: str, row: dict[str, Any], ctx: Any) -> None:
        ctx.set_timer(ctx.timestamp + 1)

    def on_timer(self, key: str, at: int, ctx: Any) -> Iterator[dict[str, Any]]:
        yield {"n": at}


class Misspelt:
    def process(self, key: str, row: dict[str, Any], ctx: Any) -> None: ...

    def on_timr(self, key: str, at: int, ctx: Any) -> None: ...


def timed(type_: Any) -> Stream:
    return flow().from_iterator("s", lambda index, _: iter(()), schema={"at": type_}, event_time="at")


def come_out_with(**options: Any) -> None:
    stream().sink("out", CollectSink())
    FLOWS[-1].run_local(**options)


def windowed() -> Any:
    return (
        stream([], k=str, at=datetime.datetime)
        .key_by("k")
        .window("w", Tumbling(MINUTE), event_time="at")
        .aggregate(n=count())
    )


MISTAKES: list[tuple[str, Callable[[], Any], list[str]]] = [
    (
        "an object as default",
        lambda: ValueState(Sum, default=Sum()),
        ["would be shared by all keys", "default_factory=Sum"],
    ),
    (
        "assignment to a state",
        lambda: processed(Assigned, n=int),
        ["self.n", "write self.n.value = … or self.n.update(…)"],
    ),
    ("+= on a state", lambda: processed(Added, n=int), ["self.n is a ValueState", "self.n.value = …"]),
    (
        "a default changed in place",
        lambda: processed(ChangedInPlace, n=int),
        ["changed in place but not stored", "update(value)"],
    ),
    (
        "a sum beyond 64 bits",
        lambda: come_out(
            stream([{"k": "a", "x": 2**63 - 1}, {"k": "a", "x": 5}]).key_by("k").aggregate("t", s=sum_("x"))
        ),
        ["sum_('x') of key 'a' leaves 64 bits", "widen=True"],
    ),
    (
        "a handler of timers whose name is wrong",
        lambda: processed(Misspelt, n=int),
        ["nothing calls Misspelt.on_timr(): is on_timer() meant?"],
    ),
    ("a window without event time", windowed, [NO_TIME]),
    (
        "a key by a function",
        lambda: stream().key_by(lambda row: row["k"]),
        ["the names of columns", "an expression gets a name", "key_by(group='sensor % 16')"],
    ),  # type: ignore[arg-type]
    ("a list of keys", lambda: stream().key_by(["k", "x"]), ["key_by('user', 'day')"]),  # type: ignore[arg-type]
    (
        "a number for columns",
        lambda: stream().select(5),
        ["Stream.select: columns=5: give a text or a mapping or a list of texts"],
    ),  # type: ignore[arg-type]
    ("None in a union", lambda: stream().union(None), ["None is not a stream of flow"]),  # type: ignore[arg-type]
    (
        "a number for a column",
        lambda: stream().key_by("k").aggregate("t", s=sum_(5)),
        ["sum_: column=5: give the name of a column, such as sum_('v')"],
    ),  # type: ignore[arg-type]
    (
        "a number for partitions",
        lambda: ParquetSink("out", partition_by=5),  # type: ignore[arg-type]
        ["ParquetSink: partition_by=5: give the name of a column, or a list of names"],
    ),
    ("no path", lambda: flow().read_parquet("s", None), ["paths=None: give a text or a list of texts"]),  # type: ignore[arg-type]
    ("text for a rate", lambda: flow().rate("s", "5"), ["rows_per_second=<str>: give a number"]),  # type: ignore[arg-type]
    ("no store", lambda: committed_files(None), ["the storage URL is None"]),  # type: ignore[arg-type]
    ("a wrong column", lambda: stream().key_by("kk"), ["no column 'kk'", "did you mean 'k'", "use one of k, x"]),
    (
        "a wrong column in an expression",
        lambda: stream().filter(pc.field("xx") > 1),
        ["no column 'xx' (did you mean 'x'?)", "use one of k, x"],
    ),
    (
        "a wrong column in a condition",
        lambda: stream([], mss=int).filter("ms > 1"),
        ["no column 'ms' (did you mean 'mss'?)", "the rows have mss: int64"],
    ),
    (
        "a wrong field in a condition",
        lambda: stream([], at=pa.struct([("hour", pa.int8())])).filter("at.huor > 1"),
        ["no field 'huor' of at (did you mean 'hour'?)"],
    ),
    (
        "a wrong column of an aggregate",
        lambda: stream([], k=str, ms=int).key_by("k").aggregate("t", s=sum_("mss")),
        ["needs a column 'mss' (did you mean 'ms'?)", "the rows have k, ms"],
    ),
    (
        "a wrong column of a small table",
        lambda: stream().broadcast_join("t", [{"kk": 1, "v": 2}], on="kk"),
        ["no column 'kk' (did you mean 'k'?)"],
    ),
    ("no key_by", lambda: stream().aggregate("t", n=count()), ["no method 'aggregate'", ".key_by(…)"]),  # type: ignore[attr-defined]
    ("a method that is nearly one", lambda: stream().fliter, ["did you mean 'filter'"]),  # type: ignore[attr-defined]
    ("a filter that answers text", lambda: come_out(stream().filter(lambda row: "no")), ["gave 'no'", "True or False"]),
    ("a wrong type name", lambda: stream([], x="strng"), ["column 'x'", "'strng'", "such as 'int64'"]),
    ("a sum of text", lambda: stream().key_by("x").aggregate("t", s=sum_("k")), ["s=sum(k)", "cast the column"]),
    ("an event time that is text", lambda: timed(str), ["event-time column 'at' has type string", "use a timestamp"]),
    ("timers without event time", lambda: processed(Timers, n=int), ["Timers has timers", "pass event_time="]),
    (
        "a type that changes",
        lambda: come_out(stream().map(lambda row: {"v": row["x"] if row["x"] < 3 else "three"})),
        ["no type fits all values of column 'v'", "pass schema="],
    ),
    (
        "a value that Arrow does not take",
        lambda: come_out(stream().map(lambda row: {"v": np.datetime64("2026-01-01")})),
        ["no type fits all values of column 'v'", "pass schema="],
    ),
    ("a row of another type", lambda: come_out(stream([{"k": "a", "x": "one"}])), ["is int64", "'one' (str)"]),
    ("a row with one column more", lambda: come_out(stream([{"z": 1}])), ["column 'z'", "(k, x)", "correct schema="]),
    ("a function that gives nothing", lambda: come_out(stream().map(lambda row: None)), ["NoneType", "return a dict"]),  # type: ignore[arg-type, return-value]
    ("a row, not rows", lambda: come_out(stream().flat_map(lambda row: row)), ["gave one row", "return [row]"]),  # type: ignore[arg-type, return-value]
    ("a checkpoint that is none", lambda: come_out_with(restore="latset"), ["restore='latset'", "use 'latest'"]),
    ("a mode that is nearly one", lambda: come_out_with(mode="exactly-once"), ["mode=", "'exactly_once'"]),
    ("a text as a time span", lambda: come_out_with(min_pause="1m"), ["min_pause=", "a number of seconds"]),  # type: ignore[arg-type]
    ("a job name with capitals", lambda: Dataflow("My Job"), ["'My Job' is not allowed", "a-z, 0-9 and '-'"]),
    ("a list as a sink", lambda: stream().sink("out", []), ["[] is not a sink", "ParquetSink(url)"]),  # type: ignore[arg-type]
    (
        "a sink that lacks methods",
        lambda: stream().sink("out", HalfASink()),
        ["HalfASink has no method begin_transaction, pre_commit, commit: add it"],
    ),
    (
        "a path that is not there",
        lambda: Dataflow("first").read_csv("s", "/no/such.csv"),
        ["/no/such.csv", "check the path"],
    ),
    ("an option that is nearly one", lambda: flow().run_local(paralelism=3), ["did you mean parallelism?"]),  # type: ignore[call-arg]
    ("a flow without a sink", lambda: (stream(), FLOWS[-1].run_local()), ["sink"]),
]


@pytest.mark.parametrize(("make", "said"), [row[1:] for row in MISTAKES], ids=[row[0] for row in MISTAKES])
def test_a_mistake_is_told_with_its_remedy(make: Callable[[], Any], said: list[str]) -> None:
    with pytest.raises((BarrierRuntimeError, AttributeError)) as told:
        make()
    assert [part for part in said if part not in str(told.value)] == []


def test_a_sinks_folder_that_is_a_file_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    with pytest.raises(BarrierRuntimeError, match="a file is there, or above it, and a folder is wanted"):
        run(stream(), JsonlSink(str(tmp_path / "file")))


# --------------------------------------------------------------------------------------------- the package

OPTIONAL = """
import sys
for name in {names!r}:
    sys.modules[name] = None  # as if it were not installed
"""


@pytest.mark.slow
def test_every_public_name_is_imported_without_any_extra() -> None:
    names = ["pyspark", "boto3", "obstore", "greenlet", "datasketches", "pandas", "polars"]
    names += [row.library.module for row in CONNECTORS if row.library is not None]
    code = OPTIONAL.format(names=names) + "from barrier_runtime import *\nprint(IcebergSink, DeltaSink, KafkaSink)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_program_that_writes_a_flow_imports_nothing_that_only_some_flows_need() -> None:
    unwanted = ["pandas", "pyarrow.acero", "pyarrow.dataset", "pyspark", "rocksdict", "sqlglot", "rich", "starlette"]
    code = "import sys\nfrom barrier_runtime import Dataflow, ParquetSink, count\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(unwanted) & set(done.stdout.split()) == set(), "pandas and acero alone take as long as all the rest"


def test_a_library_that_is_missing_is_told_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyiceberg", None)
    install = r"pip install 'barrier-runtime\[iceberg\]'"
    with pytest.raises(BarrierRuntimeError, match=install):
        Dataflow("first").source("s", IcebergSource("shop.orders"))
    with pytest.raises(BarrierRuntimeError, match=install):
        run(stream(), IcebergSink("shop.orders"))


def test_the_help_of_the_daemon_is_of_the_command_and_shows_nothing_internal() -> None:
    done = run_here("coordinator", "--help")
    assert done.returncode == 0
    assert "usage: barrier-runtime coordinator" in done.stdout
    assert "--storage" in done.stdout
    assert [
        flag for flag in ("--control-fd", "--exit-with-parent", "--store-already-proven") if flag in done.stdout
    ] == []


def test_the_version_is_in_the_package_and_in_the_command() -> None:
    assert run_here("--version").stdout == f"barrier-runtime {barrier_runtime.__version__}\n"


def test_a_token_file_that_is_missing_is_told_with_how_to_make_one(tmp_path: Path) -> None:
    done = run_here("status", "--coordinator", "http://127.0.0.1:9", "--token-file", str(tmp_path / "none"))
    assert done.returncode == 2
    assert "make one: (umask 077; openssl rand -hex 32 > " in done.stderr
