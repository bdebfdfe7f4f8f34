"""Databases that a restore has opened side by side become one while the job runs: their entries move in slices of about
a millisecond, with pauses between, on the loop, which is the only one that writes.

| when              | what                                                                                         |
|-------------------|----------------------------------------------------------------------------------------------|
| the first barrier | it begins: rows that waited for the restore come before                                      |
| a slice           | moves entries, unless the store must not be written: from a barrier to its snapshot's links  |
| a move is near    | whoever calls slices waits with them: what they moved would have to be fetched in the pause  |
| nothing is left   | the next snapshot closes what is empty; then the shard takes the one database that is left   |
| the backend ends  | it ends; what has moved counts as far as a checkpoint has it                                 |
"""

from collections.abc import Callable

from barrier_runtime.state.kv.shard import Shard
from barrier_runtime.state.kv.side_by_side import SideBySide

_AT_ONCE = 128  # entries
_MOST_AT_ONCE = 8  # times that in one slice, unless it takes too long
_SLICE_S = 0.001
_PAUSE_S = 0.003
_RESTS = 9  # times the duration of a slice
_WAIT_S = 0.1  # for a snapshot


class MergingDatabases:
    def __init__(
        self,
        shard: Shard,
        now_s: Callable[[], float],
        call_later: Callable[[float, Callable[[], None]], None],
        is_closed: Callable[[], bool],
    ) -> None:
        self._shard = shard
        self._now_s = now_s
        self._call_later = call_later
        self._is_closed = is_closed

    def begin(self) -> None:
        if isinstance(self._shard.kv, SideBySide):
            self._call_later(_PAUSE_S, self._slice)

    def _slice(self) -> None:
        store = self._shard.kv
        if self._is_closed() or not isinstance(store, SideBySide):
            return
        if store.alone:
            self._shard.kv = store.first
            return
        self._call_later(self._moved(store), self._slice)

    def _moved(self, store: SideBySide) -> float:
        """Moves some; says how long to rest then, in seconds."""
        if not self._shard.may_write():
            return _PAUSE_S
        began_s = self._now_s()
        for _ in range(_MOST_AT_ONCE):
            if not store.move(_AT_ONCE):
                return _WAIT_S
            if self._now_s() - began_s >= _SLICE_S:
                break
        return max(_PAUSE_S, _RESTS * (self._now_s() - began_s))
