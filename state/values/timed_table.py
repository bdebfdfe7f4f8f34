"""Tables of a state with TTL: visibility and deletion of expired entries.

The inner table and the caches hold `(write time, value)`.

    at now          expired: hidden, as if absent; live: returned, and with `on_read` written again with the time now
    at passed       expired for all later rows of the key: a reader deletes the entry
    at reached      the same for all keys of the subtask: a sweep deletes the entry

A hidden entry stays while a row with an earlier time may arrive. In event time a write never shortens a life. Design:
docs/design/time-to-live.md.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

from barrier_runtime.state.kv.shard import entry_key
from barrier_runtime.state.values.entry_table import EntryTable, is_number
from barrier_runtime.state.values.expiry import Expiry, Stamped
from barrier_runtime.state.values.table import Key, StateTable
from barrier_runtime.state.values.watched_table import WatchedTable

NEVER_MS = 1 << 62


class Timed:
    def __init__(self, table: StateTable, expiry: Expiry) -> None:
        self.expiry = expiry
        self._held = table
        self._last: bytes | None = None  # whole key that the sweep has reached; None: no sweep
        self._written_ms = NEVER_MS  # earliest write time since the last sweep began
        self._seen_ms = NEVER_MS  # earliest time that the sweep leaves
        self.least_ms = -NEVER_MS  # lower bound of all write times; -NEVER: unknown
        self.most_ms = -NEVER_MS  # latest write time
        if isinstance(table, WatchedTable):
            table.unwrapped = _unwrapped

    @property
    def watched(self) -> bool:
        return isinstance(self._held, WatchedTable)

    def own(self, key: Key, value: Any) -> None:
        assert isinstance(self._held, WatchedTable)
        self._held.own(key, value)

    def _judge(self, stamped: Stamped, now_ms: int) -> tuple[bool, int]:
        expiry = self.expiry
        ms = stamped[0]
        if expiry.ttl_ms is None:
            return True, now_ms if ms is None else ms
        if ms is None:
            ms = expiry.since_ms(now_ms)
        return ms + expiry.ttl_ms > now_ms, ms

    def _is_past(self, ms: int) -> bool:
        ttl_ms = self.expiry.ttl_ms
        return ttl_ms is not None and ms + ttl_ms <= self.expiry.passed_ms()

    def _now(self) -> int:
        return self.expiry.now_ms() if self.expiry.ttl_ms is not None else 0

    def _stamp(self, before: Stamped | None, now_ms: int, value: Any) -> Stamped:
        if self.expiry.ttl_ms is None:
            return None, value
        if before is not None and before[0] is not None and before[0] > now_ms and self.expiry.keeps_latest:
            now_ms = before[0]
        if now_ms < self._written_ms:
            self._written_ms = now_ms
        if now_ms > self.most_ms:
            self.most_ms = now_ms
        return now_ms, value

    def may_have_expired(self) -> bool:
        ttl_ms = self.expiry.ttl_ms
        if ttl_ms is None:
            return False
        return min(self.least_ms, self._written_ms) + ttl_ms <= self.expiry.reached_ms()

    def all_expired(self) -> bool:
        """Whether, as far as known, a sweep would find all entries expired."""
        ttl_ms = self.expiry.ttl_ms
        return ttl_ms is not None and self.most_ms > -NEVER_MS and self.most_ms + ttl_ms <= self.expiry.reached_ms()

    def begin_sweep(self) -> None:
        # Entries unwritten at the begin of the last sweep are stored by now.
        self._seen_ms, self._written_ms = self._written_ms, NEVER_MS
        self._last = b""

    @property
    def swept(self) -> bool:
        return self._last is None

    def sweep(self, most: int) -> tuple[int, int]:
        """Numbers of entries read and deleted."""
        if self._last is None:
            return 0, 0
        reached_ms, ttl_ms = self.expiry.reached_ms(), self.expiry.ttl_ms
        assert ttl_ms is not None, "what does not expire is not swept"
        gone: list[Key] = []
        looked_at = 0
        for whole, data in islice(self._held.stored_behind(self._last), most):
            looked_at += 1
            self._last = whole
            if self._is_number(whole, data):
                continue
            ms = self.expiry.time_in(data)
            if ms is None:
                ms = self.expiry.since_ms(reached_ms)
            if ms + ttl_ms <= reached_ms:
                key = entry_key(whole)
                newer, stamped = self._held.unwritten(key)
                if not newer:
                    gone.append(key)
                    continue
                if stamped is None:
                    continue
                live, ms = self._judge(stamped, reached_ms)
                if not live:
                    gone.append(key)
                    continue
            self._seen_ms = min(self._seen_ms, ms)
            self.most_ms = max(self.most_ms, ms)
        for key in gone:
            self._delete(key)
        if looked_at < most:
            self._last, self.least_ms = None, self._seen_ms
        return looked_at, len(gone)

    def _is_number(self, whole: bytes, data: bytes) -> bool:
        return False

    def _delete(self, whole: Key) -> None:
        raise NotImplementedError


class TimedTable(Timed):
    def __init__(self, table: StateTable, expiry: Expiry) -> None:
        super().__init__(table, expiry)
        self._table = table

    def get(self, key: Key) -> Any:
        stamped: Stamped | None = self._table.get(key)
        if stamped is None:
            return None
        now_ms = self._now()
        live, ms = self._judge(stamped, now_ms)
        if not live:
            if self._is_past(ms):
                self._table.delete(key)
            return None
        if self.expiry.on_read and now_ms > ms:
            self._table.put(key, self._stamp(stamped, now_ms, stamped[1]))
        return stamped[1]

    def put(self, key: Key, value: Any) -> None:
        before = self._table.get(key) if self.expiry.keeps_latest and self.expiry.ttl_ms is not None else None
        self._table.put(key, self._stamp(before, self._now(), value))

    def delete(self, key: Key) -> None:
        self._table.delete(key)

    def lend(self, key: Key, default: Any) -> Any:
        assert isinstance(self._table, WatchedTable)
        self._table.lend(key, (None, default))
        return default

    def _delete(self, whole: Key) -> None:
        self._table.delete(whole)


class TimedEntries(Timed):
    """Numbers of entries include expired entries until their deletion.

    `is_list`: entry keys are indices, and the next index is stored.
    """

    def __init__(self, table: EntryTable, expiry: Expiry, is_list: bool) -> None:
        super().__init__(table, expiry)
        self._table = table
        self._is_list = is_list

    def bound(self, key: Key) -> None:
        self._table.number(key)

    def get_entry(self, key: Key, entry: Any) -> Any:
        stamped: Stamped | None = self._table.get_entry(key, entry)
        if stamped is None:
            return None
        now_ms = self._now()
        live, ms = self._judge(stamped, now_ms)
        if not live:
            if self._is_past(ms):
                self.remove(key, entry)
            return None
        self._read(key, entry, stamped, ms, now_ms)
        return stamped[1]

    def put_entry(self, key: Key, entry: Any, value: Any) -> None:
        table = self._table
        before: Stamped | None = None
        if not table.has_entry(key, entry):
            table.set_number(key, table.number(key) + 1)
        elif self.expiry.keeps_latest and self.expiry.ttl_ms is not None:
            before = table.get_entry(key, entry)
        stamped = self._stamp(before, self._now(), value)
        table.put_entry(key, entry, stamped)

    def append(self, key: Key, values: list[Any]) -> None:
        table, now_ms = self._table, self._now()
        number, start, end = table.extent(key)
        if values:
            table.set_extent(key, number + len(values), start, end + len(values))
        for index, value in enumerate(values, end):
            table.put_entry(key, index, self._stamp(None, now_ms, value))

    def end(self, key: Key) -> int:
        return self._table.extent(key)[2]

    def pop(self, key: Key, entry: Any) -> bool:
        """Returns True if the entry was live."""
        stamped: Stamped | None = self._table.get_entry(key, entry)
        if stamped is None:
            return False
        live, ms = self._judge(stamped, self._now())
        if live or self._is_past(ms):
            self.remove(key, entry)
        return live

    def remove(self, key: Key, entry: Any) -> None:
        """Removes an existing entry, live or expired."""
        table = self._table
        table.put_entry(key, entry, None)
        if self._is_list:
            number, start, end = table.extent(key)
            table.set_extent(key, number - 1, start + 1 if entry == start else start, end)
        else:
            table.set_number(key, table.number(key) - 1)

    def clear(self, key: Key) -> None:
        table = self._table
        for entry, _ in table.walk(key, values=False):
            table.put_entry(key, entry, None)
        table.set_number(key, 0)

    def walk(self, key: Key, reads: bool = True) -> Iterator[tuple[Any, Any]]:
        """Yields live entries, as `EntryTable.walk`. `reads`: counts as reading."""
        start = self._table.extent(key)[1] if self._is_list else 0
        for entry, stamped in self._table.walk(key, start=start):
            now_ms = self._now()
            live, ms = self._judge(stamped, now_ms)
            if live:
                if reads:
                    self._read(key, entry, stamped, ms, now_ms)
                yield entry, stamped[1]
            elif self._is_past(ms):
                self.remove(key, entry)

    def _read(self, key: Key, entry: Any, stamped: Stamped, ms: int, now_ms: int) -> None:
        if self.expiry.on_read and now_ms > ms:
            self._table.put_entry(key, entry, self._stamp(stamped, now_ms, stamped[1]))

    def _is_number(self, whole: bytes, data: bytes) -> bool:
        return is_number(data)

    def _delete(self, whole: Key) -> None:
        self.remove(whole[:-2], whole[-1])


def _unwrapped(held: Any) -> Any:
    return held[1] if type(held) is tuple else held


_AT_ONCE = 64  # entries
_MOST_AT_ONCE = 4  # batches per slice, if time allows
_SLICE_S = 0.002
_PAUSE_S = 0.003
_RESTS = 9  # pause, as a multiple of the last sweep's duration
_WORTH_COMPACTING = 1_000  # tombstones


class ExpirySweep:
    """Deletes expired entries in short slices with pauses (docs/design/time-to-live.md)."""

    def __init__(
        self,
        tables: Sequence[Timed],
        now_s: Callable[[], float],
        call_later: Callable[[float, Callable[[], None]], None],
        mostly_deleted: Callable[[], None],
    ) -> None:
        """`mostly_deleted`: after a sweep that deleted more than half of the entries."""
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
        """Called at each barrier: a sweep finds only entries that a barrier has stored."""
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
        if self._in_slice:  # harnesses call at once, not later
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
