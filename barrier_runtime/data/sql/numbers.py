"""Functions of numbers, bits, and nulls."""

import math
from collections.abc import Callable
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from barrier_runtime.data.sql.arguments import Argument, Made, Unfit, as_number, beside_each_other, one_type, to_round
from barrier_runtime.data.sql.kernels import call, kernel, remainder, with_whole_digit

_DOUBLE = pa.float64()
_NOTHING = pc.scalar(pa.scalar(None, _DOUBLE))


def _double(function: Callable[..., Made]) -> Callable[..., Made]:
    return lambda *values: function(*(as_number(value, _DOUBLE) for value in values))


def _logarithm(function: Callable[[Made], Made], value: Made, above: float = 0.0) -> Made:
    return pc.if_else(value <= pc.scalar(above), _NOTHING, function(value))  # of NaN: NaN


def _log(base: Made, value: Made | None = None) -> Made:
    if value is None:
        return _logarithm(pc.ln, base)
    return pc.divide(_logarithm(pc.ln, value), _logarithm(pc.ln, base))


def _pmod(left: Argument, right: Argument) -> Made:
    numbers = [left, right]
    kind = one_type(numbers)
    one, other = beside_each_other([with_whole_digit(left, right), right])
    rest = remainder(one, other, kind).cast(kind)  # remainders of decimals have more digits
    again = remainder(pc.add(rest, other), other, kind).cast(kind)
    return pc.if_else(pc.less(rest, pc.scalar(pa.scalar(0, kind))), again, rest)


def _bits(function: Callable[[Made, Made], Made]) -> Callable[[Argument, Argument], Made]:
    def made(left: Argument, right: Argument) -> Made:
        if not all(pa.types.is_integer(each.type) for each in (left, right)):
            raise Unfit(f"it takes whole numbers, and these are {left.type} and {right.type}")
        kind = one_type([left, right])
        return function(as_number(left, kind), as_number(right, kind))

    return made


def _shift(function: Callable[[Made, Made], Made]) -> Callable[[Argument, Argument], Made]:
    def made(value: Argument, by: Argument) -> Made:
        if not pa.types.is_integer(value.type):
            raise Unfit(f"it takes whole numbers, and this is {value.type}")
        wide = value.type if value.type.bit_width >= 32 else pa.int32()
        places = int(by.constant("the number of places")) % wide.bit_width
        return function(value.made.cast(wide), pc.scalar(pa.scalar(places, wide)))

    return made


def inverted(value: Argument) -> Made:
    if not pa.types.is_integer(value.type):
        raise Unfit(f"it takes whole numbers, and this is {value.type}")
    return pc.bit_wise_not(value.made)


def _bround(value: Argument, decimals: Argument | None = None) -> Made:
    digits = 0 if decimals is None else int(decimals.constant("the number of digits"))
    if pa.types.is_integer(value.type) and digits >= 0:
        return value.made
    if pa.types.is_decimal(value.type):
        raise Unfit("it takes doubles: use round for decimals")
    return pc.round(to_round(value, digits), ndigits=digits, round_mode="half_to_even")


def _isnan(value: Argument) -> Made:
    if not pa.types.is_floating(value.type):
        return pc.scalar(False)
    return pc.coalesce(pc.is_nan(value.made), pc.scalar(False))


def _nanvl(value: Argument, other: Argument) -> Made:
    number = as_number(value, _DOUBLE)
    return pc.if_else(pc.is_nan(number), as_number(other, _DOUBLE), number)


def _nvl2(value: Argument, known: Argument, unknown: Argument) -> Made:
    return pc.if_else(pc.is_valid(value.made), *beside_each_other([known, unknown]))


def _cbrt(value: Argument) -> Made:
    return call("cbrt", _DOUBLE, Argument(as_number(value, _DOUBLE), _DOUBLE, False, None))


@kernel("cbrt")
def _root(kind: pa.DataType, values: pa.Array) -> pa.Array:
    import numpy as np

    return pa.array(np.cbrt(values.to_numpy(zero_copy_only=False)), pa.float64(), mask=values.is_null().to_numpy(False))


# as in `named.NAMED`
NUMBERS: dict[str, tuple[int, int | None, Callable[..., Made]]] = {
    "acos": (1, 1, _double(pc.acos)),
    "asin": (1, 1, _double(pc.asin)),
    "atan": (1, 1, _double(pc.atan)),
    "atan2": (2, 2, _double(lambda *sides: pc.atan2(*(pc.add(side, pc.scalar(0.0)) for side in sides)))),  # no -0.0
    "bround": (1, 2, _bround),
    "cbrt": (1, 1, _cbrt),
    "cos": (1, 1, _double(pc.cos)),
    "degrees": (1, 1, _double(lambda value: pc.multiply(value, pc.scalar(180.0 / math.pi)))),
    "e": (0, 0, lambda: pc.scalar(math.e)),
    "isnan": (1, 1, _isnan),
    "isnotnull": (1, 1, lambda value: pc.is_valid(value.made)),
    "isnull": (1, 1, lambda value: pc.is_null(value.made)),
    "log": (1, 2, _double(_log)),
    "log10": (1, 1, _double(partial(_logarithm, pc.log10))),
    "log1p": (1, 1, _double(partial(_logarithm, pc.log1p, above=-1.0))),
    "log2": (1, 1, _double(partial(_logarithm, pc.log2))),
    "nanvl": (2, 2, _nanvl),
    "nvl2": (3, 3, _nvl2),
    "pi": (0, 0, lambda: pc.scalar(math.pi)),
    "pmod": (2, 2, _pmod),
    "radians": (1, 1, _double(lambda value: pc.multiply(value, pc.scalar(math.pi / 180.0)))),
    "rint": (1, 1, _double(lambda value: pc.round(value, round_mode="half_to_even"))),
    "shiftleft": (2, 2, _shift(pc.shift_left)),
    "shiftright": (2, 2, _shift(pc.shift_right)),
    "sin": (1, 1, _double(pc.sin)),
    "tan": (1, 1, _double(pc.tan)),
}
BITS: dict[type[exp.Expr], Callable[[Argument, Argument], Made]] = {
    exp.BitwiseAnd: _bits(pc.bit_wise_and),
    exp.BitwiseOr: _bits(pc.bit_wise_or),
    exp.BitwiseXor: _bits(pc.bit_wise_xor),
    exp.BitwiseLeftShift: _shift(pc.shift_left),
    exp.BitwiseRightShift: _shift(pc.shift_right),
}
