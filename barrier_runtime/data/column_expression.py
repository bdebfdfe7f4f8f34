"""`col("price") > 100`: SQL expressions as Python objects.

Every step that takes SQL text takes these objects, too.
"""

import datetime
import decimal
from collections.abc import Sequence
from typing import Any

from barrier_runtime.state.errors import InvalidJob


class ColumnExpression:
    """SQL expression, made by `col` and by operators and methods. `str` gives the text."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, sql: str) -> None:
        self._sql = sql

    def __str__(self) -> str:
        return self._sql

    def __repr__(self) -> str:
        return f"ColumnExpression({self._sql})"

    def __bool__(self) -> bool:
        raise InvalidJob(f"{self._sql} is true or false per row: write & for and, | for or, ~ for not, in parentheses")

    def _with(self, sign: str, other: Any) -> "ColumnExpression":
        return ColumnExpression(f"({self._sql} {sign} {_text(other)})")

    def _after(self, sign: str, other: Any) -> "ColumnExpression":
        return ColumnExpression(f"({_text(other)} {sign} {self._sql})")

    def __eq__(self, other: object) -> "ColumnExpression":  # type: ignore[override]
        return self._with("=", other)

    def __ne__(self, other: object) -> "ColumnExpression":  # type: ignore[override]
        return self._with("<>", other)

    def __lt__(self, other: Any) -> "ColumnExpression":
        return self._with("<", other)

    def __le__(self, other: Any) -> "ColumnExpression":
        return self._with("<=", other)

    def __gt__(self, other: Any) -> "ColumnExpression":
        return self._with(">", other)

    def __ge__(self, other: Any) -> "ColumnExpression":
        return self._with(">=", other)

    def __add__(self, other: Any) -> "ColumnExpression":
        return self._with("+", other)

    def __radd__(self, other: Any) -> "ColumnExpression":
        return self._after("+", other)

    def __sub__(self, other: Any) -> "ColumnExpression":
        return self._with("-", other)

    def __rsub__(self, other: Any) -> "ColumnExpression":
        return self._after("-", other)

    def __mul__(self, other: Any) -> "ColumnExpression":
        return self._with("*", other)

    def __rmul__(self, other: Any) -> "ColumnExpression":
        return self._after("*", other)

    def __truediv__(self, other: Any) -> "ColumnExpression":
        return self._with("/", other)

    def __rtruediv__(self, other: Any) -> "ColumnExpression":
        return self._after("/", other)

    def __mod__(self, other: Any) -> "ColumnExpression":
        return self._with("%", other)

    def __neg__(self) -> "ColumnExpression":
        return ColumnExpression(f"(-{self._sql})")

    def __and__(self, other: Any) -> "ColumnExpression":
        return self._with("AND", other)

    def __or__(self, other: Any) -> "ColumnExpression":
        return self._with("OR", other)

    def __invert__(self) -> "ColumnExpression":
        return ColumnExpression(f"(NOT {self._sql})")

    def __getitem__(self, key: Any) -> "ColumnExpression":
        """Element of an array from 0 on, or value of a map."""
        return ColumnExpression(f"{self._sql}[{_text(key)}]")

    def field(self, name: str) -> "ColumnExpression":
        """Field of a struct."""
        return ColumnExpression(f"{self._sql}.{_quoted(name)}")

    def is_null(self) -> "ColumnExpression":
        """True for null."""
        return ColumnExpression(f"({self._sql} IS NULL)")

    def is_not_null(self) -> "ColumnExpression":
        """True for values other than null."""
        return ColumnExpression(f"({self._sql} IS NOT NULL)")

    def is_in(self, values: Sequence[Any]) -> "ColumnExpression":
        """True if one of `values` is equal."""
        return ColumnExpression(f"({self._sql} IN ({', '.join(map(_text, values))}))")

    def between(self, low: Any, high: Any) -> "ColumnExpression":
        """True from `low` to `high`, both included."""
        return ColumnExpression(f"({self._sql} BETWEEN {_text(low)} AND {_text(high)})")

    def like(self, pattern: str) -> "ColumnExpression":
        """Matches a pattern, where `%` is any text and `_` any letter."""
        return self._with("LIKE", pattern)

    def rlike(self, pattern: str) -> "ColumnExpression":
        """Contains a match of a regular expression."""
        return self._with("RLIKE", pattern)

    def cast(self, kind: str) -> "ColumnExpression":
        """Converts to a type of SQL, such as "BIGINT"."""
        return ColumnExpression(f"CAST({self._sql} AS {kind})")

    def call(self, function: str, *arguments: Any) -> "ColumnExpression":
        """A SQL function of this column and the arguments: `col("name").call("substring", 1, 3)`."""
        return ColumnExpression(f"{function}({', '.join([self._sql, *map(_text, arguments)])})")


def col(name: str) -> ColumnExpression:
    """The column `name`, for expressions such as `(col("price") > 100) & (col("kind") == "bid")`."""
    if not isinstance(name, str) or not name:
        raise InvalidJob(f"col({name!r}): give the name of a column")
    return ColumnExpression(_quoted(name))


def _quoted(name: str) -> str:
    if "`" in name:
        raise InvalidJob(f"the name {name!r} has a backtick: rename the column")
    return f"`{name}`"


def _text(value: Any) -> str:
    if isinstance(value, ColumnExpression):
        return str(value)
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return f"{value!r}" if "e" in repr(value) else f"{value!r}e0"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace("'", "\\'")
        return f"'{escaped}'"
    if isinstance(value, decimal.Decimal) and value.is_finite():
        digits = value.as_tuple()
        exponent = int(digits.exponent)
        scale, whole = max(0, -exponent), max(0, exponent)
        return f"CAST('{value:f}' AS DECIMAL({max(len(digits.digits) + whole, scale + 1)}, {scale}))"
    if isinstance(value, datetime.datetime):
        return f"TIMESTAMP '{value.isoformat(sep=' ')}'"
    if isinstance(value, datetime.date):
        return f"DATE '{value.isoformat()}'"
    if isinstance(value, datetime.timedelta):
        return f"INTERVAL {value // datetime.timedelta(microseconds=1)} MICROSECONDS"
    raise InvalidJob(f"{value!r} is no value of an expression: give a number, text, a time, None or a column")
