"""`%`: what is left of a division, with the sign of the dividend. Exact for doubles too: `1e300 % 7.0`. And `div` of
decimals, the whole number of times that one is in another.

Newer releases of Arrow have it. Without, doubles are numpy's `fmod`, which gives the same in eight times the time, and
whole numbers what their quotient leaves. So are decimals always: their quotient has the digits for it, and the types
that come out stay.
"""

import decimal
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from barrier_runtime.data.sql.arguments import MOST_DIGITS, Argument, Made, decimal_type, to_round
from barrier_runtime.data.sql.texts import WIDE

_ARROW_HAS_IT = "remainder" in pc.list_functions()
_FMOD, _WHOLE_QUOTIENT = "barrier_runtime_fmod", "barrier_runtime.whole_quotient"
_EXACT_AS_DOUBLES = 14  # digits
_LEAST_SCALE = 6  # of a quotient of decimals, in Arrow
_EXACT = decimal.Context(prec=3 * WIDE.precision)


def remainder(left: Made, right: Made, kind: pa.DataType, by_arrow: bool = _ARROW_HAS_IT) -> Made:
    """Of two numbers of the type `kind`; of decimals and whole numbers together it is a decimal's."""
    if pa.types.is_floating(kind):
        return _of_arrow("remainder_checked" if by_arrow else _FMOD, left, right)
    if by_arrow and pa.types.is_integer(kind):  # the checked one refuses -1 under the lowest number
        return _of_arrow("remainder", left, right)
    if pa.types.is_integer(kind):
        right = pc.if_else(right == pc.scalar(-1), pc.scalar(pa.scalar(1, kind)), right)
    quotient = pc.divide_checked(left, right)
    if pa.types.is_decimal(kind):
        quotient = pc.trunc(quotient)
    return pc.subtract_checked(left, pc.multiply_checked(quotient, right))


def with_whole_digit(left: Argument, right: Argument) -> Argument:
    """A dividend of which the quotient has a digit before the point, for Arrow truncates no other."""
    kind, divisor = left.type, right.type
    if not pa.types.is_decimal(kind) or kind.scale < kind.precision or kind.precision == MOST_DIGITS:
        return left
    if pa.types.is_decimal(divisor) and divisor.scale:
        return left
    return replace(left, made=to_round(left), type=pa.decimal128(kind.precision + 1, kind.scale))


def whole_quotient(left: Argument, right: Argument) -> Made:
    """Of decimals, or of one and a whole number: exact, and refused beyond 64 bits."""
    one, other = decimal_type(left), decimal_type(right)
    divided, divisor = _decimal(left, one), _decimal(right, other)
    scale = max(one.scale, other.scale)
    if all(kind.precision - kind.scale + scale <= _EXACT_AS_DOUBLES for kind in (one, other)):
        return pc.divide_checked(_all_digits(divided, scale), _all_digits(divisor, scale))
    scale = max(_LEAST_SCALE, one.scale + other.precision + 1)
    digits = one.precision - one.scale + other.scale + scale
    if digits > WIDE.precision:
        return _of_arrow(_WHOLE_QUOTIENT, divided.cast(WIDE), divisor.cast(WIDE))
    if digits > MOST_DIGITS:
        divided, divisor = (
            made.cast(pa.decimal256(kind.precision, kind.scale)) for made, kind in ((divided, one), (divisor, other))
        )
    return pc.trunc(pc.divide_checked(divided, divisor)).cast(pa.int64())


def _decimal(number: Argument, kind: pa.DataType) -> Made:
    if number.is_constant:  # of which Arrow wants as many digits as its type may have
        return pc.scalar(pa.scalar(number.value, kind))
    return number.made if number.type == kind else number.made.cast(kind)


def _all_digits(number: Made, scale: int) -> Made:
    """As a whole number. Doubles of few digits are so near that rounding gives all of them."""
    return pc.round(pc.multiply(number.cast(pa.float64()), pc.scalar(10.0**scale))).cast(pa.int64())


def _of_arrow(function: str, *arguments: Made) -> Made:
    return pc.Expression._call(function, list(arguments))


def _fmod(context: Any, left: pa.Array | pa.Scalar, right: pa.Array | pa.Scalar) -> pa.Array:
    divided, divisor = (_column(each, context.batch_length) for each in (left, right))
    valid = divided.is_valid().to_numpy(zero_copy_only=False) & divisor.is_valid().to_numpy(zero_copy_only=False)
    values = divisor.fill_null(1.0).to_numpy(zero_copy_only=False)
    if not values[valid].all():
        raise pa.ArrowInvalid("divide by zero")
    with np.errstate(invalid="ignore"):  # of infinity it is NaN
        found = np.fmod(divided.fill_null(0.0).to_numpy(zero_copy_only=False), np.where(valid, values, 1.0))
    return pa.array(found, mask=~valid)


def _wide_quotient(context: Any, left: pa.Array | pa.Scalar, right: pa.Array | pa.Scalar) -> pa.Array:
    """One by one: no type of Arrow's holds what is between."""
    pairs = zip(*(_column(each, context.batch_length).to_pylist() for each in (left, right)), strict=True)
    try:
        return pa.array([_whole_quotient(*pair) for pair in pairs], pa.int64())
    except OverflowError as error:
        raise pa.ArrowInvalid("a quotient is beyond 64 bits") from error


def _whole_quotient(divided: decimal.Decimal | None, divisor: decimal.Decimal | None) -> int | None:
    if divided is None or divisor is None:
        return None
    if not divisor:
        raise pa.ArrowInvalid("divide by zero")
    return int(_EXACT.divide_int(divided, divisor))


def _column(given: pa.Array | pa.Scalar, rows: int) -> pa.Array:
    return pa.repeat(given, rows) if isinstance(given, pa.Scalar) else given


pc.register_scalar_function(
    _fmod,
    _FMOD,
    {"summary": "Remainder of doubles", "description": __doc__},
    {"dividend": pa.float64(), "divisor": pa.float64()},
    pa.float64(),
)
pc.register_scalar_function(
    _wide_quotient,
    _WHOLE_QUOTIENT,
    {"summary": "Whole quotient of decimals", "description": __doc__},
    {"dividend": WIDE, "divisor": WIDE},
    pa.int64(),
)
