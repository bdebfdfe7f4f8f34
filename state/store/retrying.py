"""The only retry loop for remote stores.

Pauses have a random length so that slots do not retry all at once.
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from barrier_runtime.state.errors import BarrierRuntimeError, Unavailable
from barrier_runtime.state.texts import counted

_T = TypeVar("_T")


@dataclass(frozen=True)
class RetryBudget:
    """`Unavailable` is raised after about 15 s of retryable errors."""

    attempts: int = 8
    first_wait_s: float = 0.1  # doubles with each attempt
    longest_wait_s: float = 5.0
    connect_timeout_s: float = 5.0
    read_timeout_s: float = 30.0


def retried(
    call: Callable[[], _T],
    trouble_of: Callable[[Exception, int], BarrierRuntimeError],
    attempts: int,
    first_wait_s: float,
    longest_wait_s: float,
) -> _T:
    """Retries only `Unavailable`. `trouble_of(error, attempt)` translates errors; attempts count from 1."""
    wait_s = first_wait_s
    for attempt in range(1, attempts + 1):
        try:
            return call()
        except Exception as error:
            trouble = trouble_of(error, attempt)
            if not isinstance(trouble, Unavailable):
                raise trouble from (None if trouble is error else error)
            if attempt == attempts:
                raise Unavailable(f"{trouble} (gave up after {counted(attempt, 'attempt')})") from error
        time.sleep(wait_s * (0.5 + random.random() / 2))
        wait_s = min(wait_s * 2, longest_wait_s)
    raise AssertionError("the last attempt returns or raises")
