"""Steps without key and state."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypedDict, cast, overload

import pyarrow as pa
import pyarrow.compute as pc

from barrier_runtime.api.arguments import check_callable, retried, with_errors
from barrier_runtime.api.column_steps import ColumnSteps, as_text, read_by, ready, themselves
from barrier_runtime.api.steps import OneStream, Outputs, S, WithErrors, event_times_of_batches, one_or_all
from barrier_runtime.data.column_expression import ColumnExpression
from barrier_runtime.data.row_class import AnyRow
from barrier_runtime.data.rows import Row
from barrier_runtime.data.schemas import SchemaLike, check_free, column_names, require_columns
from barrier_runtime.launch.outcome import plain_errors
from barrier_runtime.operators.functions.given_rows import given_rows
from barrier_runtime.operators.outputs.side_outputs import ERRORS, OnError, branch_names, side_schemas
from barrier_runtime.operators.retry import Retry
from barrier_runtime.operators.user_code import function_name
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.texts import counted

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    class RowStep(TypedDict, total=False):
        schema: SchemaLike | None
        name: str | None

    class RowProcess(TypedDict, total=False):
        schema: SchemaLike | None

    class BatchStep(RowStep, total=False):
        one_to_one: bool

    from barrier_runtime.operators.joins.broadcast import How


@plain_errors
class RowSteps(ColumnSteps[S]):
    @overload
    def map(
        self, function: "Callable[[Row], AnyRow]", *, on_error: OneStream = "fail", **more: "Unpack[RowStep]"
    ) -> S: ...

    @overload
    def map(
        self, function: "Callable[[Row], AnyRow]", *, on_error: Literal["side"], **more: "Unpack[RowStep]"
    ) -> WithErrors[S]: ...

    def map(
        self,
        function: "Callable[[Row], AnyRow]",
        *,
        schema: SchemaLike | None = None,
        name: str | None = None,
        on_error: OnError | Retry = "fail",
    ) -> S | WithErrors[S]:
        """Maps one row (dict) to one row.

        Without `schema` the first returned rows determine the schema; open details (digits of decimals, columns of
        nulls) are as in the input's column of that name.

        `on_error`: treatment of a row for which the function raises. "fail" ends the job; "skip" drops and counts the
        row; "side" returns two streams, `main` and `errors`, the failed rows (docs/side-outputs.md). `Retry` calls the
        function again for the exceptions that it names; a final failure is treated under `restart=`.
        """

        from barrier_runtime.operators.functions.row_functions import MapOperator

        return self._rowwise("map", MapOperator, function, schema, name, on_error)

    @overload
    def flat_map(
        self,
        function: "Callable[[Row], Iterable[AnyRow]]",
        *,
        on_error: OneStream = "fail",
        **more: "Unpack[RowStep]",
    ) -> S: ...

    @overload
    def flat_map(
        self,
        function: "Callable[[Row], Iterable[AnyRow]]",
        *,
        on_error: Literal["side"],
        **more: "Unpack[RowStep]",
    ) -> WithErrors[S]: ...

    def flat_map(
        self,
        function: "Callable[[Row], Iterable[AnyRow]]",
        *,
        schema: SchemaLike | None = None,
        name: str | None = None,
        on_error: OnError | Retry = "fail",
    ) -> S | WithErrors[S]:
        """Maps one row to any number of rows. Arguments as in `map`.

        If the function raises for a row, this row's results are discarded."""

        from barrier_runtime.operators.functions.row_functions import FlatMapOperator

        return self._rowwise("flat_map", FlatMapOperator, function, schema, name, on_error)

    @overload
    def filter(
        self,
        condition: str | pc.Expression | ColumnExpression | Callable[[Row], Any],
        *,
        name: str | None = None,
        on_error: OneStream = "fail",
    ) -> S: ...

    @overload
    def filter(
        self, condition: Callable[[Row], Any], *, name: str | None = None, on_error: Literal["side"]
    ) -> WithErrors[S]: ...

    def filter(
        self,
        condition: str | pc.Expression | ColumnExpression | Callable[[Row], Any],
        *,
        name: str | None = None,
        on_error: OnError | Retry = "fail",
    ) -> S | WithErrors[S]:
        """Keeps rows for which the expression, or the function of a row, is true.

        An expression, SQL as text (docs/expressions.md) or an expression of `pyarrow.compute`, is much faster.
        `on_error` as in `map`, for functions.
        """

        from barrier_runtime.operators.functions.row_functions import FilterOperator

        where = f"filter {name or ''}".strip()
        condition = as_text(condition)
        if isinstance(condition, str | pc.Expression):
            if on_error != "fail":
                raise InvalidJob(
                    f"{where}: on_error={on_error!r} is for functions, and {condition} is an expression: leave it out"
                )
            from barrier_runtime.operators.functions.expressions import FilterExpressionOperator

            expression, kind = ready(condition, self.schema, where)
            if kind is not None and not pa.types.is_boolean(kind):
                raise InvalidJob(f"{where}: the expression {condition} gives {kind}: use one that gives true or false")
            make = partial(FilterExpressionOperator, expression=expression)
            reads = read_by([expression], self.schema)
            return self._step("filter", name, make, self.schema, str(condition), reads, row_classes=self._same_rows())
        check_callable(condition, where)
        condition, on_error = retried(condition, on_error, False, where)
        sides = side_schemas(None, on_error, where)
        by_row = partial(FilterOperator, function=condition, on_error=on_error, rows=self._rows)
        describe = with_errors(function_name(condition), on_error)
        streams: S | WithErrors[S]
        streams = one_or_all(
            self._step_and_sides("filter", name, by_row, self.schema, describe, sides, rows=self._same_rows())
        )
        return streams

    def inspect(self, function: Callable[[Row], Any] = print, *, name: str | None = None) -> "Self":
        """Calls `function` with each row (dict), and passes the rows on unchanged.

        Rows read again after a failure are shown again; on Spark the function runs on the executors.

        >>> orders.inspect().filter("amount > 100")
        """

        from barrier_runtime.operators.functions.row_functions import FilterOperator, Inspected

        where = f"inspect {name or ''}".strip()
        check_callable(function, where)
        make = partial(FilterOperator, function=Inspected(function), rows=self._rows)
        said, rows = function_name(function), self._same_rows()
        return cast("Self", self._step("inspect", name, make, self.schema, said, row_classes=rows))

    def split(
        self,
        name: str,
        by: str | pc.Expression | ColumnExpression | Callable[[Row], str],
        *,
        into: Sequence[str],
        on_error: OnError | Retry = "fail",
    ) -> Outputs[S]:
        """Splits the stream into a stream per branch of `into`, in that order, and under these names.

        `by` returns the name of a row's branch: a function of a row, or an expression with a text as result, which is
        much faster. `on_error` as in `map`, for functions: "side" adds a last stream with the failed rows.

        >>> big, small = orders.split("size", lambda row: "big" if row["amount"] > 100 else "small",
        ...                           into=("big", "small"))
        """

        from barrier_runtime.operators.outputs.split import SplitOperator

        where = f"split {name!r}"
        branches = branch_names(into, where)
        errors = side_schemas(None, "fail" if isinstance(on_error, Retry) else on_error, where)
        if errors.keys() & set(branches):
            raise InvalidJob(f"{where}: a branch is named {ERRORS!r}, as the rows that fail are: name it otherwise")
        by = as_text(by)
        if isinstance(by, str | pc.Expression):
            if on_error != "fail":
                raise InvalidJob(
                    f"{where}: on_error={on_error!r} is for functions, and {by} is an expression: leave it out"
                )
            from barrier_runtime.operators.functions.expressions import SplitExpressionOperator

            expression, kind = ready(by, self.schema, where)
            if kind is not None and not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
                raise InvalidJob(f"{where}: the expression {by} gives {kind}: use one that gives the name of a branch")
            make: Callable[..., Any] = partial(SplitExpressionOperator, function=expression, into=branches)
            describe = str(by)
        else:
            check_callable(by, where)
            by, on_error = retried(by, on_error, False, where)
            make = partial(SplitOperator, function=by, into=branches, on_error=on_error, rows=self._rows)
            describe = with_errors(function_name(by), on_error)
        sides = {**dict.fromkeys(branches, self.schema), **errors}
        rows = {} if self._rows is None else dict.fromkeys(branches, self._rows)
        _, *streams = self._step_and_sides("split", name, make, self.schema, describe, sides, rows=rows)
        return Outputs(list(zip(sides, streams, strict=True)))

    def _rowwise(
        self,
        kind: str,
        operator: Any,
        function: Any,
        schema: SchemaLike | None,
        name: str | None,
        on_error: OnError | Retry,
    ) -> S | WithErrors[S]:
        where = f"{kind} {name or ''}".strip()
        check_callable(function, where)
        given = given_rows(schema, function, "__call__", where, "row" if kind == "map" else "rows")
        function, on_error = retried(function, on_error, kind == "flat_map", where)
        sides = side_schemas(None, on_error, where)
        make = partial(operator, function=function, schema=given.writes, on_error=on_error, rows=self._rows)
        describe = with_errors(function_name(function), on_error)
        streams: S | WithErrors[S]
        streams = one_or_all(self._step_and_sides(kind, name, make, given.schema, describe, sides, rows=given.main))
        return streams

    @overload
    def map_batches(
        self,
        function: Callable[[pa.RecordBatch], pa.RecordBatch],
        *,
        on_error: OneStream = "fail",
        **more: "Unpack[BatchStep]",
    ) -> S: ...

    @overload
    def map_batches(
        self,
        function: Callable[[pa.RecordBatch], pa.RecordBatch],
        *,
        on_error: Literal["side"],
        **more: "Unpack[BatchStep]",
    ) -> WithErrors[S]: ...

    def map_batches(
        self,
        function: Callable[[pa.RecordBatch], pa.RecordBatch],
        *,
        schema: SchemaLike | None = None,
        name: str | None = None,
        one_to_one: bool = False,
        on_error: OnError | Retry = "fail",
    ) -> S | WithErrors[S]:
        """Maps a whole `pyarrow.RecordBatch` to one (or a Table, or None).

        Batches have any number of rows from 1 on. Arguments as in `map`; with `on_error`, a failed call is repeated
        with halves of the batch, until the failing rows are alone.

        If a later step follows event time row by row (timers, late rows), a batch has rows of one event time only. With
        `one_to_one` the function gets whole batches there, too, and must return exactly one row for each row, in the
        same order (docs/time.md).

        >>> scored = events.map_batches(add_score, schema=SCORED, one_to_one=True)
        """

        from barrier_runtime.operators.functions.batch_functions import MapBatchesOperator

        where = f"map_batches {name or ''}".strip()
        check_callable(function, where)
        if not isinstance(one_to_one, bool):
            raise InvalidJob(f"{where}: one_to_one={one_to_one!r}: use True or False")
        given = given_rows(schema, None, "", where)
        output = given.schema
        function, on_error = retried(function, on_error, False, where, "batch")
        sides = side_schemas(None, on_error, where)
        of = self._as_input()
        make = partial(
            MapBatchesOperator,
            function=function,
            schema=output,
            on_error=on_error,
            one_to_one=one_to_one,
            event_times=event_times_of_batches(self._plan, of.node, of.tag),
        )
        describe = with_errors(function_name(function), on_error) + (", a row for each row" if one_to_one else "")
        streams: S | WithErrors[S]
        streams = one_or_all(
            self._step_and_sides("map_batches", name, make, output, describe, sides, one_to_one, given.main)
        )
        return streams

    def explode(
        self,
        column: str | ColumnExpression,
        *,
        into: str | Sequence[str] | None = None,
        outer: bool = False,
        position: str | None = None,
        name: str | None = None,
    ) -> S:
        """Makes a row of each element of an array, or of each entry of a map, with all other columns.

        `column`: a column, or an expression (as in `filter`) whose elements get the name `into`. The element takes the
        place of the column, under the name `into`; a map gives two columns, named "key" and "value" or by the pair
        `into`. `outer`: a row without elements goes out once, with nulls, instead of being dropped. `position`: name of
        a column with the position of the element, from 0 on.

        >>> orders.explode("lines", into="line").select({"id": "id", "sku": "line.sku"})
        """
        from barrier_runtime.operators.functions.expressions import ExplodeOperator, exploded

        where = f"explode {name or ''}".strip()
        column = str(column)
        every = self._all_columns(where)
        rows: ColumnSteps[S] = self
        names = None if into is None else column_names(into, f"{where}: into")
        if column not in every and not column.isidentifier():
            if names is None:
                raise InvalidJob(f"{where}: name the elements of {column!r}, as in explode({column!r}, into='item')")
            check_free(names, every, where)
            rows = cast("ColumnSteps[S]", self._selected({**themselves(every), names[0]: column}, where, None))
            column = names[0]
        require_columns(rows.schema, (column,), where)
        assert rows.schema is not None
        new, output = exploded(rows.schema, column, names, position, where)
        make = partial(ExplodeOperator, column=column, into=new, outer=outer, position=position)
        kept = {each: each for each in rows.schema.names if each != column}
        return rows._step("explode", name, make, output, f"{column} into {', '.join(new)}", renames=kept)

    def broadcast_join(
        self,
        name: str,
        table: Any,
        *,
        on: str | Sequence[str],
        how: "How" = "left",
    ) -> S:
        """Adds the columns of a small table, matched by the columns `on`, which are unique in the table.

        `table`: Arrow table, pandas or Polars frame, list of dicts, or path to a file. `how`: "left" keeps rows without
        a match (nulls), "inner" drops them."""

        from barrier_runtime.connectors.files.source.small_table import small_table
        from barrier_runtime.operators.joins.broadcast import (
            EnrichOperator,
            check_small_table,
            enriched_schema,
            small_keys,
        )

        where = f"broadcast_join {name!r}"
        if how not in ("left", "inner"):
            raise InvalidJob(f'{where}: how={how!r}: use "left" or "inner"')
        keys = list(column_names(on, f"{where}: on"))
        small = small_table(table, where)
        check_small_table(small, keys, where)
        output = None
        if self.schema is not None:
            output = enriched_schema(self.schema, small.schema, keys, where)
            small_keys(small, keys, self.schema, where)  # refuses now rather than with the first rows
        make = partial(EnrichOperator, table=small, on=keys, how=how)
        return self._step(
            "broadcast_join", name, make, output, f"{how} on {', '.join(keys)}, {counted(small.num_rows, 'row')}"
        )
