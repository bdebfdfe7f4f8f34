"""Columns as the Python values that JSON is made of. A map is an object, as sources of JSON read it; what Python's own
times cannot hold (nanoseconds, years beyond 9999) is text in the form that all others have.
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


def json_rows(batch: pa.RecordBatch) -> Sequence[dict[str, Any]]:
    """One object per row."""
    if not any(_is_lossy(field.type) for field in batch.schema):
        try:
            rows: Sequence[dict[str, Any]] = batch.to_pylist()
            return rows
        except OverflowError:  # a time that Python's do not reach
            pass
    names = batch.schema.names
    return [dict(zip(names, row, strict=True)) for row in zip(*map(json_values, batch.columns), strict=True)]


def json_values(array: pa.Array) -> list[Any]:
    kind = array.type
    if types.is_map(kind):
        pairs = array.cast(pa.list_(pa.struct([("key", kind.key_type), ("value", kind.item_type)])))
        as_object = not types.is_nested(kind.key_type)
        return [_of_pairs(each, as_object) for each in json_values(pairs)]
    if types.is_struct(kind):
        names, columns = [field.name for field in kind.fields], map(json_values, array.flatten())
        rows = zip(*columns, strict=True) if names else [()] * len(array)
        return [
            dict(zip(names, row, strict=True)) if row_is else None
            for row_is, row in zip(array.is_valid().to_pylist(), rows, strict=True)
        ]
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        values = iter(json_values(array.flatten()))
        lengths = pc.list_value_length(array).to_pylist()
        return [None if length is None else [next(values) for _ in range(length)] for length in lengths]
    if types.is_timestamp(kind):
        return _or_text(array, kind.unit != "ns", _moments)
    if types.is_duration(kind):
        return _or_text(*_in_microseconds(array, pa.duration("us")), _durations)
    if types.is_time(kind):
        return _or_text(*_in_microseconds(array, pa.time64("us")), lambda times: times.cast(pa.string()).to_pylist())
    return _or_text(array, True, lambda days: days.cast(pa.string()).to_pylist())


def _is_lossy(kind: pa.DataType) -> bool:
    """Whether `to_pylist` is not what JSON is made of."""
    if types.is_map(kind) or getattr(kind, "unit", "") == "ns":
        return True
    return types.is_nested(kind) and any(_is_lossy(kind.field(number).type) for number in range(kind.num_fields))


def _of_pairs(pairs: list[dict[str, Any]] | None, as_object: bool) -> Any:
    if pairs is None:
        return None
    if not as_object:
        return [[pair["key"], pair["value"]] for pair in pairs]
    return {_name(pair["key"]): pair["value"] for pair in pairs}


def _name(key: Any) -> str:
    return key if isinstance(key, str) else msgspec.json.encode(key).decode().strip('"')


def _in_microseconds(array: pa.Array, kind: pa.DataType) -> tuple[pa.Array, bool]:
    """False: there are nanoseconds."""
    if array.type.unit != "ns":
        return array, True
    try:
        return array.cast(kind), True
    except pa.ArrowInvalid:
        return array, False


def _or_text(array: pa.Array, fits: bool, text: Callable[[pa.Array], list[Any]]) -> list[Any]:
    if fits:
        try:
            values: list[Any] = array.to_pylist()
            return values
        except OverflowError:
            pass
    return text(array)


def _moments(array: pa.Array) -> list[Any]:
    zone = "" if array.type.tz is None else "Z" if array.type.tz == "UTC" else "%z"
    texts: list[Any] = pc.strftime(array, format=f"%Y-%m-%dT%H:%M:%S{zone}").to_pylist()
    return texts


def _durations(array: pa.Array) -> list[Any]:
    per_second = _PER_SECOND[array.type.unit]
    return [None if each is None else _duration(each, per_second) for each in array.cast(pa.int64()).to_pylist()]


def _duration(units: int, per_second: int) -> str:
    seconds, rest = divmod(abs(units), per_second)
    fraction = f".{rest:0{len(str(per_second)) - 1}d}" if rest else ""
    return f"{'-' if units < 0 else ''}PT{seconds}{fraction}S"
