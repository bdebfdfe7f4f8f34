"""Steps that choose, name and compute columns."""

import datetime
import decimal
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from barrier_runtime.api.steps import S, UnkeyedSteps
from barrier_runtime.data.column_expression import ColumnExpression
from barrier_runtime.data.row_class import RowClass
from barrier_runtime.data.schemas import column_names, require_columns
from barrier_runtime.launch.outcome import plain_errors
from barrier_runtime.state.errors import InvalidJob

if TYPE_CHECKING:
    from barrier_runtime.data.expressions import Compiled
    from barrier_runtime.data.sql.expression import SqlExpression

Expression: TypeAlias = "Compiled | SqlExpression"

_LITERALS = (bool, int, float, decimal.Decimal, datetime.date, datetime.timedelta, bytes)


def ready(given: str | pc.Expression, schema: pa.Schema | None, where: str) -> tuple[Expression, pa.DataType | None]:
    """Returns the compiled expression and its type.

    If the schema is unknown, the type is None, and SQL is compiled for the first rows. Raises `InvalidJob` for other
    values, and for expressions that do not fit the schema.
    """
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
    """Columns of `schema` that the expressions need, and `columns`; None: unknown."""
    if schema is None:
        return None
    if not expressions:
        return frozenset(columns)
    from barrier_runtime.data.expressions import Compiled, columns_used

    used = columns_used(schema, [each.expression for each in expressions if isinstance(each, Compiled)])
    return None if used is None else used.union(columns)


def literal_or(value: Any) -> Any:
    """Expression of a plain value; SQL of a `ColumnExpression`; other values unchanged."""
    return pc.scalar(value) if isinstance(value, _LITERALS) else as_text(value)


def as_text(value: Any) -> Any:
    return str(value) if isinstance(value, ColumnExpression) else value


def names_a_column(value: str | pc.Expression, schema: pa.Schema | None) -> bool:
    return isinstance(value, str) and (value in schema.names if schema is not None else value.isidentifier())


ALL = "*"


class ColumnName(str):
    """Name of a column; other text may be SQL."""


@plain_errors
class ColumnSteps(UnkeyedSteps[S]):
    def select(
        self, columns: str | Mapping[str, Any] | Sequence[str], *more: str | Mapping[str, Any], name: str | None = None
    ) -> S:
        """Selects columns, in the given order.

        `columns` and `more`: names, or mappings of new name to a column name, an expression (as in `filter`), or a
        value for all rows: a number, a bool, a Decimal, a date, a time or bytes. Text is SQL, so a text for all rows
        needs a second pair of quotes. "*" stands for all columns.

        >>> orders.select({"id": "id", "eur": "price * 0.908", "version": 2, "shop": "'berlin'"})
        >>> orders.select("*", {"eur": "price * 0.908"})
        """
        where = f"select {name or ''}".strip()
        wanted: dict[str, Any] = {}
        for part in (columns, *more):
            each = part if isinstance(part, Mapping) else themselves(column_names(part, f"{where}: columns"))
            for column, value in each.items():
                every = column == ALL and isinstance(value, str) and value == ALL
                wanted.update(themselves(self._all_columns(where)) if every else {column: value})
        return self._selected(wanted, where, name)

    def with_columns(self, columns: Mapping[str, Any] | None = None, *, name: str | None = None, **more: Any) -> S:
        """Adds columns, or replaces columns of the same name; all other columns stay.

        `columns` and `more`: new name to an expression or a value, as in `select`, of the rows before this step.

        >>> orders.with_columns(eur="price * 0.908", day="date_trunc('day', at)")
        """
        where = f"with_columns {name or ''}".strip()
        added = {**(columns or {}), **more}
        if not added:
            raise InvalidJob(f"{where}: no columns: name at least one, as in with_columns(eur='price * 0.908')")
        return self._selected({**themselves(self._all_columns(where)), **added}, where, name)

    def drop(self, *columns: str, name: str | None = None) -> S:
        """Removes columns; all other columns stay.

        >>> orders.drop("comment", "address")
        """
        where = f"drop {name or ''}".strip()
        every = self._all_columns(where)
        if not columns:
            raise InvalidJob(f"{where}: no columns: name at least one")
        require_columns(self.schema, column_names(columns, where), where)
        return self._selected(themselves(column for column in every if column not in columns), where, name)

    def rename(self, columns: Mapping[str, str] | None = None, *, name: str | None = None, **more: str) -> S:
        """Renames columns, old name to new name; all columns keep their places.

        >>> orders.rename(ts="at", val="amount")
        """
        where = f"rename {name or ''}".strip()
        new = {**(columns or {}), **more}
        every = self._all_columns(where)
        if not new:
            raise InvalidJob(f"{where}: no columns: name at least one, as in rename(old='new')")
        require_columns(self.schema, column_names(list(new), where), where)
        names = column_names([new.get(column, column) for column in every], where)
        if twice := sorted({each for each in names if names.count(each) > 1}):
            raise InvalidJob(f"{where}: two columns would be named {twice[0]!r}: drop or rename the other column, too")
        return self._selected(dict(zip(names, map(ColumnName, every), strict=True)), where, name)

    def _all_columns(self, where: str) -> list[str]:
        if self.schema is None:
            raise InvalidJob(
                f"{where}: it has to know all columns of its rows: pass schema= to the step before it, or name the "
                "columns in select()"
            )
        names: list[str] = self.schema.names
        return names

    def _selected(
        self,
        columns: Mapping[str, Any],
        where: str,
        name: str | None,
        same: Mapping[str, str] | None = None,
        row_classes: Mapping[str, RowClass] | None = None,
    ) -> S:
        """`columns`: new name -> column name, expression or value.

        `same`: computed columns with the same values as a column, in another type."""
        from barrier_runtime.operators.functions.batch_functions import SelectColumnsOperator

        chosen = {column: literal_or(value) for column, value in columns.items()}
        if not chosen:
            raise InvalidJob(f"{where}: no columns: name at least one")
        for column, value in chosen.items():
            if not isinstance(value, str | pc.Expression):
                raise InvalidJob(f"{where}: {column!r} is {value!r}: give a column name, an expression or a number")
        names = {
            column: str(value)
            for column, value in chosen.items()
            if isinstance(value, ColumnName) or names_a_column(value, self.schema)
        }
        require_columns(self.schema, tuple(names.values()), where)
        computed = {
            column: ready(value, self.schema, f"{where}, column {column!r}")
            for column, value in chosen.items()
            if column not in names
        }
        make: Callable[..., Any] = partial(SelectColumnsOperator, columns=names)
        if computed:
            from barrier_runtime.operators.functions.expressions import SelectExpressionsOperator

            given = {column: names[column] if column in names else computed[column][0] for column in chosen}
            make = partial(SelectExpressionsOperator, columns=given)
        output = None
        if self.schema is not None:
            output = pa.schema(
                [
                    (column, self.schema.field(names[column]).type if column in names else computed[column][1])
                    for column in chosen
                ]
            )
        reads = read_by([expression for expression, _ in computed.values()], self.schema, names.values())
        made_of: dict[str, frozenset[str] | None] = {column: frozenset([source]) for column, source in names.items()}
        made_of.update((column, read_by([each], self.schema)) for column, (each, _) in computed.items())
        renames = None if computed else names
        return self._step(
            "select", name, make, output, ", ".join(chosen), reads, renames, made_of, {**names, **(same or {})},
            row_classes,
        )  # fmt: skip


def themselves(columns: Iterable[str]) -> dict[str, str]:
    return {column: ColumnName(column) for column in columns}
