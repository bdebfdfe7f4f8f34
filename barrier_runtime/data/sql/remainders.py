"""`%`: what is left of a division, with the sign of the dividend. Exact for doubles too: `1e300 % 7.0`.

Newer releases of Arrow have it. Without, doubles are numpy's `fmod`, which gives the same in eight times the time, and
whole numbers what their quotient leaves. So are decimals always: their quotient has the digits for it, and the types
that come out stay.
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from barrier_runtime.data.sql.arguments import Made

_ARROW_HAS_IT = "remainder" in pc.list_functions()
_FMOD = "barrier_runtime_fmod"


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


def _of_arrow(function: str, *arguments: Made) -> Made:
    return pc.Expression._call(function, list(arguments))


def _fmod(context: Any, left: pa.Array | pa.Scalar, right: pa.Array | pa.Scalar) -> pa.Array:
    divided, divisor = (_doubles(each, context.batch_length) for each in (left, right))
    valid = divided.is_valid().to_numpy(zero_copy_only=False) & divisor.is_valid().to_numpy(zero_copy_only=False)
    values = divisor.fill_null(1.0).to_numpy(zero_copy_only=False)
    if not values[valid].all():
        raise pa.ArrowInvalid("divide by zero")
    with np.errstate(invalid="ignore"):  # of infinity it is NaN
        found = np.fmod(divided.fill_null(0.0).to_numpy(zero_copy_only=False), np.where(valid, values, 1.0))
    return pa.array(found, mask=~valid)


def _doubles(given: pa.Array | pa.Scalar, rows: int) -> pa.Array:
    return pa.repeat(given, rows) if isinstance(given, pa.Scalar) else given


pc.register_scalar_function(
    _fmod,
    _FMOD,
    {"summary": "Remainder of doubles", "description": __doc__},
    {"dividend": pa.float64(), "divisor": pa.float64()},
    pa.float64(),
)
