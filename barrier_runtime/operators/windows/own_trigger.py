"""Users' triggers: rows, times and ends at which windows emit results or forget rows."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from barrier_runtime.data.rows import Row
from barrier_runtime.data.schemas import Duration, milliseconds
from barrier_runtime.operators.windows.trigger_results import TriggerResult, TriggerWindow
from barrier_runtime.operators.windows.triggers import WindowTrigger
from barrier_runtime.state.errors import InvalidJob


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
