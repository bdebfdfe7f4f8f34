"""Public source classes: flows treat them like the `read_…` methods, with the same refusals."""

import dataclasses
import datetime
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import barrier_runtime as br
from barrier_runtime import (
    BinarySource,
    CollectSink,
    CsvSource,
    Dataflow,
    InvalidJob,
    IteratorSource,
    JsonlSource,
    KafkaSource,
    ParquetSource,
    PollSource,
    PostgresChangesSource,
    RabbitMQSource,
    RateSource,
    TextSource,
)
from barrier_runtime.connectors.source import SourceDescription

SCHEMA = {"n": int, "at": "timestamp[ms]"}
EVENT_TIME: dict[str, Any] = {"event_time": "at", "max_out_of_orderness": datetime.timedelta(seconds=2)}
OF_THE_STREAM = {"self", "name", "event_time", "max_out_of_orderness", "idle_timeout"}


def numbers(index: int, of: int) -> Iterator[dict[str, Any]]:
    return ({"n": n, "at": datetime.datetime(2026, 1, 1)} for n in range(index, 10, of))


def kafka(**options: Any) -> KafkaSource:
    return KafkaSource("broker:9092", "bids", group="g", value="json", schema=SCHEMA, metadata=("offset",), **options)


METHODS: dict[str, type] = {
    "read_parquet": ParquetSource,
    "read_csv": CsvSource,
    "read_jsonl": JsonlSource,
    "read_text": TextSource,
    "read_binary": BinarySource,
    "read_kafka": KafkaSource,
    "read_rabbitmq": RabbitMQSource,
    "read_postgres_changes": PostgresChangesSource,
    "from_iterator": IteratorSource,
    "from_poll": PollSource,
    "rate": RateSource,
}
FILES: dict[type, tuple[str, Callable[[Path], Any]]] = {
    ParquetSource: ("a.parquet", lambda path: pq.write_table(pa.table({"n": [1], "at": [0]}), path)),
    CsvSource: ("a.csv", lambda path: path.write_text("n;at\n1;0\n")),
    JsonlSource: ("a.jsonl", lambda path: path.write_text('{"n": 1, "at": 0}\n')),
}


@pytest.mark.parametrize("method", METHODS)
def test_a_method_that_reads_has_the_arguments_and_defaults_of_its_source(method: str) -> None:
    read = inspect.signature(getattr(Dataflow, method)).parameters
    source = inspect.signature(METHODS[method]).parameters
    own = {name: each for name, each in read.items() if name not in OF_THE_STREAM}
    assert {name: (each.kind, each.default) for name, each in own.items()} == {
        name: (each.kind, each.default) for name, each in source.items() if name not in OF_THE_STREAM
    }


def test_every_method_that_reads_has_a_public_source() -> None:
    reading = {name for name in dir(Dataflow) if name.startswith("read_")}
    assert reading <= METHODS.keys()
    assert {each.__name__ for each in METHODS.values()} <= set(br.__all__)


@pytest.mark.parametrize("kind", FILES, ids=lambda kind: str(kind.__name__))
@pytest.mark.parametrize("watch", [None, datetime.timedelta(seconds=1)], ids=["fixed", "watched"])
def test_a_source_of_files_reads_what_its_method_reads(tmp_path: Path, kind: Any, watch: Any) -> None:
    name, write = FILES[kind]
    write(tmp_path / name)
    options: dict[str, Any] = {"schema": {"n": int, "at": int}, "watch": watch}
    if kind is CsvSource:
        options["delimiter"] = ";"
    method = next(method for method, source in METHODS.items() if source is kind)
    one, other = Dataflow("one"), Dataflow("other")
    one.source("rows", kind(str(tmp_path), **options), **EVENT_TIME)
    getattr(other, method)("rows", str(tmp_path), **options, **EVENT_TIME)
    for_one, for_other = one.plan.nodes[0], other.plan.nodes[0]
    assert dataclasses.replace(for_one, source=None) == dataclasses.replace(for_other, source=None)
    assert repr(for_one.source) == repr(for_other.source)  # type: ignore[union-attr]
    assert for_one.source.splits(1) == for_other.source.splits(1)  # type: ignore[union-attr]
    assert len(for_one.source.splits(1)) == 1  # type: ignore[union-attr]


def test_rows_of_a_source_are_those_of_its_method() -> None:
    sinks = [CollectSink() for _ in range(4)]
    flow = Dataflow("rows")
    flow.source("a", IteratorSource(numbers, schema=SCHEMA, splits=3), **EVENT_TIME).sink("out-a", sinks[0])
    flow.from_iterator("b", numbers, schema=SCHEMA, splits=3, **EVENT_TIME).sink("out-b", sinks[1])
    flow.source("c", RateSource(1e6, 50, keys=7)).select(["value", "key"]).sink("out-c", sinks[2])
    flow.rate("d", 1e6, 50, keys=7).select(["value", "key"]).sink("out-d", sinks[3])
    flow.run_local(parallelism=2)
    a, b, c, d = ([sorted(row.items()) for row in sink.rows()] for sink in sinks)
    assert sorted(a) == sorted(b)
    assert len(a) == 10
    assert sorted(c) == sorted(d)
    assert len(c) == 50


HOUR = datetime.timedelta(hours=1)


@pytest.mark.parametrize(
    ("method", "description", "nodes"),
    [
        ("read_kafka", kafka(), 1),
        ("read_kafka", kafka(bad_records="dead_letter"), 2),  # the source, and the step that splits off dead letters
        ("read_rabbitmq", RabbitMQSource("amqp://h/v", "q", deduplicate=None), 1),
        ("read_rabbitmq", RabbitMQSource("amqp://h/v", "q", deduplicate="forever"), 2),
        ("read_rabbitmq", RabbitMQSource("amqp://h/v", "q", deduplicate=HOUR), 2),
    ],
)
def test_what_follows_a_source_of_a_broker_is_what_its_method_adds(method: str, description: Any, nodes: int) -> None:
    names = [each.name for each in dataclasses.fields(description) if each.name not in OF_THE_STREAM]
    arguments = {name: getattr(description, name) for name in names}
    at = {"event_time": "at" if method == "read_kafka" else "timestamp"}
    one, other = Dataflow("one"), Dataflow("other")
    dead = arguments["bad_records"] == "dead_letter"
    here = (one.source_with_dead_letters if dead else one.source)("rows", description, **at)
    there = getattr(other, method)("rows", **arguments, **at)
    assert [each.schema for each in (here if dead else [here])] == [
        each.schema for each in (there if dead else [there])
    ]
    assert steps(one) == steps(other)
    assert len(steps(one)) == nodes


def steps(flow: Dataflow) -> list[Any]:
    """Returns the comparable parts of the plan."""
    return [
        (type(node).__name__, node.name, repr(getattr(node, "source", "")), getattr(node, "describe", ""))
        for node in flow.plan.nodes
    ]


def test_description_inspects_nothing_and_messages_use_the_name_of_the_flow() -> None:
    description = ParquetSource("/no/such/place", pace=0)
    with pytest.raises(InvalidJob, match="source 'orders': pace=0: give rows per second"):
        Dataflow("job").source("orders", description)
    with pytest.raises(InvalidJob, match=r"source 'returns'.*/no/such/place"):
        Dataflow("job").source("returns", dataclasses.replace(description, pace=None))


def test_one_description_is_a_source_under_each_of_its_names() -> None:
    description = RateSource(1e6, 10)
    assert isinstance(description, SourceDescription)
    flow, sinks = Dataflow("twice"), [CollectSink(), CollectSink()]
    for name, sink in zip(("first", "second"), sinks, strict=True):
        flow.source(name, description).sink(f"out-{name}", sink)
    flow.run_local(parallelism=1)
    assert [len(sink.rows()) for sink in sinks] == [10, 10]


def test_dead_letters_are_asked_for_with_both_words_or_refused() -> None:
    flow = Dataflow("letters")
    with pytest.raises(InvalidJob, match=r"source 'bids': its dead letters are.*use source_with_dead_letters"):
        flow.source("bids", kafka(bad_records="dead_letter"))
    with pytest.raises(InvalidJob, match=r"source 'bids': it has no dead letters: use source\(…\)"):
        flow.source_with_dead_letters("bids", kafka())
    with pytest.raises(InvalidJob, match="source 'ticks': it has no dead letters"):
        flow.source_with_dead_letters("ticks", RateSource(1))


def test_ids_that_event_time_forgets_need_event_time() -> None:
    source = RabbitMQSource("amqp://h/v", "q", deduplicate=HOUR)
    with pytest.raises(InvalidJob, match=r"source 'm': deduplicate=1:00:00 is measured by the watermark.*event_time="):
        Dataflow("job").source("m", source)
    with pytest.raises(InvalidJob, match="source 'm': deduplicate='never': pass a timedelta"):
        Dataflow("job").source("m", dataclasses.replace(source, deduplicate="never"))


def test_secrets_in_the_settings_of_a_client_are_not_shown() -> None:
    shown = repr(kafka(config={"sasl.password": "open-sesame"}))
    assert "broker:9092" in shown
    assert "open-sesame" not in shown


@pytest.mark.parametrize(
    "source",
    [
        PostgresChangesSource("postgresql://me:s3cret@host/db", ["t"]),
        PostgresChangesSource("host=here password=s3cret", ["t"]),
        RabbitMQSource("amqp://me:s3cret@host/v", "q", deduplicate=None),
        br.IcebergSource("a.b", properties={"uri": "postgresql://me:s3cret@host/db", "token": "s3cret"}),
        br.KinesisSource("clicks", endpoint="http://me:s3cret@host"),
        KafkaSource(br.KafkaBrokers("b:9092", config={"sasl.password": "s3cret"}), "t", group="g"),
        KafkaSource("b:9092", "t", group="g", config={"sasl.password": "s3cret"}),
    ],
    ids=lambda source: type(source).__name__,
)
def test_no_message_shows_the_secrets_of_a_source_in_a_wrong_place(source: Any) -> None:
    rows = Dataflow("wrong").from_iterator("rows", numbers, schema=SCHEMA)
    for call in (rows.union, lambda given: rows.sink("out", given)):
        with pytest.raises(InvalidJob, match=type(source).__name__) as refused:
            call(source)
        assert "s3cret" not in str(refused.value)
