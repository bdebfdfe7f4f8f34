"""`Cache`: replies that a lookup keeps, so that it need not ask again. Pure: it is told the time.

Misses are kept as well. What was used longest ago goes first. Each subtask has a cache of its own, which begins empty.
"""

import datetime
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from barrier_runtime.state.errors import InvalidJob

_FOR_EVER = float("inf")


@dataclass(frozen=True)
class Cache:
    """Keep the replies for up to `size` keys per subtask, for `ttl` each (None: until there is no room).

    >>> Cache(100_000, ttl=timedelta(minutes=1))

    Raises `InvalidJob` for a size below 1 and a `ttl` that is not a positive timedelta.
    """

    size: int
    ttl: datetime.timedelta | None = None

    def __post_init__(self) -> None:
        if type(self.size) is not int or self.size < 1:
            raise InvalidJob(f"Cache({self.size!r}): give the number of keys to keep, 1 or more")
        ttl = self.ttl
        if ttl is not None and (not isinstance(ttl, datetime.timedelta) or ttl <= datetime.timedelta()):
            raise InvalidJob(f"Cache ttl={ttl!r}: give a positive timedelta, as in ttl=timedelta(minutes=1), or None")


class KeptReplies:
    """The replies that are kept. `None` is a reply: there is nothing of the key."""

    __slots__ = ("_entries", "_size", "_ttl_s")

    def __init__(self, cache: Cache) -> None:
        self._size = cache.size
        self._ttl_s = _FOR_EVER if cache.ttl is None else cache.ttl.total_seconds()
        self._entries: dict[Hashable, tuple[float, Any]] = {}  # until when, the reply; the latest used is last

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Hashable, now_s: float, default: Any) -> Any:
        entry = self._entries.pop(key, None)
        if entry is None or entry[0] <= now_s:
            return default
        self._entries[key] = entry
        return entry[1]

    def put(self, key: Hashable, reply: Any, now_s: float) -> None:
        entries = self._entries
        entries.pop(key, None)
        entries[key] = now_s + self._ttl_s, reply
        if len(entries) > self._size:
            del entries[next(iter(entries))]
