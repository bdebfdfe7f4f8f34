"""Exactly-once stream processing in milliseconds, in Python, on the Spark you already run.

Each public name is imported on first use: `import barrier_runtime` must stay cheap (no pyarrow, no pyspark).
"""

import importlib.util
import os
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if not os.path.isdir(os.path.join(os.path.dirname(__file__), "state")):
    raise ImportError(
        f"{os.path.join(os.path.dirname(__file__), 'state')} is not a folder: this checkout has no symbolic links. "
        "In a clone: git config core.symlinks true, then git checkout -- barrier_runtime (Windows: switch developer "
        "mode on before). From an archive: unpack it with a program that keeps links, or clone"
    )

if importlib.util.find_spec("fcntl") is None:  # locks of working folders, and processes started by descriptor
    raise ImportError("barrier_runtime needs Linux or macOS (this Python has no module fcntl): on Windows use WSL")

_HOME = {
    "Dataflow": "barrier_runtime.api.dataflow",
    "Stream": "barrier_runtime.api.stream",
    "KeyedStream": "barrier_runtime.api.stream",
    "TypedStream": "barrier_runtime.api.stream",
    "TypedKeyedStream": "barrier_runtime.api.stream",
    "BroadcastStream": "barrier_runtime.api.stream",
    "Outputs": "barrier_runtime.api.steps",
    "connect": "barrier_runtime.api.connected",
    "col": "barrier_runtime.data.column_expression",
    "ColumnExpression": "barrier_runtime.data.column_expression",
    "Tumbling": "barrier_runtime.operators.windows.assigners",
    "Count": "barrier_runtime.operators.windows.assigners",
    "TimeWindow": "barrier_runtime.operators.windows.whole.apply",
    "Session": "barrier_runtime.operators.windows.assigners",
    "Sliding": "barrier_runtime.operators.windows.assigners",
    "Global": "barrier_runtime.operators.windows.assigners",
    "Calendar": "barrier_runtime.operators.windows.calendar",
    "Every": "barrier_runtime.operators.windows.triggers",
    "OwnTrigger": "barrier_runtime.operators.windows.own_trigger",
    "TriggerResult": "barrier_runtime.operators.windows.own_trigger",
    "TriggerWindow": "barrier_runtime.operators.windows.own_trigger",
    "count": "barrier_runtime.operators.aggregation.functions",
    "sum_": "barrier_runtime.operators.aggregation.functions",
    "mean": "barrier_runtime.operators.aggregation.functions",
    "min_": "barrier_runtime.operators.aggregation.functions",
    "max_": "barrier_runtime.operators.aggregation.functions",
    "first": "barrier_runtime.operators.aggregation.functions",
    "last": "barrier_runtime.operators.aggregation.functions",
    "any_": "barrier_runtime.operators.aggregation.functions",
    "all_": "barrier_runtime.operators.aggregation.functions",
    "variance": "barrier_runtime.operators.aggregation.functions",
    "var_pop": "barrier_runtime.operators.aggregation.functions",
    "stddev": "barrier_runtime.operators.aggregation.functions",
    "stddev_pop": "barrier_runtime.operators.aggregation.functions",
    "arg_min": "barrier_runtime.operators.aggregation.functions",
    "arg_max": "barrier_runtime.operators.aggregation.functions",
    "collect_list": "barrier_runtime.operators.aggregation.functions",
    "collect_set": "barrier_runtime.operators.aggregation.functions",
    "count_distinct": "barrier_runtime.operators.aggregation.functions",
    "quantile": "barrier_runtime.operators.aggregation.functions",
    "quantiles": "barrier_runtime.operators.aggregation.functions",
    "top_k": "barrier_runtime.operators.aggregation.functions",
    "largest": "barrier_runtime.operators.aggregation.functions",
    "smallest": "barrier_runtime.operators.aggregation.functions",
    "RowAggregate": "barrier_runtime.operators.aggregation.own",
    "ColumnAggregate": "barrier_runtime.operators.aggregation.own",
    "WatermarkGenerator": "barrier_runtime.operators.watermark_generator",
    "Cache": "barrier_runtime.operators.lookups.replies",
    "RateLimit": "barrier_runtime.operators.rate_limit",
    "Retry": "barrier_runtime.operators.retry",
    "TTL": "barrier_runtime.operators.state.ttl",
    "BroadcastState": "barrier_runtime.operators.state.broadcast",
    "ValueState": "barrier_runtime.operators.state.value",
    "ListState": "barrier_runtime.operators.state.lists",
    "MapState": "barrier_runtime.operators.state.maps",
    "ReducingState": "barrier_runtime.operators.state.folded",
    "AggregatingState": "barrier_runtime.operators.state.folded",
    "ProcessContext": "barrier_runtime.operators.functions.process",
    "BatchKeys": "barrier_runtime.operators.functions.process_groups",
    "RowContext": "barrier_runtime.operators.functions.row_functions",
    "ParquetSource": "barrier_runtime.connectors.files.source.parquet",
    "JsonlSource": "barrier_runtime.connectors.files.source.jsonl",
    "CsvSource": "barrier_runtime.connectors.files.source.csv",
    "BinarySource": "barrier_runtime.connectors.files.source.binary",
    "TextSource": "barrier_runtime.connectors.files.source.lines",
    "KafkaSource": "barrier_runtime.connectors.kafka.source.source",
    "KinesisSource": "barrier_runtime.connectors.kinesis.source",
    "RabbitMQSource": "barrier_runtime.connectors.rabbitmq.source",
    "RateSource": "barrier_runtime.connectors.memory.rate",
    "IteratorSource": "barrier_runtime.connectors.memory.iterator",
    "PollSource": "barrier_runtime.connectors.memory.poll",
    "TwoPhaseCommitSink": "barrier_runtime.connectors.sink",
    "ParquetSink": "barrier_runtime.connectors.files.sink.sink",
    "JsonlSink": "barrier_runtime.connectors.files.sink.sink",
    "CsvSink": "barrier_runtime.connectors.files.sink.sink",
    "KafkaBrokers": "barrier_runtime.connectors.kafka.brokers",
    "KafkaSink": "barrier_runtime.connectors.kafka.sink.sink",
    "PostgresChangesSource": "barrier_runtime.connectors.postgres.changes.source",
    "PostgresSink": "barrier_runtime.connectors.postgres.sink",
    "MySQLSink": "barrier_runtime.connectors.mysql.sink",
    "SqliteSink": "barrier_runtime.connectors.sqlite.sink",
    "DeltaSink": "barrier_runtime.connectors.delta.sink",
    "DeltaUpsertSink": "barrier_runtime.connectors.delta.upsert",
    "DeltaSource": "barrier_runtime.connectors.delta.source",
    "IcebergSink": "barrier_runtime.connectors.iceberg.sink",
    "IcebergSource": "barrier_runtime.connectors.iceberg.source",
    "RedisUpsertSink": "barrier_runtime.connectors.redis.sink",
    "ClickHouseSink": "barrier_runtime.connectors.clickhouse.sink",
    "UpsertSink": "barrier_runtime.connectors.sink_bases.upsert",
    "WriteAheadSink": "barrier_runtime.connectors.sink_bases.write_ahead",
    "BatchFunctionSink": "barrier_runtime.connectors.memory.batch_function",
    "BatchCheckpoint": "barrier_runtime.connectors.memory.batch_function",
    "BatchFunctionFailed": "barrier_runtime.connectors.memory.batch_function",
    "CollectSink": "barrier_runtime.connectors.memory.collect",
    "CallableSink": "barrier_runtime.connectors.memory.callable",
    "committed_files": "barrier_runtime.connectors.files.sink.commit_log",
    "compact_files": "barrier_runtime.connectors.files.sink.compaction",
    "open_checkpoint": "barrier_runtime.state_tables.stored_state",
    "write_savepoint": "barrier_runtime.bootstrap.writing",
    "RunOptions": "barrier_runtime.coordinator.option_types",
    "LocalRunOptions": "barrier_runtime.coordinator.option_types",
    "JobFailed": "barrier_runtime.launch.outcome",
    "JobResult": "barrier_runtime.launch.outcome",
    "BarrierRuntimeError": "barrier_runtime.state.errors",
    "Corrupt": "barrier_runtime.state.errors",
    "Fenced": "barrier_runtime.state.errors",
    "InvalidJob": "barrier_runtime.state.errors",
    "ProtocolViolation": "barrier_runtime.state.errors",
    "Unavailable": "barrier_runtime.state.errors",
    "UserCodeError": "barrier_runtime.state.errors",
    "WrongUse": "barrier_runtime.state.errors",
}

if TYPE_CHECKING:
    from barrier_runtime.api.connected import connect as connect
    from barrier_runtime.api.dataflow import Dataflow as Dataflow
    from barrier_runtime.api.steps import Outputs as Outputs
    from barrier_runtime.api.stream import BroadcastStream as BroadcastStream
    from barrier_runtime.api.stream import KeyedStream as KeyedStream
    from barrier_runtime.api.stream import Stream as Stream
    from barrier_runtime.api.stream import TypedKeyedStream as TypedKeyedStream
    from barrier_runtime.api.stream import TypedStream as TypedStream
    from barrier_runtime.bootstrap.writing import write_savepoint as write_savepoint
    from barrier_runtime.connectors.clickhouse.sink import ClickHouseSink as ClickHouseSink
    from barrier_runtime.connectors.delta.sink import DeltaSink as DeltaSink
    from barrier_runtime.connectors.delta.source import DeltaSource as DeltaSource
    from barrier_runtime.connectors.delta.upsert import DeltaUpsertSink as DeltaUpsertSink
    from barrier_runtime.connectors.files.sink.commit_log import committed_files as committed_files
    from barrier_runtime.connectors.files.sink.compaction import compact_files as compact_files
    from barrier_runtime.connectors.files.sink.sink import CsvSink as CsvSink
    from barrier_runtime.connectors.files.sink.sink import JsonlSink as JsonlSink
    from barrier_runtime.connectors.files.sink.sink import ParquetSink as ParquetSink
    from barrier_runtime.connectors.files.source.binary import BinarySource as BinarySource
    from barrier_runtime.connectors.files.source.csv import CsvSource as CsvSource
    from barrier_runtime.connectors.files.source.jsonl import JsonlSource as JsonlSource
    from barrier_runtime.connectors.files.source.lines import TextSource as TextSource
    from barrier_runtime.connectors.files.source.parquet import ParquetSource as ParquetSource
    from barrier_runtime.connectors.iceberg.sink import IcebergSink as IcebergSink
    from barrier_runtime.connectors.iceberg.source import IcebergSource as IcebergSource
    from barrier_runtime.connectors.kafka.brokers import KafkaBrokers as KafkaBrokers
    from barrier_runtime.connectors.kafka.sink.sink import KafkaSink as KafkaSink
    from barrier_runtime.connectors.kafka.source.source import KafkaSource as KafkaSource
    from barrier_runtime.connectors.kinesis.source import KinesisSource as KinesisSource
    from barrier_runtime.connectors.memory.batch_function import BatchCheckpoint as BatchCheckpoint
    from barrier_runtime.connectors.memory.batch_function import BatchFunctionFailed as BatchFunctionFailed
    from barrier_runtime.connectors.memory.batch_function import BatchFunctionSink as BatchFunctionSink
    from barrier_runtime.connectors.memory.callable import CallableSink as CallableSink
    from barrier_runtime.connectors.memory.collect import CollectSink as CollectSink
    from barrier_runtime.connectors.memory.iterator import IteratorSource as IteratorSource
    from barrier_runtime.connectors.memory.poll import PollSource as PollSource
    from barrier_runtime.connectors.memory.rate import RateSource as RateSource
    from barrier_runtime.connectors.mysql.sink import MySQLSink as MySQLSink
    from barrier_runtime.connectors.postgres.changes.source import PostgresChangesSource as PostgresChangesSource
    from barrier_runtime.connectors.postgres.sink import PostgresSink as PostgresSink
    from barrier_runtime.connectors.rabbitmq.source import RabbitMQSource as RabbitMQSource
    from barrier_runtime.connectors.redis.sink import RedisUpsertSink as RedisUpsertSink
    from barrier_runtime.connectors.sink import TwoPhaseCommitSink as TwoPhaseCommitSink
    from barrier_runtime.connectors.sink_bases.upsert import UpsertSink as UpsertSink
    from barrier_runtime.connectors.sink_bases.write_ahead import WriteAheadSink as WriteAheadSink
    from barrier_runtime.connectors.sqlite.sink import SqliteSink as SqliteSink
    from barrier_runtime.coordinator.option_types import LocalRunOptions as LocalRunOptions
    from barrier_runtime.coordinator.option_types import RunOptions as RunOptions
    from barrier_runtime.data.column_expression import ColumnExpression as ColumnExpression
    from barrier_runtime.data.column_expression import col as col
    from barrier_runtime.launch.outcome import JobFailed as JobFailed
    from barrier_runtime.launch.outcome import JobResult as JobResult
    from barrier_runtime.operators.aggregation.functions import all_ as all_
    from barrier_runtime.operators.aggregation.functions import any_ as any_
    from barrier_runtime.operators.aggregation.functions import arg_max as arg_max
    from barrier_runtime.operators.aggregation.functions import arg_min as arg_min
    from barrier_runtime.operators.aggregation.functions import collect_list as collect_list
    from barrier_runtime.operators.aggregation.functions import collect_set as collect_set
    from barrier_runtime.operators.aggregation.functions import count as count
    from barrier_runtime.operators.aggregation.functions import count_distinct as count_distinct
    from barrier_runtime.operators.aggregation.functions import first as first
    from barrier_runtime.operators.aggregation.functions import largest as largest
    from barrier_runtime.operators.aggregation.functions import last as last
    from barrier_runtime.operators.aggregation.functions import max_ as max_
    from barrier_runtime.operators.aggregation.functions import mean as mean
    from barrier_runtime.operators.aggregation.functions import min_ as min_
    from barrier_runtime.operators.aggregation.functions import quantile as quantile
    from barrier_runtime.operators.aggregation.functions import quantiles as quantiles
    from barrier_runtime.operators.aggregation.functions import smallest as smallest
    from barrier_runtime.operators.aggregation.functions import stddev as stddev
    from barrier_runtime.operators.aggregation.functions import stddev_pop as stddev_pop
    from barrier_runtime.operators.aggregation.functions import sum_ as sum_
    from barrier_runtime.operators.aggregation.functions import top_k as top_k
    from barrier_runtime.operators.aggregation.functions import var_pop as var_pop
    from barrier_runtime.operators.aggregation.functions import variance as variance
    from barrier_runtime.operators.aggregation.own import ColumnAggregate as ColumnAggregate
    from barrier_runtime.operators.aggregation.own import RowAggregate as RowAggregate
    from barrier_runtime.operators.functions.process import ProcessContext as ProcessContext
    from barrier_runtime.operators.functions.process_groups import BatchKeys as BatchKeys
    from barrier_runtime.operators.functions.row_functions import RowContext as RowContext
    from barrier_runtime.operators.lookups.replies import Cache as Cache
    from barrier_runtime.operators.rate_limit import RateLimit as RateLimit
    from barrier_runtime.operators.retry import Retry as Retry
    from barrier_runtime.operators.state.broadcast import BroadcastState as BroadcastState
    from barrier_runtime.operators.state.folded import AggregatingState as AggregatingState
    from barrier_runtime.operators.state.folded import ReducingState as ReducingState
    from barrier_runtime.operators.state.lists import ListState as ListState
    from barrier_runtime.operators.state.maps import MapState as MapState
    from barrier_runtime.operators.state.ttl import TTL as TTL
    from barrier_runtime.operators.state.value import ValueState as ValueState
    from barrier_runtime.operators.watermark_generator import WatermarkGenerator as WatermarkGenerator
    from barrier_runtime.operators.windows.assigners import Count as Count
    from barrier_runtime.operators.windows.assigners import Global as Global
    from barrier_runtime.operators.windows.assigners import Session as Session
    from barrier_runtime.operators.windows.assigners import Sliding as Sliding
    from barrier_runtime.operators.windows.assigners import Tumbling as Tumbling
    from barrier_runtime.operators.windows.calendar import Calendar as Calendar
    from barrier_runtime.operators.windows.own_trigger import OwnTrigger as OwnTrigger
    from barrier_runtime.operators.windows.own_trigger import TriggerResult as TriggerResult
    from barrier_runtime.operators.windows.own_trigger import TriggerWindow as TriggerWindow
    from barrier_runtime.operators.windows.triggers import Every as Every
    from barrier_runtime.operators.windows.whole.apply import TimeWindow as TimeWindow
    from barrier_runtime.state.errors import BarrierRuntimeError as BarrierRuntimeError
    from barrier_runtime.state.errors import Corrupt as Corrupt
    from barrier_runtime.state.errors import Fenced as Fenced
    from barrier_runtime.state.errors import InvalidJob as InvalidJob
    from barrier_runtime.state.errors import ProtocolViolation as ProtocolViolation
    from barrier_runtime.state.errors import Unavailable as Unavailable
    from barrier_runtime.state.errors import UserCodeError as UserCodeError
    from barrier_runtime.state.errors import WrongUse as WrongUse
    from barrier_runtime.state_tables.stored_state import open_checkpoint as open_checkpoint

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'barrier_runtime' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
