"""`WindowedStream`: the result of `.window(…)`."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, TypeVar, cast, overload

import pyarrow as pa
import pyarrow.compute as pc

from barrier_runtime.api.arguments import (
    aggregates_said,
    check_aggregates,
    refuse_coroutines,
    require_arguments,
    with_errors,
)
from barrier_runtime.api.missing_steps import AFTER_WINDOW, no_step
from barrier_runtime.api.steps import (
    MAIN,
    WINDOW_END,
    WINDOW_START,
    KeyedSteps,
    OneStream,
    Outputs,
    S,
    WithErrors,
    WithLate,
    one_or_all,
    streams_by_name,
)
from barrier_runtime.data.event_time import Detail
from barrier_runtime.data.schemas import SchemaLike, as_schema, check_free, require_columns
from barrier_runtime.graph.logical import Within
from barrier_runtime.graph.updates import UpdatesOfStep, counted_updates, ranked_updates
from barrier_runtime.launch.outcome import plain_errors
from barrier_runtime.operators.aggregation.described import described_aggregates
from barrier_runtime.operators.aggregation.own import AnyAggregate, require_merge
from barrier_runtime.operators.aggregation.partials import Combiner, combined_said, why_not_partial
from barrier_runtime.operators.functions.given_rows import given_rows
from barrier_runtime.operators.outputs.side_outputs import ERRORS, OnError, side_schemas
from barrier_runtime.operators.retry import Retry
from barrier_runtime.operators.user_code import function_name
from barrier_runtime.operators.windows.assigners import Session, WindowAssigner
from barrier_runtime.operators.windows.clocks import EventTime, WallTime
from barrier_runtime.operators.windows.contents import Aggregates, Repeats, WindowParts
from barrier_runtime.operators.windows.firing import SPAN, told_of_windows, window_schema
from barrier_runtime.operators.windows.operator import LATE, Content, WindowOperator
from barrier_runtime.operators.windows.triggers import WindowTrigger
from barrier_runtime.operators.windows.whole.apply import ONE_KEY, Applied, OfAggregates, OfAllRows, TimeWindow
from barrier_runtime.operators.windows.whole.top import Top, top_schema
from barrier_runtime.state.errors import InvalidJob

T = TypeVar("T")


@plain_errors
class WindowedStream(Generic[S]):
    def __init__(
        self,
        keyed: KeyedSteps[S],
        name: str,
        window: WindowAssigner,
        clock: EventTime | WallTime,
        lateness_ms: int,
        trigger: WindowTrigger | None,
    ) -> None:
        self._keyed = keyed
        self._name = name
        self._window = window
        self._clock = clock
        self._lateness_ms = lateness_ms
        self._trigger = trigger
        self._all_rows = False  # True for windows over all rows: their internal key is hidden from users

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            raise no_step(self, name, AFTER_WINDOW)

    def __repr__(self) -> str:
        return f"<WindowedStream {self._name}: {self._window}>"

    @overload
    def aggregate(self, **aggregates: AnyAggregate) -> S: ...

    @overload
    def aggregate(self, *, late: Literal[True], **aggregates: AnyAggregate) -> WithLate[S]: ...

    def aggregate(self, *, late: Any = False, **aggregates: AnyAggregate) -> S | WithLate[S]:
        """Emits one row per key and window when the watermark has passed the end of the window.

        Columns: the key columns, `window_start` and `window_end` (timestamps in ms, UTC; the end is exclusive; `Global`
        has neither), `update` with an allowed lateness or early results, `early` with early results, `retracted` for
        sessions with either, then the aggregates. Rows after the end of all their windows are dropped and counted
        (`late_rows`). `late=True` returns two streams instead, `main` and `late`: results and unchanged late rows.

        >>> counts, late = visits.aggregate(late=True, n=count())
        """
        where = f"window {self._name!r}"
        if not isinstance(late, bool):
            raise InvalidJob(
                f"{where}: late={late!r}: use True for a stream of the late rows as well; a result cannot have the "
                "name 'late'"
            )
        check_aggregates(aggregates, where)
        self._refuse_late(late)
        rows, trigger = self._keyed._keyed_input(), self._trigger
        early = trigger is not None
        updates = self._lateness_ms > 0 or early
        beside = told_of_windows(self._window.bounded, updates, early, updates and self._window.merges)
        told = [field.name for field in beside]
        for key in rows.keys:
            if key in told:
                raise InvalidJob(
                    f"{where}: the key column {key!r} has the name of a column that results of windows have: rename it "
                    "in a select() before key_by"
                )
        check_free(aggregates, [*rows.keys, *told], where)
        if self._window.merges:
            require_merge(aggregates, where)
        schema = rows.schema
        why_not = self._why_not_combined(aggregates, late)
        streams: S | WithLate[S] = self._step(
            Aggregates(aggregates),
            window_schema(schema, rows.keys, aggregates, where, beside) if schema is not None else None,
            f"{'' if trigger is None else f' {trigger}'}: {aggregates_said(aggregates)}"
            f"{f'; {combined_said(why_not)}' if why_not else ''}",
            late,
            combiner=None if why_not else self._combiner(aggregates),
            within=self._results_within(),
            states=described_aggregates(aggregates),
            updates=UpdatesOfStep(partial(counted_updates, aggregates=aggregates), gives=aggregates if updates else ()),
        )
        return self._shown(streams)

    def _step(
        self,
        content: Content,
        output: pa.Schema | None,
        describe: str,
        late: bool,
        side_outputs: Mapping[str, pa.Schema | None] | None = None,
        **more: Any,
    ) -> Any:
        rows, window, clock = self._keyed._keyed_input(), self._window, self._clock
        lateness_ms, trigger = self._lateness_ms, self._trigger
        make = partial(
            WindowOperator,
            keys=rows.keys,
            window=window,
            clock=clock,
            content=content,
            schema=rows.schema,
            late=late,
            lateness_ms=lateness_ms,
            trigger=trigger,
        )
        definition = clock.definition(content.definition(window, lateness_ms, trigger))
        why = "early results are due by the wall clock" if trigger is not None and trigger.by_wall_clock else ""
        return self._keyed._stateful(
            self._name,
            "window",
            make,
            output,
            definition + describe,
            detail=self._detail(),
            definition=definition,
            timeless=clock.is_wall_clock,
            by_wall_clock="windows are of the wall clock's times" if clock.is_wall_clock else why,
            side_outputs={**({LATE: rows.schema} if late else {}), **(side_outputs or {})},
            **more,
        )

    def _why_not_combined(self, aggregates: Mapping[str, AnyAggregate], late: bool) -> str:
        if self._trigger is not None:
            return "early results depend on the order of rows"
        if self._lateness_ms:
            return "each late row emits its window again"
        if late:
            return "late rows go out one by one"
        if self._clock.column is None:
            return "the wall clock decides on the window of each row"
        if not (self._window.has_parts or self._window.merges):
            return f"{type(self._window).__name__} windows depend on each row"
        schema, where = self._keyed._keyed_input().schema, f"window {self._name!r}"
        return "" if schema is None else why_not_partial(aggregates, schema, where)

    def _combiner(self, aggregates: Mapping[str, AnyAggregate]) -> Callable[[], Combiner]:
        keys, column = self._keyed._keyed_input().keys, self._clock.column
        assert column is not None, "windows by the wall clock are not combined"
        window = self._window
        by = Repeats(window, column) if isinstance(window, Session) else WindowParts(window, column)
        return partial(Combiner, keys, aggregates, f"window {self._name!r}", by)

    def _refuse_late(self, late: bool) -> None:
        where = f"window {self._name!r}"
        if late and not self._window.bounded:
            raise InvalidJob(f"{where}: no row is late for a {type(self._window).__name__} window: leave late= out")
        if late and self._clock.is_wall_clock:
            raise InvalidJob(f"{where}: no row is late by the wall clock: leave late= out")

    def _results_within(self, by_row: bool = False) -> frozenset[Within] | None:
        """Window columns of the results; None: no event time. `by_row`: results are rows."""
        time, window = self._clock.column, self._window
        if time is None:
            return None
        found = {Within(WINDOW_START, window, "start"), Within(WINDOW_END, window, "end")}
        return frozenset(
            found | {Within(time, window, "row")} if by_row and time not in (WINDOW_START, WINDOW_END) else found
        )

    def _detail(self) -> Detail:
        time, trigger = self._clock.column, self._trigger
        if self._clock.is_wall_clock or (time is None and trigger is None):
            return "none"
        if trigger is not None and not trigger.by_wall_clock and (time is not None or trigger.by_event_time):
            return "every"
        return "late" if time is None else self._keyed._keyed_input().detail_of_late(time, self._window)

    @overload
    def apply(
        self,
        function: Callable[[Any, TimeWindow, Any], Any],
        *,
        schema: SchemaLike,
        batches: bool = False,
        late: Literal[False] = False,
        on_error: OneStream = "fail",
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
    ) -> Outputs[S]: ...

    @overload
    def apply(
        self,
        function: Callable[[Any, TimeWindow, Any], Any],
        *,
        schema: SchemaLike,
        batches: bool = False,
        late: Literal[False] = False,
        on_error: Literal["side"],
        **aggregates: AnyAggregate,
    ) -> WithErrors[S]: ...

    def apply(
        self,
        function: Callable[[Any, TimeWindow, Any], Any],
        *,
        schema: SchemaLike,
        batches: bool = False,
        late: bool = False,
        on_error: OnError | Retry = "fail",
        **aggregates: AnyAggregate,
    ) -> S | WithErrors[S] | Outputs[S]:
        """Calls `function(key, window, table)` for each whole window after its end.

        `key` is a tuple if there are several columns, `window` has `start` and `end`, and `table` is a `pyarrow.Table`
        with all columns of the window's rows, ordered by event time. The function returns a table, a record batch, a
        row (a dict, or an instance of the class `schema`), any number of these, or None; `schema` has their columns.
        With `batches` the function gets an iterator of record batches instead: a window may exceed the memory.

        Rows wait in the job's state, not in memory. `late`: as in `aggregate`. For `Tumbling`, `Sliding` and `Global`,
        without early results and allowed lateness.

        With aggregates, as in `apply(function, schema=…, n=count())`, no rows are held: for each result that
        `aggregate` would emit, for every kind of window, the function gets a dict of aggregates instead of the table.

        `on_error` as in `map`, with the errors as the last stream: if the function raises for a window, nothing goes
        out, and the window's rows are gone; the error names the window and the number of rows.

        >>> hours.apply(lambda key, window, table: {"key": key, "rows": len(table)}, schema={"key": str, "rows": int})
        """
        where = f"window {self._name!r}"
        if not callable(function):
            raise InvalidJob(f"{where}: {function!r} cannot be called: pass a function of (key, window, table)")
        refuse_coroutines(function, where)
        given = "values" if aggregates else "batches" if batches else "table"
        require_arguments(function, ("key", "window", given), where)
        as_schema(schema, where)
        if aggregates:
            return self._apply_to_aggregates(function, schema, batches, late, on_error, aggregates)
        self._whole_windows("apply", late)
        if self._all_rows:
            function = OfAllRows(function, batches)
        given_back, errors = given_rows(schema, None, "", where), side_schemas(None, on_error, where)
        assert given_back.writes is not None
        content = Applied(function, given_back.writes, batches, on_error)
        said = f": {with_errors(function_name(function), on_error, 'windows')}"
        streams: S | Outputs[S] = self._step(
            content, given_back.schema, said, late, errors, row_classes=given_back.main
        )
        return self._shown(streams, results=False)

    @overload
    def top(self, n: int, *, by: str, largest: bool = True, late: Literal[False] = False) -> S: ...

    @overload
    def top(self, n: int, *, by: str, largest: bool = True, late: Literal[True]) -> WithLate[S]: ...

    def top(self, n: int, *, by: str | Sequence[str], largest: bool = True, late: bool = False) -> S | WithLate[S]:
        """Emits, after its end, each window's `n` rows with the largest (or smallest) values in `by`.

        Columns: all columns, then `window_start` and `window_end`, then `rank` from 1. If the rows are results of the
        same `Tumbling` or `Calendar` windows, by event time `window_start`, they keep both columns. Of equal rows the
        earlier arrival is first; NaN is the greatest number, as in Spark, and nulls are last. State holds only these
        rows. `late`: as in `aggregate`. For the windows that `apply` takes.

        >>> minutes.top(3, by="price")
        """
        where = f"window {self._name!r}"
        rows = self._whole_windows("top", late)
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise InvalidJob(f"{where}: top({n!r}): pass a whole number of rows, at least 1")
        if not isinstance(by, str):
            raise InvalidJob(
                f"{where}: top(by={by!r}): pass the name of one column, as in by={next(iter(by), 'n')!r}; to rank "
                "by several columns, compute one of them before the windows, by .with_columns(…)"
            )
        require_columns(rows, (by,), where)
        kind = rows.field(by).type
        if not _has_order(kind):
            raise InvalidJob(f"{where}: column {by!r} is {kind}, which has no order: pass another one as by=")
        spans_known = self._spans_known(rows)
        output = top_schema(rows, self._window.bounded and not spans_known)
        if taken := [name for name in output.names[len(rows) :] if name in rows.names]:
            raise InvalidJob(
                f"{where}: the output column {taken[0]!r} exists already: rename it before, as in "
                f".rename({taken[0]}='first_{taken[0]}'). Results of .aggregate(…) keep their window_start and "
                "window_end if these are the same Tumbling or Calendar windows, by event_time='window_start'"
            )
        streams: S | WithLate[S] = self._step(
            Top(n, by, largest, spans_known),
            output,
            "",
            late,
            within=self._results_within(by_row=True),
            updates=UpdatesOfStep(partial(ranked_updates, columns=(by,))),
        )
        return self._shown(streams)

    def _spans_known(self, rows: pa.Schema) -> bool:
        window, keyed = self._window, self._keyed._keyed_input()
        if self._clock.column != WINDOW_START or keyed.tag or SPAN[1] not in rows or not window.covers(window):
            return False
        starts = [each for each in keyed.plan.within(keyed.node) if (each.column, each.of) == (WINDOW_START, "start")]
        return starts == [Within(WINDOW_START, window, "start")]

    def _apply_to_aggregates(
        self,
        function: Any,
        schema: SchemaLike,
        batches: bool,
        late: bool,
        on_error: OnError | Retry,
        aggregates: dict[str, AnyAggregate],
    ) -> S | Outputs[S]:
        if batches:
            raise InvalidJob(f"window {self._name!r}: the function gets aggregates and no rows: leave batches= out")
        give: Any = self.aggregate
        streams = give(late=late, **aggregates)
        results = streams.main if late else streams
        keys = () if self._all_rows else self._keyed._keyed_input().keys
        applied = results.flat_map(OfAggregates(function, keys), schema=schema, on_error=on_error)
        main, *errors = applied if isinstance(applied, tuple) else (applied,)
        given = [(MAIN, main), *([(LATE, streams.late)] if late else []), *[(ERRORS, stream) for stream in errors]]
        every: S | Outputs[S] = one_or_all(Outputs(given))
        return every

    def _shown(self, streams: T, results: bool = True) -> T:
        """Removes the internal key. `results`: the main output has key columns."""
        if not self._all_rows:
            return streams
        given = streams_by_name(streams) if isinstance(streams, Outputs) else {MAIN: streams}
        with_key = {LATE, *([MAIN] if results else [])}
        shown = [(name, without_one_key(stream) if name in with_key else stream) for name, stream in given.items()]
        return cast(T, one_or_all(Outputs(shown)))

    def _whole_windows(self, method: str, late: bool) -> pa.Schema:
        where, window = f"window {self._name!r}", self._window
        if window.not_whole:
            raise InvalidJob(f"{where}: {method}() is not for {window.not_whole}")
        if self._lateness_ms or self._trigger is not None:
            extra = "allowed_lateness" if self._lateness_ms else "early"
            raise InvalidJob(f"{where}: {method}() gives each window once: leave {extra}= out, or take aggregate()")
        self._refuse_late(late)
        schema = self._keyed._keyed_input().schema
        if schema is None:
            raise InvalidJob(
                f"{where}: {method}() has to know the columns of its rows: pass schema= to the step before it"
            )
        return schema


def _has_order(kind: pa.DataType) -> bool:
    """Arrow does not sort half floats, small decimals and views of text."""
    try:
        pc.array_sort_indices(pa.array([], kind))
    except pa.ArrowNotImplementedError:
        return False
    return not pa.types.is_nested(kind)


def without_one_key(stream: Any) -> Any:
    return stream.select([name for name in stream.schema.names if name != ONE_KEY])
