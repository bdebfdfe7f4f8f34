"""State of users' own aggregates (`own`): in a cell, or in columns of numbers."""

import datetime
import decimal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from barrier_runtime.data.values.casts import column_of_any
from barrier_runtime.operators.aggregation.batch_values import BatchValues, Left, RunningOrder, carried
from barrier_runtime.operators.aggregation.kinds.cells import Cells, Reader
from barrier_runtime.operators.aggregation.own import ColumnAggregate, OwnAggregate, RowAggregate
from barrier_runtime.operators.aggregation.state_columns import Columns, Initial, Values
from barrier_runtime.operators.state.stored_type import StoredType
from barrier_runtime.operators.user_code import said, user_traceback
from barrier_runtime.state.errors import BarrierRuntimeError, InvalidJob, UserCodeError
from barrier_runtime.state.snapshots.snapshot import ONE_VALUE
from barrier_runtime.state.snapshots.value_types import ValueType
from barrier_runtime.state.texts import counted

_PLAIN = frozenset({int, float, bool, str, bytes, type(None), datetime.date, datetime.datetime, decimal.Decimal})


@dataclass(frozen=True)
class _Calls:
    aggregate: OwnAggregate
    output: str
    where: str

    def __call__(self, function: Callable[..., Any], *given: Any) -> Any:
        try:
            return function(*given)
        except BarrierRuntimeError:
            raise
        except Exception as error:
            raise self.failed(function, error) from error

    def failed(self, function: Callable[..., Any], error: Exception) -> UserCodeError:
        return UserCodeError(
            f"{type(self.aggregate).__name__}.{function.__name__}() of {self.where}, output {self.output!r}, "
            f"raised {type(error).__name__}: {said(error)}\n"
            "  Fix the function, or make it accept these values; then start the job again.",
            user_traceback(error),
        )

    def as_column(self, values: Any, rows: int) -> pa.Array:
        kind, name = self.aggregate.type, type(self.aggregate).__name__
        try:
            array = column_of_any(values, kind)
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise InvalidJob(
                f"{self.where}: {name}.result() returned what is no {kind}, the type of output {self.output!r}: "
                f"{error}: return such values, or declare their type"
            ) from error
        if len(array) != rows:
            raise InvalidJob(
                f"{self.where}: {name}.result() returned {counted(len(array), 'value')} for {counted(rows, 'key')}: "
                "return one of each"
            )
        return array


@dataclass(frozen=True)
class RowCell:
    aggregate: RowAggregate
    calls: _Calls
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]
    accepted: Callable[[Any], Any]  # as it is stored, for one batch or several
    of_plain: bool = False

    @property
    def name(self) -> str:
        return f"own:{self.calls.output}"

    @property
    def column(self) -> str:
        return self.aggregate.columns[0]

    def values(self, batch: BatchValues) -> tuple[Sequence[tuple[Any, ...]], Values | None]:
        return list(zip(*map(batch.plain, self.aggregate.columns), strict=True)), None

    def opened(self, cell: bytes) -> Any:
        return self.decode(cell) if cell else self.accepted(self.calls(self.aggregate.zero))

    def add(self, state: Any, values: Sequence[tuple[Any, ...]]) -> Any:
        for row in values:
            state = self.calls(self.aggregate.add, state, *row)
        return state

    def closed(self, state: Any) -> bytes:
        return self.encode(self.accepted(state))

    def merged(self, earlier: bytes, later: bytes) -> bytes:
        return self.closed(self.calls(self.aggregate.merge, self.decode(earlier), self.decode(later)))

    def read(self, state: Any) -> Any:
        return self.kept(self.calls(self.aggregate.result, state))

    def kept(self, found: Any) -> Any:
        """Copies a result, which may be a part of the state."""
        if type(found) is list and (self.of_plain or _PLAIN.issuperset(map(type, found))):
            return tuple(found)
        return self.calls.as_column([found], 1)[0] if pa.types.is_nested(self.aggregate.type) else found


@dataclass(frozen=True)
class RowCells(Cells):
    kind: RowCell

    def running(
        self, before: Columns, rows: RunningOrder, batch: BatchValues, left: Left
    ) -> tuple[Columns, dict[str, Values]]:
        kind, cells = self.kind, before[self.name].copy()
        values, order = kind.values(batch)[0], rows.order.tolist()
        add, result, kept = kind.aggregate.add, kind.aggregate.result, kind.kept
        immutable = not pa.types.is_nested(kind.aggregate.type)
        found: list[Any] = []
        for group, (start, length) in enumerate(zip(rows.starts.tolist(), rows.lengths.tolist(), strict=True)):
            state, called = kind.opened(cells[group]), add
            try:
                for row in order[start : start + length]:
                    called = add
                    state = add(state, *values[row])
                    called = result
                    read = result(state)
                    found.append(read if immutable else kept(read))
            except BarrierRuntimeError:
                raise
            except Exception as error:
                raise kind.calls.failed(called, error) from error
            cells[group] = kind.closed(state)
        results = np.fromiter(found, np.object_, len(found))
        return {self.name: cells}, {self._results(reader): results for reader in self.readers.values()}


def row_cells(aggregate: RowAggregate, output: str, where: str) -> tuple[Cells, Reader]:
    name = type(aggregate).__name__
    stored, calls = StoredType(type(aggregate).state, "msgpack", f"{name}.state = "), _Calls(aggregate, output, where)
    place = f"{where}: the state of {name}"
    what = ONE_VALUE
    if stored.scalar is float:  # entries may be of an earlier `state = int`
        what = msgspec.structs.replace(ONE_VALUE, earlier=(ValueType("int"),))
    accepted: Callable[[Any], Any] = (lambda state: state) if stored.scalar is None else partial(stored.accepted, name)
    encode, decode = stored.encoder(place), stored.decoder(place, what)
    kind = RowCell(aggregate, calls, encode, decode, accepted, _lists_plain(aggregate.type))
    return RowCells(kind), Reader("result", aggregate.type, kind.read, lambda read: calls.as_column(read, len(read)))


def _lists_plain(kind: pa.DataType) -> bool:
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return False
    of = kind.value_type
    return bool(pa.types.is_primitive(of) or pa.types.is_string(of) or pa.types.is_large_string(of))


@dataclass(frozen=True)
class OwnColumns:
    aggregate: ColumnAggregate
    calls: _Calls

    @staticmethod
    def of(aggregate: ColumnAggregate, output: str, where: str) -> "OwnColumns":
        return OwnColumns(aggregate, _Calls(aggregate, output, where))

    @property
    def name(self) -> str:
        return self._named("")

    def storage(self) -> dict[str, tuple[str, Initial]]:
        return {self._named(part): column for part, column in self.aggregate.storage().items()}

    def added(self, before: Columns, rows: RunningOrder, batch: BatchValues, left: Left) -> Columns:
        values, positions = self._taken(rows, batch)
        state = {part: before[self._named(part)].copy() for part in self.aggregate.state}
        return self._stored(self._add(state, rows.groups()[positions], values) if len(positions) else state)

    def running(
        self, before: Columns, rows: RunningOrder, batch: BatchValues, left: Left
    ) -> tuple[Columns, dict[str, Values]]:
        """Adds the first counted rows of all groups in a single call, then the second rows, and so on."""
        values, positions = self._taken(rows, batch)
        groups = rows.groups()
        its_group = groups[positions]
        lengths = np.bincount(its_group, minlength=len(rows.starts))
        starts = np.cumsum(lengths) - lengths
        state = {part: before[self._named(part)].copy() for part in self.aggregate.state}
        given = {part: np.zeros(len(positions), column.dtype) for part, column in state.items()}
        alive, round_ = np.flatnonzero(lengths), 0
        while len(alive):
            at = starts[alive] + round_
            part_of_state = {part: column[alive] for part, column in state.items()}
            part_of_state = self._add(part_of_state, np.arange(len(alive)), [column[at] for column in values])
            for part, column in part_of_state.items():
                state[part][alive], given[part][at] = column, column
            round_ += 1
            alive = alive[lengths[alive] > round_]
        latest, after = rows.latest(positions), {}
        for part, known in given.items():
            spread = np.zeros(len(groups), known.dtype)
            spread[positions] = known
            after[self._named(part)] = carried(latest, groups, before[self._named(part)], spread)
        return self._stored(state), after

    def merged(self, before: Columns, later: Columns, left: Left) -> Columns:
        state, theirs = (
            {part: columns[self._named(part)].copy() for part in self.aggregate.state} for columns in (before, later)
        )
        kinds = {part: (column.dtype, column.shape) for part, column in state.items()}
        self.calls(self.aggregate.merge, state, theirs)
        self._check("merge", state, kinds)
        return self._stored(state)

    def result(self, accumulators: Columns) -> pa.Array:
        state = {part: accumulators[self._named(part)].copy() for part in self.aggregate.state}
        rows = len(next(iter(state.values())))
        return self.calls.as_column(self.calls(self.aggregate.result, state), rows)

    def _add(self, state: dict[str, Values], groups: Values, values: list[Values]) -> dict[str, Values]:
        kinds = {part: (column.dtype, column.shape) for part, column in state.items()}
        self.calls(self.aggregate.add, state, groups, *values)
        self._check("add", state, kinds)
        return state

    def _check(self, function: str, state: dict[str, Values], kinds: dict[str, Any]) -> None:
        found = {part: (getattr(column, "dtype", None), np.shape(column)) for part, column in state.items()}
        if found != kinds:
            raise InvalidJob(
                f"{self.calls.where}: {type(self.aggregate).__name__}.{function}() left other columns in its state "
                "than it declares, or of another length: change the arrays in place"
            )

    def _taken(self, rows: RunningOrder, batch: BatchValues) -> tuple[list[Values], Values]:
        counts = np.ones(len(rows.order), np.bool_)
        for column in self.aggregate.columns:
            valid = batch.valid(column)
            if valid is not None:
                counts &= valid
        positions = np.flatnonzero(counts[rows.order])
        chosen = rows.order[positions]
        return [batch.numpy(column, chosen) for column in self.aggregate.columns], positions

    def _stored(self, state: dict[str, Values]) -> Columns:
        return {self._named(part): column for part, column in state.items()}

    def _named(self, part: str) -> str:
        return f"own{'.' if part else ''}{part}:{self.calls.output}"
