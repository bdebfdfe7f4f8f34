"""Arguments of a wrong type to public sources and sinks: the error names the parameter, the value and the remedy."""

import inspect
import itertools
from datetime import timedelta
from typing import Any

import pytest

import barrier_runtime as br
from barrier_runtime import BarrierRuntimeError, InvalidJob

FILES: dict[str, Any] = {"paths": "/in"}
OUT: dict[str, Any] = {"url": "/out"}
POSTGRES = "postgresql://h/d"
VALID: dict[str, dict[str, Any]] = {
    "BinarySource": FILES,
    "CallableSink": {"function": print},
    "ClickHouseSink": {"url": "clickhouse://h/db", "table": "t", "key": "k"},
    "CollectSink": {},
    "CsvSink": OUT,
    "CsvSource": FILES,
    "DeltaSink": OUT,
    "DeltaSource": OUT,
    "DeltaUpsertSink": {**OUT, "key": ["k"]},
    "IcebergSink": {"table": "a.b"},
    "IcebergSource": {"table": "a.b"},
    "IteratorSource": {"make_iterator": lambda _slot, _slots: [], "schema": "n bigint"},
    "JsonlSink": OUT,
    "JsonlSource": FILES,
    "KafkaSink": {"bootstrap_servers": "h:1", "topic": "t"},
    "KafkaSource": {"bootstrap_servers": "h:1", "topics": "t", "group": "g"},
    "KinesisSource": {"stream": "s"},
    "MySQLSink": {"url": "mysql://h/d", "table": "t"},
    "ParquetSink": OUT,
    "ParquetSource": FILES,
    "PollSource": {"fetch": lambda _cursor: None, "every": timedelta(seconds=1), "schema": "n bigint"},
    "PostgresChangesSource": {"url": POSTGRES, "tables": ["t"]},
    "PostgresSink": {"url": POSTGRES, "table": "t"},
    "SqliteSink": {"path": "shop.db", "table": "t"},
    "RabbitMQSource": {"url": "amqp://h", "queue": "q", "deduplicate": None},
    "RateSource": {"rows_per_second": 10},
    "RedisUpsertSink": {"url": "redis://h", "key": "k"},
    "TextSource": FILES,
}
BASES = {"BatchFunctionSink", "TwoPhaseCommitSink", "UpsertSink", "WriteAheadSink"}  # of sinks that users write
VALUES = [5, None, 1.5, b"x", object(), [], {}, True, "", ("a", 5), [None], {"x": 1}, "x", ["x"], timedelta(1), -1]


def _checked(made: Any) -> None:
    """Sources of tables check the key when the flow names them."""
    if isinstance(made, br.DeltaSource | br.IcebergSource):
        made.named("rows")


def test_every_public_source_and_sink_is_here() -> None:
    public = {name for name in dir(br) if name.endswith(("Source", "Sink")) and inspect.isclass(getattr(br, name))}
    assert VALID.keys() == {name for name in public if not inspect.isabstract(getattr(br, name))} - BASES


def test_no_column_of_a_key_has_an_empty_name() -> None:
    for name, given in VALID.items():
        made = getattr(br, name)
        parameters = inspect.signature(made).parameters
        if "key" not in parameters or name in ("KafkaSource", "KafkaSink"):  # a format; a column or a function
            continue
        modes: tuple[dict[str, str], ...] = ({"mode": "insert"}, {"mode": "upsert"}) if "mode" in parameters else ({},)
        for mode, key in itertools.product(modes, ("", [""], ["k", ""])):
            with pytest.raises(InvalidJob, match="empty name"):
                _checked(made(**given | mode | {"key": key}))


@pytest.mark.parametrize("name", VALID)
def test_no_kind_of_argument_ends_in_an_error_of_python(name: str) -> None:
    made = getattr(br, name)
    made(**VALID[name])
    for parameter in inspect.signature(made).parameters:
        for value in VALUES:
            try:
                made(**{**VALID[name], parameter: value})
            except BarrierRuntimeError as error:
                told = str(error)
                assert len(told) > 20, (parameter, value)
                assert "Traceback" not in told


@pytest.mark.parametrize(
    ("name", "wrong", "text"),
    [
        ("KafkaSource", {"topics": 5}, "KafkaSource: topics=5: give a text or a list of texts or None"),
        ("KafkaSource", {"metadata": None}, "KafkaSource: metadata=None: give a list of texts"),
        ("KafkaSink", {"headers": None}, "KafkaSink: headers=None: give a mapping of texts or a list of texts"),
        ("RabbitMQSource", {"prefetch": None}, "RabbitMQSource: prefetch=None: give a whole number"),
        ("RabbitMQSource", {"url": b"amqp://u:secret@h"}, "RabbitMQSource: url=<bytes>: give a text"),
        ("RedisUpsertSink", {"url": ["redis://h"]}, r"RedisUpsertSink: url=\['redis://h'\]: give a text"),
        ("JsonlSink", {"roll_bytes": "1 MB"}, "JsonlSink: roll_bytes=<str>: give a whole number or None"),
        ("CsvSource", {"delimiter": None}, "CsvSource: delimiter=None: give a text"),
        ("IcebergSink", {"properties": {"uri": 1}}, "properties={'uri': 1}: give a mapping of texts or None"),
        ("PostgresChangesSource", {"tables": ("a", 5)}, r"tables=\('a', 5\): give a text or a list of texts"),
        ("MySQLSink", {"call_s": "60"}, "MySQLSink: call_s=<str>: give a number"),
    ],
)
def test_what_is_wrong_is_named_with_what_to_give(name: str, wrong: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidJob, match=text) as refused:
        getattr(br, name)(**{**VALID[name], **wrong})
    assert "secret" not in str(refused.value)
