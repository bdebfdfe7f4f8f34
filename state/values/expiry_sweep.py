"""Deletes expired, unread entries of an operator's states, in slices between turns of the loop.

A slice reads a few entries of a table, and a pause follows: sweeping a large state takes many turns of the loop,
whatever the rate of rows, watermarks and checkpoints.
"""

from collections.abc import Callable, Sequence

from barrier_runtime.state.values.timed_table import Timed

_AT_ONCE = 64  # entries
_MOST_AT_ONCE = 4  # batches of that size per slice, unless the slice takes too long
_SLICE_S = 0.002
_PAUSE_S = 0.003
_RESTS = 9  # pause between sweeps, as a multiple of the duration of a sweep
_WORTH_COMPACTING = 1_000  # minimum number of tombstones


class ExpirySweep:
    """Deletes expired entries of an operator's tables, in slices of a millisecond or two with pauses.

    `look`, called at each barrier, begins a sweep if there may be expired entries, but not before a pause of nine times
    the duration of the last sweep. Many live entries thus cost a few percent of the loop at most. If all entries have
    expired, there is no such pause.
    """

    def __init__(
        self,
        tables: Sequence[Timed],
        now_s: Callable[[], float],
        call_later: Callable[[float, Callable[[], None]], None],
        mostly_deleted: Callable[[], None],
    ) -> None:
        """`mostly_deleted` is called after a sweep that deleted more entries than it kept."""
        self._tables: list[Timed] = list(tables)
        self._now_s = now_s
        self._call_later = call_later
        self._mostly_deleted = mostly_deleted
        self._under_way: list[Timed] = []
        self._begun_s = self._rest_until_s = 0.0
        self._looked_at = self._deleted = 0
        self._in_slice = self._again = False
        self.closed = False

    def look(self) -> None:
        """Begins a sweep if one is due.

        Called at each barrier: entries not yet stored at one sweep are at the next.
        """
        if self._under_way or self.closed:
            return
        now_s = self._now_s()
        resting = now_s < self._rest_until_s
        due = [each for each in self._tables if each.may_have_expired() and (not resting or each.all_expired())]
        if due:
            for each in due:
                each.begin_sweep()
            self._under_way, self._begun_s = due, now_s
            self._looked_at = self._deleted = 0
            self._call_later(_PAUSE_S, self._slice)

    def _slice(self) -> None:
        if self._in_slice:  # harnesses call at once instead of later
            self._again = True
            return
        self._in_slice = True
        try:
            self._again = True
            while self._again and not self.closed:
                self._again = False
                self._one_slice()
        finally:
            self._in_slice = False

    def _one_slice(self) -> None:
        until_s = self._now_s() + _SLICE_S
        for _ in range(_MOST_AT_ONCE):
            looked_at, deleted = self._under_way[0].sweep(_AT_ONCE)
            self._looked_at += looked_at
            self._deleted += deleted
            if self._under_way[0].swept:
                self._under_way.pop(0)
            if not self._under_way or self._now_s() >= until_s:
                break
        if self._under_way:
            self._call_later(_PAUSE_S, self._slice)
            return
        now_s = self._now_s()
        self._rest_until_s = now_s + _RESTS * (now_s - self._begun_s)
        if self._deleted >= _WORTH_COMPACTING and 2 * self._deleted > self._looked_at:
            self._mostly_deleted()
