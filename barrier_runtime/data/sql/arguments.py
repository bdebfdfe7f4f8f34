"""Arguments of SQL functions and operators, and their common types.

Numbers of different types get a common type, as in Spark: the widest of whole numbers, all digits of decimals together,
or a double. 64 bits without a sign become a decimal beside a signed number, except for constants.

Expressions of many terms are built flat: Arrow's time per batch grows with the square of the depth.

Arrow computes all branches of a `CASE` for all rows. So parts that may fail, as in `CASE WHEN b <> 0 THEN a / b END`,
get nulls for rows that do not need the part (`Needed`). Of a long chain of conditions only the first are used.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

Made: TypeAlias = pc.Expression


class Unfit(Exception):
    """An argument that a function does not take."""


@dataclass(frozen=True)
class Argument:
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


MOST_DIGITS = 38
_DIGITS = {8: 3, 16: 5, 32: 10, 64: 19}  # by the bits of a whole number
_UNSIGNED_DIGITS = 20  # of 64 bits
_MOST_BITS = 64
_UNITS = ("s", "ms", "us", "ns")
_SIGNED = {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}
_UNSIGNED = {8: pa.uint8(), 16: pa.uint16(), 32: pa.uint32(), 64: pa.uint64()}


def is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def is_exact(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_decimal(kind))


def beside_each_other(arguments: Sequence[Argument]) -> list[Made]:
    """Casts numbers, or times, to a common type."""
    times = [each.type for each in arguments if pa.types.is_timestamp(each.type)]
    if times and all(pa.types.is_timestamp(each.type) or pa.types.is_null(each.type) for each in arguments):
        kind = one_time(times)
        return [as_time(each, kind) for each in arguments]
    numbers = [each for each in arguments if is_number(each.type)]
    if not numbers or any(not is_number(each.type) and not pa.types.is_null(each.type) for each in arguments):
        return [each.made for each in arguments]
    kind = one_type(numbers)
    return [as_number(each, kind) for each in arguments]


def as_number(argument: Argument, kind: pa.DataType) -> Made:
    if argument.type == kind:
        return argument.made
    if pa.types.is_floating(kind):
        return argument.made.cast(kind, safe=not pa.types.is_integer(argument.type))
    if pa.types.is_decimal(kind) and pa.types.is_integer(argument.type):
        return whole_as_decimal(argument.made, kind)
    if pa.types.is_decimal(kind) and pa.types.is_decimal(argument.type):
        return as_decimal(argument, kind)
    return argument.made.cast(kind)


def whole_as_decimal(made: Made, kind: pa.DataType) -> Made:
    """Casts in two steps: Arrow requires digits for the largest number of the type."""
    digits = _UNSIGNED_DIGITS + kind.scale
    wide = pa.decimal128(digits, kind.scale) if digits <= MOST_DIGITS else pa.decimal256(digits, kind.scale)
    return made.cast(wide).cast(kind)


def as_decimal(argument: Argument, kind: pa.DataType) -> Made:
    """Casts through 256 bits if needed: Arrow misreads a decimal with more than 38 digits."""
    more = kind.scale - argument.type.scale
    if argument.type.precision + more <= MOST_DIGITS:
        return argument.made.cast(kind)
    return argument.made.cast(pa.decimal256(argument.type.precision + more, kind.scale)).cast(kind)


def to_round(number: Argument, digits: int = 0) -> Made:
    """Adds a digit for the rounded number: Arrow rounds 99.9, a decimal(3, 1), to 0."""
    kind = number.type
    if not pa.types.is_decimal(kind):
        return number.made
    room = max(kind.precision, kind.scale - digits) + 1
    return number.made.cast((pa.decimal128 if room <= MOST_DIGITS else pa.decimal256)(room, kind.scale))


def one_time(kinds: Sequence[pa.DataType]) -> pa.DataType:
    """Returns the finest unit, and UTC if any type has a zone."""
    if all(kind == kinds[0] for kind in kinds):
        return kinds[0]
    unit = max((kind.unit for kind in kinds), key=_UNITS.index)
    return pa.timestamp(unit, "UTC" if any(kind.tz for kind in kinds) else None)


def as_time(argument: Argument, kind: pa.DataType) -> Made:
    return argument.made if argument.type == kind else argument.made.cast(kind)


def one_type(numbers: Sequence[Argument]) -> pa.DataType:
    kinds = [each.type for each in numbers]
    if all(kind == kinds[0] for kind in kinds):
        return kinds[0]
    if any(map(pa.types.is_floating, kinds)):
        return pa.float64()
    if any(map(pa.types.is_decimal, kinds)):
        scale = max(kind.scale for kind in kinds if pa.types.is_decimal(kind))
        return pa.decimal128(min(MOST_DIGITS, max(map(_whole_digits, numbers)) + scale), scale)
    return _whole(numbers)


def _whole(numbers: Sequence[Argument]) -> pa.DataType:
    without = [each.type.bit_width for each in numbers if pa.types.is_unsigned_integer(each.type)]
    signed = [each for each in numbers if not pa.types.is_unsigned_integer(each.type)]
    most = max(without, default=0)
    if not signed or (most == _MOST_BITS and all(each.is_constant and each.value >= 0 for each in signed)):
        return _UNSIGNED[most]
    if most == _MOST_BITS:
        return pa.decimal128(_UNSIGNED_DIGITS, 0)
    return _SIGNED[max(2 * most, *(each.type.bit_width for each in signed))]


def decimal_type(number: Argument) -> pa.DataType:
    return number.type if pa.types.is_decimal(number.type) else pa.decimal128(_whole_digits(number), 0)


def _whole_digits(number: Argument) -> int:
    if pa.types.is_decimal(number.type):
        return int(number.type.precision - number.type.scale)
    if number.is_constant:
        return len(str(abs(number.value)))
    return _UNSIGNED_DIGITS if number.type == pa.uint64() else _DIGITS[number.type.bit_width]


_UNKNOWN = pc.scalar(pa.scalar(None, pa.bool_()))


def in_pairs(joined: Callable[[Made, Made], Made], terms: Sequence[Made]) -> Made:
    if len(terms) == 1:
        return terms[0]
    middle = len(terms) // 2
    return joined(in_pairs(joined, terms[:middle]), in_pairs(joined, terms[middle:]))


def one_of(value: Argument, listed: Sequence[Argument], equal: Callable[[Argument], Made]) -> Made:
    """True if `value` is listed; null if `value` is null, or not listed beside a null."""
    known = [each for each in listed if not pa.types.is_null(each.type)]
    kind = _looked_up(value.type, known)
    if kind is None:
        return in_pairs(pc.or_kleene, list(map(equal, listed)))
    sought = as_number(value, kind) if pa.types.is_integer(kind) else value.made
    found = pc.is_in(sought, value_set=pa.array([each.value for each in known], kind))
    unless = pc.is_valid(value.made) if len(known) == len(listed) else found
    return pc.if_else(unless, found, _UNKNOWN)


def _looked_up(kind: pa.DataType, known: Sequence[Argument]) -> pa.DataType | None:
    """Type of a lookup table for `known`; None if values must be compared one by one."""
    if not known or not all(each.is_constant for each in known):
        return None
    if pa.types.is_string(kind) and all(pa.types.is_string(each.type) for each in known):
        return kind
    whole = pa.types.is_integer(kind) and kind != pa.uint64()
    return pa.int64() if whole and all(pa.types.is_integer(each.type) for each in known) else None


_MOST_IN_CONDITIONS = 64  # calls of `only`


class Needed:
    def __init__(self) -> None:
        self._rows: Made | None = None  # None: all
        self._inside = 0  # calls of `only` in `_rows`
        self.made = 0  # calls of `only` so far, and those in their conditions

    def only(self, argument: Argument) -> Argument:
        """Makes the argument null for rows that do not need it, unless the argument is constant."""
        if self._rows is None or argument.is_constant:
            return argument
        self.made += 1 + self._inside
        nulls = pc.scalar(pa.scalar(None, argument.type))
        return Argument(pc.if_else(self._rows, argument.made, nulls), argument.type, False, None)

    @contextmanager
    def scope(self) -> Iterator[None]:
        before = self._rows, self._inside
        yield
        self._rows, self._inside = before

    def narrow(self, condition: Made, inside: int) -> None:
        """Restricts the needed rows. `inside`: calls of `only` in `condition`."""
        if inside and self._inside + inside > _MOST_IN_CONDITIONS:
            return
        self._rows = condition if self._rows is None else pc.and_kleene(self._rows, condition)
        self._inside += inside
