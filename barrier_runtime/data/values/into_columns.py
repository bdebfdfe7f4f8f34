"""Python values as Arrow columns: values are kept exactly, or refused with place and reason.

All values of users, payloads and deserialisers become columns by `column_of`. Arrow's own conversion cuts fractions,
omits keys that a struct lacks, and more; this module decides per type of column:

| column            | kept                                               | refused                                    |
|-------------------|----------------------------------------------------|--------------------------------------------|
| bool              | bool, numpy.bool_                                  | numbers, text                              |
| integers          | whole numbers in the range: int, float, Decimal    | bool, fractions, NaN, text, UUID           |
| float64           | float; int and numpy's where no digit is lost      | bool, Decimal, text, other int             |
| float32, float16  | float, rounded as the declaration says             | finite numbers that would become infinite  |
| decimal           | Decimal, int of no more digits than declared       | bool, float, NaN, more digits              |
| string            | str, bytes that are UTF-8                          | lone surrogates, numbers                   |
| binary            | bytes, bytearray, memoryview, str (as UTF-8)       | another length than a fixed one            |
| date              | date, midnight of UTC or of no zone, int (stored)  | a time of day                              |
| time              | time without zone or in UTC, int (as stored)       | other zones, digits below the unit         |
| timestamp         | datetime (no zone: UTC), numpy's, int (as stored)  | float, digits below the unit               |
| duration          | timedelta, numpy's, int (as stored)                | float, digits below the unit               |
| list              | list, tuple, set, range, numpy array               | text, bytes, dict                          |
| struct            | dict (absent keys: null), tuple of all fields      | unknown keys, at every level               |
| map               | dict, list of pairs                                | a key twice, a key that is None            |

None, `pandas.NaT`, `pandas.NA` and numpy's NaT are null. A subclass counts as its base class: an `IntEnum` as int.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from barrier_runtime.data.values import doors, nested_doors
from barrier_runtime.data.values.doors import UNFIT, Door, RefusedValue, shown
from barrier_runtime.data.values.stored_times import is_time_kind
from barrier_runtime.state.errors import InvalidJob


class UnkeptValue(ValueError):
    """A value that its column does not keep.

    `row`: index among the values; `detail`: the reason, empty if the types show the reason; `remedy`: empty if any
    other value would do.
    """

    def __init__(self, column: str, kind: pa.DataType, row: int, value: Any, detail: str, remedy: str = "") -> None:
        self.reason = ": ".join(part for part in (f"there is {shown(value)}", detail) if part)
        said = ": ".join(part for part in (self.reason, remedy) if part)
        super().__init__(f"column {column!r} is {kind}, but {said}")
        self.column = column
        self.kind = kind
        self.row = row
        self.value = value
        self.detail = detail
        self.remedy = remedy

    def job_error(self, where: str, remedy: str, record: str) -> InvalidJob:
        """The error that ends the job.

        `where`: the function or source of the value; `remedy`: for a value without a remedy of its own; `record`: the
        row, cut.
        """
        rest = "; ".join(part for part in (self.detail, self.remedy or remedy) if part)
        return InvalidJob(
            f"{where}: column {self.column!r} is {self.kind}, but a row has {shown(self.value)} there: {rest}\n"
            f"  record: {record}"
        )


def _has_names(kind: pa.DataType) -> bool:
    """True if the fields of a struct have unique names."""
    return bool(0 < kind.num_fields == len({field.name for field in kind}))


_MOST_KNOWN = 4_096  # types
_is = pa.types
_SCALARS: tuple[tuple[Callable[[pa.DataType], bool], type[Door]], ...] = (
    (_is.is_boolean, doors.BooleanDoor),
    (_is.is_integer, doors.IntegerDoor),
    (_is.is_float64, doors.FloatDoor),
    (_is.is_floating, doors.NarrowFloatDoor),
    (_is.is_decimal, doors.DecimalDoor),
    (lambda kind: _is.is_string(kind) or _is.is_large_string(kind) or kind == pa.string_view(), doors.TextDoor),
    (lambda kind: _is.is_binary(kind) or _is.is_large_binary(kind) or kind == pa.binary_view(), doors.BytesDoor),
    (_is.is_fixed_size_binary, doors.BytesDoor),
    (is_time_kind, doors.TimeDoor),
)
_NESTED: tuple[tuple[Callable[[pa.DataType], bool], type[nested_doors.NestedDoor]], ...] = (
    (lambda kind: _is.is_list(kind) or _is.is_large_list(kind) or _is.is_fixed_size_list(kind), nested_doors.ListDoor),
    (_is.is_map, nested_doors.MapDoor),
    (lambda kind: _is.is_struct(kind) and _has_names(kind), nested_doors.StructDoor),
    (_is.is_dictionary, nested_doors.DictionaryDoor),
)


class Doors:
    """The door of each type. `others`: doors that replace the usual doors."""

    def __init__(self, others: Mapping[Any, Any] | None = None) -> None:
        self._others = others or {}
        self._known: dict[pa.DataType, Door] = {}

    def of(self, kind: pa.DataType) -> Door:
        door = self._known.get(kind)
        if door is None:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            door = self._known[kind] = self._made(kind)
        return door

    def column(self, values: Sequence[Any], kind: pa.DataType, column: str, nullable: bool) -> pa.Array:
        """As `column_of`."""
        try:
            array = self.of(kind).array(values)
        except UNFIT as error:
            raise self._unkept(values, kind, column, error) from error
        if not nullable and array.null_count:
            row = array.is_null().index(True).as_py()
            raise UnkeptValue(column, kind, row, values[row], "the column is declared not nullable")
        return array

    def _made(self, kind: pa.DataType) -> Door:
        for fits, nested in _NESTED:
            if fits(kind):
                made: Door = self._others.get(nested, nested)(kind, self.of)
                return made
        usual = next((door for fits, door in _SCALARS if fits(kind)), doors.OtherDoor)
        door: Door = self._others.get(usual, usual)(kind)
        return door

    def _unkept(self, values: Sequence[Any], kind: pa.DataType, column: str, error: Exception) -> UnkeptValue:
        door = self.of(kind)
        for row, value in enumerate(values):
            try:
                door.array([value])
            except RefusedValue as refused:
                if refused.value is value:
                    return UnkeptValue(column, kind, row, value, refused.why, refused.remedy)
                inside = str(RefusedValue(refused.value, refused.kind, refused.why))
                return UnkeptValue(column, kind, row, value, f"inside, {inside}", refused.remedy)
            except UNFIT as other:
                return UnkeptValue(column, kind, row, value, str(other))
        return UnkeptValue(column, kind, 0, values[0] if values else None, str(error))


_PYTHON = Doors()
_RECORDS = Doors({nested_doors.StructDoor: nested_doors.OpenStructDoor})


def column_of(values: Sequence[Any], kind: pa.DataType, column: str = "", nullable: bool = True) -> pa.Array:
    """A column of `kind` that keeps each of `values`; raises `UnkeptValue`. `column`: name, for messages.

    >>> column_of([1, 2.0, None], pa.int64()).to_pylist()
    [1, 2, None]
    """
    return _PYTHON.column(values, kind, column, nullable)


def column_of_records(values: Sequence[Any], kind: pa.DataType, column: str = "", nullable: bool = True) -> pa.Array:
    """As `column_of`, for values from a deserialiser: fields that a struct lacks are omitted."""
    return _RECORDS.column(values, kind, column, nullable)


def keeps(values: Sequence[Any], kind: pa.DataType) -> bool:
    """True if a column of `kind` keeps each of `values`."""
    try:
        _PYTHON.of(kind).array(values)
    except UNFIT:
        return False
    return True
