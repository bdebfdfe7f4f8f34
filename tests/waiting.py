"""Waiting for effects of others (a thread, a process, a server, a task of the loop): for a condition, never a time."""

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE_S = 300.0

T = TypeVar("T")


def until(condition: Callable[[], T], what: str = "it has come about", patience_s: float = PATIENCE_S) -> T:
    """Returns the first true value of `condition`. The interval between calls grows with the wait: many conditions
    query a coordinator or walk a folder, while the awaited work needs the processor.
    """
    began = time.monotonic()
    while not (found := condition()):
        waited = time.monotonic() - began
        assert waited < patience_s, f"waited in vain: {what}"
        time.sleep(min(max(0.01, waited / 20), 0.1))
    return found


async def eventually(condition: Callable[[], T], what: str = "it has come about") -> T:
    """`until` for coroutines: the loop runs between the calls."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        await asyncio.sleep(0.002)
    return found
