"""Columns as the Python values of JSON; sources of JSON read them back (types: docs/files.md)."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from barrier_runtime.state.errors import InvalidJob

_Made = TypeVar("_Made")
_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_DAY = 86_400
_FIRST_DAY, _LAST_DAY = -12_687_428, 11_248_737  # days since 1970 of the years -32767 and 32767
_YEAR_1_US, _YEAR_10000_US = -62_135_596_800_000_000, 253_402_300_800_000_000
_NUMPY = {16: np.float16, 32: np.float32, 64: np.float64}
_NO_NUMBERS = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def with_moments_as_text(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Replaces timestamps by the text that `json_rows` writes, without the GIL."""
    for number, field in enumerate(batch.schema):
        if types.is_timestamp(field.type):
            texts = _of_column(field.name, _moments, batch.column(number))
            batch = batch.set_column(number, pa.field(field.name, pa.string()), texts)
    return batch


def json_rows(batch: pa.RecordBatch) -> Sequence[dict[str, Any]]:
    if not any(_is_lossy(column) for column in batch.columns):
        try:
            rows: Sequence[dict[str, Any]] = batch.to_pylist()
            return rows
        except OverflowError:  # a time outside the range of Python
            pass
    columns = [_values_of(field.name, column) for field, column in zip(batch.schema, batch.columns, strict=True)]
    return [dict(zip(batch.schema.names, row, strict=True)) for row in zip(*columns, strict=True)]


def _values_of(name: str, column: pa.Array) -> list[Any]:
    if _is_lossy(column):
        return _of_column(name, json_values, column)
    return _of_column(name, lambda each: _or_text(each, True, json_values), column)


def _of_column(name: str, make: Callable[[pa.Array], _Made], column: pa.Array) -> _Made:
    try:
        return make(column)
    except InvalidJob as error:
        raise InvalidJob(f"column {name!r}: {error}") from error


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
    if types.is_floating(kind):
        values = array.to_pylist()
        return [_float(value) for value in values] if _is_lossy(array) else values
    if types.is_timestamp(kind):
        moments: list[Any] = _moments(array).to_pylist()
        return moments
    if types.is_duration(kind):
        return _or_text(*_in_microseconds(array, pa.duration("us")), _durations)
    if types.is_time(kind):
        return _or_text(*_in_microseconds(array, pa.time64("us")), lambda times: times.cast(pa.string()).to_pylist())
    return _or_text(array, True, _days)


def _is_lossy(column: pa.Array) -> bool:
    kind = column.type
    if types.is_map(kind) or types.is_timestamp(kind) or getattr(kind, "unit", "") in ("ms", "ns"):
        return True
    if types.is_floating(kind):
        if not len(column):
            return False
        numbers = np.frombuffer(column.buffers()[1], _NUMPY[kind.bit_width])
        return not np.isfinite(numbers[column.offset : column.offset + len(column)]).all()
    if types.is_struct(kind):
        return any(_is_lossy(column.field(number)) for number in range(kind.num_fields))
    return types.is_nested(kind) and _is_lossy(column.flatten())


def _float(value: float | None) -> float | str | None:
    return value if value is None or value - value == 0 else _NO_NUMBERS[str(float(value))]


def _of_pairs(pairs: list[dict[str, Any]] | None, as_object: bool) -> Any:
    if pairs is None:
        return None
    if not as_object:
        return [[pair["key"], pair["value"]] for pair in pairs]
    made = {_name(pair["key"]): pair["value"] for pair in pairs}
    if len(made) < len(pairs):
        names = [_name(pair["key"]) for pair in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidJob(f"a map has the key {twice!r} twice, which JSON cannot hold: keep one of them before the sink")
    return made


def _name(key: Any) -> str:
    return key if isinstance(key, str) else msgspec.json.encode(key).decode().strip('"')


def _in_microseconds(array: pa.Array, kind: pa.DataType) -> tuple[pa.Array, bool]:
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
        except OverflowError:  # a time outside the range of Python
            pass
    return text(array)


def _days(array: pa.Array) -> list[Any]:
    refuse_far_times(array)
    days: list[Any] = array.cast(pa.string()).to_pylist()
    return days


def refuse_far_times(array: pa.Array, column: str = "") -> None:
    kind = array.type
    if not types.is_date(kind) and not types.is_timestamp(kind):
        return
    day = 1 if types.is_date32(kind) else _DAY * _PER_SECOND[getattr(kind, "unit", "ms")]
    found = pc.min_max(array.view(pa.int32() if types.is_date32(kind) else pa.int64())).as_py()
    where = f"column {column!r}: " if column else ""
    for number in found.values():
        if number is not None and not _FIRST_DAY <= number // day <= _LAST_DAY:
            raise InvalidJob(
                f"{where}the {kind} {number} (since 1970) is beyond the years -32767 to 32767, which text does not "
                "hold: correct the value, or use ParquetSink"
            )


def _moments(array: pa.Array) -> pa.Array:
    refuse_far_times(array)
    return moment_texts(array, "T")


def moment_texts(array: pa.Array, between: str) -> pa.Array:
    """Returns timestamps as text, with `between` between day and time; UTC and `Z` with a zone.

    Arrow's own cast of zoned times takes 26 times as long.
    """
    kind = array.type
    texts = array.view(pa.timestamp(kind.unit)).cast(pa.string())
    if between != " ":
        texts = pc.replace_substring(texts, " ", between)
        if kind.unit in ("ms", "us"):
            texts = _without_zeros(texts, array, "." + "0" * (3 if kind.unit == "ms" else 6))
    return texts if kind.tz is None else pc.binary_join_element_wise(texts, "Z", "")


def _without_zeros(texts: pa.Array, moments: pa.Array, zeros: str) -> pa.Array:
    whole = pc.ends_with(texts, zeros)
    if moments.type.unit == "us":
        micros = moments.view(pa.int64())
        whole = pc.and_(whole, pc.and_(pc.greater_equal(micros, _YEAR_1_US), pc.less(micros, _YEAR_10000_US)))
    if not pc.any(whole).as_py():
        return texts
    return pc.if_else(whole, pc.replace_substring(texts, zeros, ""), texts)


def _durations(array: pa.Array) -> list[Any]:
    per_second = _PER_SECOND[array.type.unit]
    return [None if each is None else _duration(each, per_second) for each in array.cast(pa.int64()).to_pylist()]


def _duration(units: int, per_second: int) -> str:
    seconds, rest = divmod(abs(units), per_second)
    fraction = f".{rest:0{len(str(per_second)) - 1}d}" if rest else ""
    return f"{'-' if units < 0 else ''}PT{seconds}{fraction}S"
