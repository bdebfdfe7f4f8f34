"""State columns: accumulators in numpy columns, and conversion of Arrow values to these and back.

A value is one or two *words*: an int64 for integers, booleans and times, a float64 for floats, two int64 for decimals
(low and high half, two's complement), a cell of bytes for text and bytes (UTF-8, whose bytes compare as characters do).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from barrier_runtime.state.columns.wide_columns import EMPTY, WIDE, from_binary, is_wide

AccumulatorKind = Literal["rows", "values", "sum", "min", "max", "carry"]
Ints: TypeAlias = npt.NDArray[np.int64]
Values: TypeAlias = npt.NDArray[Any]
Columns: TypeAlias = Mapping[str, Values]
Words: TypeAlias = tuple[Values, ...]
Initial: TypeAlias = int | float | bytes

_INT64, _FLOAT64 = pa.int64(), pa.float64()
_SIGN = np.int64(-(2**63))
_MAGNITUDE = np.int64(2**63 - 1)

ROWS = "rows"


@dataclass(frozen=True)
class Accumulator:
    """A numpy column of state. `name` in the state table never changes."""

    name: str
    kind: AccumulatorKind
    column: str | None
    dtype: str

    @property
    def initial(self) -> int | float:
        if self.dtype == "float64":
            return {"sum": 0.0, "min": float("nan"), "max": float("-inf")}[self.kind]
        return {"min": 2**63 - 1, "max": -(2**63)}.get(self.kind, 0)

    @property
    def sums_integers(self) -> bool:
        return self.kind == "sum" and self.dtype == "int64"

    @property
    def ufunc(self) -> np.ufunc:
        """`fmin` skips NaN and `maximum` keeps NaN, the greatest number."""
        if self.kind == "min":
            return np.fmin
        return np.maximum if self.kind == "max" else np.add


def to_accumulator(array: pa.Array, dtype: str) -> pa.Array:
    kind = array.type
    if kind in (_INT64, _FLOAT64):
        return array
    if dtype == "float64":
        return array.cast(_FLOAT64)
    if pa.types.is_temporal(kind):
        return array.view(pa.int32() if kind.bit_width == 32 else pa.int64()).cast(pa.int64())
    return array.cast(pa.int64())


def from_accumulator(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if kind == _INT64:
        return array
    if pa.types.is_temporal(kind):
        return array.cast(pa.int32() if kind.bit_width == 32 else pa.int64()).view(kind)
    return array.cast(kind)


def is_decimal(kind: pa.DataType) -> bool:
    return bool(pa.types.is_decimal(kind) and not pa.types.is_decimal256(kind))


def is_text_or_bytes(kind: pa.DataType) -> bool:
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    raw = pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind)
    return bool(text or raw or pa.types.is_fixed_size_binary(kind))


def initial_word(dtype: str) -> Initial:
    return EMPTY if dtype == WIDE else 0


def word_dtypes(kind: pa.DataType) -> tuple[str, ...]:
    """Dtypes of the words of type `kind`; empty for types that state does not hold."""
    if pa.types.is_floating(kind):
        return ("float64",)
    if is_decimal(kind):
        return "int64", "int64"
    if is_text_or_bytes(kind):
        return (WIDE,)
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return ("int64",)
    return ("int64",) if pa.types.is_temporal(kind) and not pa.types.is_interval(kind) else ()


def to_words(array: pa.Array) -> Words:
    """Returns the words of each value, 0 (or no bytes) for null.
    Raises `ArrowInvalid` for integers beyond 64 bits.
    """
    kind = array.type
    if is_decimal(kind):
        array = array.cast(pa.decimal128(kind.precision, kind.scale))
        words = np.frombuffer(array.buffers()[1], np.int64).reshape(-1, 2)[array.offset : array.offset + len(array)]
        if array.null_count:
            words = np.where(array.is_valid().to_numpy(zero_copy_only=False)[:, None], words, 0)
        return words[:, 0], words[:, 1]
    if is_text_or_bytes(kind):
        plain = kind if pa.types.is_fixed_size_binary(kind) else pa.large_binary()
        cells = from_binary(array.cast(plain))
        if array.null_count:
            cells[array.is_null().to_numpy(zero_copy_only=False)] = EMPTY
        return (cells,)
    array = to_accumulator(array, word_dtypes(kind)[0])
    if array.null_count:
        array = array.fill_null(pa.scalar(0, array.type))
    return (array.to_numpy(zero_copy_only=False),)


def from_words(words: Words, kind: pa.DataType, absent: npt.NDArray[np.bool_] | None) -> pa.Array:
    if len(words) == 2:
        return decimals(words[0], words[1], kind, absent)
    (found,) = words
    if is_wide(found.dtype):
        return pa.array(found, kind, mask=absent)
    if found.dtype == np.float64:
        result = pa.array(found, mask=absent)
        return result if kind == _FLOAT64 else result.cast(kind)
    if absent is not None:
        found = np.where(absent, 0, found)
    return from_accumulator(pa.array(found, mask=absent), kind)


def decimals(low: Ints, high: Ints, kind: pa.DataType, absent: npt.NDArray[np.bool_] | None) -> pa.Array:
    """Returns `low` (unsigned) + `high` * 2**64, in units of the last digit of `kind`."""
    words = np.stack([low, high], axis=1)
    valid = None if absent is None else pa.array(~absent).buffers()[1]
    wide = pa.decimal128(kind.precision, kind.scale)
    array = pa.Array.from_buffers(wide, len(low), [valid, pa.py_buffer(words)])
    return array if wide == kind else array.cast(kind)


def order_words(words: Words) -> Words:
    """Returns words that compare as the values do, as signed integers (or bytes), word by word.
    -0.0 equals 0.0, and NaN is the greatest number.
    """
    if len(words) == 2:
        low, high = words
        return high, low ^ _SIGN
    (values,) = words
    if values.dtype != np.float64:
        return (values,)
    bits = (values + 0.0).view(np.int64)
    return (np.where(np.isnan(values), _MAGNITUDE, bits ^ ((bits >> 63) & _MAGNITUDE)),)


def float_of_order(ordered: Ints) -> npt.NDArray[np.float64]:
    """Double of an integer from `order_words`; 0.0 for both zeros."""
    bits: Ints = ordered ^ ((ordered >> 63) & _MAGNITUDE)
    return bits.view(np.float64)
