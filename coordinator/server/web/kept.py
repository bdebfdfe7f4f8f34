"""A value that open pages share for some seconds, to save store requests."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

Value = TypeVar("Value")


class KeptFor(Generic[Value]):
    def __init__(self, make: Callable[[], Awaitable[Value]], lasts_s: float, clock_s: Callable[[], float]) -> None:
        """`clock_s` is monotonic. After an exception of `make` the next caller tries again."""
        self._make = make
        self._lasts_s = lasts_s
        self._clock_s = clock_s
        self._made: tuple[float, Value] | None = None
        self._making = asyncio.Lock()

    async def get(self) -> Value:
        async with self._making:  # concurrent callers wait for a single value
            if self._made is None or self._clock_s() - self._made[0] >= self._lasts_s:
                value = await self._make()
                self._made = self._clock_s(), value
            return self._made[1]
