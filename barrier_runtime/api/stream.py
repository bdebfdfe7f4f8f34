"""Streams, as users write what happens to rows: `Stream`, then `KeyedStream` and `WindowedStream`, and streams again.

Each gives the others, so they are one file. Names, columns and types are checked here, when the flow is written; each
step is a node of the plan (`graph/logical`), with what makes its operator.
"""

import copy
import datetime
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NoReturn, overload

import pyarrow as pa
import pyarrow.compute as pc

from barrier_runtime.api.expressions import names_a_column, ready
from barrier_runtime.api.handlers import check_row_function
from barrier_runtime.api.join_steps import JoinStep, KeyedInput
from barrier_runtime.api.joins import JoiningStream
from barrier_runtime.api.missing_steps import AFTER_KEY_BY, BEFORE_BROADCAST, BEFORE_KEY_BY, no_step
from barrier_runtime.connectors.files.source.small_table import small_table
from barrier_runtime.connectors.sink import TwoPhaseCommitSink, check_methods
from barrier_runtime.data.event_time import Detail, check_event_time_type
from barrier_runtime.data.keys import check_key_type
from barrier_runtime.data.plain_rows import plain_schema
from barrier_runtime.data.rows import Row
from barrier_runtime.data.schemas import SchemaLike, as_schema, described, milliseconds, require_columns
from barrier_runtime.graph.logical import Input, Plan, SourceNode, StepNode
from barrier_runtime.launch.plain_errors import plain_errors
from barrier_runtime.operators.aggregation.own import AnyAggregate, require_merge
from barrier_runtime.operators.aggregation.running import RunningAggregateOperator, running_schema
from barrier_runtime.operators.batch_functions import MapBatchesOperator, SelectColumnsOperator, UnionOperator
from barrier_runtime.operators.dead_letters import DEAD_LETTERS, DeadLetterOperator
from barrier_runtime.operators.declared_outputs import branch_names, side_schemas
from barrier_runtime.operators.deduplication.operator import DeduplicateOperator
from barrier_runtime.operators.failures import OnError
from barrier_runtime.operators.joins.broadcast import EnrichOperator, How, check_small_table, enriched_schema
from barrier_runtime.operators.keyed_progress import keys_said
from barrier_runtime.operators.lookups.arguments import lookup_settings
from barrier_runtime.operators.lookups.cache import Cache
from barrier_runtime.operators.lookups.operator import MISSES, HowMissing, LookupOperator
from barrier_runtime.operators.process import ProcessOperator, check_event_time_of_states, declared_states
from barrier_runtime.operators.process_rows import ProcessRowsOperator
from barrier_runtime.operators.retried_calls import RetriedCall, check_pauses
from barrier_runtime.operators.retry import Retry
from barrier_runtime.operators.row_functions import FilterOperator, FlatMapOperator, MapOperator
from barrier_runtime.operators.split import SplitOperator
from barrier_runtime.operators.state.broadcast import refuse_broadcast_state
from barrier_runtime.operators.state.handle import KeyedState
from barrier_runtime.operators.user_code import function_name
from barrier_runtime.operators.watermarks import WatermarkOperator
from barrier_runtime.operators.windows.aggregate import WindowAggregateOperator
from barrier_runtime.operators.windows.assigners import Global, Session, WindowAssigner, lateness_definition
from barrier_runtime.operators.windows.base import LATE, told_of_windows, window_schema
from barrier_runtime.operators.windows.early import EarlyWindowOperator, WallClockWindowOperator
from barrier_runtime.operators.windows.sessions import SessionAggregateOperator
from barrier_runtime.operators.windows.triggers import Every
from barrier_runtime.runtime.sinks.operator import SinkOperator
from barrier_runtime.state.errors import InvalidJob

_NO_DELAY = datetime.timedelta()
_LOOKUP_TIMEOUT = datetime.timedelta(seconds=10)
_LINGER = datetime.timedelta(milliseconds=1)


@plain_errors
class Stream:
    """Rows on their way. Immutable: each method gives a new stream and leaves this one usable (several consumers each
    get all rows). `schema` is known or None (then fixed by the first batch); as rows are handed from one subtask to
    another dictionary columns become columns of their values, so it names no dictionaries."""

    def __init__(
        self, plan: Plan, node: int, schema: pa.Schema | None, rebalanced: bool = False, tag: str = ""
    ) -> None:
        self._plan = plan
        self._node = node
        self._tag = tag  # of a side output of the node; empty: its main output
        self.schema = None if schema is None else plain_schema(schema)
        self._rebalanced = rebalanced

    if not TYPE_CHECKING:  # a type checker shall go on refusing every other name

        def __getattr__(self, name: str) -> NoReturn:
            raise no_step(self, name, AFTER_KEY_BY)

    # ------------------------------------------------------------ row-wise

    @overload
    def map(
        self,
        function: Callable[[Row], Row],
        *,
        schema: SchemaLike | None = None,
        name: str | None = None,
        on_error: Literal["fail", "skip"] | Retry = "fail",
    ) -> "Stream": ...

    @overload
    def map(
        self,
        function: Callable[[Row], Row],
        *,
        schema: SchemaLike | None = None,
        name: str | None = None,
        on_error: Literal["side"],
    ) -> tuple["Stream", "Stream"]: ...

    def map(
        self,
        function: Callable[[Row], Row],
        *,
        schema: SchemaLike | None = None,
        name: str | None = None,
        on_error: OnError | Retry = "fail",
    ) -> "Stream | tuple[Stream, Stream]":
        """One row (dict) in, one row out. Without `schema` the first rows returned decide it; what they leave open
        (digits of decimals, columns of nulls) is as in the input's column of that name, if there is one.

        `on_error`: what becomes of a row for which the function raises. "fail" ends the job; "skip" leaves the row out
        and counts it; "side" returns two streams, the results and the rows that failed (docs/side-outputs.md). `Retry`
        calls the function again for the exceptions that it names; what fails at last goes on under `restart=`.
        """
        return self._rowwise("map", MapOperator, function, schema, name, on_error)

    @overload
    def flat_map(
        self,
        function: Callable[[Row], Iterable[Row]],
        *,
        schema: SchemaLike | None = None,
        name: str | None = None,
        on_error: Literal["fail", "skip"] | Retry = "fail",
    ) -> "Stream": ...

    @overload
    def flat_map(
        self,
        function: Callable[[Row], Iterable[Row]],
        *,
        schema: SchemaLike | None = None,
        name: str | None = None,
        on_error: Literal["side"],
    ) -> tuple["Stream", "Stream"]: ...

    def flat_map(
        self,
        function: Callable[[Row], Iterable[Row]],
        *,
        schema: SchemaLike | None = None,
        name: str | None = None,
        on_error: OnError | Retry = "fail",
    ) -> "Stream | tuple[Stream, Stream]":
        """One row in, any number of rows out. `on_error` as in `map`: of a row at which the function raises, nothing
        that it gave before goes out."""
        return self._rowwise("flat_map", FlatMapOperator, function, schema, name, on_error)

    @overload
    def filter(
        self,
        condition: str | pc.Expression | Callable[[Row], Any],
        *,
        name: str | None = None,
        on_error: Literal["fail", "skip"] | Retry = "fail",
    ) -> "Stream": ...

    @overload
    def filter(
        self, condition: Callable[[Row], Any], *, name: str | None = None, on_error: Literal["side"]
    ) -> tuple["Stream", "Stream"]: ...

    def filter(
        self,
        condition: str | pc.Expression | Callable[[Row], Any],
        *,
        name: str | None = None,
        on_error: OnError | Retry = "fail",
    ) -> "Stream | tuple[Stream, Stream]":
        """Keep rows for which the expression, or the function of a row, is true. An expression, SQL as text
        (docs/expressions.md) or one of `pyarrow.compute`, is much faster. `on_error` as in `map`, for functions."""
        where = f"filter {name or ''}".strip()
        if isinstance(condition, str | pc.Expression):
            if on_error != "fail":
                raise InvalidJob(
                    f"{where}: on_error={on_error!r} is for functions, and {condition} is an expression: leave it out"
                )
            from barrier_runtime.operators.expressions import FilterExpressionOperator

            expression, kind = ready(condition, self.schema, where)
            if kind is not None and not pa.types.is_boolean(kind):
                raise InvalidJob(f"{where}: the expression {condition} gives {kind}: use one that gives true or false")
            return self._step(
                "filter", name, partial(FilterExpressionOperator, expression=expression), self.schema, str(condition)
            )
        _check_callable(condition, where)
        condition, on_error = _retried(condition, on_error, False, where)
        sides = side_schemas(None, on_error, where)
        make = partial(FilterOperator, function=condition, on_error=on_error)
        describe = with_errors(function_name(condition), on_error)
        streams: Stream | tuple[Stream, Stream]
        streams = and_sides(self._step("filter", name, make, self.schema, describe, sides), sides)
        return streams

    def split(
        self, name: str, by: str | pc.Expression | Callable[[Row], str], *, into: Sequence[str]
    ) -> "tuple[Stream, ...]":
        """A stream for each branch of `into`, in that order, with the rows for which `by` gives its name. `by` is a
        function of a row, or an expression that gives text (as in `filter`), which is much faster. Every row goes to
        one branch.

        >>> big, small = orders.split("size", lambda row: "big" if row["amount"] > 100 else "small",
        ...                           into=("big", "small"))
        """
        where = f"split {name!r}"
        branches = branch_names(into, where)
        if isinstance(by, str | pc.Expression):
            from barrier_runtime.operators.expressions import SplitExpressionOperator

            expression, kind = ready(by, self.schema, where)
            if kind is not None and not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
                raise InvalidJob(f"{where}: the expression {by} gives {kind}: use one that gives the name of a branch")
            make: Callable[..., Any] = partial(SplitExpressionOperator, function=expression, into=branches)
            describe = str(by)
        else:
            _check_callable(by, where)
            make = partial(SplitOperator, function=by, into=branches)
            describe = function_name(by)
        sides = dict.fromkeys(branches, self.schema)
        _, *streams = and_sides(self._step("split", name, make, self.schema, describe, sides), sides)
        return tuple(streams)

    def _rowwise(
        self,
        kind: str,
        operator: Any,
        function: Any,
        schema: SchemaLike | None,
        name: str | None,
        on_error: OnError | Retry,
    ) -> "Stream | tuple[Stream, Stream]":
        where = f"{kind} {name or ''}".strip()
        _check_callable(function, where)
        output = as_schema(schema, where) if schema is not None else None
        function, on_error = _retried(function, on_error, kind == "flat_map", where)
        sides = side_schemas(None, on_error, where)
        make = partial(operator, function=function, schema=output, on_error=on_error)
        describe = with_errors(function_name(function), on_error)
        streams: Stream | tuple[Stream, Stream]
        streams = and_sides(self._step(kind, name, make, output, describe, sides), sides)
        return streams

    # ------------------------------------------------------------ vectorised

    def map_batches(
        self,
        function: Callable[[pa.RecordBatch], pa.RecordBatch],
        *,
        schema: SchemaLike | None = None,
        name: str | None = None,
    ) -> "Stream":
        """A whole `pyarrow.RecordBatch` in, one (or a Table, or None) out. Batches have any number of rows from 1
        on."""
        where = f"map_batches {name or ''}".strip()
        _check_callable(function, where)
        output = as_schema(schema, where) if schema is not None else None
        make = partial(MapBatchesOperator, function=function, schema=output)
        return self._step("map_batches", name, make, output, function_name(function))

    def select(
        self, columns: Mapping[str, str | pc.Expression] | Sequence[str], *, name: str | None = None
    ) -> "Stream":
        """Columns in the given order: names, or a mapping of new name to column name or expression (as in `filter`).

        >>> orders.select({"id": "id", "eur": "price * 0.908"})
        """
        where = f"select {name or ''}".strip()
        chosen = dict(columns) if isinstance(columns, Mapping) else {column: column for column in _listed(columns)}
        if not chosen:
            raise InvalidJob(f"{where}: no columns: name at least one")
        for column, value in chosen.items():
            if not isinstance(value, str | pc.Expression):
                raise InvalidJob(f"{where}: {column!r} is {value!r}: give a column name or an expression")
        columns_only = not isinstance(columns, Mapping)
        names = {
            column: str(value)
            for column, value in chosen.items()
            if isinstance(value, str) and (columns_only or names_a_column(value, self.schema))
        }
        require_columns(self.schema, tuple(names.values()), where)
        computed = {
            column: ready(value, self.schema, f"{where}, column {column!r}")
            for column, value in chosen.items()
            if column not in names
        }
        make: Callable[..., Any] = partial(SelectColumnsOperator, columns=names)
        if computed:
            from barrier_runtime.operators.expressions import SelectExpressionsOperator

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
        return self._step("select", name, make, output, ", ".join(chosen))

    def broadcast_join(
        self,
        name: str,
        table: "pa.Table | Sequence[Mapping[str, Any]] | str",
        *,
        on: str | Sequence[str],
        how: How = "left",
    ) -> "Stream":
        """Add the columns of a small table (Arrow table, list of dicts, or path to a file), matched by the columns
        `on`, whose values are unique in it. `how`: "left" keeps rows without a match (nulls), "inner" drops them."""
        where = f"broadcast_join {name!r}"
        if how not in ("left", "inner"):
            raise InvalidJob(f'{where}: how={how!r}: use "left" or "inner"')
        keys = _listed(on)
        small = small_table(table, where)
        check_small_table(small, keys, where)
        output = enriched_schema(self.schema, small.schema, keys, where) if self.schema is not None else None
        make = partial(EnrichOperator, table=small, on=keys, how=how)
        return self._step("broadcast_join", name, make, output, f"{how} on {', '.join(keys)}, {small.num_rows} rows")

    # ------------------------------------------------------------ from another system

    @overload
    def lookup(
        self,
        name: str,
        fetch_many: Any,
        *,
        key: str | Sequence[str],
        schema: SchemaLike,
        capacity: int = 1_000,
        timeout: datetime.timedelta = _LOOKUP_TIMEOUT,
        ordered: bool = False,
        how: Literal["left", "inner"] = "left",
        retry: Retry | None = None,
        cache: Cache | None = None,
        on_error: Literal["fail", "skip"] = "fail",
        max_batch: int = 100,
        max_requests: int | None = None,
        linger: datetime.timedelta = _LINGER,
    ) -> "Stream": ...

    @overload
    def lookup(
        self,
        name: str,
        fetch_many: Any,
        *,
        key: str | Sequence[str],
        schema: SchemaLike,
        capacity: int = 1_000,
        timeout: datetime.timedelta = _LOOKUP_TIMEOUT,
        ordered: bool = False,
        how: HowMissing = "left",
        retry: Retry | None = None,
        cache: Cache | None = None,
        on_error: OnError = "fail",
        max_batch: int = 100,
        max_requests: int | None = None,
        linger: datetime.timedelta = _LINGER,
    ) -> "tuple[Stream, ...]": ...

    def lookup(
        self,
        name: str,
        fetch_many: Any,
        *,
        key: str | Sequence[str],
        schema: SchemaLike,
        capacity: int = 1_000,
        timeout: datetime.timedelta = _LOOKUP_TIMEOUT,
        ordered: bool = False,
        how: HowMissing = "left",
        retry: Retry | None = None,
        cache: Cache | None = None,
        on_error: OnError = "fail",
        max_batch: int = 100,
        max_requests: int | None = None,
        linger: datetime.timedelta = _LINGER,
    ) -> "Stream | tuple[Stream, ...]":
        """Add the columns `schema`, which `fetch_many` finds for the value of `key` in another system, while other rows
        come (docs/lookup.md). Each row has one result, also over failures of the job.

        `fetch_many(keys)` gets a list of distinct values (tuples, if `key` names several columns) and gives a list with
        a row (dict) or None for each, a dict of key to row, or a `pyarrow.Table` with the key's column; an exception in
        the place of a row fails that key alone. It is an `async def`, a plain function (which runs on threads), or a
        class with such a method `fetch_many`, and `open` and `close` for its connections.

        `capacity`: rows under way per subtask; when it is reached the stream waits, but checkpoints do not. `timeout`:
        of one call, which has up to `max_batch` keys; `max_requests` are made at once (plain functions: 16). A key
        waits up to `linger` for others. `ordered`: rows go out as they came. `how`: rows without a match have nulls
        ("left"), are dropped ("inner"), or are a stream of their own ("side"). `retry`: what is tried again. `cache`:
        replies are kept. `on_error` as in `map`, for what failed for good.

        >>> profiles = orders.lookup("profile", fetch_profiles, key="user", schema={"name": str, "city": str})
        """
        where = f"lookup {name!r}"
        settings = lookup_settings(
            where,
            fetch_many,
            self.schema,
            key=key,
            schema=schema,
            capacity=capacity,
            timeout=timeout,
            ordered=ordered,
            how=how,
            retry=retry,
            cache=cache,
            on_error=on_error,
            max_batch=max_batch,
            max_requests=max_requests,
            linger=linger,
        )
        known, output = self.schema, None
        if known is not None:
            output = enriched_schema(known, settings.schema, settings.on, where)
        sides = {**({MISSES: known} if how == "side" else {}), **side_schemas(None, on_error, where)}
        node = StepNode(
            name,
            "lookup",
            (self._as_input(),),
            partial(LookupOperator, function=fetch_many, settings=settings),
            output,
            stateful=True,
            describe=with_errors(f"{function_name(fetch_many)} by {', '.join(settings.on)}", on_error),
            timeless=True,
            begins_chain=True,
            by_wall_clock="rows are looked up in another system, whose answers change",
            side_outputs=sides,
        )
        streams: Stream | tuple[Stream, ...]
        streams = and_sides(Stream(self._plan, self._plan.add(node), output), sides)
        return streams

    # ------------------------------------------------------------ shape of the stream

    def with_watermarks(self, column: str, max_out_of_orderness: datetime.timedelta = _NO_DELAY) -> "Stream":
        """Event time follows `column`: the greatest value seen minus `max_out_of_orderness`. Directly after a source
        the watermark is made per split there, which is more exact; elsewhere it replaces the input's."""
        where = "with_watermarks"
        bound_ms = milliseconds(max_out_of_orderness, f"max_out_of_orderness of {where}")
        require_columns(self.schema, (column,), where)
        if self.schema is not None:
            check_event_time_type(self.schema.field(column).type, column, where)
        if isinstance(self._plan.nodes[self._node], SourceNode) and not self._rebalanced:
            self._plan.set_watermarks(self._node, column, bound_ms)
            return self
        make = partial(WatermarkOperator, column=column, max_out_of_orderness_ms=bound_ms)
        node = StepNode(
            None,
            "with_watermarks",
            (self._as_input(),),
            make,
            self.schema,
            describe=f"{column}, {max_out_of_orderness}",
            makes_watermarks=True,
        )
        return Stream(self._plan, self._plan.add(node), self.schema)

    def union(self, *others: "Stream", name: str | None = None) -> "Stream":
        """Rows of this and the other streams, which have the same columns."""
        if not others:
            raise InvalidJob("union() without other streams: pass at least one")
        known = [stream.schema for stream in (self, *others) if stream.schema is not None]
        for stream in others:
            if not isinstance(stream, Stream) or stream._plan is not self._plan:
                raise InvalidJob(f"union: {stream!r} is not a stream of flow {self._plan.name!r}: pass its streams")
        for schema in known[1:]:
            if not schema.equals(known[0]):
                raise InvalidJob(
                    f"union: one input has ({described(known[0])}), another ({described(schema)}): "
                    "select() the same columns and types in every input"
                )
        inputs = tuple(stream._as_input() for stream in (self, *others))
        schema = known[0] if len(known) == 1 + len(others) else None
        node = StepNode(name, "union", inputs, UnionOperator, schema)
        return Stream(self._plan, self._plan.add(node), schema)

    def rebalance(self) -> "Stream":
        """Spread rows evenly over the subtasks of what follows."""
        return Stream(self._plan, self._node, self.schema, rebalanced=True, tag=self._tag)

    def key_by(self, *columns: str) -> "KeyedStream":
        """Rows with equal values in `columns` go to the same subtask. Nulls are a value."""
        if not columns:
            raise InvalidJob("key_by() without columns: name at least one")
        where = f"key_by({', '.join(map(repr, columns))})"
        if len(set(columns)) != len(columns):
            raise InvalidJob(f"{where}: a column is named twice: name each once")
        require_columns(self.schema, columns, where)
        if self.schema is not None:
            for column in columns:
                check_key_type(self.schema.field(column).type, column, where)
        return KeyedStream(self, columns)

    def broadcast(self) -> "BroadcastStream":
        """Every subtask of the step to come gets all rows, in the same order: an input of `connect`, for rules and
        other rows that are few and hold for all keys."""
        return BroadcastStream(self)

    @overload
    def process(
        self,
        name: str,
        function: Any,
        *,
        schema: SchemaLike | None = None,
        side: None = None,
        on_error: Literal["fail", "skip"] = "fail",
    ) -> "Stream": ...

    @overload
    def process(
        self,
        name: str,
        function: Any,
        *,
        schema: SchemaLike | None = None,
        side: None = None,
        on_error: Literal["side"],
    ) -> tuple["Stream", "Stream"]: ...

    @overload
    def process(
        self,
        name: str,
        function: Any,
        *,
        schema: SchemaLike | None = None,
        side: Mapping[str, SchemaLike],
        on_error: OnError = "fail",
    ) -> tuple["Stream", ...]: ...

    def process(
        self,
        name: str,
        function: Any,
        *,
        schema: SchemaLike | None = None,
        side: Mapping[str, SchemaLike] | None = None,
        on_error: OnError = "fail",
    ) -> "Stream | tuple[Stream, ...]":
        """A row-wise function without key: a class with `process(self, row, ctx)`, which yields rows, or returns a row,
        a list or None, or a plain function of (row, ctx). The class may have `open(self, ctx)`, called once in each
        subtask before the first row, and `close(self)`. There is no state: that belongs to a key (`key_by`). See
        `RowContext` for `ctx`; `schema`, `side` and `on_error` are as in `KeyedStream.process`."""
        where = f"process {name!r}"
        if not isinstance(name, str):
            raise InvalidJob(f"process: its name is {name!r}: the first argument is the step's name, a string")
        check_row_function(function, where)
        output = as_schema(schema, where) if schema is not None else None
        sides = side_schemas(side, on_error, where)
        make = partial(
            ProcessRowsOperator,
            function=function,
            schema=output,
            side={tag: sides[tag] for tag in side or {}},
            on_error=on_error,
        )
        describe = with_errors(function_name(function), on_error)
        streams: Stream | tuple[Stream, ...] = and_sides(
            self._step("process", name, make, output, describe, sides), sides
        )
        return streams

    def deduplicate(self, name: str, *columns: str, within: datetime.timedelta | None) -> "Stream":
        """Let the first row of each id (the values of `columns`; null is a value like others) pass, and drop the later
        ones. An id is forgotten once the watermark has advanced by `within` since the id was seen; a row's own event
        time plays no part, so a late row is never dropped for being late. With None no id is ever forgotten, and the
        state grows with every one.

        Bloom filters in memory (about 3 to 12 bytes per id) spare new ids the look-up in the state. Counted: `lookups`,
        `lookups_saved`, `duplicates`.

        >>> orders.deduplicate("once", "order_id", within=timedelta(hours=1))
        """
        where = f"deduplicate {name!r}"
        within_ms = milliseconds(within, f"within of {where}") if within is not None else None
        if within_ms == 0:
            raise InvalidJob(f"{where}: within is 0, so every id would be forgotten at once: use a longer time")
        keyed = self.key_by(*columns)
        if within is not None:
            keyed._need_watermarks(where, f"within={within} is measured by the watermark")
        make = partial(DeduplicateOperator, keys=columns, within_ms=within_ms, schema=self.schema)
        horizon = "for ever" if within is None else f"within {within}"
        return keyed._stateful(name, "deduplicate", make, self.schema, f"{', '.join(columns)} {horizon}")

    # ------------------------------------------------------------ the end

    def sink(self, name: str, sink: TwoPhaseCommitSink | Callable[[], TwoPhaseCommitSink]) -> None:
        """Write the rows. Each subtask has its own copy of `sink` (or what the factory `sink` makes)."""
        where = f"sink {name!r}"
        if isinstance(sink, TwoPhaseCommitSink):
            check_methods(sink, where)
            make_sink: Callable[[], TwoPhaseCommitSink] = partial(copy.deepcopy, sink)
        elif callable(sink) and hasattr(sink, "guarantee"):
            if isinstance(sink, type):
                check_methods(sink, where)
            make_sink = sink
        else:
            what = "give CallableSink(…) around a function of a pyarrow.RecordBatch, " if callable(sink) else "pass "
            raise InvalidJob(
                f"{where}: {sink!r} is not a sink: {what}a TwoPhaseCommitSink such as ParquetSink(url), or a factory "
                "of one with an attribute `guarantee`"
            )
        if getattr(sink, "deterministic", False) is True:
            for step, why in self._plan.by_wall_clock(self._node):
                raise InvalidJob(
                    f"{where} is declared deterministic=True, but in step {step!r} before it {why}, so a replay may "
                    "make other rows: take event time (clock='event', ctx.timers), or a sink that is exactly once by "
                    "itself"
                )
        node = StepNode(
            name,
            "sink",
            (self._as_input(),),
            partial(SinkOperator, make_sink=make_sink),
            None,
            stateful=True,
            is_sink=True,
            guarantee=getattr(sink, "guarantee"),  # noqa: B009 - a factory carries it as an attribute
            global_committer=getattr(sink, "global_committer", False),
            describe=repr(sink),
        )
        self._plan.add(node)

    # ------------------------------------------------------------ inside

    def _with_dead_letters(
        self, error: str, good: Sequence[str], dead_letter: Mapping[str, str]
    ) -> tuple["Stream", "Stream"]:
        """Good rows, and the others: see `DeadLetterOperator`."""
        schema = self.schema
        good_schema = letter_schema = None
        if schema is not None:
            good_schema = pa.schema([schema.field(name) for name in good])
            letter_schema = pa.schema([schema.field(column).with_name(name) for name, column in dead_letter.items()])
        node = StepNode(
            None,
            "dead letters",
            (self._as_input(),),
            partial(DeadLetterOperator, error=error, good=good, dead_letter=dead_letter),
            good_schema,
            side_outputs={DEAD_LETTERS: letter_schema},
        )
        number = self._plan.add(node)
        good_rows, letters = and_sides(Stream(self._plan, number, good_schema), {DEAD_LETTERS: letter_schema})
        return good_rows, letters

    def _as_input(self) -> Input:
        return Input(self._node, "rebalance" if self._rebalanced else "forward", tag=self._tag)

    def _step(
        self,
        kind: str,
        name: str | None,
        make: Callable[..., Any],
        schema: pa.Schema | None,
        describe: str,
        side_outputs: Mapping[str, pa.Schema | None] | None = None,
    ) -> "Stream":
        node = StepNode(
            name, kind, (self._as_input(),), make, schema, describe=describe, side_outputs=side_outputs or {}
        )
        return Stream(self._plan, self._plan.add(node), schema)


class BroadcastStream:
    """A stream whose rows all subtasks of the next step get, which is one of `connect`."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            raise no_step(self, name, BEFORE_BROADCAST)


@plain_errors
class KeyedStream(JoiningStream[Stream]):
    """A stream partitioned by key columns; what follows may keep state per key."""

    def __init__(self, stream: Stream, keys: tuple[str, ...]) -> None:
        self._stream = stream
        self._keys = keys

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            raise no_step(self, name, BEFORE_KEY_BY)

    def window(
        self,
        name: str,
        window: WindowAssigner | Session,
        *,
        event_time: str | None = None,
        allowed_lateness: datetime.timedelta = _NO_DELAY,
        early: Every | None = None,
    ) -> "WindowedStream":
        """Group rows by window as well: `Tumbling`, `Sliding` or `Session` of event time, or `Global`, all rows of a
        key (see docs/windows.md). `event_time` is a timestamp, date or int64-milliseconds column; a `Global` has none.
        `allowed_lateness`: for how long after its end (event time) a window is kept; each row that comes for it then
        emits it again, with a column `update` that counts from 0. Not for sessions. `early`: results before a window is
        over, as in `Every(timedelta(seconds=1))` or `Every(rows=1000)`; columns `update` and `early` tell which one it
        is. Not for sessions.

        >>> keyed.window("hourly", Tumbling(timedelta(hours=1)), event_time="at", early=Every(timedelta(seconds=5)))
        """
        where = f"window {name!r}"
        if not isinstance(window, WindowAssigner | Session):
            raise InvalidJob(f"{where}: {window!r} is not a window: pass Tumbling(timedelta(…)), Sliding or Session")
        if early is not None and not isinstance(early, Every):
            raise InvalidJob(f"{where}: early={early!r}: pass Every(timedelta(…)) or Every(rows=…)")
        lateness_ms = milliseconds(allowed_lateness, f"allowed_lateness of {where}")
        if isinstance(window, Session) and lateness_ms:
            raise InvalidJob(
                f"{where}: sessions have no allowed_lateness: leave it out, take late=True for a stream of the late "
                "rows, or a greater max_out_of_orderness at the source"
            )
        if isinstance(window, Session) and early is not None:
            raise InvalidJob(
                f"{where}: sessions have no early results, because a row may join two sessions that were both told: "
                "leave early= out, or take running aggregates of the key"
            )
        if isinstance(window, Global):
            if event_time is not None or lateness_ms:
                extra = "event_time" if event_time is not None else "allowed_lateness"
                raise InvalidJob(f"{where}: a Global window is over when the input ends: leave {extra} out")
            if early is not None and early.interval is not None and early.clock == "event":
                self._need_watermarks(where, f"its early results are due {early}")
            return WindowedStream(self, name, window, None, 0, early)
        if event_time is None:
            raise InvalidJob(f"{where}: pass event_time=, the column that has the time of a row")
        schema = self._stream.schema
        require_columns(schema, (event_time,), where)
        if schema is not None:
            check_event_time_type(schema.field(event_time).type, event_time, where)
        self._need_watermarks(where, "a window is over when the watermark has passed its end")
        return WindowedStream(self, name, window, event_time, lateness_ms, early)

    def aggregate(self, name: str, /, **aggregates: AnyAggregate) -> Stream:
        """Running aggregates: every row goes out with its key's aggregates so far, itself included, as added columns.

        >>> keyed.aggregate("totals", orders=count(), revenue=sum_("amount"))
        """
        where = f"aggregate {name!r}"
        _check_aggregates(aggregates, where)
        schema = self._stream.schema
        output = None
        if schema is not None:
            _check_free(aggregates, schema.names, where)
            output = running_schema(schema, aggregates, where)
        make = partial(RunningAggregateOperator, keys=self._keys, aggregates=aggregates, schema=schema)
        return self._stateful(name, "running aggregate", make, output, _shown(aggregates), timeless=True)

    @overload
    def process(
        self,
        name: str,
        function: Any,
        *,
        schema: SchemaLike | None = None,
        state: Mapping[str, KeyedState] | None = None,
        event_time: str | None = None,
        side: None = None,
        on_error: Literal["fail", "skip"] = "fail",
    ) -> Stream: ...

    @overload
    def process(
        self,
        name: str,
        function: Any,
        *,
        schema: SchemaLike | None = None,
        state: Mapping[str, KeyedState] | None = None,
        event_time: str | None = None,
        side: None = None,
        on_error: Literal["side"],
    ) -> tuple[Stream, Stream]: ...

    @overload
    def process(
        self,
        name: str,
        function: Any,
        *,
        schema: SchemaLike | None = None,
        state: Mapping[str, KeyedState] | None = None,
        event_time: str | None = None,
        side: Mapping[str, SchemaLike],
        on_error: OnError = "fail",
    ) -> tuple[Stream, ...]: ...

    def process(
        self,
        name: str,
        function: Any,
        *,
        schema: SchemaLike | None = None,
        state: Mapping[str, KeyedState] | None = None,
        event_time: str | None = None,
        side: Mapping[str, SchemaLike] | None = None,
        on_error: OnError = "fail",
    ) -> Stream | tuple[Stream, ...]:
        """A row-wise function with state and timers per key.

        `function` is a class with `process(self, key, row, ctx)` and, for timers, `on_timer(self, key, timestamp_ms,
        ctx)` or `on_wall_timer(self, key, due_ms, ctx)`, which yield rows (dicts), or return a row, a list or None;
        states are its attributes (see `ValueState`, `ListState`, `MapState`, `ReducingState`, `AggregatingState`).
        Or a plain function of (key, row, ctx), with its states in `state=`, found as `ctx.state.<name>`. `key` is the
        column's value, or a tuple of several. See `ProcessContext` for `ctx`.

        A timer fires when the watermark reaches it, which is the least of all splits that are read side by side: rows
        of a later time may come before. A function must look at the rows' own times, too, not at timers alone. A
        wall-clock timer fires when its time has come, whether there are rows or not (docs/time.md).

        `side`: schemas of side outputs by name, which `ctx.emit(name, row)` gives rows to. Then a tuple is returned:
        the main stream, and one for each side output in that order. `on_error` as in `map`, with the errors as the last
        stream: of a row (or timer) at which the function raises, nothing goes out that it yielded or emitted before;
        what it had written to state, and its timers, stay as they are (docs/side-outputs.md).

        >>> out, hot = readings.key_by("sensor").process("alarm", Alarm, schema=OUT, side={"hot": HOT})
        """
        where = f"process {name!r}"
        if not callable(getattr(function, "process", function)):
            raise InvalidJob(f"{where}: {function!r} is not a function and has no process() method: pass one")
        if isinstance(function, type) and not callable(getattr(function, "process", None)):
            raise InvalidJob(f"{where}: class {function.__name__} has no method process(self, key, row, ctx): add it")
        states = declared_states(function, state)
        refuse_broadcast_state(states, where)
        known = self._stream.schema
        if event_time is not None:
            require_columns(known, (event_time,), where)
            if known is not None:
                check_event_time_type(known.field(event_time).type, event_time, where)
        if callable(getattr(function, "on_timer", None)):
            self._need_watermarks(where, f"{function_name(function)[:-2]} has timers, which the watermark makes fire")
        expiring = check_event_time_of_states(states, event_time, where)
        if expiring:
            self._need_watermarks(where, f"state {expiring[0]!r} has a TTL in event time")
        output = as_schema(schema, where) if schema is not None else None
        sides = side_schemas(side, on_error, where)
        make = partial(
            ProcessOperator,
            keys=self._keys,
            function=function,
            states=dict(state or {}),
            event_time=event_time,
            output=output,
            schema=known,
            side={tag: sides[tag] for tag in side or {}},
            on_error=on_error,
        )
        streams: Stream | tuple[Stream, ...]
        in_time = callable(getattr(function, "on_timer", None)) or bool(expiring)
        main = self._stateful(
            name,
            "process",
            make,
            output,
            with_errors(function_name(function), on_error),
            detail="every" if in_time else "none",
            side_outputs=sides,
            by_wall_clock=why_by_wall_clock(function, states),
            states=states,
        )
        streams = and_sides(main, sides)
        return streams

    def _keyed_input(self) -> KeyedInput:
        stream = self._stream
        return KeyedInput(stream._plan, stream._node, stream._tag, self._keys, stream.schema)

    def _joined(self, step: JoinStep) -> tuple[Stream, ...]:
        plan = self._stream._plan
        main = Stream(plan, plan.add(step.node), step.schema)
        return main, *[Stream(plan, main._node, schema, tag=tag) for tag, schema in step.sides.items()]

    def _need_watermarks(self, where: str, why: str) -> None:
        missing = self._stream._plan.without_watermarks(self._stream._node)
        if missing:
            sources = "source" if len(missing) == 1 else "sources"
            raise InvalidJob(
                f"{where}: {why}, but {sources} {', '.join(map(repr, missing))} of its rows "
                f"{'has' if len(missing) == 1 else 'have'} none: pass event_time= where the source is read, or call "
                "with_watermarks(column) on the stream before"
            )

    def _stateful(
        self,
        name: str,
        kind: str,
        make: Callable[..., Any],
        schema: pa.Schema | None,
        describe: str,
        detail: Detail = "none",
        definition: str = "",
        timeless: bool = False,
        side_outputs: Mapping[str, pa.Schema | None] | None = None,
        by_wall_clock: str = "",
        states: Mapping[str, KeyedState] | None = None,
    ) -> Stream:
        if not isinstance(name, str):
            raise InvalidJob(f"{kind}: its name is {name!r}: the first argument is the step's name, a string")
        plan = self._stream._plan
        inputs = (Input(self._stream._node, "hash", self._keys, self._stream._tag),)
        node = StepNode(
            name,
            kind,
            inputs,
            make,
            schema,
            stateful=True,
            describe=describe,
            definition=definition,
            detail=detail,
            timeless=timeless,
            side_outputs=side_outputs or {},
            by_wall_clock=by_wall_clock,
            keys=keys_said(self._stream.schema, self._keys),
            states={state: handle.declared() for state, handle in (states or {}).items()},
        )
        return Stream(plan, plan.add(node), schema)


@plain_errors
class WindowedStream:
    """A keyed stream whose rows are grouped by window, too."""

    def __init__(
        self,
        keyed: KeyedStream,
        name: str,
        window: WindowAssigner | Session,
        event_time: str | None,
        lateness_ms: int,
        early: Every | None,
    ) -> None:
        self._keyed = keyed
        self._name = name
        self._window = window
        self._event_time = event_time
        self._lateness_ms = lateness_ms
        self._early = early

    @overload
    def aggregate(self, **aggregates: AnyAggregate) -> Stream: ...

    @overload
    def aggregate(self, *, late: Literal[True], **aggregates: AnyAggregate) -> tuple[Stream, Stream]: ...

    def aggregate(self, *, late: Any = False, **aggregates: AnyAggregate) -> Stream | tuple[Stream, Stream]:
        """One row per key and window once the watermark passed its end: the key columns, `window_start` and
        `window_end` (timestamps in ms, UTC; the end is exclusive; a `Global` has neither), `update` with an allowed
        lateness or early results, `early` with the latter, then the aggregates. Rows that come when all of their
        windows are gone are dropped and counted (`late_rows`). With `late` they are not: it gives the pair (results,
        late rows), the latter as they came.

        >>> counts, late = visits.aggregate(late=True, n=count())
        """
        where = f"window {self._name!r}"
        if not isinstance(late, bool):
            raise InvalidJob(
                f"{where}: late={late!r}: use True for a stream of the late rows as well; a result cannot have the "
                "name 'late'"
            )
        _check_aggregates(aggregates, where)
        keys = self._keyed._keys
        window, lateness_ms = self._window, self._lateness_ms
        early, bounded = self._early, not isinstance(window, Global)
        if late and not bounded:
            raise InvalidJob(f"{where}: no row is late for a Global window: leave late= out")
        beside = told_of_windows(bounded, lateness_ms > 0, early is not None)
        _check_free(aggregates, [*keys, *(field.name for field in beside)], where)
        schema = self._keyed._stream.schema
        output = window_schema(schema, keys, aggregates, where, beside) if schema is not None else None
        operator: Callable[..., Any]
        if isinstance(window, Session):
            require_merge(aggregates, where)
            operator = partial(SessionAggregateOperator, window=window)
            definition = window.definition
        else:
            operator = partial(WindowAggregateOperator, window=window, lateness_ms=lateness_ms)
            definition = lateness_definition(window, lateness_ms)
        by_wall_clock = early is not None and early.clock == "processing"
        if early is not None and isinstance(window, WindowAssigner):
            kind = WallClockWindowOperator if by_wall_clock else EarlyWindowOperator
            operator = partial(kind, window=window, lateness_ms=lateness_ms, early=early)
            definition += f", {early.definition}"
        make = partial(
            operator,
            keys=keys,
            event_time=self._event_time,
            aggregates=aggregates,
            schema=schema,
            late=late,
        )
        results = self._keyed._stateful(
            self._name,
            "window",
            make,
            output,
            definition + (f" {early}" if early is not None else "") + f": {_shown(aggregates)}",
            detail="every" if early is not None and early.rows is None and not by_wall_clock else "late",
            definition=definition,
            side_outputs={LATE: schema} if late else {},
            by_wall_clock="early results are due by the wall clock" if by_wall_clock else "",
        )
        return (results, Stream(results._plan, results._node, schema, tag=LATE)) if late else results


def and_sides(main: Stream, sides: Mapping[str, pa.Schema | None]) -> Any:
    """The streams of a step: its main output alone, or a tuple of that and its side outputs."""
    others = [Stream(main._plan, main._node, schema, tag=tag) for tag, schema in sides.items()]
    return (main, *others) if others else main


def why_by_wall_clock(function: Any, states: Mapping[str, KeyedState]) -> str:
    """Why a replay may make other rows."""
    if callable(getattr(function, "on_wall_timer", None)):
        return f"{function_name(function)[:-2]} has timers by the wall clock"
    for name, state in states.items():
        if state.ttl is not None and state.ttl.clock != "event":
            return f"state {name!r} has a TTL by the wall clock"
    return ""


def _retried(
    function: Callable[[Row], Any], on_error: OnError | Retry, all_rows: bool, where: str
) -> tuple[Callable[[Row], Any], OnError]:
    """The function that the operator calls, and what becomes of what it raises."""
    if not isinstance(on_error, Retry):
        return function, on_error
    check_pauses(on_error, where)
    return RetriedCall(function, on_error, all_rows), "fail"


def with_errors(function: str, on_error: OnError) -> str:
    return f"{function}, skips rows for which it raises" if on_error == "skip" else function


def _check_callable(function: Any, where: str) -> None:
    if not callable(function):
        raise InvalidJob(f"{where}: {function!r} cannot be called: pass a function of a row")


def _check_aggregates(aggregates: Mapping[str, Any], where: str) -> None:
    if not aggregates:
        raise InvalidJob(f"{where}: no aggregates: give at least one, such as n=count()")
    for name, aggregate in aggregates.items():
        if not isinstance(aggregate, AnyAggregate):
            raise InvalidJob(
                f"{where}: {name}={aggregate!r} is not an aggregate: use one of barrier_runtime's, as count() or "
                f'sum_("amount"), or a RowAggregate or ColumnAggregate of your own (docs/aggregates.md has all)'
            )


def _check_free(names: Iterable[str], taken: Sequence[str], where: str) -> None:
    for name in names:
        if name in taken:
            raise InvalidJob(f"{where}: the output column {name!r} exists already: choose another name")


def _shown(aggregates: Mapping[str, AnyAggregate]) -> str:
    return ", ".join(f"{name}={aggregate}" for name, aggregate in aggregates.items())


def _listed(columns: str | Sequence[str]) -> list[str]:
    return [columns] if isinstance(columns, str) else list(columns)
