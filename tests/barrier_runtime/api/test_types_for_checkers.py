"""Type hints of all public names, so that type checkers find wrong arguments before the job runs."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import barrier_runtime

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = """
import datetime

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
    *("ParquetSource", "JsonlSource", "CsvSource", "KafkaSource", "RabbitMQSource", "RateSource", "IteratorSource"),
    *(
        "PollSource",
        "TextSource",
        "BinarySource",
        "KinesisSource",
        "DeltaSource",
        "IcebergSource",
        "PostgresChangesSource",
    ),
    *["Stream"] * 46,
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
keyed.join("j", keyed, between=(hour, hour), event_time=3)
keyed.table_join("t", keyed, deleted=True)
rows.lookup("l", print, key="k", schema={"name": str}, max_batches=3)
hours.aggregate(late=True, n=br.count()).errors
"""
REFUSED = [
    'Unexpected keyword argument "nonsense" for "ParquetSink"',
    'Missing named argument "group" for "KafkaSource"',
    'Argument "on_change" to "CsvSource" has incompatible type',
    'Argument 2 to "source" of "Readers" has incompatible type "str"',
    'Argument "a" to "rename" of "ColumnSteps" has incompatible type "int"; expected "str"',
    'Argument 1 to "inspect" of "RowSteps" has incompatible type "int"',
    '"WithErrors[Stream]" has no attribute "sink"',
    'Unexpected keyword argument "nonsense"',
    'has incompatible type "str"; expected "float | None"',
    'No overload variant of "join" of "JoiningStream" matches',
    'No overload variant of "table_join" of "JoiningStream" matches',
    'Unexpected keyword argument "max_batches" for overloaded function "lookup"',
    'No overload variant of "lookup" of "LookupSteps" matches',
    '"WithLate[Stream]" has no attribute "errors"',
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


@pytest.mark.slow
def test_mypy_knows_the_type_of_every_source_and_sink_and_sees_wrong_arguments(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM + WRONG)
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), str(program)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    revealed = [line.rpartition(".")[2].rstrip('"') for line in checked.stdout.splitlines() if "Revealed" in line]
    errors = [line for line in checked.stdout.splitlines() if ": error: " in line]
    assert revealed == REVEALED, checked.stdout
    assert len(errors) == len(REFUSED), checked.stdout
    assert [text for text, line in zip(REFUSED, errors, strict=True) if text not in line] == [], checked.stdout
