"""JSON values as columns, also values that Arrow's reader does not read or keep.

Arrow reads into a column's `wire_type`, and `from_wire` makes the column. `columns_of_lines` reads line by line, with
Python's decoder: ten times slower, but complete, and errors name the line.
"""

import base64
import binascii
import json
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from barrier_runtime.data.values.stored_times import stored_of_text
from barrier_runtime.data.values.text_columns import (
    LineError,
    TextMisfit,
    column_of_texts,
    is_read_from_text,
    is_text,
    may_be_inexact,
)
from barrier_runtime.state.texts import shortened

_NO_NUMBERS = {"NaN": "nan", "Infinity": "inf", "-Infinity": "-inf"}
_NAMES = {dict: "an object", list: "an array", str: "text", bool: "true or false"}
_CUT = 80
_REMEDY = "correct the file, or write it elsewhere and rename it, if it is still being written"


class JsonNumber(str):
    """Digits of a number."""


class _Unkept(ValueError):
    def __init__(self, row: int, why: str) -> None:
        super().__init__(why)
        self.row = row
        self.why = why


def wire_type(kind: pa.DataType, *, times_as_text: bool = False) -> pa.DataType | None:
    """Type that Arrow reads for a column of `kind`; None if JSON is not read as `kind`.
    For maps any type but None: they are read line by line.
    """
    if types.is_map(kind):
        parts = (wire_type(kind.key_type), wire_type(kind.item_type))
        return None if None in parts else pa.map_(*parts)
    if types.is_struct(kind):
        members = [(field.name, wire_type(field.type, times_as_text=times_as_text)) for field in kind]
        return None if any(member is None for _, member in members) else pa.struct(members)
    if is_list(kind):
        value = wire_type(kind.value_type, times_as_text=times_as_text)
        return None if value is None else pa.list_(value)
    if types.is_dictionary(kind):
        return wire_type(kind.value_type, times_as_text=times_as_text)
    if types.is_timestamp(kind):
        return pa.string() if times_as_text else kind
    if is_binary(kind) or types.is_date(kind) or types.is_time(kind) or types.is_duration(kind):
        return pa.string()
    if types.is_float16(kind):
        return pa.float64()
    if types.is_decimal(kind):
        return pa.decimal128(kind.precision, kind.scale) if kind.bit_width < 128 else kind
    if types.is_null(kind) or is_text(kind):
        return kind
    return kind if types.is_primitive(kind) and is_read_from_text(kind) else None


def is_list(kind: pa.DataType) -> bool:
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def is_binary(kind: pa.DataType) -> bool:
    return bool(
        types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_fixed_size_binary(kind)
        or types.is_binary_view(kind)
    )


def has(kind: pa.DataType, wanted: Callable[[pa.DataType], bool]) -> bool:
    if wanted(kind):
        return True
    if types.is_dictionary(kind):
        return has(kind.value_type, wanted)
    return types.is_nested(kind) and any(has(kind.field(number).type, wanted) for number in range(kind.num_fields))


def from_wire(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if types.is_floating(column.type):
        if len(column) and may_be_inexact(column):
            raise ValueError("whole numbers of many digits, or infinite")
        return column if column.type.equals(kind) else from_wire(column.cast(kind, safe=False), kind)
    if column.type.equals(kind) and not has(kind, types.is_floating):
        return column
    if types.is_struct(kind):
        members = [from_wire(member, field.type) for member, field in zip(column.flatten(), kind, strict=True)]
        mask = column.is_null() if column.null_count else None
        return pa.StructArray.from_arrays(members, fields=list(kind), mask=mask)
    if is_list(kind):
        return _list_of(column, from_wire(column.flatten(), kind.value_type), kind)
    if types.is_dictionary(kind):
        return from_wire(column, kind.value_type).dictionary_encode().cast(kind)
    if types.is_string(column.type):
        return of_texts(column, kind)
    return column.cast(kind)


def _list_of(column: pa.Array, values: pa.Array, kind: pa.DataType) -> pa.Array:
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_pylist()
    return list_array(values, lengths, column.is_null(), kind)


def list_array(values: pa.Array, lengths: Sequence[int], missing: pa.Array, kind: pa.DataType) -> pa.Array:
    """Makes null lists where `missing`. Raises `ValueError` for a wrong fixed size."""
    if types.is_fixed_size_list(kind):
        size = kind.list_size
        if any(length != size for length, null in zip(lengths, missing.to_pylist(), strict=True) if not null):
            raise ValueError(f"a list has not {size} values")
        places: list[int | None] = []
        begin = 0
        for length in lengths:
            places += range(begin, begin + size) if length else [None] * size
            begin += length
        return pa.FixedSizeListArray.from_arrays(values.take(pa.array(places, pa.int64())), type=kind, mask=missing)
    offsets = [0]
    for length in lengths:
        offsets.append(offsets[-1] + length)
    make = pa.LargeListArray if types.is_large_list(kind) else pa.ListArray
    return make.from_arrays(pa.array(offsets, make_offset(kind)), values, type=kind, mask=missing)


def make_offset(kind: pa.DataType) -> pa.DataType:
    return pa.int64() if types.is_large_list(kind) else pa.int32()


def of_texts(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    if types.is_timestamp(kind):
        return _moments(texts, kind)
    if not is_binary(kind) and not types.is_duration(kind):
        return column_of_texts(texts, kind)
    read: Callable[[str, pa.DataType], Any] = _bytes if is_binary(kind) else stored_of_text
    values: list[Any] = []
    for row, text in enumerate(texts.to_pylist()):
        try:
            values.append(None if text is None else read(text, kind))
        except (binascii.Error, ValueError) as error:
            raise TextMisfit(row, text, f"{_shown(text)} is not kept ({error}): correct the file, or schema=") from None
    return pa.array(values, kind) if is_binary(kind) else pa.array(values, pa.int64()).view(kind)


def _moments(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    try:
        return column_of_texts(_with_zone(texts), pa.timestamp(kind.unit, "UTC")).cast(kind)
    except TextMisfit as misfit:
        text = texts[misfit.row].as_py()
        why = misfit.why.replace(repr(misfit.text), repr(text))
        raise TextMisfit(misfit.row, text, why if kind.tz else why.replace(", tz=UTC", "")) from None


def _with_zone(texts: pa.Array) -> pa.Array:
    whole = pc.if_else(pc.equal(pc.utf8_length(texts), 10), pc.binary_join_element_wise(texts, "T00:00:00", ""), texts)
    zoned = pc.match_substring_regex(whole, r":\d\d.*([zZ]|[+-]\d\d(:?\d\d)?)$")
    return pc.if_else(zoned, whole, pc.binary_join_element_wise(whole, "Z", ""))


def _bytes(text: str, kind: pa.DataType) -> bytes:
    value = base64.b64decode(text, validate=True)
    if types.is_fixed_size_binary(kind) and len(value) != kind.byte_width:
        raise ValueError(f"{len(value)} bytes")
    return value


class JsonObject(dict[str, Any]):
    """A JSON object. `twice`: a name that occurs twice."""

    twice: str | None = None


def _object(pairs: list[tuple[str, Any]]) -> JsonObject:
    made = JsonObject(pairs)
    if len(made) != len(pairs):
        names = [name for name, _ in pairs]
        made.twice = next(name for name in names if names.count(name) > 1)
    return made


_decode = json.JSONDecoder(
    parse_int=JsonNumber, parse_float=JsonNumber, parse_constant=JsonNumber, object_pairs_hook=_object
).decode


def begins_of_lines(data: bytes) -> list[int]:
    begins, at = [], 0
    for line in data.split(b"\n"):
        if line.strip():
            begins.append(at)
        at += len(line) + 1
    return begins


def objects_of_lines(data: bytes) -> list[JsonObject]:
    lines = [line for line in data.split(b"\n") if line.strip()]
    return [_of_line(line, at) for line, at in zip(lines, begins_of_lines(data), strict=True)]


def columns_of_lines(data: bytes, schema: pa.Schema) -> pa.RecordBatch:
    """Skips blank lines. Raises `LineError`."""
    begins, objects = begins_of_lines(data), objects_of_lines(data)
    columns = []
    for field in schema:
        try:
            values = [_member(each, field.name, row) for row, each in enumerate(objects)]
            columns.append(_column(values, range(len(values)), field.type))
        except _Unkept as error:
            raise LineError(begins[error.row], f"column {field.name!r} is {field.type}, and {error.why}") from error
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _of_line(line: bytes, at: int) -> JsonObject:
    try:
        value = _decode(line.decode())
    except ValueError as error:
        raise LineError(at, f"it is not one JSON object ({error}): {_REMEDY}") from None
    except RecursionError:
        raise LineError(at, "it has too many arrays or objects inside each other: correct the file") from None
    if not isinstance(value, JsonObject):
        raise LineError(at, f"it is {_named(value)}, and each line has to be an object: correct the file")
    return value


def _member(value: Any, name: str, row: int) -> Any:
    if value is None:
        return None
    if value.twice == name:
        raise _Unkept(row, f"an object has {name!r} twice: correct the file")
    return value.get(name)


def _column(values: Sequence[Any], rows: Sequence[int], kind: pa.DataType) -> pa.Array:
    if types.is_dictionary(kind):
        return _column(values, rows, kind.value_type).dictionary_encode().cast(kind)
    if types.is_struct(kind):
        _expect(values, rows, JsonObject, kind)
        members = [
            _column([_member(each, field.name, row) for each, row in zip(values, rows, strict=True)], rows, field.type)
            for field in kind
        ]
        return pa.StructArray.from_arrays(members, fields=list(kind), mask=_missing(values))
    if is_list(kind):
        _expect(values, rows, list, kind)
        if types.is_fixed_size_list(kind):
            _expect_size(values, rows, kind.list_size)
        flat, of_rows, lengths = _flat(values, rows)
        return list_array(_column(flat, of_rows, kind.value_type), lengths, _missing(values), kind)
    if types.is_map(kind):
        return _map(values, rows, kind)
    return _scalars(values, rows, kind)


def _map(values: Sequence[Any], rows: Sequence[int], kind: pa.DataType) -> pa.Array:
    pairs: list[Any] = []
    for value, row in zip(values, rows, strict=True):
        if isinstance(value, JsonObject):
            if value.twice is not None:
                raise _Unkept(row, f"an object has {value.twice!r} twice: correct the file")
            pairs.append(list(value.items()))
        elif value is None or _is_pairs(value):
            pairs.append(value)
        else:
            raise _Unkept(row, f"{_named(value)} is not an object: correct the file, or schema=")
    flat, of_rows, lengths = _flat(pairs, rows)
    names = [key for key, _ in flat]
    if not types.is_nested(kind.key_type) and not is_text(kind.key_type):
        names = [JsonNumber(name) if _is_number(kind.key_type) else _boolean(name, kind.key_type) for name in names]
    keys = _column(names, of_rows, kind.key_type)
    items = _column([item for _, item in flat], of_rows, kind.item_type)
    offsets: list[int | None] = [0]
    for length in lengths:
        offsets.append((offsets[-1] or 0) + length)
    return pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), keys, items, type=kind, mask=_missing(values))


def _is_pairs(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, list) and len(each) == 2 for each in value)


def _is_number(kind: pa.DataType) -> bool:
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind))


def _boolean(name: str, kind: pa.DataType) -> Any:
    return {"true": True, "false": False}.get(name, name) if types.is_boolean(kind) else name


def _flat(values: Sequence[Any], rows: Sequence[int]) -> tuple[list[Any], list[int], list[int]]:
    flat: list[Any] = []
    of_rows: list[int] = []
    lengths = []
    for value, row in zip(values, rows, strict=True):
        lengths.append(len(value or ()))
        flat += value or ()
        of_rows += [row] * len(value or ())
    return flat, of_rows, lengths


def _missing(values: Sequence[Any]) -> pa.Array:
    return pa.array([value is None for value in values], pa.bool_())


def _expect(values: Sequence[Any], rows: Sequence[int], python: type, kind: pa.DataType) -> None:
    for value, row in zip(values, rows, strict=True):
        if value is not None and (not isinstance(value, python) or (python is str and isinstance(value, JsonNumber))):
            raise _Unkept(row, f"{_named(value)} is not kept as {kind}: correct the file, or schema=")


def _expect_size(values: Sequence[Any], rows: Sequence[int], size: int) -> None:
    for value, row in zip(values, rows, strict=True):
        if value is not None and len(value) != size:
            raise _Unkept(row, f"an array has {len(value)} values in place of {size}: correct the file, or schema=")


def _scalars(values: Sequence[Any], rows: Sequence[int], kind: pa.DataType) -> pa.Array:
    if types.is_boolean(kind) or types.is_null(kind):
        _expect(values, rows, bool if types.is_boolean(kind) else type(None), kind)
        return pa.array(values, kind)
    if types.is_floating(kind):
        values = [_spelled(value) for value in values]
    number = types.is_integer(kind) or types.is_floating(kind)
    if number or not types.is_decimal(kind):
        _expect(values, rows, JsonNumber if number else str, kind)
    try:
        return of_texts(pa.array([None if value is None else str(value) for value in values], pa.string()), kind)
    except TextMisfit as misfit:
        raise _Unkept(rows[misfit.row], misfit.why) from None
    except UnicodeEncodeError:
        row = next(row for value, row in zip(values, rows, strict=True) if not _is_text(value))
        raise _Unkept(row, "a text has half of a surrogate pair, which is no character: correct the file") from None


def _spelled(value: Any) -> Any:
    return JsonNumber(_NO_NUMBERS[value]) if isinstance(value, str) and value in _NO_NUMBERS else value


def _is_text(value: Any) -> bool:
    try:
        str(value).encode()
    except UnicodeEncodeError:
        return False
    return True


def _named(value: Any) -> str:
    if isinstance(value, JsonNumber):
        return f"the number {_shown(value)}"
    shown = f"the text {_shown(value)}" if isinstance(value, str) else _NAMES.get(type(value), "null")
    return "an object" if isinstance(value, JsonObject) else shown


def _shown(text: str) -> str:
    cut = shortened(text, _CUT)
    return str(cut) if isinstance(text, JsonNumber) else repr(cut)
