"""Reads a job's log for `fsck`: from the base on, again if records are compacted away meanwhile."""

import contextlib
from collections.abc import Callable, Iterable

from barrier_runtime.coordinator.log.reader import find_head
from barrier_runtime.coordinator.log.records import FIRST_POSITION, base_of, decode_record, milestone_after
from barrier_runtime.coordinator.maintenance.fsck import BACKUP, Damage, LogWalk
from barrier_runtime.state.errors import Corrupt
from barrier_runtime.state.store.object_store import ObjectStore, get_or_none
from barrier_runtime.state.store.paths import Paths

_WINDOW = 512  # read concurrently

Progress = Callable[[str, int, int], None]
ReadAll = Callable[[Callable[[int], bytes | None], Iterable[int]], Iterable[bytes | None]]  # in parallel


class StoredLog:
    def __init__(self, store: ObjectStore, paths: Paths, read_all: ReadAll, progress: Progress) -> None:
        self._store = store
        self._paths = paths
        self._read_all = read_all
        self._progress = progress
        self.walk = LogWalk(paths, self._record)

    def read(self, keys: Iterable[str]) -> None:
        positions = (self._paths.log_position(key) for key in keys)
        last = max((position for position in positions if position is not None), default=FIRST_POSITION - 1)
        if last < FIRST_POSITION:
            key = self._paths.log_record(FIRST_POSITION)
            remedy = f"the whole log is gone: {BACKUP}; delete the job's folder if the job is not wanted any more"
            self.walk.damage.append(Damage(key, "a log record, because there are checkpoints", "nothing", remedy))
            return
        self._read_up_to(last)

    def catch_up(self) -> bool:
        """Returns whether records were appended since."""
        before = self.walk.head
        self._feed_later()
        if self._goes_on():
            self._read_up_to(self._end())
        return self.walk.head > before

    def _read_up_to(self, last: int) -> None:
        base = self._base(last)
        while True:
            self._follow(base, last)
            last = self._end() if self._goes_on() else self.walk.head
            later = self._base(last)
            if last == self.walk.head and (later == base or not self.walk.damage):
                return
            base = later  # records were compacted away while they were read

    def _feed_later(self) -> None:
        while (data := self._record(self.walk.head + 1)) is not None:
            self.walk.feed(data)

    def _goes_on(self) -> bool:
        """Returns whether the records after the walk's head were compacted away."""
        return self._exists(milestone_after(self.walk.head))

    def _end(self) -> int:
        return find_head(self._exists, self.walk.head)

    def _exists(self, position: int) -> bool:
        return self._record(position) is not None

    def _base(self, last: int) -> int:
        """Lowest position that must exist, by the newest readable record up to `last`."""
        for position in range(last, FIRST_POSITION - 1, -1):
            with contextlib.suppress(Corrupt):  # reported by the walk
                data = self._record(position)
                if data is not None:
                    return base_of(decode_record(self._paths.log_record(position), data))
        return FIRST_POSITION

    def _follow(self, base: int, last: int) -> None:
        self.walk = LogWalk(self._paths, self._record)
        if base > FIRST_POSITION:
            self.walk.begin_at(base)
        for start in range(base, last + 1, _WINDOW):
            for data in self._read_all(self._record, range(start, min(start + _WINDOW, last + 1))):
                self.walk.feed(data)
            self._progress(f"{self._paths.job}: log records", self.walk.head, last)
        self._feed_later()

    def _record(self, position: int) -> bytes | None:
        return get_or_none(self._store, self._paths.log_record(position))
