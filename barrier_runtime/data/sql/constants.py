"""What a SQL expression has of constants: numbers, text, NULL, intervals."""

import datetime
from typing import Any

import pyarrow as pa
from sqlglot import exp

from barrier_runtime.state.errors import InvalidJob

_UNITS = {  # of INTERVAL
    "WEEK": datetime.timedelta(days=7),
    "DAY": datetime.timedelta(days=1),
    "HOUR": datetime.timedelta(hours=1),
    "MINUTE": datetime.timedelta(minutes=1),
    "SECOND": datetime.timedelta(seconds=1),
    "MILLISECOND": datetime.timedelta(milliseconds=1),
    "MICROSECOND": datetime.timedelta(microseconds=1),
}


def constant_of(node: exp.Expr) -> tuple[bool, Any]:
    """(whether it is a constant, its value)."""
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
