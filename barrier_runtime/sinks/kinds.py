"""What a snapshot says of the sink that wrote it, and how an equal sink is made from that, without the flow.

Only the kinds named here are ever imported, whatever a snapshot says: it is data. Secrets are in no snapshot; a sink
takes them from the environment, or whoever makes one gives them.
"""

import importlib
from collections.abc import Mapping
from typing import Any

import msgspec

from barrier_runtime.sinks.base import TwoPhaseCommitSink
from barrier_runtime.snapshot_values import decode_json
from state.errors import InvalidJob

SINK_VALUE = "sink"  # name of the value in OperatorSnapshot.values
KINDS = {
    "parquet": "barrier_runtime.sinks.files:ParquetSink",
    "jsonl": "barrier_runtime.sinks.files:JsonlSink",
    "csv": "barrier_runtime.sinks.files:CsvSink",
    "kafka": "barrier_runtime.sinks.kafka:KafkaSink",
    "postgres": "barrier_runtime.sinks.postgres:PostgresSink",
    "delta": "barrier_runtime.sinks.delta:DeltaSink",
    "redis": "barrier_runtime.sinks.redis:RedisUpsertSink",
}


class SinkValue(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    kind: str  # "" for a sink that is none of ours
    class_name: str  # for people
    global_committer: bool
    settings: dict[str, Any] = {}


def describe_sink(sink: TwoPhaseCommitSink, where: str) -> bytes:
    """The value for snapshots. Raises `InvalidJob` when the sink's `settings()` are no JSON."""
    try:
        return msgspec.json.encode(
            SinkValue(1, sink.kind, type(sink).__name__, sink.global_committer, dict(sink.settings()))
        )
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        raise InvalidJob(
            f"{where}: settings() of {type(sink).__name__} must be a dict that is JSON ({error}): leave out what is not"
        ) from error


def decode_sink(data: bytes, where: str) -> SinkValue:
    return decode_json(data, SinkValue, where)


def make_sink(kind: str, settings: Mapping[str, Any]) -> TwoPhaseCommitSink:
    """An unopened sink. Raises `InvalidJob` for an unknown kind, or settings that it does not take."""
    if kind not in KINDS:
        raise InvalidJob(f"{kind!r} is no kind of sink that this release has; it has: {', '.join(sorted(KINDS))}")
    module, _, name = KINDS[kind].partition(":")
    sink_class = getattr(importlib.import_module(module), name)
    try:
        sink = sink_class(**settings)
    except TypeError as error:
        raise InvalidJob(
            f"a {kind} sink cannot be made of the settings {', '.join(sorted(settings))}: {error}"
        ) from error
    assert isinstance(sink, TwoPhaseCommitSink)
    return sink
