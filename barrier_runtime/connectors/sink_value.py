"""Description of a sink in a snapshot, from which an equal sink can be built without the flow."""

import importlib
from collections.abc import Mapping
from typing import Any

import msgspec

from barrier_runtime.connectors.registry import sinks_by_kind
from barrier_runtime.connectors.sink import TwoPhaseCommitSink
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.snapshots.snapshot import value_format
from barrier_runtime.state.versioned import VersionedDecoder

SINK_VALUE = "sink"
SINK_VALUE_VERSION = 1


class SinkValue(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    kind: str  # "" for a sink that the registry lacks
    class_name: str  # for messages
    global_committer: bool
    settings: dict[str, Any] = {}


_SINK_VALUE = VersionedDecoder(
    value_format("{}: the description of the sink in its snapshot", SINK_VALUE_VERSION), msgspec.json.Decoder(SinkValue)
)


def describe_sink(sink: TwoPhaseCommitSink, where: str) -> bytes:
    """Value for snapshots. Raises `InvalidJob` if the sink's `settings()` are not JSON."""
    try:
        return msgspec.json.encode(
            SinkValue(SINK_VALUE_VERSION, sink.kind, type(sink).__name__, sink.global_committer, dict(sink.settings()))
        )
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        raise InvalidJob(
            f"{where}: settings() of {type(sink).__name__} must be a dict that is JSON ({error}): leave out what is not"
        ) from error


def decode_sink(data: bytes, where: str) -> SinkValue:
    return _SINK_VALUE.decode(data, where)


def make_sink(kind: str, settings: Mapping[str, Any]) -> TwoPhaseCommitSink:
    """Returns an unopened sink. Raises `InvalidJob` for an unknown kind, or settings that do not fit."""
    sinks = sinks_by_kind()
    if kind not in sinks:
        raise InvalidJob(
            f"{kind!r} is not a kind of sink of this release or of an installed package: install the package, or use "
            f"one of {', '.join(sorted(sinks))}"
        )
    sink_class = getattr(importlib.import_module(sinks[kind].module), sinks[kind].name)
    try:
        former = sink_class.former_settings
        sink = sink_class(**{name: value for name, value in settings.items() if name not in former})
    except TypeError as error:
        raise InvalidJob(
            f"a {kind} sink cannot be made of the settings {', '.join(sorted(settings))}: {error}"
        ) from error
    assert isinstance(sink, TwoPhaseCommitSink)
    return sink
