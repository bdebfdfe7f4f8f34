"""Type hints of all public names, so that type checkers find wrong arguments before the job runs."""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import barrier_runtime

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = """
import datetime

import pyarrow

import barrier_runtime as br

reveal_type(br.ParquetSink("out"))
reveal_type(br.JsonlSink("out"))
reveal_type(br.CsvSink("out"))
reveal_type(br.DeltaSink("out"))
reveal_type(br.DeltaUpsertSink("t", key=["id"]))
reveal_type(br.IcebergSink("db.t"))
reveal_type(br.PostgresSink("postgresql://h/d", "t"))
reveal_type(br.MySQLSink("mysql://h/d", "t"))
reveal_type(br.SqliteSink("shop.db", "t"))
reveal_type(br.ClickHouseSink("http://h:8123", "t", key="k"))
reveal_type(br.KafkaSink("broker:9092", "t"))
reveal_type(br.RedisUpsertSink("redis://h", key="k"))
reveal_type(br.BatchFunctionSink())
reveal_type(br.CollectSink())
reveal_type(br.CallableSink(print))
reveal_type(br.ParquetSource("in"))
reveal_type(br.JsonlSource("in"))
reveal_type(br.CsvSource("in", delimiter=";"))
reveal_type(br.KafkaSource("broker:9092", "t", group="g"))
reveal_type(br.RabbitMQSource("amqp://h", "q", deduplicate=None))
reveal_type(br.RateSource(10))
reveal_type(br.IteratorSource(lambda index, of: [], schema={"n": int}))
reveal_type(br.PollSource(lambda cursor: ([], cursor), every=datetime.timedelta(seconds=1), schema={"n": int}))
reveal_type(br.TextSource("in"))
reveal_type(br.BinarySource("in"))
reveal_type(br.KinesisSource("s"))
reveal_type(br.DeltaSource("in"))
reveal_type(br.IcebergSource("db.t"))
reveal_type(br.PostgresChangesSource("postgresql://h/d", ["t"]))

flow = br.Dataflow("flow")
kafka = br.KafkaSource("broker:9092", "t", group="g", bad_records="dead_letter")
reveal_type(flow.source("rows", br.ParquetSource("in"), event_time="at"))
reveal_type(flow.source_with_dead_letters("letters", kafka)[1])
reveal_type(flow.read_csv("csv", "in", delimiter=";", types={"at": datetime.datetime}, event_time="at"))
reveal_type(flow.read_kafka("k", "broker:9092", "t", group="g", bad_records="dead_letter")[1])

rows = flow.source("more", br.ParquetSource("in"))
reveal_type(rows.map(dict))
reveal_type(rows.with_columns({"a": 1}, b="a + 1").drop("a").rename(b="c").select("*", {"d": "c"}).inspect(print))
reveal_type(rows.explode("lines", into=("key", "value"), outer=True, position="at"))
reveal_type(rows.map(dict, on_error="side")[1])
reveal_type(rows.flat_map(lambda row: [row], on_error="skip"))
reveal_type(rows.filter(bool, on_error="side")[1])
reveal_type(rows.split("by", str, into=("a", "b"))[1])
reveal_type(rows.key_by("k").process("p", print))
reveal_type(rows.key_by("k").process("q", print, on_error="side")[1])
reveal_type(rows.key_by("k").process("r", print, side={"late": {"at": int}})[1])

keyed, hour = rows.key_by("k"), datetime.timedelta(hours=1)
reveal_type(keyed.join("j", keyed, between=(0, 3600.5), event_time="at", how="full"))
reveal_type(keyed.join("k", keyed, between=(hour, hour), event_time=("at", "at"), late=True)[2])
reveal_type(keyed.window_join("w", keyed, br.Tumbling(3600), event_time="at"))
reveal_type(keyed.window_join("x", keyed, br.Tumbling(hour), event_time="at", suffix=("", "_r"), late=True)[2])
reveal_type(keyed.asof_join("a", keyed, event_time="at", tolerance=hour, exact=False))
reveal_type(keyed.asof_join("b", keyed, event_time="at", how="inner", late=True)[2])
reveal_type(keyed.table_join("t", keyed, deleted="gone"))
reveal_type(keyed.table_join("u", keyed, event_time="at", late=True)[2])
reveal_type(rows.lookup("l", print, key="k", schema={"name": str}, max_batch=3))
reveal_type(rows.lookup("m", print, key=["k"], schema={"name": str}, how="side")[1])
reveal_type(rows.lookup("n", print, key=["k"], schema={"name": str}, on_error="side")[1])
reveal_type(rows.map_batches(lambda batch: batch, one_to_one=True))
reveal_type(rows.map_batches(lambda batch: batch, schema={"n": int}, on_error="side")[1])
reveal_type(keyed.process_groups("g", print, state={"n": int}))
reveal_type(keyed.process_groups("h", print, on_error="side")[1])
reveal_type(rows.process("p", print, schema={"n": int}, on_error="skip"))
reveal_type(rows.process("q", print, side={"late": {"at": int}}, on_error="side")[2])
reveal_type(br.connect(a=keyed).process("c", print, event_time={"a": "at"}))
reveal_type(br.connect(a=keyed).process("d", print, on_error="side")[1])
hours = keyed.window("hours", br.Tumbling(hour), event_time="at")
reveal_type(hours.apply(lambda key, window, table: table, schema={"n": int}, batches=True))
reveal_type(hours.apply(lambda key, window, table: table, schema={"n": int}, late=True)[1])

reveal_type(rows.map(dict, on_error="side").errors)
good, bad = rows.map(dict, on_error="side")
reveal_type(bad)
reveal_type(rows.split("by2", str, into=("a", "b")).a)
reveal_type(keyed.process("s", print, side={"too hot": {"at": int}})["too hot"])
reveal_type(hours.aggregate(late=True, n=br.count()).late)
reveal_type(hours.top(3, by="n", late=True).main)
reveal_type(keyed.join("l", keyed, between=(hour, hour), event_time="at", late=True).late_right)
reveal_type(rows.lookup("o", print, key=["k"], schema={"name": str}, how="side").misses)
reveal_type(flow.read_kafka("k2", "broker:9092", "t", group="g", bad_records="dead_letter").dead_letters)
reveal_type(flow.source_with_dead_letters("letters2", kafka).main)
outputs: br.Outputs[br.Stream] = keyed.process("v", print, side={"late": {"at": int}}, on_error="side")
reveal_type(outputs.late)
"""
TYPED = """
import dataclasses
from collections.abc import Iterator

import msgspec
from typing import Any, TypedDict

from barrier_runtime.testing import KeyedHarness


@dataclasses.dataclass
class Order:
    id: int
    amount: float


class Total(msgspec.Struct):
    id: int
    amount: float


class Sum:
    def process(self, key: int, order: Order, ctx: br.ProcessContext) -> Iterator[Total]:
        yield Total(key, order.amount)


class OfDicts:
    def process(self, key: int, row: dict[str, Any], ctx: br.ProcessContext) -> Iterator[dict[str, Any]]:
        yield row


def total(order: Order) -> Total:
    return Total(order.id, order.amount)


def large(orders: br.TypedStream[Order]) -> br.TypedStream[Order]:
    return orders.filter(lambda order: order.amount > 100, name="large")


class Plain(TypedDict):
    id: int


def iterated(index: int, of: int) -> Iterator[Order]:
    yield Order(index, 1.0)


def fetched(cursor: Any) -> tuple[list[Order], Any] | None:
    return [Order(1, 1.0)], cursor


hour = datetime.timedelta(hours=1)
reveal_type(flow.read_jsonl("r1", "in", schema=Order, watch=hour))
reveal_type(flow.read_kafka("r2", "broker:9092", "t", group="g", value="json", schema=Order))
reveal_type(flow.from_iterator("r3", iterated, schema=Order))
reveal_type(flow.from_poll("r4", fetched, every=hour, schema=Order))
reveal_type(flow.source("r5", br.CsvSource("in", schema=Order), event_time="at"))
reveal_type(flow.source("r6", br.IteratorSource(iterated, schema=Order)))
orders = flow.read_jsonl("orders", "in", schema=Order)
windows = orders.key_by("id").window("w", br.Global())
reveal_type(windows.apply(lambda key, window, table: Total(1, 1.0), schema=Total).typed(Total))
reveal_type(flow.read_kafka("r7", "broker:9092", "t", group="g", value="json", schema=Order, debezium="upsert"))
reveal_type(flow.read_jsonl("r8", "in", schema=Plain))
reveal_type(flow.read_jsonl("r9", "in", schema="id BIGINT"))
reveal_type(flow.from_iterator("r10", lambda index, of: [{"id": index}], schema={"id": int}))
reveal_type(flow.source("r11", br.JsonlSource("in", schema=Plain)))
with KeyedHarness(Sum, key="id", rows=Order, schema=Total) as harness:
    reveal_type(harness.push(Order(1, 1.0)))
with KeyedHarness(Sum, key="id") as harness_of_dicts:
    reveal_type(harness_of_dicts.end())
for row in br.CollectSink().rows(Total):
    reveal_type(row)
reveal_type(br.CollectSink().rows())
by_id = orders.key_by("id")
reveal_type(large(orders).inspect(lambda order: print(order.id)).inspect())
reveal_type(orders.split("half", lambda order: "a" if order.amount > 1 else "b", into=("a", "b")).a)
reveal_type(orders.union(orders.rebalance().stable().deduplicate("ids", "id", within=None).with_watermarks("at")))
reveal_type(orders.map(total))
reveal_type(orders.map(lambda order: Total(order.id, 1.0), schema=Total))
reveal_type(orders.flat_map(lambda order: [total(order)], schema=Total))
reveal_type(orders.process("each", lambda order, ctx: total(order), schema=Total))
reveal_type(by_id)
reveal_type(by_id.process("sum", Sum, schema=Total))
reveal_type(by_id.process("sum2", lambda key, order, ctx: total(order), schema=Total).filter(lambda row: row.id > 1))
reveal_type(rows.map(lambda row: Order(row["id"], 1.0), schema=Order).typed(Order))
reveal_type(rows.flat_map(lambda row: [Order(row["id"], 1.0)], schema=Order).typed(Order))
reveal_type(by_id.process("sum3", Sum, side={"late": Order})[1])
reveal_type(orders.map(lambda order: {"id": order.id, "name": "x"}).map(lambda row: {"id": row["id"] + 1}))
reveal_type(orders.filter(lambda order: order.amount > 1, on_error="side").errors)
reveal_type(orders.union(rows))
reveal_type(orders.select("id"))
reveal_type(orders.select("id").map(lambda row: {"id": row["id"]}, schema=pyarrow.schema([])))
large(orders).sink("large", br.CollectSink())
"""
REVEALED = [
    *(
        "ParquetSink",
        "JsonlSink",
        "CsvSink",
        "DeltaSink",
        "DeltaUpsertSink",
        "IcebergSink",
        "PostgresSink",
        "MySQLSink",
        "SqliteSink",
        "ClickHouseSink",
        "KafkaSink",
        "RedisUpsertSink",
    ),
    *("BatchFunctionSink", "CollectSink", "CallableSink"),
    *("ParquetSource", "JsonlSource", "CsvSource"),
    *("KafkaSource", "RabbitMQSource", "RateSource", "IteratorSource", "PollSource", "TextSource", "BinarySource"),
    *("KinesisSource", "DeltaSource", "IcebergSource", "PostgresChangesSource"),
    *["Stream"] * 46,
    *["TypedStream[Order]"] * 6,
    "TypedStream[Total]",
    *["Stream"] * 5,
    *("list[Total]", "list[dict[str, Any]]", "Total", "list[dict[str, Any]]"),
    *["TypedStream[Order]"] * 3,
    *["TypedStream[Total]"] * 4,
    *("TypedKeyedStream[Order]", "TypedStream[Total]", "TypedStream[Total]"),
    *["TypedStream[Order]"] * 2,
    *["Stream"] * 6,
]
WRONG = """
br.ParquetSink("out", nonsense=1)
br.KafkaSource("broker:9092", "t")
br.CsvSource("in", on_change="ignore")
flow.source("rows", "in")
rows.rename(a=1)
rows.inspect(3)
rows.map(dict, on_error="side").sink("s", br.CollectSink())
flow.read_csv("csv", "in", nonsense=1)
flow.read_jsonl("jsonl", "in", pace="fast")
flow.read_jsonl("jsonl2", "in", schema=Order, nonsense=1)
flow.read_jsonl("jsonl3", "in", schema=Order, pace="fast")
flow.from_iterator("iterator", lambda index, of: [index], schema=Order)
harness.push(Total(1, 1.0))
keyed.join("j", keyed, between=(hour, hour), event_time=3)
keyed.table_join("t", keyed, deleted=True)
rows.lookup("l", print, key="k", schema={"name": str}, max_batches=3)
hours.aggregate(late=True, n=br.count()).errors
orders.filter(lambda order: order.amout > 1)
orders.inspect(lambda order: order["id"])
orders.map(lambda order: {"n": order.nme})
orders.flat_map(lambda order: [{"n": order.nme}])
orders.split("half", lambda order: order.nme, into=("a", "b"))
orders.map(total).filter(lambda row: row.nme)
orders.process("each", lambda order, ctx: order.nme)
by_id.process("dicts", OfDicts)
made = orders.map(total)
large(made)
"""
REFUSED = [
    'Unexpected keyword argument "nonsense" for "ParquetSink"',
    'Missing named argument "group" for "KafkaSource"',
    'Argument "on_change" to "CsvSource" has incompatible type',
    'No overload variant of "source" of "Readers" matches argument types "str", "str"',
    'Argument "a" to "rename" of "ColumnSteps" has incompatible type "int"; expected "str"',
    'Argument 1 to "inspect" of "RowSteps" has incompatible type "int"',
    '"WithErrors[Stream]" has no attribute "sink"',
    'Unexpected keyword argument "nonsense"',
    'No overload variant of "__call__" of "Reads" matches argument types "str", "str"',
    'No overload variant of "__call__" of "Reads" matches argument types "str", "str", "str"',
    'Unexpected keyword argument "nonsense"',
    *['No overload variant of "__call__" of "Reads" matches argument types "str", "str", "type[Order]"'] * 2,
    'List item 0 has incompatible type "int"',
    'Argument 1 to "push" of "KeyedHarness" has incompatible type "Total"; expected "Order | dict[str, Any]"',
    'No overload variant of "join" of "JoiningStream" matches',
    'No overload variant of "table_join" of "JoiningStream" matches',
    'Unexpected keyword argument "max_batches" for overloaded function "lookup"',
    'No overload variant of "lookup" of "LookupSteps" matches',
    '"WithLate[Stream]" has no attribute "errors"',
    '"Order" has no attribute "amout"; maybe "amount"?',
    'Value of type "Order" is not indexable',
    *['"Order" has no attribute "nme"'] * 3,
    '"Total" has no attribute "nme"',
    '"Order" has no attribute "nme"',
    'Argument 2 to "process" of "TypedKeyedStream" has incompatible type "type[OfDicts]"',
    'Argument 1 to "large" has incompatible type "TypedStream[Total]"; expected "TypedStream[Order]"',
]


def test_a_checker_finds_every_public_name_where_it_is_found_when_the_program_runs() -> None:
    tree = ast.parse(Path(str(barrier_runtime.__file__)).read_text())
    (block,) = [
        each
        for each in tree.body
        if isinstance(each, ast.If) and isinstance(each.test, ast.Name) and each.test.id == "TYPE_CHECKING"
    ]
    seen = {
        name.asname: f"{each.module}.{name.name}"
        for each in block.body
        if isinstance(each, ast.ImportFrom)
        for name in each.names
    }
    assert seen == {name: f"{home}.{name}" for name, home in barrier_runtime._HOME.items()}


def test_the_program_has_every_source_and_sink() -> None:
    assert {name for name in barrier_runtime.__all__ if name.endswith(("Source", "Sink"))} - set(REVEALED) == {
        *("TwoPhaseCommitSink", "UpsertSink", "WriteAheadSink"),  # bases
    }


def short_names(kinds: list[str]) -> list[str]:
    names = [re.sub(r"\w+\.", "", kind) for kind in kinds]
    return [re.sub(r"(?<=Source)\[dict\[str, Any\]\]$", "", name) for name in names]


@pytest.mark.slow
def test_pyright_knows_the_same_types_and_sees_the_same_wrong_arguments(tmp_path: Path) -> None:
    """The first use per machine installs Pyright by npm."""
    settings = {"include": ["program.py"], "extraPaths": [str(ROOT)], "pythonVersion": "3.10"}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    (tmp_path / "program.py").write_text(PROGRAM + TYPED + WRONG)
    checked = subprocess.run(
        [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--outputjson", "--project", str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"},
        capture_output=True,
        text=True,
    )
    assert checked.stdout.startswith("{"), checked.stderr
    found = json.loads(checked.stdout)["generalDiagnostics"]
    revealed = [each["message"] for each in found if each["severity"] == "information"]
    assert short_names([re.sub(r'Type of ".*" is "(.*)"', r"\1", each) for each in revealed]) == REVEALED
    begin = (PROGRAM + TYPED).count("\n")
    wrong = [begin + at for at, line in enumerate(WRONG.splitlines()) if line and line != "made = orders.map(total)"]
    assert sorted({each["range"]["start"]["line"] for each in found if each["severity"] == "error"}) == wrong


@pytest.mark.slow
def test_mypy_knows_the_type_of_every_source_and_sink_and_sees_wrong_arguments(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM + TYPED + WRONG)
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), str(program)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    revealed = short_names(re.findall(r'Revealed type is "(.*)"', checked.stdout))
    errors = [line for line in checked.stdout.splitlines() if ": error: " in line]
    assert revealed == REVEALED, checked.stdout
    assert len(errors) == len(REFUSED), checked.stdout
    assert [text for text, line in zip(REFUSED, errors, strict=True) if text not in line] == [], checked.stdout
