"""`process_groups`: a user's function of a whole batch, with state per key as numpy columns.

The function gets a copy of the columns of the batch's keys, written back when the function returns. The next snapshot
has only keys with changes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from barrier_runtime.data.elements import Batch
from barrier_runtime.data.grouping import first_rows, group_rows, last_rows
from barrier_runtime.data.rows import one_batch
from barrier_runtime.data.schemas import described
from barrier_runtime.data.values.casts import column_of_any
from barrier_runtime.operators.aggregation.own import columns_of_numbers
from barrier_runtime.operators.base import Emit
from barrier_runtime.operators.functions.batch_functions import KeptTimes
from barrier_runtime.operators.keyed.operator import KeyedOperator
from barrier_runtime.operators.outputs.failures import Failures, in_parts
from barrier_runtime.operators.outputs.side_outputs import OnError
from barrier_runtime.operators.retry import RetriedCall, Retry
from barrier_runtime.operators.uncopyable import own_function
from barrier_runtime.operators.user_code import function_name, user_error
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.keys.distinct_ints import distinct_ints
from barrier_runtime.state.snapshots.continued_state import COLUMN, described_name
from barrier_runtime.state.snapshots.snapshot import StateDescription
from barrier_runtime.state.texts import counted, shortened

_MANY = 512  # rows from which finding the distinct keys first pays

Ints = npt.NDArray[np.int64]
Declared = Mapping[str, Any]  # column -> numpy dtype, or (dtype, initial value)


class BatchKeys:
    """Keys of a batch, numbered from 0 in the order of their first rows.

    `of_row`: number of each row's key, an array of int64. `len(keys)`: number of keys and length of the state columns.
    """

    def __init__(self, of_row: Ints, count: int, batch: pa.RecordBatch, columns: Sequence[str]) -> None:
        self.of_row = of_row
        self._count = count
        self._batch = batch
        self._columns = list(columns)
        self._forgotten: list[Any] = []

    def __len__(self) -> int:
        return self._count

    @property
    def first_rows(self) -> Ints:
        """Number of each key's first row in the batch."""
        return first_rows(self.of_row, self._count)

    @property
    def last_rows(self) -> Ints:
        """Number of each key's last row in the batch."""
        return last_rows(self.of_row, self._count)

    @property
    def rows(self) -> pa.RecordBatch:
        """Key columns, a row per key."""
        return self._batch.select(self._columns).take(pa.array(self.first_rows))

    def forget(self, which: Any) -> None:
        """Removes these keys' state when the function returns.
        `which`: a mask with a boolean per key, or numbers of keys.
        """
        numbers = np.asarray(which)
        if numbers.dtype == np.bool_ and numbers.shape == (self._count,):
            numbers = np.flatnonzero(numbers)
        elif not numbers.size:
            numbers = np.empty(0, np.int64)
        elif (
            numbers.dtype.kind not in "iu" or numbers.ndim != 1 or not 0 <= numbers.min() <= numbers.max() < self._count
        ):
            raise InvalidJob(
                f"keys.forget({which!r}): give a mask with a boolean for each of the {counted(self._count, 'key')}, or "
                "numbers of keys, as in keys.forget(state['open'] == 0)"
            )
        self._forgotten.append(numbers)

    @property
    def forgotten(self) -> Ints:
        """Numbers of the keys to forget, each once."""
        return distinct_ints(np.concatenate([*self._forgotten, np.empty(0, np.int64)])).astype(np.int64)


def declared_columns(function: Any, state: Declared | None, where: str) -> dict[str, tuple[str, int | float]]:
    """Name -> (numpy dtype, initial value). Raises `InvalidJob` unless these are columns of numbers."""
    own = getattr(function, "state", None)
    if own is not None and state is not None:
        raise InvalidJob(f"{where}: its state is declared in {function_name(function)[:-2]} and in state=: keep one")
    return columns_of_numbers(where, own if state is None else state)


def described_columns(columns: Mapping[str, tuple[str, int | float]]) -> dict[str, StateDescription]:
    return {
        described_name(COLUMN, name): StateDescription(COLUMN, fields=(kind,)) for name, (kind, _) in columns.items()
    }


@dataclass(frozen=True, slots=True)
class _Given:
    result: Any
    row_ids: Ints
    keys: BatchKeys
    before: Mapping[str, Any]
    state: Mapping[str, Any]


class ProcessGroupsOperator(KeyedOperator):
    kind = "process_groups"

    def __init__(
        self,
        name: str,
        keys: Sequence[str],
        function: Any,
        state: Declared | None = None,
        output: pa.Schema | None = None,
        schema: pa.Schema | None = None,
        on_error: OnError | Retry = "fail",
        event_times: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__(name, keys, keys, schema)
        self._times = KeptTimes(event_times, f"{function_name(function)} of {self.where}")
        self._function = function
        self._declared_columns = declared_columns(function, state, self.where)
        self._output = output
        self._retry = on_error if isinstance(on_error, Retry) else None
        self._failures = (
            None
            if on_error == "fail" or isinstance(on_error, Retry)
            else Failures(on_error, name, function_name(function))
        )

    def bind(self, columns: pa.Schema) -> None:
        _, self._call = own_function(
            self._function,
            "process_groups",
            f"process_groups {self.name!r}",
            lambda error, _: self._failed(error, None),
        )
        self._give: Callable[[Batch], _Given] = self._given
        if self._retry is not None:  # nothing to undo
            said = function_name(self._call)
            self._give = RetriedCall(self._given, self._retry, False, what="batch", said=said)
        self._table = self._column_table("groups", self._declared_columns, (), evictable=True)
        for name, what in described_columns(self._declared_columns).items():
            self.backend.describe(name, what)

    def process(self, batch: Batch, emit: Emit, port: int = 0) -> None:
        self._check(batch.schema)
        if not self.is_followed:
            self._process(batch.reaching(None), emit)
            return
        for moment in batch.moments():
            self._process(moment, emit)

    def _process(self, batch: Batch, emit: Emit) -> None:
        rows = batch.rows
        if not rows.num_rows:
            return
        failures = self._failures
        if failures is not None:
            failures.opened(self.context)
            for part, given in in_parts(batch, self._given, failures, self._failed_part):
                self._take(given, part, emit)
            failures.flush(emit, batch.emit_ns)
            return
        try:
            given = self._give(batch)
        except Exception as error:
            raise self._failed(error, rows) from error
        self._take(given, batch, emit)

    def _given(self, batch: Batch) -> _Given:
        rows = batch.rows
        of_row, row_ids = self._grouped(rows)
        keys = BatchKeys(of_row, len(row_ids), rows, self._key_columns)
        before = {name: self._table.columns[name][row_ids] for name in self._declared_columns}
        state = {name: column.copy() for name, column in before.items()}
        return _Given(self._call(keys, rows, state), row_ids, keys, before, state)

    def _take(self, given: _Given, batch: Batch, emit: Emit) -> None:
        made = self._made(given.result)
        self._write_back(given.row_ids, given.before, given.state)
        forgotten = given.row_ids[given.keys.forgotten]
        if len(forgotten):
            self._table.remove(forgotten)
        if made is not None and made.num_rows:
            if self.is_followed:
                self._times.check(batch, made)
            emit(batch.made(made))

    def _grouped(self, rows: pa.RecordBatch) -> tuple[Ints, Ints]:
        key = rows.column(self._key_columns[0])
        if self.codec.is_one_int64 and not key.null_count and len(key) >= _MANY:
            encoded = key.dictionary_encode()  # one lookup in the index per key, not per row
            of_row = encoded.indices.to_numpy().astype(np.int64)
            return of_row, self._table.row_ids_int64(encoded.dictionary.to_numpy())
        groups = group_rows(self.codec.arrays(rows))
        return groups.of_row, self._table.row_ids(groups.keys)

    def _write_back(self, row_ids: Ints, before: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        changed = np.zeros(len(row_ids), np.bool_)
        for name, column in before.items():
            now = state.get(name)
            if not isinstance(now, np.ndarray) or (now.dtype, now.shape) != (column.dtype, column.shape):
                found = f"{now.dtype}, {now.shape}" if isinstance(now, np.ndarray) else shortened(repr(now), 100)
                raise InvalidJob(
                    f"{function_name(self._call)} of operator {self.name!r} left state[{name!r}] as {found}, but it is "
                    f"{column.dtype} with an element per key ({len(row_ids)}): change it in place, as in "
                    f"state[{name!r}][:] = …"
                )
            changed |= now != column
        if len(state) > len(before):
            raise InvalidJob(
                f"{function_name(self._call)} of operator {self.name!r} put {sorted(set(state) - set(before))} into "
                "its state, which are not declared: declare them in state, such as state = {'total': 'float64'}"
            )
        if changed.any():
            changed_ids = row_ids[changed]
            for name, column in state.items():
                self._table.columns[name][changed_ids] = column[changed]
            self._table.mark_dirty(changed_ids)

    def _made(self, result: Any) -> pa.RecordBatch | None:
        name = f"{function_name(self._call)} of operator {self.name!r}"
        if result is None:
            return None
        try:
            if isinstance(result, Mapping):
                result = self._table_of(result, name)
            if isinstance(result, pa.Table):
                result = one_batch(result, name)
        except (pa.ArrowException, TypeError, ValueError, KeyError) as error:
            raise InvalidJob(
                f"{name} returned columns that are not rows ({error}): return columns of one length"
            ) from error
        if result is None:
            return None
        if not isinstance(result, pa.RecordBatch):
            raise InvalidJob(
                f"{name} returned {type(result).__name__}: return a pyarrow.RecordBatch or Table, a dict of columns "
                "or None; a pandas.DataFrame as pyarrow.RecordBatch.from_pandas(frame, preserve_index=False)"
            )
        if self._output is None:
            self._output = result.schema
        elif not result.schema.equals(self._output):
            raise InvalidJob(
                f"{name} returned ({described(result.schema)}), but its schema is ({described(self._output)}): return "
                "one schema always, or correct schema="
            )
        return result

    def _table_of(self, columns: Mapping[str, Any], name: str) -> pa.Table:
        if self._output is None:
            return pa.table(dict(columns))
        if set(columns) != set(self._output.names):
            raise InvalidJob(
                f"{name} returned the columns {', '.join(map(str, columns))}, but its schema is "
                f"({described(self._output)}): return these columns, or correct schema="
            )
        arrays = []
        for field in self._output:
            try:
                arrays.append(column_of_any(columns[field.name], field.type, field.name))
            except ValueError as error:
                raise InvalidJob(
                    f"{name} returned a column {field.name!r} that is not kept as {field.type} ({error}): return what "
                    "schema= declares, or correct schema="
                ) from error
        return pa.Table.from_arrays(arrays, schema=self._output)

    def _failed_part(self, error: Exception, batch: Batch) -> Exception:
        return self._failed(error, batch.rows)

    def _failed(self, error: Exception, rows: pa.RecordBatch | None) -> Exception:
        return user_error(
            error,
            function=function_name(getattr(self, "_call", self._function)),
            operator=self.name,
            subtask=self.context.subtask,
            batch=rows,
        )
