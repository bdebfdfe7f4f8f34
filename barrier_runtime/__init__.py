"""Exactly-once stream processing in milliseconds, in Python, on the Spark you already run.

This package's public names, each imported when it is first used: `import barrier_runtime` must stay cheap (no pyarrow,
no pyspark), because every command line and every Spark worker pays for it.
"""

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "Dataflow": "barrier_runtime.dataflow",
    "Stream": "barrier_runtime.dataflow",
    "KeyedStream": "barrier_runtime.dataflow",
    "Tumbling": "barrier_runtime.windows",
    "count": "barrier_runtime.aggregates",
    "sum_": "barrier_runtime.aggregates",
    "mean": "barrier_runtime.aggregates",
    "min_": "barrier_runtime.aggregates",
    "max_": "barrier_runtime.aggregates",
    "ValueState": "barrier_runtime.keyed_state",
    "ProcessContext": "barrier_runtime.operators.process",
    "TwoPhaseCommitSink": "barrier_runtime.sinks.base",
    "ParquetSink": "barrier_runtime.sinks.files",
    "JsonlSink": "barrier_runtime.sinks.files",
    "CsvSink": "barrier_runtime.sinks.files",
    "KafkaSink": "barrier_runtime.sinks.kafka",
    "PostgresSink": "barrier_runtime.sinks.postgres",
    "DeltaSink": "barrier_runtime.sinks.delta",
    "RedisUpsertSink": "barrier_runtime.sinks.redis",
    "UpsertSink": "barrier_runtime.sinks.upsert",
    "WriteAheadSink": "barrier_runtime.sinks.write_ahead",
    "CollectSink": "barrier_runtime.sinks.collect",
    "CallableSink": "barrier_runtime.sinks.callable_sink",
    "committed_files": "barrier_runtime.sinks.commit_log",
    "JobFailed": "barrier_runtime.job_result",
    "JobResult": "barrier_runtime.job_result",
    "BarrierRuntimeError": "state.errors",
    "Corrupt": "state.errors",
    "Fenced": "state.errors",
    "InvalidJob": "state.errors",
    "ProtocolViolation": "state.errors",
    "Unavailable": "state.errors",
    "UserCodeError": "state.errors",
}

if TYPE_CHECKING:
    from barrier_runtime.aggregates import count as count
    from barrier_runtime.aggregates import max_ as max_
    from barrier_runtime.aggregates import mean as mean
    from barrier_runtime.aggregates import min_ as min_
    from barrier_runtime.aggregates import sum_ as sum_
    from barrier_runtime.dataflow import Dataflow as Dataflow
    from barrier_runtime.dataflow import KeyedStream as KeyedStream
    from barrier_runtime.dataflow import Stream as Stream
    from barrier_runtime.job_result import JobFailed as JobFailed
    from barrier_runtime.job_result import JobResult as JobResult
    from barrier_runtime.keyed_state import ValueState as ValueState
    from barrier_runtime.operators.process import ProcessContext as ProcessContext
    from barrier_runtime.sinks.base import TwoPhaseCommitSink as TwoPhaseCommitSink
    from barrier_runtime.sinks.commit_log import committed_files as committed_files
    from barrier_runtime.sinks.delta import DeltaSink as DeltaSink
    from barrier_runtime.sinks.kafka import KafkaSink as KafkaSink
    from barrier_runtime.sinks.postgres import PostgresSink as PostgresSink
    from barrier_runtime.sinks.redis import RedisUpsertSink as RedisUpsertSink
    from barrier_runtime.sinks.upsert import UpsertSink as UpsertSink
    from barrier_runtime.sinks.write_ahead import WriteAheadSink as WriteAheadSink
    from barrier_runtime.windows import Tumbling as Tumbling
    from state.errors import BarrierRuntimeError as BarrierRuntimeError
    from state.errors import Corrupt as Corrupt
    from state.errors import Fenced as Fenced
    from state.errors import InvalidJob as InvalidJob
    from state.errors import ProtocolViolation as ProtocolViolation
    from state.errors import Unavailable as Unavailable
    from state.errors import UserCodeError as UserCodeError

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'barrier_runtime' has no attribute {name!r}")
    try:
        value = getattr(importlib.import_module(home), name)
    except ImportError as error:
        _blame_a_shadow(error)
        raise
    globals()[name] = value
    return value


def _blame_a_shadow(error: ImportError) -> None:
    """`state` and `coordinator` are common names: a user's module of that name is found before ours in a script."""
    ours = Path(__file__).resolve().parent.parent
    for package in ("state", "coordinator"):
        file = getattr(sys.modules.get(package), "__file__", None)
        if file is not None and Path(file).resolve().parent.parent != ours:
            raise ImportError(
                f"{file} hides the package {package!r} of barrier-runtime: rename your module", name=package
            ) from error


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
