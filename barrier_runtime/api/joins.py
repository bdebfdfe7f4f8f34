"""Joins of two keyed streams; `join_steps` has the bodies."""

from typing import TYPE_CHECKING, Any, Literal, TypedDict, cast, overload

from barrier_runtime.api.join_steps import (
    JoinOptions,
    as_of_join,
    event_times,
    interval_join,
    table_join,
    window_join,
)
from barrier_runtime.api.steps import KeyedInput, KeyedSteps, Outputs, S, WithLateSides
from barrier_runtime.data.schemas import Duration
from barrier_runtime.launch.outcome import plain_errors
from barrier_runtime.operators.windows.assigners import WindowAssigner
from barrier_runtime.state.errors import InvalidJob

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from barrier_runtime.operators.joins.as_of import AsOfKind
    from barrier_runtime.operators.joins.interval import JoinKind

    class _Join(TypedDict, total=False):
        suffix: tuple[str, str]

    class WindowJoin(_Join, total=False):
        event_time: str | tuple[str, str] | None
        how: JoinKind

    class IntervalJoin(WindowJoin):
        between: tuple[Duration, Duration]

    class AsOfJoin(_Join, total=False):
        event_time: str | tuple[str, str] | None
        tolerance: Duration | None
        exact: bool
        how: AsOfKind

    class TableJoin(_Join, total=False):
        event_time: str | tuple[str, str] | None
        deleted: str | None
        how: AsOfKind


@plain_errors
class JoiningStream(KeyedSteps[S]):
    """A keyed stream; `S` is the type of a join's result."""

    @overload
    def join(
        self, name: str, right: "JoiningStream[S]", *, late: Literal[False] = False, **more: "Unpack[IntervalJoin]"
    ) -> S: ...

    @overload
    def join(
        self, name: str, right: "JoiningStream[S]", *, late: Literal[True], **more: "Unpack[IntervalJoin]"
    ) -> WithLateSides[S]: ...

    def join(
        self,
        name: str,
        right: "JoiningStream[S]",
        *,
        between: tuple[Duration, Duration],
        event_time: str | tuple[str, str] | None = None,
        how: "JoinKind" = "inner",
        suffix: tuple[str, str] = ("", "_right"),
        late: bool = False,
    ) -> S | WithLateSides[S]:
        """Joins rows of both streams with equal keys and event times within bounds (see docs/joins.md).

        `between`: least and greatest event time of the right row minus that of the left row, of either sign, both
        included. `event_time`: the column of event times, or a pair of columns; by default those of the sources. `how`:
        inner, left, right, full, semi or anti; rows without a partner go out when the watermark excludes a partner.
        Columns: the keys, named as on the left, then the other columns of left and right; names that both have get
        `suffix`. Rows behind the watermark are dropped and counted per side; `late=True` returns them in two more
        streams: (joined, late left rows, late right rows).

        >>> orders.key_by("id").join("paid", payments.key_by("order_id"), between=(timedelta(0), timedelta(hours=1)),
        ...                          event_time=("ordered_at", "paid_at"), how="left")
        """
        sides = self._keyed_input(), _keyed_input(right, "join", name)
        options = JoinOptions(event_time or event_times(*sides, f"join {name!r}"), suffix, late)
        step = interval_join(name, *sides, between, how, options)
        return _one_or_three(self._added(step.node), late)

    @overload
    def window_join(
        self,
        name: str,
        right: "JoiningStream[S]",
        window: WindowAssigner,
        *,
        late: Literal[False] = False,
        **more: "Unpack[WindowJoin]",
    ) -> S: ...

    @overload
    def window_join(
        self,
        name: str,
        right: "JoiningStream[S]",
        window: WindowAssigner,
        *,
        late: Literal[True],
        **more: "Unpack[WindowJoin]",
    ) -> WithLateSides[S]: ...

    def window_join(
        self,
        name: str,
        right: "JoiningStream[S]",
        window: WindowAssigner,
        *,
        event_time: str | tuple[str, str] | None = None,
        how: "JoinKind" = "inner",
        suffix: tuple[str, str] = ("", "_right"),
        late: bool = False,
    ) -> S | WithLateSides[S]:
        """Joins rows of both streams with equal keys in the same window (`Tumbling` or `Sliding`).

        Arguments as in `join`. After the keys come the columns `window_start` and `window_end` (exclusive). A pair goes
        out at once, a row without a partner after the end of its window; a row is late after the end of all its
        windows.

        >>> a.key_by("k").window_join("both", b.key_by("k"), Tumbling(timedelta(hours=1)), event_time="at", how="full")
        """
        sides = self._keyed_input(), _keyed_input(right, "window_join", name)
        options = JoinOptions(event_time or event_times(*sides, f"window_join {name!r}", window), suffix, late)
        step = window_join(name, *sides, window, how, options)
        return _one_or_three(self._added(step.node), late)

    @overload
    def asof_join(
        self, name: str, right: "JoiningStream[S]", *, late: Literal[False] = False, **more: "Unpack[AsOfJoin]"
    ) -> S: ...

    @overload
    def asof_join(
        self, name: str, right: "JoiningStream[S]", *, late: Literal[True], **more: "Unpack[AsOfJoin]"
    ) -> WithLateSides[S]: ...

    def asof_join(
        self,
        name: str,
        right: "JoiningStream[S]",
        *,
        event_time: str | tuple[str, str] | None = None,
        tolerance: Duration | None = None,
        exact: bool = True,
        how: "AsOfKind" = "left",
        suffix: tuple[str, str] = ("", "_right"),
        late: bool = False,
    ) -> S | WithLateSides[S]:
        """Joins each left row with the newest right row of its key that is not newer than the left row.

        This is the backward direction of `pandas.merge_asof`: the right row is at most `tolerance` older, and with
        `exact=False` strictly older. `how`: "left" keeps rows without a match (nulls), "inner" drops them. A left row
        goes out when the watermark has passed its time, so rows of both streams may come in any order. Columns and late
        rows as in `join`.

        >>> trades.key_by("cur").asof_join("fx", rates.key_by("cur"), event_time="at", tolerance=timedelta(minutes=5))
        """
        sides = self._keyed_input(), _keyed_input(right, "asof_join", name)
        options = JoinOptions(event_time or event_times(*sides, f"asof_join {name!r}"), suffix, late)
        step = as_of_join(name, *sides, tolerance, exact, how, options)
        return _one_or_three(self._added(step.node), late)

    @overload
    def table_join(
        self, name: str, table: "JoiningStream[S]", *, late: Literal[False] = False, **more: "Unpack[TableJoin]"
    ) -> S: ...

    @overload
    def table_join(
        self, name: str, table: "JoiningStream[S]", *, late: Literal[True], **more: "Unpack[TableJoin]"
    ) -> WithLateSides[S]: ...

    def table_join(
        self,
        name: str,
        table: "JoiningStream[S]",
        *,
        event_time: str | tuple[str, str] | None = None,
        deleted: str | None = None,
        how: "AsOfKind" = "left",
        suffix: tuple[str, str] = ("", "_right"),
        late: bool = False,
    ) -> S | WithLateSides[S]:
        """Joins each row with the row of a table for its key.

        `table` is the stream of the table's changes, keyed by primary key: a row replaces the row of its key, or
        removes it if the boolean column `deleted` is true. With `event_time` (a column of both, or a pair) a row is
        joined with the table at its event time, and goes out when the watermark has passed that time; without
        `event_time`, with the changes that have arrived so far, at once. `how`: "left" keeps rows whose key is not in
        the table (nulls), "inner" drops them. Columns and late rows as in `join`; `deleted` is left out.

        >>> orders.key_by("customer").table_join("names", customers.key_by("id"), event_time="at", deleted="gone")
        """
        options = JoinOptions(event_time, suffix, late)
        its = _keyed_input(table, "table_join", name)
        step = table_join(name, self._keyed_input(), its, deleted, how, options)
        return _one_or_three(self._added(step.node), late)


def _keyed_input(right: Any, kind: str, name: str) -> KeyedInput:
    if not isinstance(right, JoiningStream):
        raise InvalidJob(
            f"{kind} {name!r}: {right!r} is not a keyed stream: pass the other stream with its keys, .key_by(…)"
        )
    return right._keyed_input()


def _one_or_three(streams: Outputs[S], late: bool) -> "S | WithLateSides[S]":
    return cast("WithLateSides[S]", streams) if late else streams.main
