"""Opens a checkpoint or savepoint, and reads each state as an Arrow table.

docs/state-as-tables.md lists the columns. Expired entries may be included.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain, compress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from barrier_runtime.coordinator.log.manifest import Manifest
from barrier_runtime.coordinator.pins import CheckpointPin
from barrier_runtime.data.values.into_columns import UnkeptValue
from barrier_runtime.operators.deduplication.operator import BEGUN_VALUE
from barrier_runtime.runtime.sources.progress import SPLITS_VALUE, SourceProgress
from barrier_runtime.state.backend.stored_part import KeyGroups, StoredPart, rows_told
from barrier_runtime.state.columns.segment import Segment, as_binary
from barrier_runtime.state.columns.wide_columns import is_wide
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.keys.key_codec import decode_columns, decode_key
from barrier_runtime.state.kv.shard import PREFIX_BYTES
from barrier_runtime.state.scratch import scratch_folder, segment_number
from barrier_runtime.state.snapshots.snapshot import KEYS, ONE_VALUE, OperatorSnapshot, StateDescription
from barrier_runtime.state.snapshots.state_kinds import COLUMNS
from barrier_runtime.state.snapshots.transfer import with_values
from barrier_runtime.state.store.object_store import ObjectStore
from barrier_runtime.state.values.entry_table import is_number
from barrier_runtime.state_tables.arrow_columns import (
    PACKED_INT,
    ValueColumn,
    column_of,
    decoded_all,
    without_marks,
)
from barrier_runtime.state_tables.beside_keyed import beside_batches, beside_of, pending_of
from barrier_runtime.state_tables.finding import find_checkpoint, pinned_checkpoint
from barrier_runtime.state_tables.wanted_keys import TIME, WantedKeys, one_value

_BATCH_ROWS = 16_384
_BATCH_BYTES = 16 << 20
_GROUP_BYTES = 2
_READS_AT_ONCE = 8
_COLUMNS = StateDescription(COLUMNS.name)
_SEEN = StateDescription(type=PACKED_INT)  # ids that a step has let pass
_PROGRESS = msgspec.json.Decoder(SourceProgress)


@dataclass(frozen=True)
class StateTableInfo:
    """State of an operator. `bytes`: of all files of the operator, which the states share."""

    operator: str
    state: str
    kind: str  # value, list, map, reducing, aggregating, timers, columns; or one of `beside_keyed`
    key: str  # columns with types; empty if unknown
    type: str  # of the values; empty if unknown
    bytes: int


def open_checkpoint(url: str, job: str = "", checkpoint: int | None = None, *, pin: bool = True) -> "StoredState":
    """Opens the savepoint in `url`, or checkpoint `checkpoint` (None: the newest) of `job`.

    >>> with open_checkpoint("s3://jobs", "orders") as stored:
    ...     stored.table("alarms", "last").read_pandas()

    `pin`: a running job keeps the files until `close`, if this process may write to the job's store. Raises
    `InvalidJob` if there is no such checkpoint, `Corrupt` if it is damaged.
    """
    if not job or not pin:
        found = find_checkpoint(url, job, checkpoint)
        return StoredState(found.store, found.manifest, found.what)
    found, held = pinned_checkpoint(url, job, checkpoint)
    return StoredState(found.store, found.manifest, found.what, held)


class StoredState:
    """State of one checkpoint. `close`, or the context manager, removes the temporary files."""

    def __init__(self, store: ObjectStore, manifest: Manifest, what: str, pin: CheckpointPin | None = None) -> None:
        self._pin = pin
        self._store = store
        self._manifest = manifest
        self._what = what
        self._scratch = ExitStack()
        self._folder = self._scratch.enter_context(scratch_folder("barrier-runtime-state-"))
        self._opened = 0

    def __enter__(self) -> "StoredState":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._scratch.close()
        pin, self._pin = self._pin, None
        if pin is not None:
            pin.release()

    def __repr__(self) -> str:
        return f"<StoredState: {self._what}>"

    @property
    def job(self) -> str:
        return self._manifest.job

    @property
    def store(self) -> ObjectStore:
        return self._store

    @property
    def manifest(self) -> Manifest:
        return self._manifest

    def folder(self) -> Path:
        """New folder, which `close` removes."""
        self._opened += 1
        if self._pin is not None:
            self._pin.renew()
        return self._folder / str(self._opened)

    @property
    def age_s(self) -> float:
        """Age of the checkpoint by this machine's clock."""
        return max(0.0, time.time() - self._manifest.created_wall_ms / 1000)

    @property
    def checkpoint(self) -> int:
        return self._manifest.checkpoint

    def tables(self) -> list[StateTableInfo]:
        """All states by operator and name, including state beside keyed state."""
        found: dict[tuple[str, str], StateTableInfo] = {}
        sizes: dict[str, int] = {}
        for snapshot in self._manifest.operators:
            sizes[snapshot.operator] = sizes.get(snapshot.operator, 0) + sum(ref.size for ref in snapshot.files)
        for snapshot in self._manifest.operators:
            for name, what in states_of(snapshot).items():
                found[snapshot.operator, name] = StateTableInfo(
                    snapshot.operator,
                    name,
                    what.kind,
                    snapshot.values.get(KEYS, b"").decode(),
                    "" if what.type is None else str(what.type),
                    sizes[snapshot.operator],
                )
            for name, beside in beside_of(snapshot).items():
                kind = "" if beside.what.type is None else str(beside.what.type)
                place = snapshot.operator, name
                found[place] = StateTableInfo(*place, beside.kind, "", kind, sizes[snapshot.operator])
        return [found[place] for place in sorted(found)]

    def parts(self, operator: str, state: str) -> int:
        """Number of parts in which the state can be read, one per subtask."""
        return len(self._parts(operator, state))

    def table(
        self,
        operator: str,
        state: str,
        where: Mapping[str, Any] | None = None,
        *,
        columns: Sequence[str] | None = None,
        part: int | None = None,
    ) -> pa.RecordBatchReader:
        """Reads the state as batches, in no order.

        `where`: only keys with these values (for state beside keyed state: rows); with all columns of the key, only
        files of the key's subtask are read. `columns`: only these, in this order. `part`: one of `parts`, from 0.
        """
        parts = self._parts(operator, state)
        if part is not None:
            if not 0 <= part < len(parts):
                raise InvalidJob(f"{operator}.{state} has no part {part}: it has {len(parts)}, from 0 on")
            parts = parts[part : part + 1]
        if parts and state in beside_of(parts[0]):
            reader = self._beside(parts, operator, state, where or {})
            return reader if columns is None else _projected(reader, columns, f"{operator}.{state}")
        keys, groups, parts = self._asked(parts, operator, state, where or {})
        what = next((states_of(each)[state] for each in parts), ONE_VALUE)
        first, batches = _with_first(self._batches(parts, state, what, keys, groups, columns))
        schema = keys.schema_of_nothing(what) if first is None else first.schema
        reader = pa.RecordBatchReader.from_batches(schema, batches)
        if columns is None:
            return reader
        if not set(columns) <= set(reader.schema.names):  # no rows, or missing columns
            reader = pa.RecordBatchReader.from_batches(self.table(operator, state).schema, [])
        return _projected(reader, columns, f"{operator}.{state}")

    def count(self, operator: str, state: str, where: Mapping[str, Any] | None = None) -> int:
        """Number of rows of `table`, without reading values."""
        parts = self._parts(operator, state)
        if state in beside_of(parts[0]):
            return sum(batch.num_rows for batch in self._beside(parts, operator, state, where or {}))
        keys, groups, parts = self._asked(parts, operator, state, where or {})
        rows = 0
        for each in parts:
            assert each.keyed is not None
            what = states_of(each)[state]
            told = rows_told(each.keyed, self._store, state) if what.row is COLUMNS and keys.wants_all else None
            if told is None:
                told = sum(batch.num_rows for batch in self._batches([each], state, what, keys, groups, ()))
            rows += told
        return rows

    def _asked(
        self, parts: list[OperatorSnapshot], operator: str, state: str, where: Mapping[str, Any]
    ) -> tuple[WantedKeys, tuple[int, int] | None, list[OperatorSnapshot]]:
        keys = WantedKeys(parts[0].values.get(KEYS, b"").decode(), where, f"{operator}.{state}")
        groups = keys.groups(self._manifest.max_parallelism)
        if groups is not None:
            parts = [each for each in parts if each.keyed is not None and _has(each, groups)]
        return keys, groups, parts

    def positions(self) -> pa.Table:
        """Read progress of each source: source, split, rows, finished, position (JSON of its reader)."""
        rows = []
        for snapshot in self._manifest.operators:
            if SPLITS_VALUE in snapshot.values or SPLITS_VALUE in snapshot.objects:
                (whole,) = with_values(self._store, [snapshot], _READS_AT_ONCE)
                for split, at in _PROGRESS.decode(whole.values[SPLITS_VALUE]).splits.items():
                    position = bytes(at.position).decode()
                    rows.append((snapshot.operator, split, at.rows, at.finished, position))
        names = ("source", "split", "rows", "finished", "position")
        types = (pa.string(), pa.string(), pa.int64(), pa.bool_(), pa.string())
        columns = list(zip(*rows, strict=True)) or [()] * len(names)
        return pa.table({n: pa.array(c, t) for n, c, t in zip(names, columns, types, strict=True)})

    def pending(self) -> pa.Table:
        """Transactions that sinks had still to commit: sink, checkpoint, subtask, committable."""
        return pending_of(self._store, self._manifest.operators)

    def _parts(self, operator: str, state: str) -> list[OperatorSnapshot]:
        own = [each for each in self._manifest.operators if each.operator == operator]
        parts = [each for each in own if state in states_of(each) or state in beside_of(each)]
        if not parts:
            known = ", ".join(f"{each.operator}.{each.state}" for each in self.tables()) or "none"
            raise InvalidJob(f"{self._what} has no state {state!r} of operator {operator!r}; it has: {known}")
        return parts

    def _beside(
        self, parts: list[OperatorSnapshot], operator: str, state: str, where: Mapping[str, Any]
    ) -> pa.RecordBatchReader:
        everyone = [each for each in self._manifest.operators if each.operator == operator]
        first, batches = _with_first(
            batch for part in parts for batch in beside_batches(self._store, part, state, everyone)
        )
        if first is None:
            return pa.RecordBatchReader.from_batches(pa.schema([]), [])
        for name in where:
            if name not in first.schema.names:
                raise InvalidJob(
                    f"{operator}.{state}: it has no column {name!r}, it has {', '.join(first.schema.names)}"
                )
        of_one = (batch.cast(first.schema) for batch in batches)
        return pa.RecordBatchReader.from_batches(
            first.schema, (_only(batch, where, f"{operator}.{state}") for batch in of_one)
        )

    def _batches(
        self,
        parts: list[OperatorSnapshot],
        state: str,
        what: StateDescription,
        keys: WantedKeys,
        groups: tuple[int, int] | None,
        columns: Sequence[str] | None,
    ) -> Iterator[pa.RecordBatch]:
        schema: pa.Schema | None = None
        with_values = columns is None or keys.beside("value") in columns
        stored = None if columns is None else {*columns, *[name for name in keys.names if keys.beside(name) in columns]}
        for part in parts:
            assert part.keyed is not None
            only = None
            if groups is not None:
                key = keys.encoded if what.row.has_value else b""  # timers are in order of time
                only = KeyGroups(state, *groups, columns=what.row is COLUMNS, key=key)
            with StoredPart(part.keyed, self._store, self.folder(), only) as opened:
                first, last = groups or (0, 0xFFFF)
                for segment in opened.segments(state, first, last, stored):
                    yield from _of_segment(segment, keys, self._manifest.max_parallelism)
                entries = opened.entry_lists(state, first, last)
                for batch in _of_entries(entries, what, keys, f"{self._what}, {keys.where}", with_values):
                    schema = schema or batch.schema
                    yield batch if batch.schema.equals(schema) else batch.cast(schema)


def states_of(snapshot: OperatorSnapshot) -> dict[str, StateDescription]:
    keyed = snapshot.keyed
    if keyed is None:
        return {}
    segments = any(segment_number(ref.name) is not None for ref in keyed.files)
    own = _COLUMNS if segments else ONE_VALUE  # the runtime's own states are not described
    if BEGUN_VALUE in {*snapshot.values, *snapshot.objects}:
        own = _SEEN
    return {name: keyed.described.get(name, own) for name in keyed.states}


def _has(snapshot: OperatorSnapshot, groups: tuple[int, int]) -> bool:
    assert snapshot.keyed is not None
    return snapshot.keyed.key_group_first <= groups[0] <= snapshot.keyed.key_group_last


def _with_first(batches: Iterator[pa.RecordBatch]) -> tuple[pa.RecordBatch | None, Iterator[pa.RecordBatch]]:
    first = next(batches, None)
    return first, iter(()) if first is None else chain([first], batches)


def _projected(reader: pa.RecordBatchReader, columns: Sequence[str], where: str) -> pa.RecordBatchReader:
    for name in columns:
        if name not in reader.schema.names:
            raise InvalidJob(f"{where}: it has no column {name!r}, it has {', '.join(reader.schema.names)}")
    schema = pa.schema([reader.schema.field(name) for name in columns])
    return pa.RecordBatchReader.from_batches(schema, (batch.select(list(columns)) for batch in reader))


def _only(batch: pa.RecordBatch, where: Mapping[str, Any], of: str) -> pa.RecordBatch:
    for name, value in where.items():
        column = batch.column(name)
        if value is None:
            batch = batch.filter(column.is_null())
        else:
            batch = batch.filter(pc.equal(column, one_value(value, column.type, name, of)[0]))
    return batch


def _of_entries(
    lists: Iterator[list[tuple[bytes, bytes]]], what: StateDescription, keys: WantedKeys, where: str, with_values: bool
) -> Iterator[pa.RecordBatch]:
    column = column_of(what.type) if with_values and what.row.has_value else None
    for entries in _batched(lists):
        if what.row is COLUMNS:
            raise InvalidJob(
                f"{where}: its entries were moved to disk, and the checkpoint does not tell their columns: read one "
                "that was taken while they fitted in memory"
            )
        if what.row.layout == "entries":
            entries = [entry for entry in entries if not is_number(entry[1])]
        try:
            batch = _batch(entries, what, keys, column, where) if entries else None
        except UnkeptValue as error:
            raise InvalidJob(
                f"{where}: a value does not fit into its column ({error.reason}): ask for keys that have none, or "
                "leave values out with columns="
            ) from error
        if batch is not None and batch.num_rows:
            yield batch


def _batched(lists: Iterator[list[tuple[bytes, bytes]]]) -> Iterator[list[tuple[bytes, bytes]]]:
    found: list[tuple[bytes, bytes]] = []
    size = 0
    for some in lists:
        found += some
        size += sum([len(data) for _, data in some])
        if len(found) >= _BATCH_ROWS or size >= _BATCH_BYTES:
            yield found
            found, size = [], 0
    if found:
        yield found


def _batch(
    entries: list[tuple[bytes, bytes]],
    what: StateDescription,
    keys: WantedKeys,
    column: ValueColumn | None,  # None: without values
    where: str,
) -> pa.RecordBatch:
    fields: list[Any] = decode_columns([whole for whole, _ in entries], PREFIX_BYTES)
    data = [value for _, value in entries]
    beside = None
    if what.row.layout == "times":
        beside, fields = fields[0], fields[1:]
    elif what.row.layout == "entries":
        beside, fields = fields[-1], fields[:-2]
    if not keys.wants_all:
        lists = [list(each) for each in fields]
        chosen = [keys.wants(key) for key in zip(*lists, strict=True)]
        fields = [list(compress(each, chosen)) for each in lists]
        beside = None if beside is None else list(compress(beside, chosen))
        data = list(compress(data, chosen))
    arrays = [keys.array(place, field) for place, field in enumerate(fields)]
    names = keys.named(len(arrays))
    if what.row.beside is not None and beside is not None:
        names.append(keys.beside(what.row.beside.name))
        times = what.row.layout == "times"
        arrays.append(pa.array(beside, pa.int64()).cast(what.row.beside.type) if times else pa.array(beside))
    if column is not None:
        names.append(keys.beside("value"))
        arrays.append(column.array(decoded_all(data, what.type, where)))
    if what.ttl is not None:
        names.append(keys.beside("written_at"))
        arrays.append(pa.array([without_marks(each)[0] for each in data], TIME))
    return pa.RecordBatch.from_arrays(arrays, names)


def _of_segment(segment: Segment, keys: WantedKeys, max_parallelism: int) -> Iterator[pa.RecordBatch]:
    if isinstance(segment.keys, np.ndarray):
        fields: list[Any] = list(segment.keys)
    else:
        whole = as_binary(segment.keys, segment.key_width, max_parallelism)
        fields = [
            list(field) for field in zip(*[decode_key(each.as_py(), _GROUP_BYTES) for each in whole], strict=True)
        ]
    arrays = [keys.array(place, field) for place, field in enumerate(fields)]
    names = keys.named(len(arrays))
    for name, column in segment.columns.items():
        names.append(keys.beside(name))
        arrays.append(pa.array(column, pa.large_binary()) if is_wide(column.dtype) else pa.array(column))
    table = pa.table(dict(zip(names, arrays, strict=True)))
    if not keys.wants_all:
        chosen = [keys.wants(key) for key in zip(*fields, strict=True)]
        table = table.filter(pa.array(chosen))
    yield from table.to_batches(max_chunksize=_BATCH_ROWS)
