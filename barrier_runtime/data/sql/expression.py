"""SQL expressions, compiled once to Arrow's: `SqlExpression("price > 100 AND kind = 'bid'")`.

sqlglot parses Spark's dialect. Results are Spark SQL's in ANSI mode; docs/expressions.md has the differences. Functions
that a replay would compute differently are refused.
"""

from functools import partial
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import sqlglot
from sqlglot import TokenType, exp
from sqlglot.dialects.spark import Spark
from sqlglot.parsers.spark import SparkParser

from barrier_runtime.data.sql.compiler import Compiler, plain_name
from barrier_runtime.data.sql.functions import FUNCTIONS
from barrier_runtime.data.sql.named import NAMED, OTHER_NAMES
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.texts import shortened

_BEFORE = "SELECT "
_ROWS = ("explode", "explode_outer", "posexplode", "posexplode_outer", "inline", "stack")
_CHANGES = ("current_timestamp", "current_date", "now", "rand", "randn", "uuid", "unix_timestamp")
_SPARK_NAMES = {"timestamp_trunc": "date_trunc", "pow": "power", "regexp_like": "rlike", "starts_with": "startswith"}
_SPARK_NAMES |= {
    "str_position": "position",
    "ends_with": "endswith",
    "day_of_month": "dayofmonth",
    "time_to_str": "date_format",
}
_KNOWN = (exp.Case, exp.If, exp.Coalesce, exp.Cast, exp.And, exp.Or, exp.TsOrDsToDate, exp.Interval, exp.Struct)
_LEVELS: tuple[dict[TokenType, Any], ...] = (  # Spark's operators, from strong to weak; sqlglot has another order
    {**SparkParser.TERM, TokenType.DPIPE: exp.DPipe},
    {TokenType.LT: exp.BitwiseLeftShift, TokenType.GT: exp.BitwiseRightShift},  # each twice
    {TokenType.AMP: exp.BitwiseAnd},
    {TokenType.CARET: exp.BitwiseXor},
    {TokenType.PIPE: exp.BitwiseOr},
)
_SHIFTS = _LEVELS[1]
_SINGLE = {kind: made for level in _LEVELS if level is not _SHIFTS for kind, made in level.items()}


def _as_written(name: str, arguments: list[Any]) -> exp.Anonymous:
    return exp.Anonymous(this=name, expressions=arguments)


class _Spark(Spark):
    """Keeps the patterns of times as written (`y` is not `yyyy`), and doubled quotes as one, as since Spark 4."""

    class Tokenizer(Spark.Tokenizer):
        STRING_ESCAPES: ClassVar[Any] = ["\\", "'", '"']

    class Parser(SparkParser):
        FUNCTIONS: ClassVar[Any] = {
            **SparkParser.FUNCTIONS,
            "DATE_FORMAT": exp.TimeToStr.from_arg_list,
            **{name.upper(): partial(_as_written, name) for name in NAMED},
            **{name.upper(): partial(_as_written, known) for name, known in OTHER_NAMES.items()},
        }
        FUNCTION_PARSERS: ClassVar[Any] = {
            name: parser
            for name, parser in SparkParser.FUNCTION_PARSERS.items()
            if name.lower() not in NAMED.keys() | OTHER_NAMES.keys()
        }

        def _parse_bitwise(self) -> Any:
            operands, operators = [self._parse_factor()], list[Any]()
            while (operator := self._operator()) is not None:
                operators.append(operator)
                operands.append(self._parse_factor())
            for level in _LEVELS if operators else ():
                first, *rest = operands
                operands, weaker = [first], list[Any]()
                for operator, operand in zip(operators, rest, strict=True):
                    if operator in level.values():
                        operands[-1] = self.expression(operator(this=operands[-1], expression=operand))
                    else:
                        operands.append(operand)
                        weaker.append(operator)
                operators = weaker
            return operands[0]

        def _operator(self) -> Any:
            if self._match_set(_SINGLE):
                return _SINGLE[self._prev.token_type]
            return next((made for kind, made in _SHIFTS.items() if self._match_pair(kind, kind)), None)


class SqlExpression:
    """An expression as text. Raises `InvalidJob` for invalid text and unknown functions."""

    def __init__(self, text: str, where: str) -> None:
        self.text = text
        self.where = f"{where}: {text!r}"
        self._tree = self._parsed()
        for node in self._tree.walk():
            self._check(node)

    def __str__(self) -> str:
        return self.text

    def compiled(self, schema: pa.Schema) -> pc.Expression:
        """Raises `InvalidJob` for missing columns and incompatible types."""
        try:
            return Compiler(schema, self.where).result(self._tree)
        except RecursionError as error:
            raise self._too_deep() from error

    def _too_deep(self) -> InvalidJob:
        return InvalidJob(
            f"{shortened(self.where)}: the expression has too many parts inside each other: make columns of parts of it"
        )

    def _parsed(self) -> exp.Expr:
        """Parses the text after SELECT, so that words such as `update` are columns."""
        try:
            query = sqlglot.parse_one(_BEFORE + self.text, read=_Spark)
        except RecursionError as error:
            raise self._too_deep() from error
        except sqlglot.errors.SqlglotError as error:
            near = error.errors[0]["highlight"] if isinstance(error, sqlglot.ParseError) and error.errors else ""
            raise InvalidJob(
                f"{self.where} is no SQL expression{f', at {near!r}' if near else ''}: correct it. A column whose name "
                "is a word of SQL stands in backticks"
            ) from error
        selected: list[exp.Expr] = query.args.get("expressions") or []
        if not isinstance(query, exp.Select) or len(selected) != 1:
            raise InvalidJob(f"{self.where} is no SQL expression: give one, without a comma or semicolon around it")
        if any(value for name, value in query.args.items() if name != "expressions"):
            raise InvalidJob(f"{self.where}: a query does not belong here: give one expression of a row's columns")
        return selected[0]

    def _name(self, node: exp.Expr) -> str:
        if isinstance(node, exp.Window):
            return f"{self._name(node.this)} OVER"
        start, end = node.meta.get("start"), node.meta.get("end")
        if start is not None and end is not None:
            return self.text[start - len(_BEFORE) : end + 1 - len(_BEFORE)].lower()
        return plain_name(node)

    def _check(self, node: exp.Expr) -> None:
        is_function = isinstance(node, exp.Func)
        name = self._name(node) if is_function or isinstance(node, exp.Window) else ""
        if isinstance(node, exp.Alias):
            raise InvalidJob(f"{self.where}: a new name does not belong here: select({{'name': 'expression'}}) has it")
        if isinstance(node, exp.AggFunc | exp.Window):
            raise InvalidJob(
                f"{self.where}: {name} is an aggregate of many rows: use .key_by(…).aggregate(…), or a window"
            )
        named = isinstance(node, exp.Anonymous) and plain_name(node) in NAMED
        if name in _CHANGES and not (named and node.expressions):
            raise InvalidJob(
                f"{self.where}: {name}() would give another value when rows are read again after a failure: let the "
                "rows bring it"
            )
        if isinstance(node, exp.Query):
            raise InvalidJob(f"{self.where}: a query does not belong here: give one expression of a row's columns")
        if name in _ROWS:
            raise InvalidJob(f"{self.where}: {name} makes several rows of one: write stream.explode('items') as a step")
        if is_function and not named and type(node) not in FUNCTIONS and not isinstance(node, _KNOWN):
            raise InvalidJob(
                f"{self.where}: the function {name} is not known here: use a pyarrow.compute expression, or map with a "
                f"function of Python. Known are {', '.join(known_functions())}"
            )


def known_functions() -> list[str]:
    shown = {kind.sql_name().lower() for kind in FUNCTIONS if issubclass(kind, exp.Func)}
    return sorted(
        {_SPARK_NAMES.get(name, name) for name in shown} | {"cast", "coalesce", "if", "struct", "named_struct", *NAMED}
    )
