"""Steps with state."""

import datetime
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypedDict, overload

from barrier_runtime.api.arguments import (
    TIMERS,
    aggregates_said,
    check_aggregates,
    refuse_coroutines,
    refuse_misspelt_timers,
    why_by_wall_clock,
    with_errors,
)
from barrier_runtime.api.steps import KeyedSteps, OneStream, Outputs, S, WithErrors
from barrier_runtime.data.event_time import check_event_time_type
from barrier_runtime.data.schemas import Duration, SchemaLike, check_free, milliseconds, require_columns
from barrier_runtime.graph.updates import RUNNING, UpdatesOfStep, counted_updates
from barrier_runtime.launch.outcome import plain_errors
from barrier_runtime.operators.aggregation.own import AnyAggregate
from barrier_runtime.operators.functions.given_rows import given_rows, side_classes
from barrier_runtime.operators.outputs.side_outputs import OnError, side_schemas
from barrier_runtime.operators.retry import Retry
from barrier_runtime.operators.user_code import function_name
from barrier_runtime.operators.windows.assigners import WindowAssigner
from barrier_runtime.operators.windows.triggers import WindowTrigger
from barrier_runtime.state.errors import InvalidJob

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from barrier_runtime.api.windowed import WindowedStream
    from barrier_runtime.operators.state.handle import KeyedState

    class ProcessGroups(TypedDict, total=False):
        schema: SchemaLike | None
        state: Mapping[str, Any] | None

    class KeyedProcess(TypedDict, total=False):
        schema: SchemaLike | None
        state: Mapping[str, KeyedState] | None
        event_time: str | None


_NO_DELAY = datetime.timedelta()


@plain_errors
class StatefulSteps(KeyedSteps[S]):
    def window(
        self,
        name: str,
        window: WindowAssigner,
        *,
        event_time: str | None = None,
        allowed_lateness: Duration = _NO_DELAY,
        early: WindowTrigger | None = None,
        clock: Literal["event", "processing"] = "event",
    ) -> "WindowedStream[S]":
        """Groups the rows of each key by window (docs/windows.md).

        `window`: `Tumbling`, `Sliding`, `Calendar` or `Session` of event time, `Count`, or `Global` (all rows of a
        key). `event_time`: a timestamp, date or int64-milliseconds column, by default that of the source; for results
        of windows their start or end (docs/time.md). `Count` and `Global` have none.

        `allowed_lateness`: time for which a window is kept after its end (event time); each row that comes for the
        window then emits the result again, with a column `update` that counts from 0. `early`: results before the end
        of a window, as in `Every(timedelta(seconds=1))` or `Every(rows=1000)`, or an `OwnTrigger`; columns `update` and
        `early` distinguish the results. Sessions with either option also have a column `retracted`: true in a row that
        withdraws the earlier results with its `window_start`, because no session starts there any more.

        `clock="processing"`: a row belongs to the window of its arrival time, so no row is late; a replay after a
        failure may assign the row to another window.

        >>> keyed.window("hourly", Tumbling(timedelta(hours=1)), event_time="at", early=Every(timedelta(seconds=5)))
        """
        from barrier_runtime.api.windowed import WindowedStream
        from barrier_runtime.operators.windows.clocks import EventTime, WallTime

        where = f"window {name!r}"
        if not isinstance(window, WindowAssigner):
            raise InvalidJob(
                f"{where}: {window!r} is not a window: pass Tumbling(timedelta(…)), Sliding, Calendar, Session, Count "
                "or Global"
            )
        if early is not None and not isinstance(early, WindowTrigger):
            raise InvalidJob(f"{where}: early={early!r}: pass Every(timedelta(…)) or Every(rows=…)")
        lateness_ms = milliseconds(allowed_lateness, f"allowed_lateness of {where}")
        if early is not None and (why := window.refuses(early)):
            raise InvalidJob(f"{where}: {why}")
        if clock not in ("event", "processing"):
            raise InvalidJob(f"{where}: clock={clock!r}: pass 'event' or 'processing'")
        rows = self._keyed_input()
        if clock == "processing":
            _check_by_wall_clock(window, event_time, lateness_ms, early, where)
            return WindowedStream(self, name, window, WallTime(), 0, early)
        if not window.bounded:
            if event_time is not None or lateness_ms:
                extra = "event_time" if event_time is not None else "allowed_lateness"
                kind = type(window).__name__
                raise InvalidJob(f"{where}: a {kind} window is over when {window.is_over_when}: leave {extra} out")
            if early is not None and early.by_event_time:
                rows.need_watermarks(where, f"its early results are due {early}")
            return WindowedStream(self, name, window, EventTime(), 0, early)
        rows.need_watermarks(
            where, "a window is over when the watermark has passed its end", ", or clock='processing' in the window"
        )
        were_by_other = event_time is None and rows.were_by_other(window)
        event_time = event_time or rows.event_time(where, window)
        if event_time is None:
            raise InvalidJob(
                f"{where}: pass event_time=, the column that has the time of a row, because a step before it has "
                "changed the columns; or clock='processing' for windows of the time at which rows come"
            )
        schema = rows.schema
        require_columns(schema, (event_time,), where)
        if schema is not None:
            check_event_time_type(schema.field(event_time).type, event_time, where)
        rows.expect_event_time(event_time, where, window)
        return WindowedStream(self, name, window, EventTime(event_time, were_by_other), lateness_ms, early)

    def aggregate(self, name: str, /, *, emit: Literal["each", "latest"] = "each", **aggregates: AnyAggregate) -> S:
        """Adds running aggregates: every row goes out with the aggregates of its key so far, itself included.

        `emit="latest"`: only the last row of each key goes out, each time `latency_target` has passed, and before a
        checkpoint barrier, a watermark and the end. A replay may emit other rows, but the last row of each key is the
        same.

        >>> keyed.aggregate("totals", orders=count(), revenue=sum_("amount"))
        """

        from barrier_runtime.operators.aggregation.described import described_aggregates
        from barrier_runtime.operators.aggregation.latest import LatestAggregateOperator
        from barrier_runtime.operators.aggregation.partials import Combiner, combined_said, why_not_partial
        from barrier_runtime.operators.aggregation.running import RunningAggregateOperator, running_schema

        where = f"aggregate {name!r}"
        if emit not in ("each", "latest"):
            raise InvalidJob(f"{where}: emit={emit!r}: pass 'each' or 'latest', and name no aggregate emit")
        check_aggregates(aggregates, where)
        rows = self._keyed_input()
        schema = rows.schema
        output = None
        if schema is not None:
            check_free(aggregates, schema.names, where)
            output = running_schema(schema, aggregates, where)
        said, described = aggregates_said(aggregates), described_aggregates(aggregates)
        kind, by_wall_clock, combiner = RunningAggregateOperator, "", None
        if emit == "latest":
            kind, by_wall_clock = LatestAggregateOperator, "emit='latest' chooses rows by the wall clock"
            why_not = "" if schema is None else why_not_partial(aggregates, schema, where)
            if not why_not:
                combiner = partial(Combiner, rows.keys, aggregates, where)
            said += f"; the last row of each key; {combined_said(why_not)}"
        make = partial(kind, keys=rows.keys, aggregates=aggregates, schema=schema)
        stream: S = self._stateful(
            name,
            RUNNING,
            make,
            output,
            said,
            timeless=True,
            by_wall_clock=by_wall_clock,
            states=described,
            updates=UpdatesOfStep(partial(counted_updates, aggregates=aggregates), gives=aggregates),
            combiner=combiner,
        )
        return stream

    @overload
    def process_groups(
        self, name: str, function: Any, *, on_error: OneStream = "fail", **more: "Unpack[ProcessGroups]"
    ) -> S: ...

    @overload
    def process_groups(
        self, name: str, function: Any, *, on_error: Literal["side"], **more: "Unpack[ProcessGroups]"
    ) -> WithErrors[S]: ...

    def process_groups(
        self,
        name: str,
        function: Any,
        *,
        schema: SchemaLike | None = None,
        state: Mapping[str, Any] | None = None,
        on_error: OnError | Retry = "fail",
    ) -> S | WithErrors[S]:
        """Runs a function of whole batches, with state per key as numpy columns: for Arrow, numpy and pandas.

        `function` is a class with `process_groups(self, keys, batch, state)` and an attribute `state`, name → numpy
        dtype of a number or (dtype, initial value), or a plain function of these arguments with its columns in
        `state=`. `batch` is a `pyarrow.RecordBatch` with any number of rows of any keys; `keys` is a `BatchKeys`, whose
        `of_row` has the number of each row's key; `state` has an array per column with an element per key, which the
        function changes in place. The function returns a RecordBatch, a Table, a dict of columns, or None, with the
        columns of `schema`. If a later step follows event time row by row, a batch has rows of one event time only
        (docs/time.md). `on_error` as in `map_batches`; changes of state of a failed call are undone
        (docs/process-groups.md).

        >>> readings.key_by("sensor").process_groups("changes", Changes, schema={"sensor": int, "value": float})
        """

        from barrier_runtime.operators.functions.process_groups import (
            ProcessGroupsOperator,
            declared_columns,
            described_columns,
        )

        where = f"process_groups {name!r}"
        if not callable(getattr(function, "process_groups", None if isinstance(function, type) else function)):
            raise InvalidJob(
                f"{where}: {function!r} is not a function and has no process_groups(self, keys, batch, state): pass one"
            )
        refuse_coroutines(function, where, ("process_groups",))
        described = described_columns(declared_columns(function, state, where))
        rows = self._keyed_input()
        given = given_rows(schema, None, "", where)
        output = given.schema
        sides = side_schemas(None, on_error, where)
        make = partial(
            ProcessGroupsOperator,
            keys=rows.keys,
            function=function,
            state=state,
            output=output,
            schema=rows.schema,
            on_error=on_error,
            event_times=rows.event_times_of_batches,
        )
        streams: S | WithErrors[S] = self._stateful(
            name,
            "process_groups",
            make,
            output,
            with_errors(function_name(function), on_error),
            timeless=True,
            states=described,
            side_outputs=sides,
            row_classes=given.main,
        )
        return streams

    @overload
    def process(
        self,
        name: str,
        function: Any,
        *,
        side: None = None,
        on_error: OneStream = "fail",
        **more: "Unpack[KeyedProcess]",
    ) -> S: ...

    @overload
    def process(
        self, name: str, function: Any, *, side: None = None, on_error: Literal["side"], **more: "Unpack[KeyedProcess]"
    ) -> WithErrors[S]: ...

    @overload
    def process(
        self,
        name: str,
        function: Any,
        *,
        side: Mapping[str, SchemaLike],
        on_error: OnError | Retry = "fail",
        **more: "Unpack[KeyedProcess]",
    ) -> Outputs[S]: ...

    def process(
        self,
        name: str,
        function: Any,
        *,
        schema: SchemaLike | None = None,
        state: Mapping[str, "KeyedState"] | None = None,
        event_time: str | None = None,
        side: Mapping[str, SchemaLike] | None = None,
        on_error: OnError | Retry = "fail",
    ) -> S | WithErrors[S] | Outputs[S]:
        """Runs a row-wise function with state and timers per key.

        `function` is a class with `process(self, key, row, ctx)` and, for timers, `on_timer(self, key, timestamp_ms,
        ctx)` or `on_wall_timer(self, key, due_ms, ctx)`. The methods yield rows (dicts), or return a row, a list or
        None; states are attributes of the class (see `ValueState`, `ListState`, `MapState`, `ReducingState`,
        `AggregatingState`). Or `function` is a plain function of (key, row, ctx), with its states in `state=`,
        available as `ctx.state.<name>`. `key` is the column's value, or a tuple of several. See `ProcessContext` for
        `ctx`. `schema`: columns of the returned rows. `event_time`: the column of event times, by default that of the
        source; required by states with a TTL in event time.

        A timer fires when the watermark reaches its time. Rows of a later time may come before, because the watermark
        is the minimum over all splits: a function must look at the rows' own times, too. A wall-clock timer fires at
        its time, even without rows (docs/time.md).

        `side`: schemas of side outputs by name; `ctx.emit(name, row)` emits a row there. The result is then `Outputs`:
        `main`, and a stream per side output in that order. `on_error` as in `map`, with the errors as the last stream,
        `errors`: if the function raises for a row (or timer), rows that the function yielded or emitted for this row
        are discarded; changes of state and timers remain (docs/side-outputs.md). With `Retry` everything is undone and
        the call repeated.

        >>> out, hot = readings.key_by("sensor").process("alarm", Alarm, schema=OUT, side={"hot": HOT})
        """

        from barrier_runtime.operators.functions.declared import (
            check_event_time_of_states,
            check_keyed_function,
            declared_states,
            needs_time_of_rows,
        )
        from barrier_runtime.operators.functions.process import ProcessOperator
        from barrier_runtime.operators.state.broadcast import refuse_broadcast_state

        where = f"process {name!r}"
        check_keyed_function(function, where)
        refuse_coroutines(function, where, ("process", *TIMERS, "open", "close"))
        refuse_misspelt_timers(function, where)
        states = declared_states(function, state)
        refuse_broadcast_state(states, where)
        rows = self._keyed_input()
        known = rows.schema
        named = event_time
        if event_time is None:
            event_time = rows.event_time_of_function(where, needs_time_of_rows(function, states, ("process",)))
        if event_time is not None:
            require_columns(known, (event_time,), where)
            if known is not None:
                check_event_time_type(known.field(event_time).type, event_time, where)
        if callable(getattr(function, "on_timer", None)):
            rows.need_watermarks(where, f"{function_name(function)[:-2]} has timers, which the watermark makes fire")
        expiring = check_event_time_of_states(states, event_time, where)
        if expiring:
            rows.need_watermarks(where, f"state {expiring[0]!r} has a TTL in event time")
        given, side_rows = given_rows(schema, function, "process", where), side_classes(side, where)
        sides = side_schemas(side, on_error, where)
        make = partial(
            ProcessOperator,
            keys=rows.keys,
            function=function,
            states=dict(state or {}),
            event_time=event_time,
            output=given.writes,
            schema=known,
            side={tag: side_rows.get(tag, sides[tag]) for tag in side or {}},
            on_error=on_error,
            rows=rows.rows,
        )
        in_time = callable(getattr(function, "on_timer", None)) or bool(expiring)
        by_wall_clock = why_by_wall_clock(function, states)
        streams: S | Outputs[S] = self._stateful(
            name,
            "process",
            make,
            given.schema,
            with_errors(function_name(function), on_error),
            detail="every" if in_time else "none",
            timeless=not (in_time or by_wall_clock or named),
            side_outputs=sides,
            by_wall_clock=by_wall_clock,
            states=states,
            row_classes={**given.main, **side_rows},
        )
        return streams


def _check_by_wall_clock(
    window: WindowAssigner, event_time: str | None, lateness_ms: int, early: WindowTrigger | None, where: str
) -> None:
    if not window.bounded:
        raise InvalidJob(f"{where}: a {type(window).__name__} window needs no clock: leave clock= out")
    if event_time is not None:
        raise InvalidJob(f"{where}: by the wall clock a row has the time at which it comes: leave event_time= out")
    if lateness_ms:
        raise InvalidJob(f"{where}: no row is late by the wall clock: leave allowed_lateness= out")
    if early is not None and early.by_event_time:
        raise InvalidJob(
            f"{where}: its early results are due {early}, but windows by the wall clock know no event time: pass "
            "Every(timedelta(…), clock='processing')"
        )
