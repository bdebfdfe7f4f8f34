"""Progress of a keyed operator besides its tables: event time, and the types of the state's columns.

The watermark survives a restore: otherwise fired windows would accept late rows again. After rescaling, the subtask
continues with the lowest watermark of the snapshots, so pending windows and timers still fire; higher watermarks become
*floors*, the event time of their key groups.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from barrier_runtime.data.elements import WATERMARK_MAX, WATERMARK_MIN
from barrier_runtime.data.plain_rows import plain_schema
from barrier_runtime.data.schemas import described, no_column
from barrier_runtime.operators.base import OperatorContext
from barrier_runtime.operators.state.ttl import Timing
from barrier_runtime.state.backend.keyed_backend import KeyedBackend
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.keys.key_groups import key_groups_of
from barrier_runtime.state.snapshots.snapshot import SHARED, OperatorSnapshot, value_format
from barrier_runtime.state.values.timed_table import ExpirySweep
from barrier_runtime.state.versioned import VersionedDecoder

VALUE = "progress"
COLUMNS = SHARED + "columns"


class Floor(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    first: int
    last: int
    watermark_ms: int


class Progress(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Stored progress of an operator.

    `schema`: Arrow IPC bytes of the columns that the state depends on; empty before the first batch. `state_columns`:
    columns of the columnar table, in order; empty without such a table, and in snapshots of older releases.
    `going_to_ms`: event time to which timers still had to fire. `timers_from_ms`: by table of timers, a time before
    which there are none; a missing table is unknown.
    """

    watermark_ms: int = WATERMARK_MIN
    emit_ns: int = 0  # latest intended emission time seen, for results that a watermark triggers
    schema: bytes = b""
    version: int = 1
    floors: tuple[Floor, ...] = ()  # above `watermark_ms`
    state_columns: tuple[str, ...] = ()
    going_to_ms: int | None = None
    timers_from_ms: Mapping[str, int] = {}

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self)


class StateColumns(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Columns of an operator's columnar table, in order: name and numpy dtype.
    A restore gives them to all subtasks, even without rows."""

    columns: tuple[tuple[str, str], ...]
    version: int = 1

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self)


_COLUMNS = VersionedDecoder(
    value_format("{}: the columns of its state in its snapshot"), msgspec.msgpack.Decoder(StateColumns)
)


def restored_columns(snapshots: Iterable[OperatorSnapshot], operator: str) -> dict[str, str]:
    for snapshot in snapshots:
        stored = snapshot.values.get(COLUMNS)
        if stored is not None:
            return dict(_COLUMNS.decode(stored, f"operator {operator!r}").columns)
    return {}


_PROGRESS = VersionedDecoder(value_format("{}: its progress in its snapshot"), msgspec.msgpack.Decoder(Progress))


def timers_unknown(progress: bytes) -> bytes:
    """Drops the first times of timers, for callers that have added timers to the tables."""
    known = _PROGRESS.decode(progress, "its own snapshot")
    return msgspec.structs.replace(known, timers_from_ms={}).encode()


def fires_still(snapshot: OperatorSnapshot) -> bool:
    stored = snapshot.values.get(VALUE)
    return stored is not None and _PROGRESS.decode(stored, f"operator {snapshot.operator!r}").going_to_ms is not None


def reached_ms(snapshots: Iterable[OperatorSnapshot]) -> int:
    stored = [(each.values[VALUE], f"operator {each.operator!r}") for each in snapshots if VALUE in each.values]
    return max([_PROGRESS.decode(data, where).watermark_ms for data, where in stored], default=WATERMARK_MIN)


def restored_progress(
    snapshots: Iterable[OperatorSnapshot], operator: str, first_group: int, last_group: int, *, reopened: bool = False
) -> Progress:
    """Returns the progress for a range of key groups, with the lowest watermark.
    `reopened`: the snapshots' run stopped its sources early; this run reads on.
    """
    found = []
    floors: list[Floor] = []
    for snapshot in snapshots:
        if VALUE not in snapshot.values:  # of another subtask, which only contributes shared values
            continue
        progress = _PROGRESS.decode(snapshot.values[VALUE], f"operator {operator!r}")
        if reopened:
            progress = _begun_again(progress)
        keyed = snapshot.keyed
        whole = (first_group, last_group) if keyed is None else (keyed.key_group_first, keyed.key_group_last)
        if whole[0] <= last_group and first_group <= whole[1]:
            found.append(progress)
            # The time to which event time was advancing.
            told_ms = max(progress.watermark_ms, progress.going_to_ms or progress.watermark_ms)
            floors += [Floor(*whole, told_ms), *progress.floors]
    if not found:
        return Progress()
    lowest = min(progress.watermark_ms for progress in found)
    going_to_ms = _going_to_ms(found)
    reached_ms = lowest if going_to_ms is None else going_to_ms  # before the first row arrives
    return Progress(
        watermark_ms=lowest,
        emit_ns=max(progress.emit_ns for progress in found),
        schema=next((progress.schema for progress in found if progress.schema), b""),
        state_columns=next((progress.state_columns for progress in found if progress.state_columns), ()),
        going_to_ms=going_to_ms,
        timers_from_ms=_lowest([progress.timers_from_ms for progress in found]),
        floors=tuple(
            Floor(max(floor.first, first_group), min(floor.last, last_group), floor.watermark_ms)
            for floor in floors
            if floor.watermark_ms > reached_ms and floor.first <= last_group and first_group <= floor.last
        ),
    )


def _begun_again(progress: Progress) -> Progress:
    """Drops ends of input, also those that event time had still to reach: later rows may follow."""
    if WATERMARK_MAX not in (progress.watermark_ms, progress.going_to_ms):
        return progress
    floors = tuple(floor for floor in progress.floors if floor.watermark_ms != WATERMARK_MAX)
    return msgspec.structs.replace(progress, watermark_ms=WATERMARK_MIN, floors=floors, going_to_ms=None)


def _going_to_ms(found: Sequence[Progress]) -> int | None:
    if all(progress.going_to_ms is None for progress in found):
        return None
    return min(progress.watermark_ms if progress.going_to_ms is None else progress.going_to_ms for progress in found)


def _lowest(known: Sequence[Mapping[str, int]]) -> dict[str, int]:
    return {name: min(each[name] for each in known) for name in known[0] if all(name in each for each in known)}


class Floors:
    def __init__(self, floors: Sequence[Floor], max_parallelism: int) -> None:
        self._floors = tuple(floors)
        self._max_parallelism = max_parallelism
        self._of_group = np.full(max_parallelism, WATERMARK_MIN, np.int64)
        for floor in floors:
            part = self._of_group[floor.first : floor.last + 1]
            np.maximum(part, floor.watermark_ms, out=part)

    def above(self, watermark_ms: int) -> tuple[Floor, ...]:
        return tuple(floor for floor in self._floors if floor.watermark_ms > watermark_ms)

    @property
    def told_ms(self) -> tuple[int, ...]:
        return tuple(floor.watermark_ms for floor in self._floors)

    @property
    def by_group(self) -> npt.NDArray[np.int64]:
        """Event time of each key group that was ahead; else `WATERMARK_MIN`."""
        return self._of_group

    def watermarks(self, keys: Sequence[pa.Array], watermark_ms: int) -> npt.NDArray[np.int64]:
        return np.maximum(self._of_group[key_groups_of(keys, self._max_parallelism)], watermark_ms)


def columns_of(schema: pa.Schema, columns: Sequence[str], where: str) -> pa.Schema:
    fields = []
    for column in dict.fromkeys(columns):
        if column not in schema.names:
            raise no_column(column, schema.names, where)
        fields.append(pa.field(column, schema.field(column).type))
    return pa.schema(fields)


def keys_said(schema: pa.Schema | None, keys: Sequence[str]) -> str:
    if schema is None or any(key not in schema.names for key in keys):
        return ""
    known = plain_schema(schema)
    return described(pa.schema([known.field(key) for key in keys]))


def schema_bytes(schema: pa.Schema) -> bytes:
    return bytes(schema.serialize().to_pybytes())


def schema_of(data: bytes) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(data))


def check_same(now: pa.Schema, before: pa.Schema, where: str) -> None:
    if not now.equals(before):
        raise InvalidJob(
            f"{where}: its state was made of ({described(before)}), but now its rows have ({described(now)}): "
            "keep the columns and types, or give the operator a new name to start without state"
        )


def check_none_added(columns: Sequence[str], before: pa.Schema, where: str) -> None:
    added = [column for column in dict.fromkeys(columns) if column not in before.names]
    if added:
        shown = ", ".join(map(repr, added))
        raise InvalidJob(
            f"{where}: its state was made of ({described(before)}), but now it uses {shown} as well, of "
            "which that state knows nothing: keep its columns as they were, or give it a new name to start without "
            "state"
        )


def columns_to_bind(
    columns: Sequence[str], fixed: int, before: pa.Schema, declared: pa.Schema | None, where: str
) -> pa.Schema:
    """Returns the types of `columns`, in use now, for state written for `before`.
    Columns after the first `fixed` may be new, with types from `declared`, the schema of the input. Raises `InvalidJob`
    if others are new, or if a type is unknown before rows arrive.
    """
    check_none_added(columns[:fixed], before, where)
    used = dict.fromkeys(columns)
    kept = pa.schema([before.field(column) for column in used if column in before.names])
    added = [column for column in used if column not in before.names]
    if not added:
        return kept
    if declared is None:
        raise InvalidJob(
            f"{where}: it goes on with state that was made of ({described(before)}) and now uses "
            f"{', '.join(map(repr, added))} as well, whose types are not known before there are rows: say them where "
            "the rows are made, as in map(function, schema={...})"
        )
    now = columns_of(declared, columns, where)
    check_same(pa.schema([now.field(column) for column in kept.names]), kept, where)
    return now


log = logging.getLogger("barrier_runtime.state")


class Reclaiming:
    """Deletes expired entries, and compacts the store if most entries were deleted."""

    def __init__(self, timing: Timing, backend: KeyedBackend, context: OperatorContext, where: str) -> None:
        self._timing = timing
        self._backend = backend
        self._context = context
        self._where = where
        self._compacts = False
        self._compacts_after: int | None = None  # checkpoint that brings the deletions to the store
        swept = [each for each in timing.tables if each.expiry.ttl_ms is not None]
        self._sweep = ExpirySweep(swept, context.now_s, context.call_later, self._mostly_deleted)

    def begin(self) -> None:
        self._timing.wall.read()

    def snapshot(self, checkpoint: int) -> None:
        self.begin()
        if self._compacts:
            self._compacts, self._compacts_after = False, checkpoint
        self._sweep.look()

    def completed(self, checkpoint: int) -> None:
        if self._compacts_after is not None and checkpoint >= self._compacts_after:
            self._compacts_after = None
            self._context.executor.submit(self._backend.compact, self._compacted)

    def close(self) -> None:
        self._sweep.closed = True

    def _mostly_deleted(self) -> None:
        self._compacts = True

    def _compacted(self, result: Any, error: BaseException | None) -> None:
        if error is not None:
            log.warning(
                "%s: the room of expired state is not given back (%s): tried again after the next sweep that deletes "
                "most of it",
                self._where,
                error,
            )
