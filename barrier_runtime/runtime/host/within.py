"""Waiting with a timeout that never loses a cancellation.

`asyncio.wait_for` of Python 3.10 and 3.11 returns the result and forgets the cancellation if both happen at once
(CPython issue 86296): a cancelled deployment would continue to connect, and wait for ever.
"""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


async def within(seconds: float, awaitable: Awaitable[T]) -> T:
    """Returns the result of `awaitable`. Raises `asyncio.TimeoutError` after `seconds`.

    `awaitable` is cancelled after the timeout, and if the caller is cancelled.
    """
    waited = asyncio.ensure_future(awaitable)
    try:
        await asyncio.wait({waited}, timeout=seconds)
        if not waited.done():
            raise asyncio.TimeoutError
        return waited.result()
    finally:
        if not waited.done():
            waited.cancel()
            await asyncio.wait({waited})  # so that no task is left behind
        if waited.done() and not waited.cancelled():
            waited.exception()  # marks the exception as retrieved, also if the caller was cancelled at the same time
