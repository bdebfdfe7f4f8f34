"""`TTL`: how long an entry of keyed state lives; and the clocks that decide expiry.

The wall clock is read once per batch and never goes back. Design: docs/design/time-to-live.md.
"""

import datetime
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

from msgspec.structs import replace

from barrier_runtime.data.argument_types import kinds_checked
from barrier_runtime.data.elements import WATERMARK_MAX, WATERMARK_MIN
from barrier_runtime.data.schemas import Duration, as_duration
from barrier_runtime.state.backend.keyed_backend import KeyedBackend
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.snapshots.snapshot import StateDescription
from barrier_runtime.state.values.expiry import Expiry, StateClock, StoredTtl, continued

_MS = datetime.timedelta(milliseconds=1)
_CENTURIES_MS = 1 << 46  # two thousand years


@kinds_checked
@dataclass(frozen=True)
class TTL:
    """Time to live of an entry of keyed state after a write; an expired entry is as if never stored.

    >>> ValueState(Reading, ttl=TTL(timedelta(days=7)))

    An entry written at time t expires at t + `time`, each element of a `ListState` and each entry of a `MapState`
    separately. `refresh`: "on_write" counts from the last write, "on_read" from the last write or read. `clock`:
    "event" (event time; the step needs `event_time=` and watermarks) or "processing" (wall clock: a replay may see
    other state, so a sink that relies on a deterministic replay may only follow stored rows, see `Stream.stable`).
    `time`: a `timedelta`, or seconds. Raises `InvalidJob` for a time below a millisecond.
    """

    time: Duration
    refresh: Literal["on_write", "on_read"] = "on_write"
    clock: Literal["event", "processing"] = "event"

    def __post_init__(self) -> None:
        time = as_duration(self.time, "time of a TTL")
        object.__setattr__(self, "time", time)
        if not 1 <= self.ms < _CENTURIES_MS or time % _MS:
            raise InvalidJob(f"TTL of {time}: use whole milliseconds, one or more (up to two thousand years)")
        if self.refresh not in ("on_write", "on_read"):
            raise InvalidJob(f"TTL refresh {self.refresh!r} is unknown: use 'on_write' or 'on_read'")
        if self.clock not in ("event", "processing"):
            raise InvalidJob(f"TTL clock {self.clock!r} is unknown: use 'event' or 'processing'")

    @property
    def ms(self) -> int:
        """`time` in milliseconds."""
        return as_duration(self.time, "time") // _MS

    def stored(self) -> StoredTtl:
        """Description for snapshots."""
        return StoredTtl(self.ms, self.refresh, self.clock)


def check_ttl(ttl: Any, says: str) -> TTL | None:
    if ttl is not None and not isinstance(ttl, TTL):
        raise InvalidJob(f"{says} ttl={ttl!r}: pass a TTL, such as ttl=TTL(timedelta(hours=1))")
    return ttl


class _EventTime:
    def __init__(self, watermark_ms: Callable[[], int]) -> None:
        self._watermark_ms = watermark_ms
        self.context: Any = None
        self.instead_ms: int | None = None  # while a wall-clock timer fires

    def now_ms(self) -> int:
        context = self.context
        at_ms, watermark_ms = context.timestamp, context.watermark
        if at_ms is None:
            if self.instead_ms is not None:
                return self.instead_ms
            raise InvalidJob(
                "a row without event time (null) uses state with a TTL in event time: filter such rows before, or use "
                "TTL(…, clock='processing')"
            )
        return int(at_ms if at_ms >= watermark_ms or watermark_ms >= WATERMARK_MAX else watermark_ms)

    def passed_ms(self) -> int:
        return _going_on(self.context.watermark)

    def reached_ms(self) -> int:
        return _going_on(self._watermark_ms())

    def opened_ms(self) -> int | None:
        watermark_ms = _going_on(self._watermark_ms())
        return watermark_ms if watermark_ms > WATERMARK_MIN else None


class _WallTime:
    def __init__(self, wall_ms: Callable[[], int]) -> None:
        self._wall_ms = wall_ms
        self._now_ms = wall_ms()

    def read(self) -> None:
        self._now_ms = max(self._now_ms, self._wall_ms())

    def now_ms(self) -> int:
        return self._now_ms

    passed_ms = reached_ms = opened_ms = now_ms


class Timing:
    def __init__(self, wall_ms: Callable[[], int], watermark_ms: Callable[[], int]) -> None:
        self.event = _EventTime(watermark_ms)
        self.wall = _WallTime(wall_ms)
        self.tables: list[Any] = []

    def clock(self, name: str) -> StateClock:
        return self.event if name == "event" else self.wall


def _unjudged() -> NoReturn:
    raise InvalidJob("state with a TTL is opened where nothing tells the time: use it in a step of process()")


class _NoTime:
    """Clock of states without TTL whose entries have times from an earlier TTL: never read."""

    def now_ms(self) -> int:
        _unjudged()

    passed_ms = reached_ms = opened_ms = now_ms


def opened_expiry(
    ttl: TTL | None, backend: KeyedBackend, name: str, what: StateDescription, timing: Timing | None
) -> tuple[Expiry | None, StateDescription]:
    """Returns how entries of a state expire (None: never), and the description in later snapshots."""
    described = backend.restored(name)
    restored, before = described is not None, described.ttl if described is not None else None
    if ttl is None and before is None:
        return None, what
    clock: StateClock = _NoTime()
    if ttl is None:
        stored = continued(None, before, restored, None)
    else:
        clock = timing.clock(ttl.clock) if timing is not None else clock
        stored = continued(ttl.stored(), before, restored, clock.opened_ms())
    assert stored is not None
    expiry = Expiry(stored, clock, lambda now: backend.describe(name, replace(what, ttl=now)))
    return expiry, replace(what, ttl=stored)


def _going_on(watermark_ms: int) -> int:
    """Watermark for expiry: at the end of input nothing expires."""
    return watermark_ms if watermark_ms < WATERMARK_MAX else WATERMARK_MIN
