"""Batches as rows (plain dicts) for user functions, and rows back into batches of one fixed schema.

Users declare the schema of a function's results, or the first batch determines it; a channel has one schema. A row that
does not fit raises an error with the column, and with `schema=` as the remedy.

Rows become columns when their batch ends, so `RowWriter.take` copies at once whatever the function could still change.
"""

import copy
import datetime
import decimal
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from barrier_runtime.data.elements import Batch
from barrier_runtime.data.few_rows import MOST_ROWS, FewRows, layout_of, values_as_stored
from barrier_runtime.data.values.doors import UNFIT
from barrier_runtime.data.values.into_columns import UnkeptValue, column_of, keeps
from barrier_runtime.data.values.repeated_rows import refuse_repeated, repeated, times_in
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.keys.key_groups import microseconds_of

Row: TypeAlias = dict[str, Any]

_CUT = 500  # characters of a record shown in an error
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
_WIDEST_DECIMAL = 38  # digits of a decimal128


def values_of(array: pa.Array) -> list[Any]:
    """Python values of a column; timestamps as `datetime` (UTC: aware), without digits below 1 µs."""
    kind = array.type
    if pa.types.is_timestamp(kind) and kind.tz in (None, "UTC"):
        try:
            array = array.cast(pa.timestamp("us", kind.tz), safe=kind.unit != "ns")
        except pa.ArrowInvalid as error:
            raise _no_time(array) from error
        if _beyond_years(stored := array.to_numpy(zero_copy_only=False)):  # numpy would return numbers
            raise _no_time(array)
        values = stored.tolist()
        if kind.tz is None:
            return list(values)
        utc = datetime.timezone.utc
        return [value.replace(tzinfo=utc) if value is not None else None for value in values]
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        array = array.cast(pa.timestamp("us", kind.tz), safe=False)
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


def rows_of(batch: pa.RecordBatch) -> list[Row]:
    return list(each_row(batch))


def each_row(batch: pa.RecordBatch) -> Iterator[Row]:
    """Yields one dict per row: all dicts of a large batch would exceed the processor's cache."""
    return dicts(batch.schema.names, [values_of(column) for column in batch.columns])


def each_row_of(batch: Batch) -> Iterator[Row]:
    """As `each_row`, of either form of the rows."""
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
            if min(values) >= 0:  # division rounds down, a cast towards zero
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
    except InvalidJob:  # a time beyond Python's range
        return cut(" ".join(one.to_string().split()))


def cut(text: str) -> str:
    return text if len(text) <= _CUT else text[: _CUT - 1] + "…"


references = sys.getrefcount  # only this module depends on the interpreter's counting
"""Number of references to a row: a row that a user's function has not kept needs no copy."""


def _references_of_a_local() -> int:
    """Result of `references` for one local variable. Newer interpreters do not count the argument."""
    assigned: Row = {}
    counts = [references(assigned)]
    made: Iterator[Row] = ({} for _ in range(1))
    for each in made:
        counts.append(references(each))
    return min(counts)  # too low a number only causes more copies


_ALONE = _references_of_a_local()
_HELD_ONCE = _ALONE + 1  # one local variable and one other holder: the caller's variable, or the row


def _references_of_an_argument() -> int:
    """Result of `references` for an argument that the caller does not keep; 0 (never equal) if unknown."""

    def seen(name: str, row: Row) -> int:
        return references(row)

    kept: Row = {}
    alone = seen("", {})
    return alone if alone < seen("", kept) else 0


ALONE_ARGUMENT = _references_of_an_argument()


class _Column(NamedTuple):
    name: str
    type: pa.DataType
    nullable: bool
    of: Callable[[Mapping[str, Any]], Any]  # the column's value in a row


class RowWriter:
    """Converts rows of one operator's user function to batches of one schema."""

    def __init__(
        self, where: str, schema: pa.Schema | None, remedy: str = "return what schema= declares, or correct schema="
    ) -> None:
        """`remedy`: what to do about a row that does not fit the declared `schema`."""
        self._where = where
        self._declared_remedy = remedy
        self._declared = schema is not None
        self.schema: pa.Schema | None = None
        self._columns: list[_Column] = []
        self._changeable: list[str] = []  # columns whose values may be changed in place
        self._flat: frozenset[str] = frozenset()  # those of them that are lists of immutable values
        self.alone = _NEVER
        if schema is not None:
            self._fix(schema)

    def take(self, rows: Iterable[Any], results: list[Row], given: Callable[[], Row] | None = None) -> None:
        """Appends `rows` to `results` in their present state, unaffected by later changes.

        `given`: see `check_apart`.

        A row that nobody else holds (`yield {...}`) needs no copy; its count of references is `alone`, a number that
        never occurs while columns may hold lists and the like. In a list that nobody else holds (`return [...]`) a row
        has one reference more.
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
        """Refuses a list with the same dict several times.

        If the dict was changed meanwhile, all these rows would be the last row. `given` makes the input row, which may
        occur several times unless it was changed. Rows of a generator keep their state, and are not checked.
        """
        if type(rows) is list:
            for row in repeated(rows):
                if given is None or repr(row) != repr(given()):
                    refuse_repeated(rows, row, self._where)

    def taken(self, row: Any) -> Any:
        """A copy of `row` that shares no mutable value with it, or `row` itself if nobody else holds it.

        Returns anything that is no row unchanged. The caller holds `row` in one local variable.
        """
        if type(row) is not dict and not isinstance(row, Mapping):
            return row
        copied = row if self._changeable and type(row) is dict and references(row) == _HELD_ONCE else dict(row)
        for name in copied if self.schema is None else self._changeable:
            value = copied.get(name)
            if type(value) in _UNCHANGEABLE:
                continue
            if type(value) is list and name in self._flat and references(value) == _HELD_ONCE:
                continue  # only this row holds the list
            copied[name] = taken_value(value)
        return copied

    def batch(self, rows: Sequence[Mapping[str, Any]], like: pa.Schema | None = None) -> pa.RecordBatch:
        """Batch of one or more rows. Raises `InvalidJob` for a row that does not fit.

        `like`: schema of the function's input, whose columns complete types that the first rows leave open.
        """
        if self.schema is None:
            self._fix(self._infer(rows, like))
        schema = self.schema
        assert schema is not None
        arrays = [self._column(rows, column) for column in self._columns]
        if sum(map(len, rows)) != len(rows) * len(arrays):
            self._check_names(rows)
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def made(self, rows: Sequence[Mapping[str, Any]], like: pa.Schema | None = None) -> pa.RecordBatch | FewRows:
        """As `batch`, but as lists if the rows are few and the types allow it."""
        layout = None if self.schema is None or len(rows) > MOST_ROWS else layout_of(self.schema)
        if layout is None:
            return self.batch(rows, like)
        columns = []
        for column, accepted, dtype in zip(self._columns, layout.accepted, layout.dtypes, strict=True):
            try:
                values = list(map(column.of, rows))
            except (KeyError, TypeError):
                return self.batch(rows, like)
            if not accepted(values):
                times = _stored_times(values, column.type)
                values = values_as_stored(self._column(rows, column), dtype) if times is None else times
            columns.append(values)
        if sum(map(len, rows)) != len(rows) * len(columns):
            self._check_names(rows)
        return FewRows.made_of(self.schema, columns)

    def _column(self, rows: Sequence[Mapping[str, Any]], column: _Column) -> pa.Array:
        name, kind, nullable, of = column
        try:
            values = list(map(of, rows))
        except (KeyError, TypeError):
            self._check_names(rows)
            values = [row.get(name) for row in rows]
        try:
            return column_of(values, kind, name, nullable)
        except UnkeptValue as unkept:
            raise unkept.job_error(self._where, self._remedy(), cut(repr(rows[unkept.row]))) from unkept

    def _fix(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._columns = [_Column(each.name, each.type, each.nullable, itemgetter(each.name)) for each in schema]
        changeable = {field.name: field.type for field in schema if not _is_unchangeable(field.type)}
        self._changeable = list(changeable)
        self._flat = frozenset(
            name for name, kind in changeable.items() if pa.types.is_list(kind) and _is_unchangeable(kind.value_type)
        )
        self.alone = _NEVER if self._changeable else _ALONE

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
                fields.append((name, _settled_type(values, known)))
            except UNFIT as error:
                raise InvalidJob(
                    f"{self._where}: no type fits all values of column {name!r} ({error}): pass schema="
                ) from error
        return pa.schema(fields)

    def _check_row(self, row: object) -> None:
        if not isinstance(row, Mapping):
            raise InvalidJob(
                f"{self._where}: the function gave a {type(row).__name__} where a row is expected: "
                "return a dict of column name to value"
            )

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
    """As `RowWriter.check_apart`, for a reply. A dict that is kept elsewhere may stand for several keys."""
    rows = list(reply.values()) if isinstance(reply, Mapping) else reply
    for row in repeated(rows):
        holders = (1 if rows is reply else 2) * times_in(rows, row) + 1  # the reply, `rows`, the list of repeated rows
        if references(row) <= _ALONE + holders:
            refuse_repeated(reply, row, where)


def input_row(batch: Batch, at: int) -> Callable[[], Row]:
    """Returns a function that makes row `at` of `batch` again, as the user's function got it."""
    return lambda: next(each_row_of(batch.slice(at, 1)))


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
    """True if every Python value for a column of this type is immutable."""
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


def _settled_type(values: list[Any], known: pa.DataType | None) -> pa.DataType:
    """The type for `values` and later rows; open types are those of `known`, the input's column.

    Open are the digits of decimals, and columns of nulls or empty lists.
    """
    try:
        guessed = pa.array(values).type
    except UNFIT:
        if known is None or not keeps(values, known):
            raise
        return known
    settled = _settled(guessed, known)
    if settled.equals(guessed) or keeps(values, settled):
        return settled
    return _settled(guessed, None)


def _settled(guessed: pa.DataType, known: pa.DataType | None) -> pa.DataType:
    types = pa.types
    if types.is_null(guessed):
        return guessed if known is None else known
    if types.is_decimal(guessed):
        if known is not None and types.is_decimal(known):
            return known
        return pa.decimal128(_WIDEST_DECIMAL, guessed.scale) if guessed.precision <= _WIDEST_DECIMAL else guessed
    if types.is_integer(guessed) and known is not None and types.is_uint64(known):
        return known  # otherwise the first value of 2^63 or more would not fit
    if types.is_list(guessed):
        element = known.value_type if known is not None and types.is_list(known) else None
        return pa.list_(_settled(guessed.value_type, element))
    if types.is_struct(guessed):
        fields = {field.name: field.type for field in known} if known is not None and types.is_struct(known) else {}
        return pa.struct([(field.name, _settled(field.type, fields.get(field.name))) for field in guessed])
    return guessed
