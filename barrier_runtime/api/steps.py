"""Base of all streams: a step becomes a node of the plan, and the node's outputs become streams.

The methods that users call are in classes by subject (`row_steps`, `lookup_steps`, `keyed_steps`, `joins`,
`windowed`), each generic in `S`, the stream of the result. `Stream` and `KeyedStream` (`stream`) inherit from these
classes, so no file needs the class of another.

A step with several outputs returns a tuple whose elements have names. Type checkers see a class for each fixed set of
names; at run time all sets are `Outputs`.
"""

import difflib
import inspect
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar, overload

import pyarrow as pa

from barrier_runtime.api.missing_steps import NoSuchStep
from barrier_runtime.data.event_time import Detail
from barrier_runtime.graph.job_graph import Combines
from barrier_runtime.graph.logical import Input, Plan, StepNode, Within
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
    """Name of an output as attribute: `late` of "late rows", `dead_letters` of "dead letters"."""
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
    """Base of all streams: a step can be added after the stream."""

    @abstractmethod
    def _added(self, node: StepNode) -> Outputs[S]:
        """Adds `node` to the flow; returns the streams of main output and side outputs, in order."""


class UnkeyedSteps(Steps[S]):
    """A stream without a key: rows stay on their subtask for the next step, or are spread evenly."""

    schema: pa.Schema | None
    _plan: Plan

    @abstractmethod
    def _as_input(self) -> Input:
        """This stream as input of the next step."""

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
    ) -> S:
        """Adds a step with one output and without state; returns the output.

        `reads` to `keeps`: see `StepNode`."""
        node = StepNode(
            name, kind, (self._as_input(),), make, schema,
            describe=describe, reads=reads, renames=renames, made_of=made_of, keeps=keeps,
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
    ) -> Outputs[S]:
        inputs = (self._as_input(),)
        return self._added(
            StepNode(
                name, kind, inputs, make, schema, describe=describe, side_outputs=sides, whole_batches=whole_batches
            )
        )


@dataclass(frozen=True)
class KeyedInput:
    """A keyed stream as input of the next step."""

    plan: Plan
    node: int
    tag: str
    keys: tuple[str, ...]
    schema: pa.Schema | None

    def need_watermarks(self, where: str, why: str, or_else: str = "") -> None:
        need_watermarks(self.plan, self.node, where, why, or_else)

    def event_time(self, where: str, window: WindowAssigner | None = None) -> str | None:
        """Column of the rows' event time, for a step whose user names none; None: unknown.

        `window`: in which the step counts rows. Results of windows that lie in the step's windows count by their
        start, and other results by their end. Raises `InvalidJob` if several columns are possible."""
        if not self.tag and self._is_over_before(window, WINDOW_START):
            return WINDOW_START
        known = self._event_times
        if len(known) > 1:
            raise InvalidJob(
                f"{where}: its rows have the event times {' and '.join(map(repr, sorted(known)))}: pass event_time= "
                "with one of these columns"
            )
        return next(iter(known), None)

    @property
    def only_event_time(self) -> str | None:
        """Column of the rows' event time; None: unknown, or several columns are possible."""
        return next(iter(self._event_times)) if len(self._event_times) == 1 else None

    @property
    def _event_times(self) -> frozenset[str]:
        known = self.plan.event_times_of_rows(self.node, self.tag, self.schema)
        return frozenset([WINDOW_END]) if WINDOW_END in known else known

    def expect_event_time(self, column: str, where: str, window: WindowAssigner | None = None) -> None:
        """Warns if the watermark is known to be based on another column than the step's event time.

        `window`: in which the step counts rows; rows are late after the end of the window."""
        known = self.plan.event_times(self.node)
        if known and not self.tag and column not in known and not self._is_over_before(window, column):
            other = sorted(known)[0]
            warnings.warn(
                f"{where}: its event time is column {column!r}, but the watermark is of {other!r}: rows whose "
                f"{column!r} is behind that are late. Pass event_time={other!r}, or call with_watermarks({column!r}) "
                "before it",
                stacklevel=users_line(),
            )

    def detail_of_late(self, column: str | None, window: WindowAssigner | None = None) -> Detail:
        """Detail at which a step follows event time if it looks for late rows by `column`.

        If the watermark is not known to be based on `column`, rows of a function may be late although no row of the
        source is. `window`: in which the step counts rows."""
        known = column in self.event_times_of_batches or (column is not None and self._is_over_before(window, column))
        return "late" if known else "rows"

    @property
    def event_times_of_batches(self) -> frozenset[str]:
        """Columns that the watermark is based on, if earlier functions of batches have kept them."""
        return event_times_of_batches(self.plan, self.node, self.tag)

    def _is_over_before(self, window: WindowAssigner | None, column: str) -> bool:
        """True if the rows are results of windows that each lie in the `window` of their times in `column`."""
        return window is not None and any(
            each.column == column and window.covers(each.size_ms, each.offset_ms)
            for each in self.plan.within(self.node)
        )


class KeyedSteps(Steps[S]):
    """A stream that is partitioned by key."""

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
    ) -> Any:
        """Adds a step with state; returns its stream, or a tuple of the stream and the side outputs.

        `states`: of the user's function, or descriptions to compare with a checkpoint before a run begins. `within`:
        see `StepNode`, for results of windows of event time."""

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
            keys=keys_said(rows.schema, rows.keys),
            states={
                state: its.declared() if isinstance(its, KeyedState) else its for state, its in (states or {}).items()
            },
        )
        return one_or_all(self._added(node))


def warn_of_updates(rows: KeyedInput, where: str, counts: Callable[[Updates], str]) -> str:
    """Warns of a step that counts every update of an earlier step."""
    if rows.tag or not (found := counts(updates_of(rows.plan, rows.node))):
        return ""
    warnings.warn(f"{where}: {found}", stacklevel=users_line())
    return found


def one_or_all(streams: Outputs[S]) -> Any:
    return streams if len(streams) > 1 else streams[0]


def need_watermarks(plan: Plan, node: int, where: str, why: str, or_else: str = "") -> None:
    """Raises `InvalidJob` if a source of the rows has no watermark. `or_else`: another remedy, for the message."""
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


def users_line() -> int:
    """Number of calls between the caller and the user's program, as `warnings` counts them."""
    package = str(Path(__file__).parents[1])
    files = [call.filename for call in inspect.stack(context=0)[1:]]
    return next((level for level, file in enumerate(files, 1) if not file.startswith(package)), len(files))
