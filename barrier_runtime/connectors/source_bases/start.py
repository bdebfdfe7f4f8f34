"""Checks a user's start of a log source, which applies without a checkpoint."""

import datetime
from collections.abc import Sequence
from typing import Any

from barrier_runtime.state.errors import InvalidJob


def checked_start(start: Any, words: Sequence[str], where: str) -> Any:
    """Returns `start`: an element of `words`, or a time. Raises `InvalidJob` for other values."""
    if isinstance(start, datetime.datetime):
        if start.tzinfo is None:
            raise InvalidJob(
                f"{where}: start={start} has no time zone: give one, as in start.replace(tzinfo=timezone.utc)"
            )
        return start
    if start in words:
        return start
    known = ", ".join(f'"{word}"' for word in words)
    raise InvalidJob(f"{where}: start={start!r}: use {known} or a datetime with a time zone")
