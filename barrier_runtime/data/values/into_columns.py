"""Python values as Arrow columns: values are kept exactly, or refused with place and reason.

Per type of column:

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

None, `pandas.NaT`, `pandas.NA` and numpy's NaT are null. A subclass counts as its base class: an `IntEnum` as int. In
values decoded from JSON (`column_of_json`), text stands for times (RFC 3339, ISO 8601) and for the floats `NaN`,
`Infinity` and `-Infinity`.
"""

from collections.abc import Callable, Mapping, Sequence, Set
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa

from barrier_runtime.data.values import doors
from barrier_runtime.data.values.doors import UNFIT, Door, RefusedValue, is_null, shown
from barrier_runtime.data.values.stored_times import UnreadTime, is_time_kind, numbers_of_texts, times_of_texts
from barrier_runtime.state.errors import InvalidJob


class NestedDoor(Door):
    def __init__(self, kind: pa.DataType, door_of: Callable[[pa.DataType], Door]) -> None:
        super().__init__(kind)
        self._door_of = door_of

    def inner(self, values: Sequence[Any], kind: pa.DataType) -> pa.Array:
        return self._door_of(kind).array(values)


class ListDoor(NestedDoor):
    def array(self, values: Sequence[Any]) -> pa.Array:
        kind = self.kind
        rows = values
        if not {list}.issuperset(map(type, values)):
            rows = [None if is_null(value) else self._elements(value) for value in values]
        fixed = kind.list_size if pa.types.is_fixed_size_list(kind) else None
        nothing = [None] * (fixed or 0)
        inner = [each for row in rows for each in (nothing if row is None else row)]
        if not kind.value_field.nullable:
            for row in rows:
                if row is not None and any(map(is_null, row)):
                    raise self.refused(row, "its elements are declared not nullable")
        child = self.inner(inner, kind.value_type)
        if fixed is not None:
            for value, row in zip(values, rows, strict=True):
                if row is not None and len(row) != fixed:
                    raise self.refused(value, f"it has {len(row)} elements")
            mask = pa.array([row is None for row in rows], pa.bool_())
            return pa.FixedSizeListArray.from_arrays(child, type=kind, mask=mask)
        offsets = _offsets([None if row is None else len(row) for row in rows], pa.types.is_large_list(kind))
        make = pa.LargeListArray if pa.types.is_large_list(kind) else pa.ListArray
        return make.from_arrays(offsets, child, type=kind)

    def _elements(self, value: Any) -> Any:
        if type(value) is list:
            return value
        if isinstance(value, str | bytes | bytearray | memoryview) or not isinstance(
            value, Sequence | Set | np.ndarray | pa.Array
        ):
            raise self.refused(value, remedy="give a list")
        return list(value)


class StructDoor(NestedDoor):
    """Dicts of the fields of a struct. `closed`: other keys are refused."""

    closed = True

    def __init__(self, kind: pa.DataType, door_of: Callable[[pa.DataType], Door]) -> None:
        super().__init__(kind, door_of)
        self._fields = [kind.field(at) for at in range(kind.num_fields)]
        self._names = [field.name for field in self._fields]
        self._known = frozenset(self._names)

    def array(self, values: Sequence[Any]) -> pa.Array:
        rows, absent = values, False
        if not {dict}.issuperset(map(type, values)):
            rows = [None if is_null(value) else self._row(value) for value in values]
            absent = None in rows
        present = [row for row in rows if row is not None] if absent else rows
        for row in present if self.closed else ():
            if not row.keys() <= self._known:
                unknown = next(name for name in row if name not in self._known)
                raise self.refused(
                    row, f"its type has no key {unknown!r}", f"declare {unknown!r} in schema=, or leave the key out"
                )
        children = [self._child(field, rows, present) for field in self._fields]
        mask = pa.array([row is None for row in rows], pa.bool_()) if absent else None
        return pa.StructArray.from_arrays(children, fields=self._fields, mask=mask)

    def _child(self, field: pa.Field, rows: Sequence[Any], present: Sequence[Any]) -> pa.Array:
        name = field.name
        if not field.nullable:
            for row in present:
                if is_null(row.get(name)):
                    raise self.refused(row, f"its {name!r} is declared not nullable")
        try:
            values = list(map(itemgetter(name), rows))
        except (KeyError, TypeError):
            values = [None if row is None else row.get(name) for row in rows]
        return self.inner(values, field.type)

    def _row(self, value: Any) -> Mapping[str, Any]:
        if isinstance(value, Mapping):
            return value
        names = getattr(value, "_fields", self._names)
        if isinstance(value, tuple) and len(value) == len(names):
            return dict(zip(names, value, strict=True))
        if isinstance(value, list) and all(isinstance(pair, tuple) and len(pair) == 2 for pair in value):
            row = dict(value)
            if len(row) == len(value):
                return row
        raise self.refused(value, remedy="give a dict")


class OpenStructDoor(StructDoor):
    """Records of another system: fields that the struct lacks are omitted."""

    closed = False


class MapDoor(NestedDoor):
    def array(self, values: Sequence[Any]) -> pa.Array:
        rows = [None if is_null(value) else self._pairs(value) for value in values]
        pairs = [pair for row in rows if row is not None for pair in row]
        keys = [key for key, _ in pairs]
        items = [item for _, item in pairs]
        if any(map(is_null, keys)):
            raise self.refused(dict(pairs), "a key is None")
        if not self.kind.item_field.nullable and any(map(is_null, items)):
            raise self.refused(dict(pairs), "its values are declared not nullable")
        stored = self.inner(keys, self.kind.key_type)
        lengths = [None if row is None else len(row) for row in rows]
        self._check_once(values, lengths, stored)
        return pa.MapArray.from_arrays(
            _offsets(lengths, False), stored, self.inner(items, self.kind.item_type), type=self.kind
        )

    def _pairs(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return value.items()
        if isinstance(value, list | tuple) and all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in value):
            return value
        raise self.refused(value, remedy="give a dict")

    def _check_once(self, values: Sequence[Any], lengths: Sequence[int | None], keys: pa.Array) -> None:
        codes, at = keys.dictionary_encode().indices.to_pylist(), 0
        for value, length in zip(values, lengths, strict=True):
            if length is not None:
                if len(set(codes[at : at + length])) < length:
                    raise self.refused(value, "a key is in it twice")
                at += length


class DictionaryDoor(NestedDoor):
    def array(self, values: Sequence[Any]) -> pa.Array:
        encoded = self.inner(values, self.kind.value_type).dictionary_encode()
        return encoded if encoded.type.equals(self.kind) else encoded.cast(self.kind)


def _offsets(lengths: Sequence[int | None], large: bool) -> pa.Array:
    offsets: list[int | None] = []
    end = 0
    for length in lengths:
        offsets.append(None if length is None else end)
        end += length or 0
    return pa.array([*offsets, end], pa.int64() if large else pa.int32())


class UnkeptValue(ValueError):
    """A value that its column does not keep.
    `row`: index among the values; `detail`, `remedy`: as in `RefusedValue`.
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
        """Error of the job.
        `where`: the function or source; `remedy`: for a value without one; `record`: the row, cut.
        """
        rest = "; ".join(part for part in (self.detail, self.remedy or remedy) if part)
        return InvalidJob(
            f"{where}: column {self.column!r} is {self.kind}, but a row has {shown(self.value)} there: {rest}\n"
            f"  record: {record}"
        )


def _has_names(kind: pa.DataType) -> bool:
    return bool(0 < kind.num_fields == len({field.name for field in kind}))


_MOST_KNOWN = 4_096
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
_NESTED: tuple[tuple[Callable[[pa.DataType], bool], type[NestedDoor]], ...] = (
    (lambda kind: _is.is_list(kind) or _is.is_large_list(kind) or _is.is_fixed_size_list(kind), ListDoor),
    (_is.is_map, MapDoor),
    (lambda kind: _is.is_struct(kind) and _has_names(kind), StructDoor),
    (_is.is_dictionary, DictionaryDoor),
)


class Doors:
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
_RECORDS = Doors({StructDoor: OpenStructDoor})


def column_of(values: Sequence[Any], kind: pa.DataType, column: str = "", nullable: bool = True) -> pa.Array:
    """Column of `kind` that keeps each of `values`; raises `UnkeptValue`.

    >>> column_of([1, 2.0, None], pa.int64()).to_pylist()
    [1, 2, None]
    """
    return _PYTHON.column(values, kind, column, nullable)


def column_of_records(values: Sequence[Any], kind: pa.DataType, column: str = "", nullable: bool = True) -> pa.Array:
    """As `column_of`, for a deserialiser's values: fields that a struct lacks are omitted."""
    return _RECORDS.column(values, kind, column, nullable)


def keeps(values: Sequence[Any], kind: pa.DataType) -> bool:
    try:
        _PYTHON.of(kind).array(values)
    except UNFIT:
        return False
    return True


SPECIAL_FLOATS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
_NONE = type(None)


class _TextTimeDoor(doors.TimeDoor):
    def __init__(self, kind: pa.DataType) -> None:
        super().__init__(kind)
        if not pa.types.is_date(kind):
            self.exact = frozenset({str, _NONE})

    def quick(self, values: Sequence[Any]) -> pa.Array:
        return super().quick(values) if pa.types.is_date(self.kind) else times_of_texts(values, self.kind)

    def kept(self, value: Any) -> Any:
        if not isinstance(value, str):
            return super().kept(value)
        try:
            return numbers_of_texts([value], self.kind)[0]
        except UnreadTime as error:
            raise self.refused(value, error.why, error.remedy) from None


class _SpelledFloatDoor(doors.FloatDoor):
    def kept(self, value: Any) -> Any:
        return super().kept(SPECIAL_FLOATS.get(value, value) if isinstance(value, str) else value)


class _SpelledNarrowFloatDoor(doors.NarrowFloatDoor):
    def careful(self, values: Sequence[Any]) -> pa.Array:
        return super().careful([SPECIAL_FLOATS.get(each, each) if isinstance(each, str) else each for each in values])


_JSON = Doors(
    {
        doors.TimeDoor: _TextTimeDoor,
        doors.FloatDoor: _SpelledFloatDoor,
        doors.NarrowFloatDoor: _SpelledNarrowFloatDoor,
    }
)


def column_of_json(values: Sequence[Any], kind: pa.DataType, column: str = "", nullable: bool = True) -> pa.Array:
    """As `column_of`, of values that were decoded from JSON. Raises `UnkeptValue`.

    >>> column_of_json(["NaN", 1, "-Infinity"], pa.float64()).to_pylist()
    [nan, 1.0, -inf]
    """
    return _JSON.column(values, kind, column, nullable)


# Types of columns determined by a function's first rows.

_WIDEST_DECIMAL = 38


def settled_type(values: list[Any], known: pa.DataType | None) -> pa.DataType:
    """Type for `values` and later rows.

    `known`, the input's type, settles digits of decimals, and columns of nulls or empty lists.
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
