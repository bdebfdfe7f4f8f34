"""Waiting with a time limit, where being cancelled is never lost.

`asyncio.wait_for` of Python 3.10 and 3.11 returns the result, and forgets that it was cancelled, when both come at once
(CPython issue 86296): a deployment that was cancelled would go on connecting, and wait for ever.
"""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


async def within(seconds: float, awaitable: Awaitable[T]) -> T:
    """What `awaitable` gives. Raises `asyncio.TimeoutError` when it takes longer; it is cancelled then, as it is when
    the caller is."""
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
            waited.exception()  # heard of, also when the caller was cancelled at the same time
