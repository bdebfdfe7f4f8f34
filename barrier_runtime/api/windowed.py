"""`WindowedStream`: what users write after `.window(…)`."""

from collections.abc import Callable
from functools import partial
from typing import Any, Generic, Literal, overload

from barrier_runtime.api.arguments import aggregates_said, check_aggregates, check_free
from barrier_runtime.api.steps import KeyedSteps, S
from barrier_runtime.launch.plain_errors import plain_errors
from barrier_runtime.operators.aggregation.own import AnyAggregate, require_merge
from barrier_runtime.operators.windows.aggregate import WindowAggregateOperator
from barrier_runtime.operators.windows.assigners import Global, Session, WindowAssigner, lateness_definition
from barrier_runtime.operators.windows.base import LATE, told_of_windows, window_schema
from barrier_runtime.operators.windows.early import EarlyWindowOperator, WallClockWindowOperator
from barrier_runtime.operators.windows.sessions import SessionAggregateOperator
from barrier_runtime.operators.windows.triggers import Every
from barrier_runtime.state.errors import InvalidJob


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

    @overload
    def aggregate(self, **aggregates: AnyAggregate) -> S: ...

    @overload
    def aggregate(self, *, late: Literal[True], **aggregates: AnyAggregate) -> tuple[S, S]: ...

    def aggregate(self, *, late: Any = False, **aggregates: AnyAggregate) -> S | tuple[S, S]:
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
        check_aggregates(aggregates, where)
        rows = self._keyed._keyed_input()
        keys = rows.keys
        window, lateness_ms = self._window, self._lateness_ms
        early, bounded = self._early, not isinstance(window, Global)
        if late and not bounded:
            raise InvalidJob(f"{where}: no row is late for a Global window: leave late= out")
        beside = told_of_windows(bounded, lateness_ms > 0, early is not None)
        check_free(aggregates, [*keys, *(field.name for field in beside)], where)
        schema = rows.schema
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
        streams: S | tuple[S, S] = self._keyed._stateful(
            self._name,
            "window",
            make,
            output,
            definition + (f" {early}" if early is not None else "") + f": {aggregates_said(aggregates)}",
            detail="every" if early is not None and early.rows is None and not by_wall_clock else "late",
            definition=definition,
            side_outputs={LATE: schema} if late else {},
            by_wall_clock="early results are due by the wall clock" if by_wall_clock else "",
        )
        return streams
