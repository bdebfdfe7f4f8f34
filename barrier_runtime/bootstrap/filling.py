"""Fills the states of one operator from DataFrames.

The operator is opened as in a slot, once per subtask, so the snapshot describes types, keys and time as in a job. A
frame has the columns of `state_tables` (docs/state-as-tables.md): key, state, and `written_at` if the state has a time
to live. A column of the state gets a trailing `_` if a column of the key has the same name.
"""

import time
from array import array
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from barrier_runtime.data.elements import Batch
from barrier_runtime.data.event_time import event_times_ms
from barrier_runtime.data.keys import KeyCodec
from barrier_runtime.data.schemas import no_column
from barrier_runtime.data.values.casts import kept_cast
from barrier_runtime.operators.deduplication.bloom import hash_rows
from barrier_runtime.operators.keyed.operator import KeyedOperator
from barrier_runtime.operators.state.broadcast_copy import KEY_TYPES
from barrier_runtime.operators.state.maps import key_conversion
from barrier_runtime.state.columns.column_table import ColumnTable
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.keys.distinct_ints import distinct_ints
from barrier_runtime.state.keys.key_groups import key_groups_of
from barrier_runtime.state.snapshots.snapshot import StateDescription
from barrier_runtime.state.snapshots.value_types import ValueType
from barrier_runtime.state.values.entry_table import EntryTable
from barrier_runtime.state.values.table import StateTable
from barrier_runtime.state.values.timer_table import TimerTable
from barrier_runtime.state_tables.arrow_columns import plain_of, same
from barrier_runtime.state_tables.wanted_keys import free_name

_FITS = {
    "int": pa.types.is_integer,
    "float": lambda kind: pa.types.is_floating(kind) or pa.types.is_integer(kind),
    "str": pa.types.is_string,
    "bytes": pa.types.is_binary,
    "bool": pa.types.is_boolean,
}


class StateFilling:
    def __init__(self, operators: Sequence[KeyedOperator], state: str, keys: pa.Schema, where: str) -> None:
        self._operators = operators
        self._state = state
        self._keys = keys
        self._where = where
        self._codec = KeyCodec(keys, keys.names, where)
        self._max_parallelism = operators[0].backend.max_parallelism
        self._numbers: list[Counter[tuple[Any, ...]]] = [Counter() for _ in operators]
        self._last: list[dict[tuple[Any, ...], int]] = [{} for _ in operators]
        self._places = [array("q") for _ in operators]  # hashes, to detect repeated keys
        self._tables = [self._table(operator) for operator in operators]
        self._what: StateDescription = operators[0].backend.description(state)
        self._namespaces = [
            free_name(f"namespace_{1 + at}", keys.names) for at in range(operators[0].namespaces.get(state, 0))
        ]
        self._now_ms = time.time_ns() // 1_000_000

    def drop(self) -> None:
        for table in self._tables:
            if isinstance(table, ColumnTable):
                table.remove(table.load_all())
            else:
                table.drop_stored()

    def add(self, batch: pa.RecordBatch) -> None:
        batch = self._checked(batch)
        groups = key_groups_of([batch.column(name) for name in self._keys.names], self._max_parallelism)
        subtasks = groups.astype(np.int64) * len(self._operators) // self._max_parallelism
        for subtask in distinct_ints(subtasks):
            rows = batch if len(self._operators) == 1 else batch.filter(pa.array(subtasks == subtask))
            self._fill(int(subtask), rows)

    def finish(self) -> int:
        """Returns the number of entries."""
        return sum(self._finished(subtask) for subtask in range(len(self._tables)))

    def _finished(self, subtask: int) -> int:
        table, numbers = self._tables[subtask], self._numbers[subtask]
        places = np.frombuffer(self._places[subtask], np.int64)
        once = len(distinct_ints(places)) == len(places)
        if isinstance(table, ColumnTable):
            return len(places) if once else len(table.load_all())
        if not isinstance(table, EntryTable):
            return len(places) if once else table.stored_entries()
        found = numbers if once else table.stored_numbers()
        for key, last in self._last[subtask].items():
            if last != numbers[key] - 1 or found[key] != numbers[key]:
                raise InvalidJob(
                    f"{self._where}: the list of key {key!r} has {numbers[key]} elements, and {found[key]} "
                    f"positions up to {last}: give them as 0, 1, 2, …, each once"
                )
        table.load_numbers(found)
        return found.total()

    def _table(self, operator: KeyedOperator) -> StateTable | ColumnTable:
        table = operator.backend.opened_table(self._state)
        if table is None:
            known = ", ".join(operator.backend.opened_tables)
            raise InvalidJob(f"{self._where}: the step has no state of this name; it has: {known}")
        return table

    def _checked(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        for field in self._keys:
            self._has(batch, field.name, "a column of the key")
            found = batch.schema.field(field.name).type
            if found != field.type:
                raise InvalidJob(
                    f"{self._where}: key column {field.name!r} is {found}, and the step's key is {field.type}: rows of "
                    "the job would not find its state; cast the column"
                )
        return batch

    def _beside(self, batch: pa.RecordBatch, name: str, what: str) -> pa.Array:
        return self._has(batch, free_name(name, self._keys.names), what)

    def _has(self, batch: pa.RecordBatch, name: str, what: str) -> pa.Array:
        if name not in batch.schema.names:
            raise no_column(name, batch.schema.names, self._where, f", {what}")
        return batch.column(name)

    def _fill(self, subtask: int, rows: pa.RecordBatch) -> None:
        table = self._tables[subtask]
        keys, _ = self._codec.keys(Batch(rows, 0))
        if isinstance(table, TimerTable):
            timers = list(zip(self._times_ms(rows, "at").tolist(), keys, strict=True))
            self._places[subtask].extend(map(hash, timers))
            table.load(timers, [True] * len(keys))
        elif isinstance(table, EntryTable):
            entries = self._positions(rows) if self._what.row.numbered else self._entries(rows)
            self._numbers[subtask].update(keys)
            self._places[subtask].extend(map(hash, zip(keys, entries, strict=True)))
            if self._what.row.numbered:
                last = self._last[subtask]
                for key, at in zip(keys, entries, strict=True):
                    last[key] = max(at, last.get(key, -1))
            table.load_entries(keys, entries, self._values(rows))
        else:
            keys = self._with_namespace(keys, rows)
            self._note_places(subtask, rows)
            if isinstance(table, ColumnTable):
                self._fill_columns(table, keys, rows)
            else:
                table.load(keys, self._values(rows))

    def _note_places(self, subtask: int, rows: pa.RecordBatch) -> None:
        columns = [*self._codec.arrays(rows), *map(rows.column, self._namespaces)]
        self._places[subtask].frombytes(hash_rows(columns).tobytes())

    def _positions(self, rows: pa.RecordBatch) -> list[int]:
        column = self._beside(rows, "position", "of a list")
        if column.null_count or not pa.types.is_integer(column.type):
            raise InvalidJob(f"{self._where}: column 'position' is {column.type}: give each element a whole number")
        return column.to_pylist()  # type: ignore[no-any-return]

    def _entries(self, rows: pa.RecordBatch) -> list[Any]:
        column = self._beside(rows, "entry", "of a map")
        if column.null_count:
            raise InvalidJob(f"{self._where}: column 'entry' has {column.null_count} nulls: leave such rows out")
        as_key = key_conversion(KEY_TYPES[self._what.key], "MapState")
        try:
            return [as_key(self._state, entry) for entry in column.to_pylist()]
        except InvalidJob as error:
            raise InvalidJob(f"{self._where}: column 'entry' is {column.type}: {error}") from error

    def _with_namespace(self, keys: list[tuple[Any, ...]], rows: pa.RecordBatch) -> list[tuple[Any, ...]]:
        if not self._namespaces:
            return keys
        beside = []
        for name in self._namespaces:
            column = self._has(rows, name, "of a window's start or rows")
            if column.null_count or not pa.types.is_integer(column.type):
                raise InvalidJob(f"{self._where}: column {name!r} is {column.type}: give each entry a whole number")
            beside.append(column.to_pylist())
        return [(*key, *more) for key, *more in zip(keys, *beside, strict=True)]

    def _kept(self, name: str, column: pa.Array, dtype: Any) -> npt.NDArray[Any]:
        """Column as numbers of `dtype`. Refuses values that would change."""
        try:
            numbers = column if pa.types.is_boolean(column.type) else kept_cast(column, pa.from_numpy_dtype(dtype))
        except ValueError as error:
            raise InvalidJob(f"{self._where}: column {name!r}: {error}: cast it to {dtype} as you want it") from error
        return np.asarray(numbers.to_numpy(zero_copy_only=False), dtype)

    def _values(self, rows: pa.RecordBatch) -> list[Any]:
        column = self._beside(rows, "value", f"of a {self._what.kind} state")
        if column.null_count:
            raise InvalidJob(f"{self._where}: column 'value' has {column.null_count} nulls: leave such rows out")
        kind = self._what.type
        if kind is not None and kind.kind == "pickle":
            raise InvalidJob(f"{self._where}: it is pickled, which cannot be made of a DataFrame")
        if kind is not None and kind.kind in _FITS:
            if not _FITS[kind.kind](column.type):
                raise InvalidJob(f"{self._where}: column 'value' is {column.type}, and the state holds {kind}: cast it")
            if kind.kind == "float":
                column = pa.array(self._kept("value", column, np.dtype(np.float64)))
        values: list[Any] = column.to_pylist()
        if pa.types.is_nested(column.type):
            values = [_with_dicts(value, column.type) for value in values]
        if kind is not None:
            values = self._as_stored(values, kind)
        ttl = self._what.ttl
        if ttl is None:
            return values
        if free_name("written_at", self._keys.names) in rows.schema.names:
            return list(zip(self._times_ms(rows, "written_at").tolist(), values, strict=True))
        if ttl.clock == "event":
            raise InvalidJob(
                f"{self._where}: its entries live by event time, so each needs the time of its writing: add written_at"
            )
        return [(self._now_ms, value) for value in values]

    def _as_stored(self, values: list[Any], kind: ValueType) -> list[Any]:
        plain = plain_of(kind)
        if plain is same:
            return values
        try:
            return [plain(value) for value in values]
        except InvalidJob as error:
            raise InvalidJob(f"{self._where}: column 'value': {error}") from error

    def _times_ms(self, rows: pa.RecordBatch, name: str) -> npt.NDArray[np.int64]:
        column = self._beside(rows, name, "a time")
        if column.null_count:
            raise InvalidJob(f"{self._where}: column {name!r} has nulls: give each entry a time")
        if pa.types.is_integer(column.type):
            return self._kept(name, column, np.dtype(np.int64))
        if not (pa.types.is_timestamp(column.type) or pa.types.is_date(column.type)):
            raise InvalidJob(
                f"{self._where}: column {name!r} is {column.type}: give a timestamp, a date or whole milliseconds"
            )
        return event_times_ms(column)

    def _fill_columns(self, table: ColumnTable, keys: list[tuple[Any, ...]], rows: pa.RecordBatch) -> None:
        row_ids = table.row_ids(keys)
        for name, values in table.columns.items():
            column = self._beside(rows, name, f"of the state, which has {', '.join(table.columns)}")
            if column.null_count:
                raise InvalidJob(f"{self._where}: column {name!r} has nulls: give each entry a number")
            if values.dtype == object:
                values[row_ids] = np.array(column.to_pylist(), object)
            else:
                numbers = column.to_numpy(zero_copy_only=False)
                if not np.can_cast(numbers.dtype, values.dtype, "same_kind"):
                    raise InvalidJob(
                        f"{self._where}: column {name!r} is {column.type}, and the state has {values.dtype}: cast it"
                    )
                values[row_ids] = self._kept(name, column, values.dtype)
        table.mark_dirty(row_ids)


def key_fields_of(batch: pa.RecordBatch, names: Sequence[str], where: str) -> pa.Schema:
    twice = [name for name, found in Counter(batch.schema.names).items() if found > 1]
    if twice:
        raise InvalidJob(f"{where}: its DataFrame has several columns {twice[0]!r}: give each a name of its own")
    missing = [name for name in names if name not in batch.schema.names]
    if missing:
        raise no_column(missing[0], batch.schema.names, where, ", a column of the key")
    return pa.schema([batch.schema.field(name) for name in names])


def _with_dicts(value: Any, kind: pa.DataType) -> Any:
    if value is None or not pa.types.is_nested(kind):
        return value
    if pa.types.is_map(kind):
        return {_with_dicts(key, kind.key_type): _with_dicts(each, kind.item_type) for key, each in value}
    if pa.types.is_struct(kind):
        return {field.name: _with_dicts(value[field.name], field.type) for field in kind}
    return [_with_dicts(each, kind.value_type) for each in value]
