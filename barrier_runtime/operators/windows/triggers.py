"""Triggers for early results of windows, as users write them."""

import enum
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

from barrier_runtime.data.rows import Row
from barrier_runtime.data.schemas import Duration, as_duration, milliseconds
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.texts import counted


class WindowTrigger(ABC):
    """Decides when a window emits results besides its last result."""

    tells_early = True  # results have columns with their number and an early mark
    rows: int | None = None  # due whenever a window has got so many further rows
    by_wall_clock = False  # due by the wall clock
    by_event_time = False  # due by event time

    @property
    def interval_ms(self) -> int | None:
        """Interval of results by one of the clocks; None: not by time."""
        return None

    @property
    @abstractmethod
    def definition(self) -> str:
        """Definition in snapshots, compared at a restore; "" if part of the assigner."""

    @abstractmethod
    def rule(self, windows: Any) -> Any:
        """Returns an `OnClose` of `RuledWindows`."""

    @property
    def not_of_sessions(self) -> str:
        """Reason why sessions cannot have this trigger; "": they can."""
        return ""


@dataclass(frozen=True)
class FullWindow(WindowTrigger):
    size: int
    slide: int
    tells_early = False

    @property
    def definition(self) -> str:
        return ""

    def rule(self, windows: Any) -> Any:
        from barrier_runtime.operators.windows.rules.count import WhenFull

        return WhenFull(windows, self.size, self.slide)


@dataclass(frozen=True)
class Every(WindowTrigger):
    """Early results of windows: pass either `interval` or `rows`.

    With `interval`, windows that got rows since the last result emit a result at each multiple. With `rows`, a window
    emits a result at every so many further rows. `clock` of the interval: "event" (event time, at multiples since 1970)
    or "processing" (the wall clock, so a replay gives other early results). `accumulate`: a result covers all rows of
    the window; otherwise only those since the last result.

    >>> Every(rows=1000, accumulate=False)
    Every(interval=None, rows=1000, clock='event', accumulate=False)
    """

    interval: Duration | None = None
    rows: int | None = None
    clock: Literal["event", "processing"] = "event"
    accumulate: bool = True

    def __post_init__(self) -> None:
        if (self.interval is None) == (self.rows is None):
            raise InvalidJob(f"{self!r}: pass an interval, as in Every(timedelta(seconds=1)), or rows=, not both")
        if self.interval is not None:
            if milliseconds(self.interval, "the interval of Every") == 0:
                raise InvalidJob("the interval of Every is 0: use at least one millisecond")
            object.__setattr__(self, "interval", as_duration(self.interval, "the interval of Every"))
        if self.rows is not None and (isinstance(self.rows, bool) or not isinstance(self.rows, int) or self.rows < 1):
            raise InvalidJob(f"Every(rows={self.rows!r}): pass a whole number of rows, at least 1")
        if self.clock not in ("event", "processing"):
            raise InvalidJob(f"Every(clock={self.clock!r}): pass 'event' or 'processing'")
        if self.rows is not None and self.clock != "event":
            raise InvalidJob(f"Every(rows={self.rows}, clock={self.clock!r}): rows need no clock: leave it out")

    @cached_property
    def interval_ms(self) -> int | None:
        return None if self.interval is None else milliseconds(self.interval, "interval")

    @property
    def by_wall_clock(self) -> bool:  # type: ignore[override]
        return self.clock == "processing"

    @property
    def by_event_time(self) -> bool:  # type: ignore[override]
        return self.rows is None and self.clock == "event"

    @property
    def not_of_sessions(self) -> str:
        if self.accumulate:
            return ""
        return (
            "a session may become part of another one, so what is told early of it has all of its rows: leave "
            "accumulate=False out"
        )

    def rule(self, windows: Any) -> Any:
        from barrier_runtime.operators.windows.rules.early import EveryRows, EveryTime, EveryWallTime

        if self.rows is not None:
            return EveryRows(windows, self.rows, self.accumulate)
        assert self.interval_ms is not None
        return (EveryWallTime if self.by_wall_clock else EveryTime)(windows, self.interval_ms, self.accumulate)

    @property
    def definition(self) -> str:
        """Definition in snapshots. The frequency may change."""
        return "early results of " + ("all rows" if self.accumulate else "the rows since the last one")

    def __str__(self) -> str:
        when = counted(self.rows, "row") if self.rows is not None else f"{self.interval} ({self.clock} time)"
        return f"every {when}" + ("" if self.accumulate else ", only what came since")


# Users' triggers: rows, times and ends at which windows emit results or forget rows.

# Arguments and results of users' own triggers.


class TriggerResult(enum.Flag):
    """Action of a window: emit a result, forget the rows, both (`FIRE | PURGE`), or neither."""

    NOTHING = 0
    FIRE = enum.auto()
    PURGE = enum.auto()


@dataclass
class TriggerWindow:
    """Argument of a trigger's methods.
    `state`: numbers of this key and window, to be changed in place; checkpoints include them."""

    key: Any
    start_ms: int | None
    end_ms: int | None
    rows: int  # of the window since it last forgot its rows, the current row included
    state: dict[str, Any]


class OwnTrigger(WindowTrigger):
    """Base class of users' triggers, for `window(…, early=…)`. A subclass overrides some of the methods:

    - `on_row(row, window)`: called with each row (a dict) added to the window.
    - `on_time(time_ms, window)`: called at each multiple of `interval`, if the window got rows since the last call.
      `clock`: "event" (at multiples since 1970) or "processing" (the wall clock).
    - `on_close(window)`: called when the window is over. Without it the window emits its result.

    Each returns a `TriggerResult`; None is NOTHING, in `on_close` FIRE. A window that is over is then removed, or kept
    for late rows, which emit the window without a call.

    `state`: numbers per key and window, by name, with initial values. Methods must depend on their arguments and
    `window.state` alone. Checkpoints hold the name of the class.

    >>> class Large(OwnTrigger):
    ...     state = {"total": 0}
    ...
    ...     def on_row(self, row, window):
    ...         window.state["total"] += row["amount"]
    ...         if window.state["total"] >= 1_000:
    ...             window.state["total"] = 0
    ...             return TriggerResult.FIRE
    >>> str(Large())
    'by Large'
    """

    state: ClassVar[Mapping[str, int | float]] = {}
    interval: Duration | None = None
    clock: Literal["event", "processing"] = "event"

    def on_row(self, row: Row, window: TriggerWindow) -> TriggerResult | None:
        """Called after a row was added to the window."""
        return None

    def on_time(self, time_ms: int, window: TriggerWindow) -> TriggerResult | None:
        """Called at a multiple of `interval`, if the window got rows since the last call."""
        return None

    def on_close(self, window: TriggerWindow) -> TriggerResult | None:
        """Called when the window is over."""
        return TriggerResult.FIRE

    @property
    def interval_ms(self) -> int | None:
        if self.interval is None:
            return None
        interval_ms = milliseconds(self.interval, f"the interval of {type(self).__name__}")
        if not interval_ms:
            raise InvalidJob(f"the interval of {type(self).__name__} is 0: use at least one millisecond")
        return interval_ms

    @property
    def by_wall_clock(self) -> bool:  # type: ignore[override]
        if self.clock not in ("event", "processing"):
            raise InvalidJob(f"{type(self).__name__}: clock={self.clock!r}: use 'event' or 'processing'")
        return self.interval_ms is not None and self.clock == "processing"

    @property
    def by_event_time(self) -> bool:  # type: ignore[override]
        return self.interval_ms is not None and self.clock == "event"

    @property
    def not_of_sessions(self) -> str:
        return (
            "a session may become part of another one, which a trigger of your own cannot follow: use Every, or "
            "another window"
        )

    @property
    def definition(self) -> str:
        for name, initial in self.state.items():
            if isinstance(initial, bool) or not isinstance(initial, int | float):
                raise InvalidJob(
                    f"{type(self).__name__}: its state {name!r} begins with {initial!r}: use a number, as 0 or 0.0"
                )
        return f"trigger {type(self).__name__}"

    def __str__(self) -> str:
        return f"by {type(self).__name__}"

    def overrides(self, method: str) -> bool:
        """Returns whether the subclass overrides `method`."""
        return getattr(type(self), method) is not getattr(OwnTrigger, method)

    def rule(self, windows: Any) -> Any:
        from barrier_runtime.operators.windows.rules.own_rule import OwnRule

        return OwnRule(windows, self)
