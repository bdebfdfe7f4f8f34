"""`WindowedStream`: what users write after `.window(…)`."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, TypeVar, cast, overload

import pyarrow as pa
import pyarrow.compute as pc

from barrier_runtime.api.arguments import aggregates_said, check_aggregates, with_errors
from barrier_runtime.api.handlers import refuse_coroutines, require_arguments
from barrier_runtime.api.missing_steps import AFTER_WINDOW, no_step
from barrier_runtime.api.steps import KeyedSteps, S, one_or_all
from barrier_runtime.data.event_time import Detail
from barrier_runtime.data.schemas import SchemaLike, as_schema, check_free, require_columns
from barrier_runtime.graph.logical import Within
from barrier_runtime.graph.updates import UpdatesOfStep, counted_updates, ranked_updates
from barrier_runtime.launch.plain_errors import plain_errors
from barrier_runtime.operators.aggregation.described import described_aggregates
from barrier_runtime.operators.aggregation.own import AnyAggregate, require_merge
from barrier_runtime.operators.outputs.declared_outputs import side_schemas
from barrier_runtime.operators.outputs.failures import OnError
from barrier_runtime.operators.retry import Retry
from barrier_runtime.operators.user_code import function_name
from barrier_runtime.operators.windows.aggregate import WindowAggregateOperator
from barrier_runtime.operators.windows.assigners import (
    Count,
    Global,
    Session,
    Sliding,
    Tumbling,
    WindowAssigner,
    lateness_definition,
)
from barrier_runtime.operators.windows.base import LATE, told_of_windows, window_schema
from barrier_runtime.operators.windows.count import CountWindowOperator
from barrier_runtime.operators.windows.early import EarlyWindowOperator, WallClockWindowOperator
from barrier_runtime.operators.windows.processing_time import (
    ProcessingTimeApplyOperator,
    ProcessingTimeCountingOperator,
    ProcessingTimeCountingSessionOperator,
    ProcessingTimeEarlyOperator,
    ProcessingTimeEarlySessionOperator,
    ProcessingTimeSessionOperator,
    ProcessingTimeTopOperator,
    ProcessingTimeWindowOperator,
    wall_clock_definition,
)
from barrier_runtime.operators.windows.sessions.aggregate import SessionAggregateOperator
from barrier_runtime.operators.windows.sessions.updates import SessionUpdatesOperator, WallClockSessionOperator
from barrier_runtime.operators.windows.sliding import SlidingAggregateOperator
from barrier_runtime.operators.windows.triggers import Every
from barrier_runtime.operators.windows.whole.applied_aggregates import OfAggregates
from barrier_runtime.operators.windows.whole.apply import ApplyOperator, TimeWindow, applied_definition
from barrier_runtime.operators.windows.whole.one_key import ONE_KEY, OfAllRows
from barrier_runtime.operators.windows.whole.top import TopOperator, top_definition, top_schema
from barrier_runtime.state.errors import InvalidJob

T = TypeVar("T")
_OF_WALL_CLOCK = "windows are of the wall clock's times"


@plain_errors
class WindowedStream(Generic[S]):
    """A keyed stream whose rows are grouped by window, too."""

    def __init__(
        self,
        keyed: KeyedSteps[S],
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
        self._of_wall_clock = event_time is None and not isinstance(window, Global)
        self._all_rows = False  # the key is one that users do not see

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            raise no_step(self, name, AFTER_WINDOW)

    def __repr__(self) -> str:
        return f"<WindowedStream {self._name}: {self._window}>"

    @overload
    def aggregate(self, **aggregates: AnyAggregate) -> S: ...

    @overload
    def aggregate(self, *, late: Literal[True], **aggregates: AnyAggregate) -> tuple[S, S]: ...

    def aggregate(self, *, late: Any = False, **aggregates: AnyAggregate) -> S | tuple[S, S]:
        """One row per key and window once the watermark passed its end: the key columns, `window_start` and
        `window_end` (timestamps in ms, UTC; the end is exclusive; a `Global` has neither), `update` with an allowed
        lateness or early results, `early` with the latter, `retracted` of sessions with either, then the aggregates.
        Rows that come when all of their windows are gone are dropped and counted (`late_rows`). With `late` they are
        not: it gives the pair (results, late rows), the latter as they came.

        >>> counts, late = visits.aggregate(late=True, n=count())
        """
        where = f"window {self._name!r}"
        if not isinstance(late, bool):
            raise InvalidJob(
                f"{where}: late={late!r}: use True for a stream of the late rows as well; a result cannot have the "
                "name 'late'"
            )
        check_aggregates(aggregates, where)
        rows = self._keyed._keyed_input()
        keys = rows.keys
        window, lateness_ms = self._window, self._lateness_ms
        early, bounded = self._early, not isinstance(window, Global)
        if isinstance(window, Count) and early is not None:
            raise InvalidJob(f"{where}: a Count window is told when it is full: leave early= out")
        if late and not bounded:
            raise InvalidJob(f"{where}: no row is late for a {type(window).__name__} window: leave late= out")
        self._refuse_late(late)
        updates = lateness_ms > 0 or early is not None
        beside = told_of_windows(bounded, updates, early is not None, updates and isinstance(window, Session))
        told = [field.name for field in beside]
        for key in keys:
            if key in told:
                raise InvalidJob(
                    f"{where}: the key column {key!r} has the name of a column that results of windows have: rename it "
                    "in a select() before key_by"
                )
        check_free(aggregates, [*keys, *told], where)
        schema = rows.schema
        output = window_schema(schema, keys, aggregates, where, beside) if schema is not None else None
        operator: Callable[..., Any]
        if isinstance(window, Session):
            require_merge(aggregates, where)
            operator = partial(SessionAggregateOperator, window=window)
            definition = lateness_definition(window, lateness_ms)
        elif isinstance(window, Count):
            operator = partial(CountWindowOperator, window=window)
            definition = window.definition
        elif isinstance(window, Sliding) and not lateness_ms:
            operator = partial(SlidingAggregateOperator, window=window)
            definition = window.definition
        else:
            operator = partial(WindowAggregateOperator, window=window, lateness_ms=lateness_ms)
            definition = lateness_definition(window, lateness_ms)
        by_wall_clock = early is not None and early.clock == "processing"
        if isinstance(window, Session):
            if lateness_ms or early is not None:
                kind_of_session = WallClockSessionOperator if by_wall_clock else SessionUpdatesOperator
                operator = partial(kind_of_session, window=window, lateness_ms=lateness_ms, early=early)
            definition += "" if early is None else f", {early.definition}"
        elif early is not None:
            kind = WallClockWindowOperator if by_wall_clock else EarlyWindowOperator
            operator = partial(kind, window=window, lateness_ms=lateness_ms, early=early)
            definition += f", {early.definition}"
        why = "early results are due by the wall clock" if by_wall_clock else ""
        if self._of_wall_clock:
            operator = partial(_kind_by_wall_clock(window, early), window=window, **({"early": early} if early else {}))
            definition = wall_clock_definition(definition)
            why = _OF_WALL_CLOCK
        make = partial(
            operator,
            keys=keys,
            event_time=self._event_time,
            aggregates=aggregates,
            schema=schema,
            late=late,
        )
        streams: S | tuple[S, S] = self._keyed._stateful(
            self._name,
            "window",
            make,
            output,
            definition + (f" {early}" if early is not None else "") + f": {aggregates_said(aggregates)}",
            detail=self._detail(by_wall_clock),
            definition=definition,
            timeless=self._of_wall_clock,
            within=self._results_within(),
            side_outputs={LATE: schema} if late else {},
            by_wall_clock=why,
            states=described_aggregates(aggregates),
            updates=UpdatesOfStep(partial(counted_updates, aggregates=aggregates), gives=aggregates if updates else ()),
        )
        return self._shown(streams)

    def _refuse_late(self, late: bool) -> None:
        if late and self._of_wall_clock:
            raise InvalidJob(f"window {self._name!r}: no row is late by the wall clock: leave late= out")

    def _results_within(self, by_row: bool = False) -> frozenset[Within] | None:
        """Of results whose time is the end of their window; None: they have none. `by_row`: the results are rows."""
        window = self._window
        if self._event_time is None:
            return None
        if not isinstance(window, Tumbling):
            return frozenset()
        columns = ["window_start", *([self._event_time] if by_row else [])]
        return frozenset(Within(column, window.size_ms, window.offset_ms) for column in columns)

    def _by_its_clock(self, definition: str) -> str:
        return wall_clock_definition(definition) if self._of_wall_clock else definition

    def _detail(self, by_wall_clock: bool) -> Detail:
        if self._of_wall_clock or (self._event_time is None and self._early is None):
            return "none"
        if self._early is not None and not by_wall_clock and not (self._event_time is None and self._early.rows):
            return "every"
        if self._event_time is None:
            return "late"
        window = self._window if isinstance(self._window, WindowAssigner) else None
        return self._keyed._keyed_input().detail_of_late(self._event_time, window)

    @overload
    def apply(
        self,
        function: Callable[[Any, TimeWindow, Any], Any],
        *,
        schema: SchemaLike,
        batches: bool = False,
        late: Literal[False] = False,
        on_error: Literal["fail", "skip"] | Retry = "fail",
        **aggregates: AnyAggregate,
    ) -> S: ...

    @overload
    def apply(
        self,
        function: Callable[[Any, TimeWindow, Any], Any],
        *,
        schema: SchemaLike,
        batches: bool = False,
        late: Literal[True],
        on_error: OnError | Retry = "fail",
        **aggregates: AnyAggregate,
    ) -> tuple[S, ...]: ...

    @overload
    def apply(
        self,
        function: Callable[[Any, TimeWindow, Any], Any],
        *,
        schema: SchemaLike,
        batches: bool = False,
        late: bool = False,
        on_error: Literal["side"],
        **aggregates: AnyAggregate,
    ) -> tuple[S, ...]: ...

    def apply(
        self,
        function: Callable[[Any, TimeWindow, Any], Any],
        *,
        schema: SchemaLike,
        batches: bool = False,
        late: bool = False,
        on_error: OnError | Retry = "fail",
        **aggregates: AnyAggregate,
    ) -> S | tuple[S, ...]:
        """A function of each whole window once it is over: `function(key, window, table)`, with the key (a tuple of
        several columns), the window (`start` and `end`) and its rows, all columns, as a `pyarrow.Table` ordered by
        event time. It returns a table, a record batch, a row (dict), any number of these, or None; `schema` has their
        columns. With `batches` it gets an iterator of record batches in place of the table, so that a window may be
        larger than memory. Rows wait in the job's state, not in memory. `late`: as in `aggregate`. For `Tumbling`,
        `Sliding` and `Global`, without early results and allowed lateness.

        With aggregates, as in `apply(function, schema=…, n=count())`, no rows are held: the function gets a dict of
        them in place of the table, for each result that `aggregate` would give, of every kind of window.

        `on_error` as in `map`, with the errors as the last stream: of a window for which the function raises nothing
        goes out, and its rows are gone; the error tells which window it was, and of how many rows.

        >>> hours.apply(lambda key, window, table: {"key": key, "rows": len(table)}, schema={"key": str, "rows": int})
        """
        where = f"window {self._name!r}"
        if not callable(function):
            raise InvalidJob(f"{where}: {function!r} cannot be called: pass a function of (key, window, table)")
        refuse_coroutines(function, where)
        given = "values" if aggregates else "batches" if batches else "table"
        require_arguments(function, ("key", "window", given), where)
        if aggregates:
            return self._apply_to_aggregates(function, as_schema(schema, where), batches, late, on_error, aggregates)
        window, rows = self._whole_windows("apply", late)
        if self._all_rows:
            function = OfAllRows(function, batches)
        make = partial(
            ProcessingTimeApplyOperator if self._of_wall_clock else ApplyOperator,
            keys=self._keyed._keyed_input().keys,
            window=window,
            event_time=self._event_time,
            function=function,
            schema=rows,
            output=as_schema(schema, where),
            late=late,
            batches=batches,
            on_error=on_error,
        )
        definition = self._by_its_clock(applied_definition(window))
        errors = side_schemas(None, on_error, where)
        streams: S | tuple[S, ...] = self._keyed._stateful(
            self._name,
            "window",
            make,
            as_schema(schema, where),
            f"{window.definition}: {with_errors(function_name(function), on_error, 'windows')}",
            detail=self._detail(False),
            definition=definition,
            timeless=self._of_wall_clock,
            by_wall_clock=_OF_WALL_CLOCK if self._of_wall_clock else "",
            side_outputs={**({LATE: rows} if late else {}), **errors},
        )
        return self._shown(streams, results=False, errors=bool(errors))

    @overload
    def top(self, n: int, *, by: str, largest: bool = True, late: Literal[False] = False) -> S: ...

    @overload
    def top(self, n: int, *, by: str, largest: bool = True, late: Literal[True]) -> tuple[S, S]: ...

    def top(self, n: int, *, by: str, largest: bool = True, late: bool = False) -> S | tuple[S, S]:
        """The `n` rows of each window that have the largest (or smallest) values in column `by`, once it is over: all
        columns, then `window_start` and `window_end`, then `rank` from 1 on. Of equal rows the one that came first is
        first; NaN is the greatest number, as in Spark, and nulls are last. Only those rows are held. `late`: as in
        `aggregate`. For the windows that `apply` takes.

        >>> minutes.top(3, by="price")
        """
        where = f"window {self._name!r}"
        window, rows = self._whole_windows("top", late)
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise InvalidJob(f"{where}: top({n!r}): pass a whole number of rows, at least 1")
        require_columns(rows, (by,), where)
        kind = rows.field(by).type
        if not _has_order(kind):
            raise InvalidJob(f"{where}: column {by!r} is {kind}, which has no order: pass another one as by=")
        output = top_schema(rows, window.bounded)
        check_free(output.names[len(rows) :], rows.names, where)
        make = partial(
            ProcessingTimeTopOperator if self._of_wall_clock else TopOperator,
            keys=self._keyed._keyed_input().keys,
            window=window,
            event_time=self._event_time,
            n=n,
            by=by,
            largest=largest,
            schema=rows,
            late=late,
        )
        definition = self._by_its_clock(top_definition(window, n, by, largest))
        streams: S | tuple[S, S] = self._keyed._stateful(
            self._name,
            "window",
            make,
            output,
            definition,
            detail=self._detail(False),
            definition=definition,
            timeless=self._of_wall_clock,
            within=self._results_within(by_row=True),
            by_wall_clock=_OF_WALL_CLOCK if self._of_wall_clock else "",
            side_outputs={LATE: rows} if late else {},
            updates=UpdatesOfStep(partial(ranked_updates, columns=(by,))),
        )
        return self._shown(streams)

    def _apply_to_aggregates(
        self,
        function: Any,
        schema: pa.Schema,
        batches: bool,
        late: bool,
        on_error: OnError | Retry,
        aggregates: dict[str, AnyAggregate],
    ) -> S | tuple[S, ...]:
        if batches:
            raise InvalidJob(f"window {self._name!r}: the function gets aggregates and no rows: leave batches= out")
        give: Any = self.aggregate
        streams = give(late=late, **aggregates)
        results, *others = streams if late else (streams,)
        keys = () if self._all_rows else self._keyed._keyed_input().keys
        applied = results.flat_map(OfAggregates(function, keys), schema=schema, on_error=on_error)
        given = applied if isinstance(applied, tuple) else (applied,)
        every: S | tuple[S, ...] = one_or_all((given[0], *others, *given[1:]))
        return every

    def _shown(self, streams: T, results: bool = True, errors: bool = False) -> T:
        """`streams` as users see them. `results`: whether those of the main output have the key columns. `errors`: the
        last stream is that of errors, which have none."""
        if not self._all_rows:
            return streams
        main, *others = streams if isinstance(streams, tuple) else (streams,)
        kept = others[-1:] if errors else []
        late = [without_one_key(stream) for stream in others[: len(others) - len(kept)]]
        return cast(T, one_or_all((without_one_key(main) if results else main, *late, *kept)))

    def _whole_windows(self, method: str, late: bool) -> tuple[WindowAssigner, pa.Schema]:
        """The window and the columns of its rows, for a step that holds rows."""
        where, window = f"window {self._name!r}", self._window
        if not isinstance(window, WindowAssigner):
            raise InvalidJob(
                f"{where}: {method}() is not for sessions: take aggregate(), as with collect_list(), or another window"
            )
        if isinstance(window, Count):
            raise InvalidJob(f"{where}: {method}() is not for Count windows: take aggregate(), or another window")
        if self._lateness_ms or self._early is not None:
            extra = "allowed_lateness" if self._lateness_ms else "early"
            raise InvalidJob(f"{where}: {method}() gives each window once: leave {extra}= out, or take aggregate()")
        if late and not window.bounded:
            raise InvalidJob(f"{where}: no row is late for a {type(window).__name__} window: leave late= out")
        self._refuse_late(late)
        schema = self._keyed._keyed_input().schema
        if schema is None:
            raise InvalidJob(
                f"{where}: {method}() has to know the columns of its rows: pass schema= to the step before it"
            )
        return window, schema


def _has_order(kind: pa.DataType) -> bool:
    """Whether Arrow sorts such values. It does not sort half floats, small decimals and views of text."""
    try:
        pc.array_sort_indices(pa.array([], kind))
    except pa.ArrowNotImplementedError:
        return False
    return not pa.types.is_nested(kind)


def _kind_by_wall_clock(window: WindowAssigner | Session, early: Every | None) -> Any:
    if isinstance(window, Session):
        if early is None:
            return ProcessingTimeSessionOperator
        by_rows = early.rows is not None
        return ProcessingTimeCountingSessionOperator if by_rows else ProcessingTimeEarlySessionOperator
    if early is None:
        return ProcessingTimeWindowOperator
    return ProcessingTimeCountingOperator if early.rows is not None else ProcessingTimeEarlyOperator


def without_one_key(stream: Any) -> Any:
    """A stream of windows over all rows, as users see it."""
    return stream.select([name for name in stream.schema.names if name != ONE_KEY])
