"""Types of JSON columns that are guessed: a guess keeps what it read.

Arrow guesses that whole numbers beyond 64 bits are floats, and that texts like times are timestamps without a zone.
`guessed_exactly` looks at the values: large whole numbers are unsigned, or refused; dates are dates; times with a zone
are moments in UTC; and texts that are written in several forms stay text.
"""

import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from barrier_runtime.data.values.json_columns import JsonObject, begins_of_lines, has, objects_of_lines
from barrier_runtime.data.values.text_columns import LineError, type_of_times

_ZONE = r":\d\d.*([zZ]|[+-]\d\d(:?\d\d)?)$"
_WHOLE = re.compile(r"-?\d+")


class _Lost(ValueError):
    def __init__(self, row: int, digits: str) -> None:
        super().__init__(digits)
        self.row = row
        self.digits = digits


def guessed_exactly(data: bytes, schema: pa.Schema) -> pa.Schema:
    """`schema`, which Arrow guessed of `data`, with types that keep the values. Raises `LineError`."""
    if not any(has(field.type, _is_looked_at) for field in schema):
        return schema
    objects = objects_of_lines(data)
    fields = []
    for field in schema:
        values = [(row, each.get(field.name)) for row, each in enumerate(objects)]
        try:
            fields.append(field.with_type(_exact(values, field.type)))
        except _Lost as lost:
            raise LineError(
                begins_of_lines(data)[lost.row],
                f"column {field.name!r} has the number {lost.digits}, which would lose digits as a float: pass "
                'schema=, with a type such as "decimal(38, 0)"',
            ) from None
    return pa.schema(fields)


def _is_looked_at(kind: pa.DataType) -> bool:
    return bool(types.is_floating(kind) or types.is_timestamp(kind))


def _exact(values: Sequence[tuple[int, Any]], kind: pa.DataType) -> pa.DataType:
    """`values` with the row of each."""
    if types.is_struct(kind):
        members = []
        for field in kind:
            inner = [(row, each.get(field.name)) for row, each in values if isinstance(each, JsonObject)]
            members.append(field.with_type(_exact(inner, field.type)))
        return pa.struct(members)
    if types.is_list(kind):
        return pa.list_(_exact([(row, each) for row, many in values for each in many or ()], kind.value_type))
    if types.is_timestamp(kind):
        return type_of_times({each for _, each in values if each is not None}) or pa.string()
    if types.is_floating(kind):
        numbers = [(row, each) for row, each in values if each is not None]
        if all(_WHOLE.fullmatch(each) and 0 <= int(each) < 2**64 for _, each in numbers):
            return pa.uint64()
        for row, each in numbers:
            if _WHOLE.fullmatch(each) and Decimal(each) != Decimal(repr(float(each))):
                raise _Lost(row, each)
    return kind


def unknown_field(objects: Sequence[Any], kind: pa.Schema | pa.DataType) -> str | None:
    """The first field of some objects that `kind` lacks, also within others, such as `item.price`."""
    for each in objects:
        if isinstance(each, JsonObject):
            names = {field.name: field.type for field in kind}
            for name, value in each.items():
                if name not in names:
                    return name
                inner = _unknown_within(value, names[name])
                if inner is not None:
                    return f"{name}.{inner}"
    return None


def _unknown_within(value: Any, kind: pa.DataType) -> str | None:
    if types.is_struct(kind):
        return unknown_field([value], kind)
    if types.is_list(kind) and isinstance(value, list):
        return next((found for each in value if (found := _unknown_within(each, kind.value_type))), None)
    return None


def has_other_zones(texts: pa.Array, kind: pa.DataType) -> bool:
    """Whether texts of times have a zone where `kind` has none, or none where `kind` has one. `texts`: the values of a
    column of `kind`, with times as text."""
    if types.is_struct(kind):
        return any(has_other_zones(each, field.type) for each, field in zip(texts.flatten(), kind, strict=True))
    if types.is_list(kind):
        return has_other_zones(texts.flatten(), kind.value_type)
    if not types.is_timestamp(kind):
        return False
    zoned = pc.match_substring_regex(texts, _ZONE)
    return bool(pc.any(zoned if kind.tz is None else pc.invert(zoned)).as_py())


def refuse_other_zones(data: bytes, schema: pa.Schema) -> None:
    """Raise `LineError` for a time with a zone in a guessed column without, or the other way round."""
    for row, each in enumerate(objects_of_lines(data)):
        for field in schema:
            text = _other_zone(each.get(field.name), field.type)
            if text is not None:
                has, without = ("has no zone", "with") if _has_zone(field.type) else ("has a zone", "without")
                raise LineError(
                    begins_of_lines(data)[row],
                    f"column {field.name!r} is {field.type}, and {text!r} {has}; the type was guessed from the first "
                    f"rows, whose times are {without} one: declare the column in schema=, as "
                    '"timestamp[us, tz=UTC]" (without a zone: in UTC) or "string"',
                )


def _has_zone(kind: pa.DataType) -> bool:
    return has(kind, lambda each: types.is_timestamp(each) and each.tz is not None)


def _other_zone(value: Any, kind: pa.DataType) -> str | None:
    if isinstance(value, JsonObject) and types.is_struct(kind):
        found = (_other_zone(value.get(field.name), field.type) for field in kind)
    elif isinstance(value, list) and types.is_list(kind):
        found = (_other_zone(each, kind.value_type) for each in value)
    else:
        is_time = types.is_timestamp(kind) and isinstance(value, str)
        return value if is_time and (re.search(_ZONE, value) is None) == (kind.tz is not None) else None
    return next((text for text in found if text is not None), None)
