"""What a keyed operator remembers besides its tables: how far event time was, and the types its state was written with.

The watermark must survive: without it, rows that were late before a failure would be accepted after it, into windows
that have fired already. After rescaling, the key groups of a subtask may come from snapshots with different watermarks
(those of an unaligned checkpoint, or of one that is at least once). The lowest of them is the subtask's, so that it
fires what is not complete yet, and the others are *floors*: for its own key group event time is what it was.

What an operator does for its states with TTL besides judging what is read: reads the wall clock, sweeps, and has the
store compacted after a sweep that deleted most of it.
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
from barrier_runtime.state.values.expiry_sweep import ExpirySweep
from barrier_runtime.state.versioned import VersionedDecoder

VALUE = "progress"  # name of the snapshot value
COLUMNS = SHARED + "columns"  # name of the snapshot value with `StateColumns`


class Floor(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """For the key groups `first` to `last` event time had reached `watermark_ms`."""

    first: int
    last: int
    watermark_ms: int


class Progress(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`schema`: Arrow IPC bytes of the columns that the state depends on; empty while no batch has come.
    `state_columns`: names of the columns of the operator's columnar table, in the order in which its rows have them;
    empty where there is none, and in what older releases wrote. `going_to_ms`: event time was on its way there, and
    timers up to there still had to fire; None: it was where it was to be. `timers_from_ms`: by table of timers, a time
    before which there is none; unknown where it is missing."""

    watermark_ms: int = WATERMARK_MIN
    emit_ns: int = 0  # latest intended emission time seen: that of results made by a watermark
    schema: bytes = b""
    version: int = 1
    floors: tuple[Floor, ...] = ()  # above `watermark_ms`
    state_columns: tuple[str, ...] = ()
    going_to_ms: int | None = None
    timers_from_ms: Mapping[str, int] = {}

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self)


class StateColumns(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The columns of an operator's columnar table, in the order in which its rows have them: name and numpy dtype. All
    subtasks are given it at a restore, those as well that had no row yet: so all make the same columns."""

    columns: tuple[tuple[str, str], ...]
    version: int = 1

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self)


_COLUMNS = VersionedDecoder(
    value_format("{}: the columns of its state in its snapshot"), msgspec.msgpack.Decoder(StateColumns)
)


def restored_columns(snapshots: Iterable[OperatorSnapshot], operator: str) -> dict[str, str]:
    """Name → numpy dtype, in the order of the rows; empty where there was no table, or an older release wrote it."""
    for snapshot in snapshots:
        stored = snapshot.values.get(COLUMNS)
        if stored is not None:
            return dict(_COLUMNS.decode(stored, f"operator {operator!r}").columns)
    return {}


_PROGRESS = VersionedDecoder(value_format("{}: its progress in its snapshot"), msgspec.msgpack.Decoder(Progress))


def timers_unknown(progress: bytes) -> bytes:
    """The same progress of an operator into whose tables timers were put past its own books: it looks for all."""
    known = _PROGRESS.decode(progress, "its own snapshot")
    return msgspec.structs.replace(known, timers_from_ms={}).encode()


def fires_still(snapshot: OperatorSnapshot) -> bool:
    """Whether timers were due that had not fired when the snapshot was taken."""
    stored = snapshot.values.get(VALUE)
    return stored is not None and _PROGRESS.decode(stored, f"operator {snapshot.operator!r}").going_to_ms is not None


def reached_ms(snapshots: Iterable[OperatorSnapshot]) -> int:
    """Event time of the subtask that was furthest."""
    stored = [(each.values[VALUE], f"operator {each.operator!r}") for each in snapshots if VALUE in each.values]
    return max([_PROGRESS.decode(data, where).watermark_ms for data, where in stored], default=WATERMARK_MIN)


def restored_progress(
    snapshots: Iterable[OperatorSnapshot], operator: str, first_group: int, last_group: int, *, reopened: bool = False
) -> Progress:
    """One progress, for the key groups `first_group` to `last_group`, from one or (after rescaling) several snapshots:
    the lowest watermark loses no row, and floors keep what was late from coming back. `reopened`: they are of a run
    that ended its sources early, and this one reads on."""
    found = []
    floors: list[Floor] = []
    for snapshot in snapshots:
        if VALUE not in snapshot.values:  # of another subtask, which only shares something
            continue
        progress = _PROGRESS.decode(snapshot.values[VALUE], f"operator {operator!r}")
        if reopened:
            progress = _begun_again(progress)
        keyed = snapshot.keyed
        whole = (first_group, last_group) if keyed is None else (keyed.key_group_first, keyed.key_group_last)
        if whole[0] <= last_group and first_group <= whole[1]:
            found.append(progress)
            # What was on its way is as far as it was told: the rest of what is due there comes without it being late.
            told_ms = max(progress.watermark_ms, progress.going_to_ms or progress.watermark_ms)
            floors += [Floor(*whole, told_ms), *progress.floors]
    if not found:
        return Progress()
    lowest = min(progress.watermark_ms for progress in found)
    going_to_ms = _going_to_ms(found)
    reached_ms = lowest if going_to_ms is None else going_to_ms  # before the first row comes
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
    """Event time that was at the end of what the sources had given tells nothing of the rows that they give now."""
    if progress.watermark_ms != WATERMARK_MAX:
        return progress
    floors = tuple(floor for floor in progress.floors if floor.watermark_ms != WATERMARK_MAX)
    return msgspec.structs.replace(progress, watermark_ms=WATERMARK_MIN, floors=floors)


def _going_to_ms(found: Sequence[Progress]) -> int | None:
    """Where event time was told to be in all of them, if any of them was still on its way."""
    if all(progress.going_to_ms is None for progress in found):
        return None
    return min(progress.watermark_ms if progress.going_to_ms is None else progress.going_to_ms for progress in found)


def _lowest(known: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """Of what all of them know."""
    return {name: min(each[name] for each in known) for name in known[0] if all(name in each for each in known)}


class Floors:
    """Event time by key group, as long as some are ahead of the subtask's watermark."""

    def __init__(self, floors: Sequence[Floor], max_parallelism: int) -> None:
        self._floors = tuple(floors)
        self._max_parallelism = max_parallelism
        self._of_group = np.full(max_parallelism, WATERMARK_MIN, np.int64)
        for floor in floors:
            part = self._of_group[floor.first : floor.last + 1]
            np.maximum(part, floor.watermark_ms, out=part)

    def above(self, watermark_ms: int) -> tuple[Floor, ...]:
        """Those that count, with the subtask's watermark here."""
        return tuple(floor for floor in self._floors if floor.watermark_ms > watermark_ms)

    @property
    def told_ms(self) -> tuple[int, ...]:
        """Event time of those that were ahead."""
        return tuple(floor.watermark_ms for floor in self._floors)

    @property
    def by_group(self) -> npt.NDArray[np.int64]:
        """Event time of each key group that was ahead, or `WATERMARK_MIN`."""
        return self._of_group

    def watermarks(self, keys: Sequence[pa.Array], watermark_ms: int) -> npt.NDArray[np.int64]:
        """Event time of each row, given its key columns."""
        return np.maximum(self._of_group[key_groups_of(keys, self._max_parallelism)], watermark_ms)


def columns_of(schema: pa.Schema, columns: Sequence[str], where: str) -> pa.Schema:
    """The part of `schema` that `columns` names, each once, without metadata."""
    fields = []
    for column in dict.fromkeys(columns):
        if column not in schema.names:
            raise no_column(column, schema.names, where)
        fields.append(pa.field(column, schema.field(column).type))
    return pa.schema(fields)


def keys_said(schema: pa.Schema | None, keys: Sequence[str]) -> str:
    """The key columns with their types, as snapshots and the coordinator have them; empty where they are not known."""
    if schema is None or any(key not in schema.names for key in keys):
        return ""
    known = plain_schema(schema)
    return described(pa.schema([known.field(key) for key in keys]))


def schema_bytes(schema: pa.Schema) -> bytes:
    return bytes(schema.serialize().to_pybytes())


def schema_of(data: bytes) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(data))


def check_same(now: pa.Schema, before: pa.Schema, where: str) -> None:
    """State was written for `before`; rows come as `now`."""
    if not now.equals(before):
        raise InvalidJob(
            f"{where}: its state was made of ({described(before)}), but now its rows have ({described(now)}): "
            "keep the columns and types, or give the operator a new name to start without state"
        )


def check_none_added(columns: Sequence[str], before: pa.Schema, where: str) -> None:
    """State was written for `before`; `columns` are what the operator uses now, and has to have used then."""
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
    """The types of `columns`, which an operator uses now, where its state was written for `before`. Those after the
    first `fixed` may have come since: `declared`, the schema of the input, has their types. Raises `InvalidJob` where
    others came, or a type is not known before there are rows: until then no window could fire."""
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
    """On the loop. Made by an operator that has states with TTL."""

    def __init__(self, timing: Timing, backend: KeyedBackend, context: OperatorContext, where: str) -> None:
        self._timing = timing
        self._backend = backend
        self._context = context
        self._where = where
        self._compacts = False
        self._compacts_after: int | None = None  # the checkpoint which brings the deletions to the store
        swept = [each for each in timing.tables if each.expiry.ttl_ms is not None]
        self._sweep = ExpirySweep(swept, context.now_s, context.call_later, self._mostly_deleted)

    def begin(self) -> None:
        """A batch, a watermark or a barrier is at hand."""
        self._timing.wall.read()

    def snapshot(self, checkpoint: int) -> None:
        """Before the state of `checkpoint` is frozen."""
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
