"""Conversion of values per type of column; `into_columns` maps types to doors."""

import datetime
import decimal
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from barrier_runtime.data.values.stored_times import STORED, fits_unit
from barrier_runtime.state.texts import shortened

UNFIT = (TypeError, ValueError, OverflowError, NotImplementedError)  # Arrow's errors for values
BYTES_LIKE = (bytes, bytearray, memoryview)
_NONE = type(None)
_WIDE = decimal.Context(prec=400)


class RefusedValue(ValueError):
    """A value that a column of `kind` would not keep unchanged.
    `why`: the reason, if the types do not show it; `remedy`: empty if only another value helps.
    """

    def __init__(self, value: Any, kind: pa.DataType, why: str = "", remedy: str = "") -> None:
        super().__init__(": ".join(part for part in (f"{shown(value)} is not kept as {kind}", why, remedy) if part))
        self.value = value
        self.kind = kind
        self.why = why
        self.remedy = remedy


def shown(value: Any) -> str:
    return f"{shortened(repr(value))} ({type(value).__name__})"


def is_null(value: Any) -> bool:
    if value is None:
        return True
    if isinstance(value, np.datetime64 | np.timedelta64):
        return bool(np.isnat(value))
    kind = type(value)
    return kind.__name__ in ("NaTType", "NAType") and kind.__module__.startswith("pandas.")


class Door:
    """Conversion to a type of column. `exact`: Python types that Arrow takes unchanged, or refuses."""

    exact: frozenset[type] = frozenset()

    def __init__(self, kind: pa.DataType) -> None:
        self.kind = kind

    def array(self, values: Sequence[Any]) -> pa.Array:
        if self.exact >= frozenset(map(type, values)):
            try:
                return self.quick(values)
            except UNFIT:
                pass
        return self.careful(values)

    def quick(self, values: Sequence[Any]) -> pa.Array:
        return pa.array(values, self.kind)

    def careful(self, values: Sequence[Any]) -> pa.Array:
        return pa.array([None if is_null(value) else self.kept(_plain(value)) for value in values], self.kind)

    def kept(self, value: Any) -> Any:
        """Returns the value as Arrow stores it unchanged. Raises `RefusedValue`."""
        raise self.refused(value)

    def utf8(self, value: str) -> bytes:
        try:
            return value.encode()
        except UnicodeEncodeError:
            raise self.refused(value, "it has half of a surrogate pair, which is no character") from None

    def refused(self, value: Any, why: str = "", remedy: str = "") -> RefusedValue:
        return RefusedValue(value, self.kind, why, remedy)


class OtherDoor(Door):
    """Types without their own door: a stored value must equal the given value."""

    def careful(self, values: Sequence[Any]) -> pa.Array:
        array = pa.array([None if is_null(value) else value for value in values], self.kind)
        for value, stored in zip(values, array.to_pylist(), strict=True):
            if not is_null(value) and not (stored == value or (stored != stored and value != value)):
                raise self.refused(value, f"it would become {stored!r}")
        return array


class BooleanDoor(Door):
    exact = frozenset({bool, _NONE})

    def kept(self, value: Any) -> Any:
        if isinstance(value, bool | np.bool_):
            return bool(value)
        raise self.refused(value)


class IntegerDoor(Door):
    exact = frozenset({int, _NONE})

    def kept(self, value: Any) -> Any:
        if not isinstance(value, int | float | decimal.Decimal | np.integer | np.floating) or _is_odd(value):
            raise self.refused(value)
        try:
            whole = int(value)
        except (ValueError, ArithmeticError):
            raise self.refused(value) from None
        if whole != value:
            raise self.refused(value, "its fraction would be cut")
        low, high = _range(self.kind)
        if not low <= whole <= high:
            raise self.refused(value, f"which has {low} to {high}")
        return whole


class FloatDoor(Door):
    exact = frozenset({float, int, _NONE})

    def kept(self, value: Any) -> Any:
        if _is_odd(value) or not isinstance(value, float | int | np.floating | np.integer):
            remedy = "give float(…) of it" if isinstance(value, decimal.Decimal) else ""
            raise self.refused(value, remedy=remedy)
        try:
            number = float(value)
        except OverflowError:
            raise self.refused(value, "it is too large") from None
        if number != value and number == number:
            raise self.refused(value, "digits would be lost", "give float(…) of it, or declare another type")
        return number


class NarrowFloatDoor(FloatDoor):
    """float32 and float16: Python's floats are rounded, as declared, and stay finite."""

    def __init__(self, kind: pa.DataType) -> None:
        super().__init__(kind)
        self._type = np.float32 if pa.types.is_float32(kind) else np.float16

    def quick(self, values: Sequence[Any]) -> pa.Array:
        array = super().quick(values)
        self._check(array, values)
        return array

    def careful(self, values: Sequence[Any]) -> pa.Array:
        array = super().careful(values)
        self._check(array, values)
        return array

    def _check(self, array: pa.Array, values: Sequence[Any]) -> None:
        numbers = array.to_numpy(zero_copy_only=False)
        for row in np.flatnonzero(np.isinf(numbers)).tolist():
            if not np.isinf(float(values[row])):
                raise self.refused(values[row], "it would become infinite", "declare the column as float64")

    def kept(self, value: Any) -> Any:
        number = super().kept(value)
        with np.errstate(over="ignore"):
            narrow = float(self._type(number))
        if isinstance(value, int | np.integer) and narrow != number:
            raise self.refused(value, "digits would be lost", "declare the column as float64")
        return number


class DecimalDoor(Door):
    exact = frozenset({decimal.Decimal, int, _NONE})

    def __init__(self, kind: pa.DataType) -> None:
        super().__init__(kind)
        traps = [decimal.Inexact, decimal.Rounded, decimal.InvalidOperation]
        self._plus = decimal.Context(prec=kind.precision, traps=traps).plus
        self._unit = decimal.Decimal(1).scaleb(-kind.scale, _WIDE)

    def quick(self, values: Sequence[Any]) -> pa.Array:
        try:
            for value in values:
                if value is not None:
                    self._plus(value)  # Arrow misreads Decimals of very many digits
        except decimal.DecimalException as error:
            raise ValueError from error
        return super().quick(values)

    def kept(self, value: Any) -> Any:
        if isinstance(value, float | np.floating):
            raise self.refused(value, "a float is not exact", "give decimal.Decimal(str(…)) of it")
        if _is_odd(value) or not isinstance(value, decimal.Decimal | int | np.integer):
            raise self.refused(value)
        number = value if isinstance(value, decimal.Decimal) else decimal.Decimal(int(value))
        if not number.is_finite():
            raise self.refused(value)
        try:
            whole = number.quantize(self._unit, context=_WIDE)
        except decimal.InvalidOperation:
            raise self.refused(value, "it has too many digits") from None
        if whole != number:
            raise self.refused(value, f"which has {self.kind.scale} digits behind the point")
        if whole and whole.adjusted() + self.kind.scale >= self.kind.precision:
            raise self.refused(value, f"which has {self.kind.precision} digits")
        return whole


class TextDoor(Door):
    def array(self, values: Sequence[Any]) -> pa.Array:
        try:
            return self.quick(values)  # Arrow takes text and bytes that are UTF-8, and nothing else
        except UNFIT:
            return self.careful(values)

    def kept(self, value: Any) -> Any:
        if isinstance(value, str):
            self.utf8(value)
            return str.__str__(value)
        if isinstance(value, BYTES_LIKE):
            try:
                return bytes(value).decode()
            except UnicodeDecodeError:
                raise self.refused(value, "it is not UTF-8", "declare the column as binary, or decode it") from None
        raise self.refused(value)


class BytesDoor(TextDoor):
    def kept(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.utf8(value)
        if isinstance(value, BYTES_LIKE):
            return bytes(value)
        raise self.refused(value)


class TimeDoor(Door):
    def __init__(self, kind: pa.DataType) -> None:
        super().__init__(kind)
        stored = STORED[kind.id]
        self.exact = frozenset({stored.python, _NONE})
        self._stored = stored
        self._wide = stored.in_microseconds(kind)  # keeps all digits of Python's values; None: `kind` itself does

    def quick(self, values: Sequence[Any]) -> pa.Array:
        if self._stored.python is datetime.time and any(value is not None and value.tzinfo for value in values):
            raise ValueError
        return pa.array(values, self.kind) if self._wide is None else pa.array(values, self._wide).cast(self.kind)

    def careful(self, values: Sequence[Any]) -> pa.Array:
        numbers = [None if is_null(value) else self.kept(_plain(value)) for value in values]
        width = pa.int32() if self.kind.bit_width == 32 else pa.int64()
        return pa.array(numbers, width).view(self.kind)

    def kept(self, value: Any) -> Any:
        nanoseconds = self._stored.nanoseconds(value, self.kind)
        if nanoseconds is None:
            why = "which is a number without a unit" if isinstance(value, float | decimal.Decimal) else ""
            raise self.refused(value, why)
        number, why, remedy = fits_unit(nanoseconds, self.kind)
        if why:
            raise self.refused(value, why, remedy)
        return number


def _is_odd(value: Any) -> bool:
    """True for booleans and durations, which are numbers for Python or numpy."""
    return isinstance(value, bool | np.bool_ | np.timedelta64)


def _plain(value: Any) -> Any:
    return value.as_py() if isinstance(value, pa.Scalar) else value


def _range(kind: pa.DataType) -> tuple[int, int]:
    bits = kind.bit_width
    return (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if pa.types.is_signed_integer(kind) else (0, 2**bits - 1)
