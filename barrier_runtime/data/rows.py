"""Batches as rows (plain dicts) for user functions, and rows back into batches."""

import copy
import datetime
import decimal
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from barrier_runtime.data.elements import Batch
from barrier_runtime.data.few_rows import MOST_ROWS, FewRows, layout_of, values_as_stored
from barrier_runtime.data.row_class import RowClass, UnfitField, is_instance
from barrier_runtime.data.values.doors import UNFIT
from barrier_runtime.data.values.into_columns import UnkeptValue, column_of, settled_type
from barrier_runtime.data.values.references import ALONE, HELD_ONCE, references, refuse_repeated, repeated, times_in
from barrier_runtime.data.values.stored_times import rounded_down
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.keys.key_groups import microseconds_of
from barrier_runtime.state.texts import shortened

Row: TypeAlias = dict[str, Any]

_CUT = 500
_NEVER = 0
_UNCHANGEABLE = frozenset(
    {
        type(None),
        bool,
        int,
        float,
        str,
        bytes,
        decimal.Decimal,
        datetime.datetime,
        datetime.date,
        datetime.time,
        datetime.timedelta,
        UUID,
    }
)
_timedelta = datetime.timedelta
_PER_MICROSECOND = {"us": 1, "ns": 1_000}  # units of timestamps that become `datetime` without Arrow
_EPOCHS = {
    None: datetime.datetime(1970, 1, 1),
    "UTC": datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc),
}
_YEARS_US = [microseconds_of(datetime.datetime.min), microseconds_of(datetime.datetime.max)]


def values_of(array: pa.Array) -> list[Any]:
    """Python values of a column; timestamps as `datetime` (UTC: aware), without digits below 1 µs."""
    kind = array.type
    if pa.types.is_timestamp(kind) and kind.tz in (None, "UTC"):
        try:
            array = rounded_down(array, "us")
        except pa.ArrowInvalid as error:
            raise _no_time(array) from error
        if _beyond_years(stored := array.to_numpy(zero_copy_only=False)):
            raise _no_time(array)
        values = stored.tolist()
        if kind.tz is None:
            return list(values)
        utc = datetime.timezone.utc
        return [value.replace(tzinfo=utc) if value is not None else None for value in values]
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        array = rounded_down(array, "us")
    try:
        return list(array.to_pylist())
    except OverflowError as error:
        raise _no_time(array) from error
    except UnicodeDecodeError as error:
        shown = error.object if len(error.object) <= _CUT else error.object[:_CUT]
        raise InvalidJob(
            f"a text of a column of type {array.type} is not UTF-8: {shown!r} ({error.reason}): its source holds bytes "
            "of another encoding as text; write these anew as UTF-8, or as binary"
        ) from error


def _beyond_years(microseconds: npt.NDArray[np.datetime64]) -> bool:
    numbers = microseconds[~np.isnat(microseconds)].view(np.int64)
    return bool(len(numbers)) and bool(numbers.min() < _YEARS_US[0] or numbers.max() > _YEARS_US[1])


def _no_time(array: pa.Array) -> InvalidJob:
    return InvalidJob(
        f"a time of type {array.type} is not in the years 1 to 9999, which Python's times have: filter such rows by an "
        "expression before, or correct their unit"
    )


def one_batch(table: pa.Table, name: str) -> pa.RecordBatch | None:
    """None: no rows. `name`: of the function that returned the table, for messages."""
    batches = table.combine_chunks().to_batches()
    if len(batches) > 1:  # Arrow cannot join texts of more bytes than 32-bit offsets count
        raise InvalidJob(
            f"{name} returned {table.num_rows} rows at once, with more than 2 GiB of text in a column: return fewer "
            "rows for each call (explode() makes many rows of one), or a column of large_string"
        )
    return batches[0] if table.num_rows else None


def rows_of(batch: pa.RecordBatch) -> list[Row]:
    return list(each_row(batch))


def each_row(batch: pa.RecordBatch) -> Iterator[Row]:
    return dicts(batch.schema.names, [values_of(column) for column in batch.columns])


def each_row_of(batch: Batch) -> Iterator[Row]:
    few = batch.few
    if few is None:
        return each_row(batch.rows)
    columns: Iterable[list[Any]] = few.columns
    if few.layout.has_times:
        columns = map(values_of_few, few.columns, few.layout.types, few.layout.times)
    return dicts(few.layout.names, columns)


def dicts(names: Sequence[str], columns: Iterable[list[Any]]) -> Iterator[Row]:
    return map(dict, map(zip, itertools.repeat(names), zip(*columns, strict=True)))


def values_of_few(values: list[Any], kind: pa.DataType, is_time: bool) -> list[Any]:
    if not is_time:
        return values
    if pa.types.is_timestamp(kind) and kind.unit in _PER_MICROSECOND and kind.tz in _EPOCHS:
        epoch, per_us = _EPOCHS[kind.tz], _PER_MICROSECOND[kind.unit]
        try:
            return [epoch + _timedelta(0, 0, value // per_us) for value in values]
        except (TypeError, OverflowError):  # nulls, or years beyond `datetime`
            pass
    return values_of(pa.array(values, kind))


def _stored_times(values: list[Any], kind: pa.DataType) -> list[Any] | None:
    """Arrow's stored numbers of a few `datetime` values; None: use Arrow."""
    if not (pa.types.is_timestamp(kind) and kind.unit in _PER_MICROSECOND and kind.tz in _EPOCHS):
        return None
    epoch, per_us = _EPOCHS[kind.tz], _PER_MICROSECOND[kind.unit]
    if any(type(value) is not datetime.datetime or value.tzinfo is not epoch.tzinfo for value in values):
        return None
    stored = [microseconds_of(value) * per_us for value in values]
    return stored if max(stored) < 2**63 and min(stored) >= -(2**63) else None


def preview(batch: pa.RecordBatch, row: int) -> str:
    one = batch.slice(row, 1)
    try:
        return cut(repr(rows_of(one)[0]))
    except InvalidJob:
        return cut(" ".join(one.to_string().split()))


def cut(text: str) -> str:
    return shortened(text, _CUT)


class _Column(NamedTuple):
    name: str
    type: pa.DataType
    nullable: bool
    of: Callable[[Any], Any]


class RowWriter:
    """Converts a user function's rows to batches of a schema, declared or from the first batch."""

    def __init__(
        self,
        where: str,
        schema: pa.Schema | RowClass | None,
        remedy: str = "return what schema= declares, or correct schema=",
    ) -> None:
        """`schema`: with a row class, rows are its instances, or dicts."""
        self._where = where
        self._declared_remedy = remedy
        self._declared = schema is not None
        self.schema: pa.Schema | None = None
        self._columns: list[_Column] = []
        self._changeable: list[str] = []
        self._flat: frozenset[str] = frozenset()
        self.alone = _NEVER
        self.row_kind: type = dict
        self._row_class: RowClass | None = None
        self._of_instances: list[_Column] = []
        if isinstance(schema, RowClass):
            self._row_class, self.row_kind = schema, schema.kind
            self._fix(schema.schema, {field.column: field.slot.optional for field in schema.fields})
            plain, getters, items = self._columns, schema.getters, schema.item_getters
            self._of_instances = [column._replace(of=of) for column, of in zip(plain, getters, strict=True)]
            self._columns = [column._replace(of=of) for column, of in zip(plain, items, strict=True)]
        elif schema is not None:
            self._fix(schema)

    def each(self, result: Any) -> Any:
        return (result,) if type(result) is dict or type(result) is self.row_kind else result

    def take(self, rows: Iterable[Any], results: list[Row], given: Callable[[], Row] | None = None) -> None:
        """Appends `rows` to `results` in their present state, unaffected by later changes.

        A row that nobody else holds (`yield {...}`) needs no copy: the reference count is `alone`, which never occurs
        while columns may hold lists and the like. In a list that nobody else holds (`return [...]`) the count is higher
        by 1.
        """
        alone, append, taken = self.alone, results.append, self.taken
        if alone != _NEVER and type(rows) is list and references(rows) == alone:
            alone += 1
        copied = False
        for row in rows:
            if references(row) == alone:
                append(row)
            else:
                append(taken(row))
                copied = True
        if copied:
            self.check_apart(rows, given)

    def check_apart(self, rows: Any, given: Callable[[], Row] | None = None) -> None:
        """Refuses a list with a repeated dict: all these rows would have the last content.

        `given` makes the input row, which may recur unless changed.
        """
        if type(rows) is list:
            for row in repeated(rows, self._changed_in_place):
                if given is None or repr(row) != repr(given()):
                    refuse_repeated(rows, row, self._where)

    def taken(self, row: Any) -> Any:
        """Copies `row` without shared mutable values, unless nobody else holds it.

        Returns non-rows unchanged. The caller holds `row` in a single local variable.
        """
        if type(row) is not dict and not isinstance(row, Mapping):
            return row if self._row_class is None else self._copied(row)
        copied = row if self._changeable and type(row) is dict and references(row) == HELD_ONCE else dict(row)
        for name in copied if self.schema is None else self._changeable:
            value = copied.get(name)
            if type(value) in _UNCHANGEABLE:
                continue
            if type(value) is list and name in self._flat and references(value) == HELD_ONCE:
                continue  # only this row holds the list
            copied[name] = taken_value(value)
        return copied

    def _copied(self, row: Any) -> Any:
        assert self._row_class is not None
        if type(row) is not self.row_kind or (self._row_class.is_frozen and not self._changeable):
            return row
        return {name: taken_value(value) for name, value in self._record(row).items()}

    def _record(self, row: Any) -> Row:
        assert self._row_class is not None
        try:
            return self._row_class.record(row)
        except UnfitField as error:
            raise InvalidJob(f"{self._where}: {error}: {self._remedy()}") from None

    @property
    def _changed_in_place(self) -> type | None:
        return None if self._row_class is None or self._row_class.is_frozen else self.row_kind

    def _readable(self, rows: Sequence[Any]) -> tuple[Sequence[Any], list[_Column]]:
        row_class = self._row_class
        if row_class is not None:
            kinds = set(map(type, rows))
            if kinds == {self.row_kind}:
                return rows, self._of_instances
            if self.row_kind in kinds:
                return [self._record(row) if type(row) is self.row_kind else row for row in rows], self._columns
        return rows, self._columns

    def batch(self, rows: Sequence[Mapping[str, Any]], like: pa.Schema | None = None) -> pa.RecordBatch:
        """Raises `InvalidJob` for a row that does not fit.
        `like`: schema of the function's input, which completes types that the first rows leave open.
        """
        if self.schema is None:
            self._fix(self._infer(rows, like))
        schema = self.schema
        assert schema is not None
        rows, columns = self._readable(rows)
        arrays = [self._column(rows, column) for column in columns]
        if columns is self._columns and sum(map(len, rows)) != len(rows) * len(arrays):
            self._check_names(rows)
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def made(self, rows: Sequence[Mapping[str, Any]], like: pa.Schema | None = None) -> pa.RecordBatch | FewRows:
        layout = None if self.schema is None or len(rows) > MOST_ROWS else layout_of(self.schema)
        if layout is None:
            return self.batch(rows, like)
        columns = []
        rows, read_by = self._readable(rows)
        for column, accepted, dtype in zip(read_by, layout.accepted, layout.dtypes, strict=True):
            try:
                values = list(map(column.of, rows))
            except (KeyError, TypeError, UnfitField):
                return self.batch(rows, like)
            if not column.nullable and None in values:
                return self.batch(rows, like)
            if not accepted(values):
                times = _stored_times(values, column.type)
                values = values_as_stored(self._column(rows, column), dtype) if times is None else times
            columns.append(values)
        if read_by is self._columns and sum(map(len, rows)) != len(rows) * len(columns):
            self._check_names(rows)
        return FewRows.made_of(self.schema, columns)

    def _column(self, rows: Sequence[Mapping[str, Any]], column: _Column) -> pa.Array:
        name, kind, nullable, of = column
        try:
            try:
                values = list(map(of, rows))
            except (KeyError, TypeError):
                self._check_names(rows)
                values = [of(row) if name in row else None for row in rows]
        except UnfitField as error:
            raise InvalidJob(f"{self._where}: column {name!r}: {error}: {self._remedy()}") from None
        try:
            return column_of(values, kind, name, nullable)
        except UnkeptValue as unkept:
            raise unkept.job_error(self._where, self._remedy(), cut(repr(rows[unkept.row]))) from unkept

    def _fix(self, schema: pa.Schema, optional: Mapping[str, bool] | None = None) -> None:
        self.schema = schema
        nullable = {each.name: each.nullable for each in schema} if optional is None else optional
        self._columns = [_Column(each.name, each.type, nullable[each.name], itemgetter(each.name)) for each in schema]
        changeable = {field.name: field.type for field in schema if not _is_unchangeable(field.type)}
        self._changeable = list(changeable)
        self._flat = frozenset(
            name for name, kind in changeable.items() if pa.types.is_list(kind) and _is_unchangeable(kind.value_type)
        )
        self.alone = _NEVER if self._changeable else ALONE

    def _infer(self, rows: Sequence[Mapping[str, Any]], like: pa.Schema | None) -> pa.Schema:
        for row in rows:
            self._check_row(row)
        names = list(dict.fromkeys(name for row in rows for name in row))
        if not names:
            raise InvalidJob(f"{self._where}: the returned row has no columns: return at least one")
        fields = []
        for name in names:
            try:
                values = [row.get(name) for row in rows]
                known = like.field(name).type if like is not None and name in like.names else None
                fields.append((name, settled_type(values, known)))
            except UNFIT as error:
                raise InvalidJob(
                    f"{self._where}: no type fits all values of column {name!r} ({error}): pass schema="
                ) from error
        return pa.schema(fields)

    def _check_row(self, row: object) -> None:
        if not isinstance(row, Mapping):
            name = type(row).__name__
            remedy = "return a dict of column name to value" + (", or use filter or flat_map" if row is None else "")
            if is_instance(row):
                remedy = f"pass schema={name}, or annotate what the function returns"
            if self._row_class is not None:
                remedy = f"return instances of {self._row_class.name}, which schema= or the annotation declares"
            raise InvalidJob(f"{self._where}: the function gave a {name} where a row is expected: {remedy}")

    def _check_names(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Raises for unknown columns, and for absent columns unless the user declared the schema (then null)."""
        assert self.schema is not None
        known = set(self.schema.names)
        for row in rows:
            self._check_row(row)
            unknown = [name for name in row if name not in known]
            if unknown:
                raise InvalidJob(
                    f"{self._where}: a row has the column {unknown[0]!r}, which is not in its schema "
                    f"({', '.join(self.schema.names)}): {self._remedy()}"
                )
            if not self._declared and len(row) < len(known):
                absent = next(name for name in self.schema.names if name not in row)
                raise InvalidJob(
                    f"{self._where}: a row lacks the column {absent!r}, which other rows have: {self._remedy()}"
                )

    def _remedy(self) -> str:
        if self._declared:
            return self._declared_remedy
        return "the schema was taken from the first rows; pass schema= to say what the function returns"


def refuse_shared(reply: Sequence[Any] | Mapping[Any, Any], where: str) -> None:
    """As `RowWriter.check_apart`, for a reply; a dict kept elsewhere may stand for several keys."""
    rows = list(reply.values()) if isinstance(reply, Mapping) else reply
    for row in repeated(rows):
        holders = (1 if rows is reply else 2) * times_in(rows, row) + 1  # the reply, `rows`, the list of repeated rows
        if references(row) <= ALONE + holders:
            refuse_repeated(reply, row, where)


def input_row(batch: Batch, at: int) -> Callable[[], Row]:
    return lambda: next(each_row_of(batch.slice(at, 1)))


def values_by_column(batch: Batch, names: Sequence[str]) -> list[list[Any]]:
    few = batch.few
    if few is None:
        return [values_of(batch.rows.column(name)) for name in names]
    layout = few.layout
    at = [layout.positions[name] for name in names]
    columns = [few.columns[each] for each in at]
    if not layout.has_times:
        return columns
    return [
        values_of_few(values, layout.types[each], layout.times[each]) for each, values in zip(at, columns, strict=True)
    ]


def taken_value(value: Any) -> Any:
    kind = type(value)
    if kind in _UNCHANGEABLE:
        return value
    if kind is list:
        return [each if type(each) in _UNCHANGEABLE else taken_value(each) for each in value]
    if kind is dict:
        return {key: taken_value(each) for key, each in value.items()}
    return value if isinstance(value, pa.Scalar | pa.Array) else copy.deepcopy(value)


def _is_unchangeable(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_boolean(kind)
        or types.is_integer(kind)
        or types.is_floating(kind)
        or types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_temporal(kind)
        or types.is_decimal(kind)
    )
