"""Protocols of `loop`'s classes, which break circular imports."""

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any, Protocol

Event = Callable[[Any], object]


class Simulated(Protocol):
    """`Simulation`: virtual time (microseconds), chance, and the trace."""

    rng: random.Random
    now_us: int
    closed: bool

    @property
    def processes(self) -> Sequence["AnyProcess"]: ...

    @property
    def jobs(self) -> "AnyJobs": ...

    def at(self, when_us: int, event: Event, argument: Any = None) -> None: ...

    def after(self, delay_us: int, event: Event, argument: Any = None) -> None: ...

    def bits(self, count: int, /) -> int: ...

    def chance(self, probability: float) -> bool: ...

    def between_us(self, low_us: int, high_us: int) -> int: ...

    def trace(self, kind: str, *details: object) -> None: ...


class AnyProcess(Protocol):
    """`SimProcess`: a loop, and the state running, stalled or dead."""

    name: str
    place: str
    jobs: dict[Any, None]
    held: list[tuple[Event, Any]]

    @property
    def simulation(self) -> Simulated: ...

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...

    @property
    def alive(self) -> bool: ...

    @property
    def stalled(self) -> bool: ...

    @property
    def running(self) -> bool: ...


class AnyJobs(Protocol):
    """`Jobs`: blocking work of all processes."""

    def begin(self, job: Any) -> None: ...

    def block(self, delay_us: int) -> None: ...
