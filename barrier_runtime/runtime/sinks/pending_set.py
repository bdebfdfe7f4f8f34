"""Values of a sink subtask in a snapshot: the pending set, kept rows, and the description of the sink.

The pending set has committables not known to be visible, with checkpoints.

Whichever process restores a decided checkpoint commits all entries. An entry keeps the index of the subtask that wrote
it. After rescaling, entry e and orphans of that writer belong to subtask `e.subtask % P`: deleting orphans requires the
decided transactions.
"""

import importlib
import zlib
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from barrier_runtime.connectors.registry import sinks_by_kind
from barrier_runtime.connectors.sink import TwoPhaseCommitSink
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.snapshots.snapshot import OWN, PENDING, FileRef, OperatorSnapshot, value_format
from barrier_runtime.state.versioned import Format, VersionedDecoder

PENDING_SET_VERSION = 2  # version 1 has no packed entries, and is still written without them
_PACKED_FROM = 4 << 10  # bytes; a few entries are read faster unpacked
_LEVEL = 1
PENDING_VALUE = PENDING


class PendingEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    checkpoint: int
    subtask: int
    committable: bytes


class PendingSet(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    version: int
    checkpoint: int
    entries: tuple[PendingEntry, ...] = ()
    packed: bytes = b""  # instead of `entries`: MessagePack, compressed


_FORMAT = Format(
    "{}: the set of pending transactions",
    PENDING_SET_VERSION,
    damaged="nothing was committed or deleted; restore an intact copy of the checkpoint",
)
_ENTRIES = msgspec.msgpack.Decoder(tuple[PendingEntry, ...])
_PENDING_SET = VersionedDecoder(_FORMAT, msgspec.json.Decoder(PendingSet))


def encode_pending(checkpoint: int, entries: Iterable[PendingEntry]) -> bytes:
    listed = tuple(entries)
    if sum(len(each.committable) for each in listed) < _PACKED_FROM:
        return msgspec.json.encode(PendingSet(1, checkpoint, listed))
    packed = zlib.compress(msgspec.msgpack.encode(listed), _LEVEL)
    return msgspec.json.encode(PendingSet(PENDING_SET_VERSION, checkpoint, packed=packed))


def decode_pending(data: bytes, where: str) -> PendingSet:
    found = _PENDING_SET.decode(data, where)
    if not found.packed:
        return found
    try:
        entries = _ENTRIES.decode(zlib.decompress(found.packed))
    except (zlib.error, msgspec.MsgspecError) as error:
        raise _FORMAT.unreadable(error, where) from error
    return PendingSet(found.version, found.checkpoint, entries)


def entries_of_subtask(sets: Iterable[PendingSet], subtask: int, parallelism: int) -> tuple[PendingEntry, ...]:
    mine = [entry for each in sets for entry in each.entries if entry.subtask % parallelism == subtask]
    return tuple(sorted(mine, key=lambda entry: (entry.checkpoint, entry.subtask)))


def pending_sets(snapshots: Iterable[OperatorSnapshot], where: str) -> list[PendingSet]:
    return [
        decode_pending(snapshot.values[PENDING_VALUE], f"{where}, state of subtask {snapshot.subtask}")
        for snapshot in snapshots
        if PENDING_VALUE in snapshot.values
    ]


# Rows that a sink keeps past a checkpoint, as values of the operator's snapshots.

KEPT = f"{OWN}kept-"  # subtask i of P takes over the values of i % P


class KeptRows:
    """`values` runs on the pre-commit thread, all else on the loop."""

    def __init__(self, sink: TwoPhaseCommitSink, where: str) -> None:
        self._sink = sink
        self._where = where
        self._stored: Mapping[str, FileRef] = {}

    def restore(self, snapshots: Sequence[OperatorSnapshot], subtask: int, parallelism: int) -> None:
        """Raises `InvalidJob` if the sink would lose rows."""
        mine = [each for each in snapshots if each.subtask % parallelism == subtask]
        kept = [
            {name.removeprefix(KEPT): value for name, value in each.values.items() if name.startswith(KEPT)}
            for each in sorted(mine, key=lambda each: each.subtask)
        ]
        kept = [each for each in kept if each]
        if not kept:
            return
        if not self._sink.keeps_rows:
            raise InvalidJob(
                f"{self._where}: the checkpoint has rows of files that this sink had not finished, and a "
                f"{type(self._sink).__name__} cannot go on with them: give it another name and let the old sink finish "
                "its files first (stop the job with drain=True), or set allow_non_restored to drop these rows"
            )
        self._sink.restore_kept(kept, moved=any(each.parallelism != parallelism for each in snapshots))

    def stored(self) -> dict[str, FileRef]:
        """Values that a capture may need; a value that the pre-commit drops is listed once more."""
        if not self._stored:
            return {}
        needed = {f"{KEPT}{name}" for name in self._sink.kept_names()}
        return {name: ref for name, ref in self._stored.items() if name in needed}

    def values(self, stored: Container[str]) -> dict[str, bytes]:
        if not self._sink.keeps_rows:
            return {}
        names = _Stored(stored)
        return {f"{KEPT}{name}": value for name, value in self._sink.kept(names).items()}

    def on_stored(self, objects: Mapping[str, FileRef]) -> None:
        self._stored = {name: ref for name, ref in objects.items() if name.startswith(KEPT)}


class _Stored(Container[str]):
    def __init__(self, names: Container[str]) -> None:
        self._names = names

    def __contains__(self, name: object) -> bool:
        return f"{KEPT}{name}" in self._names


# Description of a sink in a snapshot, from which an equal sink can be built without the flow.

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
