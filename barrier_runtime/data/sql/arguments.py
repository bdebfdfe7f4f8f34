"""What a function or an operator of SQL is given, and numbers of unlike types beside each other.

Those have one type, as in Spark: the widest of whole numbers, as many digits as decimals have together, or a double.
A whole number beyond 2^53 becomes the nearest double.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

Made: TypeAlias = pc.Expression


class Unfit(Exception):
    """An argument that a function does not take; the text says why."""


@dataclass(frozen=True)
class Argument:
    """Of a function: made, with its type, and its value if it is a constant."""

    made: Made
    type: pa.DataType
    is_constant: bool
    value: Any

    def constant(self, what: str) -> Any:
        if not self.is_constant:
            raise Unfit(f"{what} has to be a constant")
        if self.value is None:
            raise Unfit(f"{what} is NULL, so that is what comes of it, whatever the row: leave it out")
        return self.value


MOST_DIGITS = 38  # of a decimal
_DIGITS = {8: 3, 16: 5, 32: 10, 64: 19}  # of a whole number, by its bits


def is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def beside_each_other(arguments: Sequence[Argument]) -> list[Made]:
    """Numbers in one type; nulls with them, and what is no number as it is."""
    numbers = [each for each in arguments if is_number(each.type)]
    if not numbers or any(not is_number(each.type) and not pa.types.is_null(each.type) for each in arguments):
        return [each.made for each in arguments]
    kind = one_type(numbers)
    return [as_number(each, kind) for each in arguments]


def as_number(argument: Argument, kind: pa.DataType) -> Made:
    """A number, or null, in a type of numbers."""
    if argument.type == kind:
        return argument.made
    if pa.types.is_floating(kind):
        return argument.made.cast(kind, safe=not pa.types.is_integer(argument.type))
    if pa.types.is_decimal(kind) and pa.types.is_integer(argument.type):
        return argument.made.cast(pa.decimal128(min(MOST_DIGITS, 20 + kind.scale), kind.scale)).cast(kind)
    return argument.made.cast(kind)


def one_type(numbers: Sequence[Argument]) -> pa.DataType:
    """For all of them."""
    kinds = [each.type for each in numbers]
    if all(kind == kinds[0] for kind in kinds):
        return kinds[0]
    if any(map(pa.types.is_floating, kinds)):
        return pa.float64()
    if any(map(pa.types.is_decimal, kinds)):
        scale = max(kind.scale for kind in kinds if pa.types.is_decimal(kind))
        return pa.decimal128(min(MOST_DIGITS, max(map(_whole_digits, numbers)) + scale), scale)
    return max(kinds, key=lambda kind: int(kind.bit_width))


def _whole_digits(number: Argument) -> int:
    if pa.types.is_decimal(number.type):
        return int(number.type.precision - number.type.scale)
    return len(str(abs(number.value))) if number.is_constant else _DIGITS[number.type.bit_width]
