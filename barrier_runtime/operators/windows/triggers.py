"""Triggers for early results of windows, as users write them."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from barrier_runtime.data.argument_types import kinds_checked
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
        from barrier_runtime.operators.windows.rules.early import WhenFull

        return WhenFull(windows, self.size, self.slide)


@kinds_checked
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
