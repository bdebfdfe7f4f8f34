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
import pyarrow.types as types

from barrier_runtime.data.values.json_columns import JsonObject, begins_of_lines, has, objects_of_lines
from barrier_runtime.data.values.text_columns import LineError, type_of_times

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
