"""Constants of a SQL expression, and `CAST`, as in Spark's ANSI mode."""

import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from barrier_runtime.data.sql.arguments import (
    MOST_DIGITS,
    Argument,
    Made,
    Unfit,
    as_decimal,
    as_number,
    is_number,
    to_round,
    whole_as_decimal,
)
from barrier_runtime.data.sql.texts import day_of_text, decimal_of_text, text_of, time_constant, time_of_text
from barrier_runtime.state.errors import InvalidJob

_UNITS = {
    "WEEK": datetime.timedelta(days=7),
    "DAY": datetime.timedelta(days=1),
    "HOUR": datetime.timedelta(hours=1),
    "MINUTE": datetime.timedelta(minutes=1),
    "SECOND": datetime.timedelta(seconds=1),
    "MILLISECOND": datetime.timedelta(milliseconds=1),
    "MICROSECOND": datetime.timedelta(microseconds=1),
}


def constant_of(node: exp.Expr) -> tuple[bool, Any]:
    if isinstance(node, exp.Null):
        return True, pa.scalar(None)
    if isinstance(node, exp.Boolean):
        return True, bool(node.this)
    if isinstance(node, exp.Literal):
        if node.is_string:
            return True, node.this
        return True, int(node.this) if node.this.isdigit() else float(node.this)
    if isinstance(node, exp.Neg) and isinstance(node.this, exp.Literal) and not node.this.is_string:
        return True, -constant_of(node.this)[1]
    if isinstance(node, exp.Interval):
        unit = str(node.args["unit"].name if node.args.get("unit") else "").upper().rstrip("S")
        if unit not in _UNITS or not isinstance(node.this, exp.Literal):
            raise InvalidJob(f"{node.sql('spark')} is not known here: an INTERVAL has one of {', '.join(_UNITS)}")
        try:
            return True, pa.scalar(float(node.this.this) * _UNITS[unit])
        except (ValueError, OverflowError) as error:
            raise InvalidJob(f"{node.sql('spark')} is not known here: an INTERVAL has a number and a unit") from error
    if isinstance(node, exp.Concat) and all(
        isinstance(each, exp.Literal) and each.is_string for each in node.expressions
    ):
        return True, "".join(each.this for each in node.expressions)
    return False, None


_TYPES: dict[str, pa.DataType] = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "TEXT": pa.string(),
    "VARCHAR": pa.string(),
    "BINARY": pa.binary(),
    "DATE": pa.date32(),
    "TIMESTAMP": pa.timestamp("us"),
    "TIMESTAMPNTZ": pa.timestamp("us"),
    "TIMESTAMPTZ": pa.timestamp("us", "UTC"),
    "TIMESTAMPLTZ": pa.timestamp("us", "UTC"),
}


def type_named(to: exp.DataType) -> pa.DataType:
    if to.this.name == "DECIMAL":
        digits = [int(each.name) for each in to.expressions] or [10]
        if digits[0] > MOST_DIGITS:
            raise Unfit(f"{to.sql('spark')} has more than {MOST_DIGITS} digits")
        return pa.decimal128(digits[0], digits[1] if len(digits) > 1 else 0)
    if to.this.name not in _TYPES:
        raise Unfit(f"the type {to.sql('spark')} is not known here")
    return _TYPES[to.this.name]


def cast(value: Argument, kind: pa.DataType) -> Made:
    made, types = value.made, pa.types
    if (types.is_temporal(value.type) and is_number(kind)) or (is_number(value.type) and types.is_temporal(kind)):
        raise Unfit(f"{value.type} does not become {kind} by CAST here: take parts of a time, as in year(t)")
    if types.is_string(value.type):
        return _read(value, kind)
    if types.is_string(kind):
        return text_of(value)
    if types.is_floating(kind) and is_number(value.type):
        return as_number(value, kind)
    if types.is_integer(kind) and (types.is_floating(value.type) or types.is_decimal(value.type)):
        made = pc.trunc(made)
    elif types.is_decimal(kind) and types.is_integer(value.type):
        return whole_as_decimal(made, kind)
    elif types.is_decimal(kind) and types.is_decimal(value.type):
        if kind.scale >= value.type.scale:
            return as_decimal(value, kind)
        made = pc.round(to_round(value), ndigits=kind.scale, round_mode="half_towards_infinity")
    return made.cast(kind)


def _read(text: Argument, kind: pa.DataType) -> Made:
    types = pa.types
    if types.is_string(kind) or types.is_binary(kind):
        return text.made.cast(kind)
    if types.is_timestamp(kind):
        if text.is_constant:
            return pc.scalar(time_constant(text.value, kind))
        return time_of_text(text.made).cast(kind)
    if types.is_date(kind):
        return day_of_text(text.made)
    if types.is_decimal(kind):
        return decimal_of_text(text.made, kind.scale).cast(kind)
    trimmed = pc.utf8_trim(text.made, " ")
    return _whole(trimmed).cast(kind) if types.is_signed_integer(kind) else trimmed.cast(kind)


def _whole(text: Made) -> Made:
    """Reads whole numbers of 64 bits; the cast to a narrower type comes later.

    Arrow takes `0xFF` of eight bits for -1. Of 64 bits such numbers become a text that Arrow refuses.
    """
    number = text.cast(pa.int64())
    wrapped = pc.and_kleene(pc.less(number, 0), pc.starts_with(text, "0"))
    refused = pc.if_else(wrapped, pa.scalar("a hexadecimal number of 64 bits"), pa.scalar(None, pa.string()))
    return pc.coalesce(refused.cast(pa.int64()), number)
