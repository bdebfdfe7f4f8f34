"""What steps accept as an expression, made ready when the flow is written: types are known and mistakes show then.

Arrow's expression engine and the parser take a while to import, so only flows that use expressions do.
"""

import datetime
import decimal
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from barrier_runtime.data.expressions import Compiled
    from barrier_runtime.data.sql.expression import SqlExpression

Expression: TypeAlias = "Compiled | SqlExpression"

_LITERALS = (bool, int, float, decimal.Decimal, datetime.date, datetime.timedelta, bytes)


def ready(given: str | pc.Expression, schema: pa.Schema | None, where: str) -> tuple[Expression, pa.DataType | None]:
    """The expression for rows of `schema`, and its type. `given` is SQL as text, or one of `pyarrow.compute`. Where the
    schema is not known yet the type is None, and SQL is compiled for the first rows. Raises `InvalidJob` for what is no
    expression, and for one that does not suit the schema."""
    from barrier_runtime.data.expressions import Compiled, evaluated_types

    if isinstance(given, pc.Expression):
        compiled = Compiled(given, str(given))
    else:
        from barrier_runtime.data.sql.expression import SqlExpression

        sql = SqlExpression(given, where)
        if schema is None:
            return sql, None
        compiled = Compiled(sql.compiled(schema), given)
    return compiled, None if schema is None else evaluated_types(schema, [compiled.expression], where)[0]


def read_by(
    expressions: Sequence[Expression], schema: pa.Schema | None, columns: Iterable[str] = ()
) -> frozenset[str] | None:
    """The columns of `schema` that these expressions need, and `columns`; None: not known."""
    if schema is None:
        return None
    if not expressions:
        return frozenset(columns)
    from barrier_runtime.data.expressions import Compiled, columns_used

    used = columns_used(schema, [each.expression for each in expressions if isinstance(each, Compiled)])
    return None if used is None else used.union(columns)


def literal_or(value: Any) -> Any:
    """The expression of a plain value that all rows get; other values as they are."""
    return pc.scalar(value) if isinstance(value, _LITERALS) else value


def names_a_column(value: str | pc.Expression, schema: pa.Schema | None) -> bool:
    """Whether a value of `select` is the name of a column; other text is SQL."""
    return isinstance(value, str) and (value in schema.names if schema is not None else value.isidentifier())
