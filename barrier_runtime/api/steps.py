"""Base of all streams: a step becomes a node of the plan, and the node's outputs become streams.

Classes of steps are generic in `S`, the stream of the result, so no file needs the class of another.
"""

import difflib
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar, overload

import pyarrow as pa

from barrier_runtime.api.missing_steps import NoSuchStep
from barrier_runtime.data.event_time import Detail
from barrier_runtime.data.row_class import RowClass
from barrier_runtime.graph.job_graph import Combines
from barrier_runtime.graph.logical import Input, Plan, StepNode, Within, users_line
from barrier_runtime.graph.updates import Updates, UpdatesOfStep, updates_of
from barrier_runtime.operators.keyed.progress import keys_said
from barrier_runtime.operators.outputs.side_outputs import MAIN as MAIN
from barrier_runtime.operators.retry import Retry
from barrier_runtime.operators.windows.assigners import WindowAssigner
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.snapshots.snapshot import StateDescription

if TYPE_CHECKING:
    from barrier_runtime.operators.state.handle import KeyedState

S = TypeVar("S")
OneStream: TypeAlias = Literal["fail", "skip"] | Retry  # values of on_error= without a stream of failed rows
WINDOW_END = "window_end"  # the event time of results of windows
WINDOW_START = "window_start"


class Outputs(tuple[S, ...]):
    """Outputs of a step, in order and by name: `main`, then side outputs, `late`, `misses` or `errors`.

    >>> hourly = visits.key_by("page").window("hourly", Tumbling(3600)).aggregate(late=True, n=count())
    >>> hourly.main.sink("counts", ParquetSink("out/counts"))
    >>> hourly.late.sink("late", ParquetSink("out/late"))
    """

    main: S

    def __new__(cls, streams: Sequence[tuple[str, S]]) -> "Outputs[S]":
        made = super().__new__(cls, [stream for _, stream in streams])
        made.__dict__.update({_attribute(name): stream for name, stream in streams})
        made.__dict__["_streams"] = dict(streams)
        return made

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> S: ...
    else:

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(f"'Outputs' object has no attribute {name!r}", name=name, obj=None)
            raise self._unknown(name)

    def _unknown(self, name: str) -> NoSuchStep:
        names = [_attribute(each) for each in streams_by_name(self)]
        close = difflib.get_close_matches(name, names, 1)
        meant = f"did you mean {close[0]!r}?" if close else f"choose an output first, as in .{names[0]}"
        return NoSuchStep(f"the step has the outputs {', '.join(names)}, and none is named {name!r}: {meant}")

    @overload  # type: ignore[override]
    def __getitem__(self, key: int | str) -> S: ...

    @overload
    def __getitem__(self, key: slice) -> tuple[S, ...]: ...

    def __getitem__(self, key: Any) -> Any:
        """Output by position or by name, for names that are no identifiers."""
        if not isinstance(key, str):
            return super().__getitem__(key)
        found = {name: stream for name, stream in streams_by_name(self).items() if key in (name, _attribute(name))}
        if not found:
            raise self._unknown(key)
        return found.get(key) or next(iter(found.values()))

    def __repr__(self) -> str:
        return (
            f"Outputs({', '.join(f'{_attribute(name)}={stream!r}' for name, stream in streams_by_name(self).items())})"
        )


def streams_by_name(outputs: Outputs[S]) -> dict[str, S]:
    streams: dict[str, S] = outputs.__dict__["_streams"]
    return streams


def _attribute(name: str) -> str:
    return name.removesuffix(" rows").replace(" ", "_")


if TYPE_CHECKING:

    class WithErrors(tuple[S, S]):
        """Results, and the rows for which the function raised."""

        main: S
        errors: S

    class WithLate(tuple[S, S]):
        """Results, and late rows."""

        main: S
        late: S

    class WithLateSides(tuple[S, S, S]):
        """Joined rows, and late rows of both sides."""

        main: S
        late_left: S
        late_right: S

    class WithDeadLetters(tuple[S, S]):
        """Rows of a source, and undecodable records."""

        main: S
        dead_letters: S
else:
    WithErrors = WithLate = WithLateSides = WithDeadLetters = Outputs


class Steps(ABC, Generic[S]):
    @abstractmethod
    def _added(self, node: StepNode) -> Outputs[S]:
        """Streams of main output and side outputs, in order."""


class UnkeyedSteps(Steps[S]):
    schema: pa.Schema | None
    _plan: Plan
    _rows: RowClass | None

    @abstractmethod
    def _as_input(self) -> Input:
        """This stream as input of the next step."""

    def _same_rows(self) -> dict[str, RowClass]:
        return {} if self._rows is None else {MAIN: self._rows}

    def _step(
        self,
        kind: str,
        name: str | None,
        make: Callable[..., Any],
        schema: pa.Schema | None,
        describe: str,
        reads: frozenset[str] | None = None,
        renames: Mapping[str, str] | None = None,
        made_of: Mapping[str, frozenset[str] | None] | None = None,
        keeps: Mapping[str, str] | None = None,
        row_classes: Mapping[str, RowClass] | None = None,
    ) -> S:
        node = StepNode(
            name, kind, (self._as_input(),), make, schema,
            describe=describe, reads=reads, renames=renames, made_of=made_of, keeps=keeps,
            row_classes=row_classes or {},
        )  # fmt: skip
        return self._added(node)[0]

    def _step_and_sides(
        self,
        kind: str,
        name: str | None,
        make: Callable[..., Any],
        schema: pa.Schema | None,
        describe: str,
        sides: Mapping[str, pa.Schema | None],
        whole_batches: bool = False,
        rows: Mapping[str, RowClass] | None = None,
    ) -> Outputs[S]:
        inputs = (self._as_input(),)
        return self._added(
            StepNode(
                name,
                kind,
                inputs,
                make,
                schema,
                describe=describe,
                side_outputs=sides,
                whole_batches=whole_batches,
                row_classes=rows or {},
            )
        )


@dataclass(frozen=True)
class KeyedInput:
    plan: Plan
    node: int
    tag: str
    keys: tuple[str, ...]
    schema: pa.Schema | None
    rows: RowClass | None = None

    def need_watermarks(self, where: str, why: str, or_else: str = "") -> None:
        need_watermarks(self.plan, self.node, where, why, or_else)

    def event_time(self, where: str, window: WindowAssigner | None = None) -> str | None:
        """Column of the rows' event time, unless the user names a column; None: unknown.

        `window`: in which the step counts rows. Results of windows that lie in the step's windows count by their start,
        and other results by their end. Raises `InvalidJob` if several columns are possible.
        """
        if start := self._start_within(window):
            return start.column
        known = self._event_times
        if len(known) > 1:
            raise InvalidJob(
                f"{where}: its rows have the event times {' and '.join(map(repr, sorted(known)))}: pass event_time= "
                "with one of these columns"
            )
        column = next(iter(known), None)
        if column is not None and window is not None and not window.merges and not self.tag:
            self._warn_of_ends(column, where, window)
        return column

    def were_by_other(self, window: WindowAssigner) -> bool:
        """True if older builds counted these rows by another column than `event_time` returns: by the end of their
        windows, or by a column that got the name of the event time."""
        start = self._start_within(window)
        if start is None:
            return self._older_event_time != self._only_event_time
        return (
            window.were_by_end
            or len([each for each in self._covered(window) if (each.column, each.of) == (start.column, "start")]) > 1
            or start.windows.were_by_end
            or start.column != WINDOW_START
            or start not in self.plan.within(self.node, computed=False)
        )

    def _warn_of_ends(self, column: str, where: str, window: WindowAssigner) -> None:
        within = self.plan.within(self.node)
        ends = [each for each in within if each.of == "end" and each.column == column]
        starts = sorted(each.column for each in within if each.of == "start of pair")
        outside = sorted(str(each.windows) for each in ends if not window.covers(each.windows))
        function = self.plan.function_before(self.node)
        if outside:
            why = f"the windows ({window}) do not contain the windows of the rows ({outside[0]})"
            remedy = "Choose windows of which the later contain the earlier"
        elif ends and starts:
            why = f"the rows have the time {column!r}, though the windows ({window}) contain the windows of the rows"
            remedy = f"Pass event_time={starts[0]!r} to count by the start"
        elif ends:
            first = min(str(each.windows) for each in ends)
            why = f"the rows are results of windows ({first}) without the column of their start"
            remedy = f"Keep {WINDOW_START!r}"
        elif function and WINDOW_END in self.plan.event_times_above(self.node):
            why = f"the windows of the rows are not known behind {function}"
            remedy = "Place the function behind these windows"
        else:
            return
        warnings.warn(
            f"{where}: {why}, so each result counts wholly in the window of the end. {remedy}, or pass "
            f"event_time={column!r} if this is meant",
            stacklevel=users_line(),
        )

    def event_time_of_function(self, where: str, needed: bool) -> str | None:
        """As `event_time`, for a step that can do without: warns instead of errors if the time is `needed`."""
        column, older, told = self._only_event_time, self._older_event_time, ""
        if len(self._event_times) > 1:
            names = " and ".join(map(repr, sorted(self._event_times)))
            told = f"its rows have the event times {names}, so ctx.timestamp is None: pass event_time= with one of them"
        elif column != older:
            now = "unknown, so ctx.timestamp is None" if column is None else f"column {column!r}"
            told = (
                f"its event time is {now}. Older builds took column {older!r}, which has another meaning since a step "
                f"before: pass event_time= with the column that you mean ({older!r} continues state of older builds)"
            )
        if told and needed:
            warnings.warn(f"{where}: {told}", stacklevel=users_line())
        return column

    @property
    def _only_event_time(self) -> str | None:
        return next(iter(self._event_times)) if len(self._event_times) == 1 else None

    @property
    def _event_times(self) -> frozenset[str]:
        return _or_end(self.plan.event_times_of_rows(self.node, self.tag, self.schema))

    @property
    def _older_event_time(self) -> str | None:
        """Column that older builds took by default; the present one if they took none."""
        older = _or_end(self.plan.event_times_of_older_builds(self.node, self.tag, self.schema))
        return next(iter(older)) if len(older) == 1 else self._only_event_time

    def expect_event_time(self, column: str, where: str, window: WindowAssigner | None = None) -> None:
        """Warns if the watermark is based on another column."""
        if self.tag:
            return
        known = self.plan.event_times(self.node)
        if known and column not in known and not self._is_over_before(window, column):
            other = sorted(known)[0]
            warnings.warn(
                f"{where}: its event time is column {column!r}, but the watermark is of {other!r}: rows whose "
                f"{column!r} is behind the watermark may be late. Pass event_time={other!r}, or call "
                f"with_watermarks({column!r}) before it",
                stacklevel=users_line(),
            )
        elif known is None and self.schema is not None:
            self._expect_event_time_of_function(column, where)

    def _expect_event_time_of_function(self, column: str, where: str) -> None:
        function, above = self.plan.function_before(self.node), self.plan.event_times_above(self.node)
        if function and above and column not in self.plan.inherited_event_times(self.node):
            other, instead = sorted(above)[0], self._only_event_time
            older = "another column" if other == column else repr(other)
            remedy = f", or pass event_time={instead!r}" if instead else ""
            if not remedy and other != column:
                remedy = f". If the function passes on the same time, let it name the column {other!r}"
            warnings.warn(
                f"{where}: its event time is column {column!r} of the rows of {function}, but the watermark is of "
                f"{older} before this function: rows whose {column!r} is behind the watermark may be late and dropped. "
                f"Call with_watermarks({column!r}, max_out_of_orderness) behind the function{remedy}",
                stacklevel=users_line(),
            )

    def detail_of_late(self, column: str | None, window: WindowAssigner | None = None) -> Detail:
        """Detail at which a step follows event time if it looks for late rows by `column`.

        If the watermark may be based on another column, rows of a function may be late although no row of the source
        is."""
        known = column in self.event_times_of_batches or (column is not None and self._is_over_before(window, column))
        return "late" if known else "rows"

    @property
    def event_times_of_batches(self) -> frozenset[str]:
        """The watermark's columns, if earlier functions of batches have kept them."""
        return event_times_of_batches(self.plan, self.node, self.tag)

    def _is_over_before(self, window: WindowAssigner | None, column: str) -> bool:
        return any(each.column == column for each in self._covered(window))

    def _start_within(self, window: WindowAssigner | None) -> Within | None:
        starts = [] if self.tag else [each for each in self._covered(window) if each.of == "start"]
        return min(starts, key=lambda each: (each.column != WINDOW_START, each.column), default=None)

    def _covered(self, window: WindowAssigner | None) -> list[Within]:
        if window is None:
            return []
        within = self.plan.within(self.node)
        outside = {(each.column, each.of) for each in within if not window.covers(each.windows)}
        return [each for each in within if each.of in ("start", "row") and (each.column, each.of) not in outside]


def _or_end(event_times: frozenset[str]) -> frozenset[str]:
    return frozenset([WINDOW_END]) if WINDOW_END in event_times else event_times


class KeyedSteps(Steps[S]):
    @abstractmethod
    def _keyed_input(self) -> KeyedInput:
        """This stream as input of the next step."""

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
        within: frozenset[Within] | None = None,
        side_outputs: Mapping[str, pa.Schema | None] | None = None,
        by_wall_clock: str = "",
        states: "Mapping[str, KeyedState | StateDescription] | None" = None,
        updates: UpdatesOfStep | None = None,
        combiner: Callable[[], Combines] | None = None,
        row_classes: Mapping[str, RowClass] | None = None,
    ) -> Any:
        """Returns the stream, or a tuple of the stream and the side outputs.

        `states`: of the user's function, or descriptions to compare with a checkpoint before a run begins."""

        from barrier_runtime.operators.state.handle import KeyedState

        rows = self._keyed_input()
        told = "" if updates is None else warn_of_updates(rows, f"{kind} {name!r}", updates.counts)
        node = StepNode(
            name,
            kind,
            (Input(rows.node, "hash", rows.keys, rows.tag),),
            make,
            schema,
            stateful=True,
            describe=describe,
            definition=definition,
            detail=detail,
            timeless=timeless,
            event_times=None if within is None else frozenset([WINDOW_END]),
            within=within or frozenset(),
            side_outputs=side_outputs or {},
            by_wall_clock=by_wall_clock,
            updates=frozenset(updates.gives if updates is not None else ()),
            counts_updates=told,
            combiner=combiner,
            row_classes=row_classes or {},
            keys=keys_said(rows.schema, rows.keys),
            states={
                state: its.declared() if isinstance(its, KeyedState) else its for state, its in (states or {}).items()
            },
        )
        return one_or_all(self._added(node))


def warn_of_updates(rows: KeyedInput, where: str, counts: Callable[[Updates], str]) -> str:
    if rows.tag or not (found := counts(updates_of(rows.plan, rows.node))):
        return ""
    warnings.warn(f"{where}: {found}", stacklevel=users_line())
    return found


def one_or_all(streams: Outputs[S]) -> Any:
    return streams if len(streams) > 1 else streams[0]


def need_watermarks(plan: Plan, node: int, where: str, why: str, or_else: str = "") -> None:
    """`or_else`: another remedy."""
    missing = plan.without_watermarks(node)
    if missing:
        sources = "source" if len(missing) == 1 else "sources"
        raise InvalidJob(
            f"{where}: {why}, but {sources} {', '.join(map(repr, missing))} of its rows "
            f"{'has' if len(missing) == 1 else 'have'} none: pass event_time= where the source is read, or call "
            f"with_watermarks(column) on the stream before{or_else}"
        )


def event_times_of_batches(plan: Plan, node: int, tag: str) -> frozenset[str]:
    return frozenset() if tag else plan.event_times_of_batches(node) or frozenset()
