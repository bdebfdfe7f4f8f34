"""Our source classes, imported on first use: a flow loads only its own connectors."""

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from barrier_runtime.data.schemas import Duration, SchemaLike

if TYPE_CHECKING:
    from barrier_runtime.connectors.delta.source import DeltaSource as DeltaSource
    from barrier_runtime.connectors.files.source.binary import BinarySource as BinarySource
    from barrier_runtime.connectors.files.source.csv import CsvSource as CsvSource
    from barrier_runtime.connectors.files.source.files import FileOrder, OnChange
    from barrier_runtime.connectors.files.source.jsonl import JsonlSource as JsonlSource
    from barrier_runtime.connectors.files.source.lines import TextSource as TextSource
    from barrier_runtime.connectors.files.source.parquet import ParquetSource as ParquetSource
    from barrier_runtime.connectors.iceberg.source import IcebergSource as IcebergSource
    from barrier_runtime.connectors.kafka.source.source import KafkaSource as KafkaSource
    from barrier_runtime.connectors.kinesis.source import KinesisSource as KinesisSource
    from barrier_runtime.connectors.memory.iterator import IteratorSource as IteratorSource
    from barrier_runtime.connectors.memory.poll import PollSource as PollSource
    from barrier_runtime.connectors.memory.rate import RateSource as RateSource
    from barrier_runtime.connectors.postgres.changes.source import PostgresChangesSource as PostgresChangesSource
    from barrier_runtime.connectors.rabbitmq.source import RabbitMQSource as RabbitMQSource
    from barrier_runtime.operators.rate_limit import RateLimits
    from barrier_runtime.operators.retry import Retry

_HOME = {
    "BinarySource": "files.source.binary",
    "CsvSource": "files.source.csv",
    "DeltaSource": "delta.source",
    "IcebergSource": "iceberg.source",
    "IteratorSource": "memory.iterator",
    "JsonlSource": "files.source.jsonl",
    "KafkaSource": "kafka.source.source",
    "KinesisSource": "kinesis.source",
    "ParquetSource": "files.source.parquet",
    "PollSource": "memory.poll",
    "PostgresChangesSource": "postgres.changes.source",
    "RabbitMQSource": "rabbitmq.source",
    "RateSource": "memory.rate",
    "TextSource": "files.source.lines",
}


class SettingsOfSource(TypedDict, total=False):
    """`SourceSettings`, as keywords."""

    event_time: str | None
    max_out_of_orderness: Duration
    idle_timeout: Duration | None
    max_rows_per_second: float | None


class SourceOptions(SettingsOfSource, total=False):
    """Arguments of all source classes with a `schema`."""

    paths: str | Sequence[str]
    pace: float | None
    watch: Duration | None
    on_change: "OnChange"
    file_order: "FileOrder | None"
    types: SchemaLike | None
    delimiter: str
    encoding: str
    decimal_point: str
    url: str
    queue: str
    deduplicate: Duration | Literal["forever"] | None
    message_id: str
    value: Literal["bytes", "json"]
    metadata: Sequence[str]
    prefetch: int
    bad_records: Literal["fail", "reject"]
    until_idle: Duration | None
    splits: int | None
    replayable: bool
    retry: "Retry | None"
    rate_limit: "RateLimits"


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"barrier_runtime.connectors.{home}"), name)
    globals()[name] = value
    return value
