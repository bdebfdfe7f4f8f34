"""Several databases side by side as a single key-value store, by `key_ranges`.

While the job runs, all entries move into the first, in slices (docs/design/side-by-side-databases.md).

| state   | databases            | files of a checkpoint                      | ends with                  |
|---------|----------------------|--------------------------------------------|----------------------------|
| beside  | the first and others | the first's, others' as `beside-<number>-…`, and `beside.json` | a `move` |
| moving  | the same             | the same                                   | the last entry of the last |
| emptied | the first; the others are obsolete | the first's                  | `flush`, which closes them |
| alone   | the first            | the first's                                | the owner takes `first`    |

A kill between two moves loses no entries: only checkpoints count, and each stores the ranges. A flush deletes moved
entries from the other database, so a restore with other boundaries finds no deleted keys. For a single thread, as in
`store`; `move` is a write.
"""

import shutil
import threading
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from barrier_runtime.state.kv.key_ranges import RANGES_FILE, KeyRange, KeyRanges
from barrier_runtime.state.kv.store import Entry, KvStore
from barrier_runtime.state.scratch import beside_name, database_of, link_or_copy, segment_number


def link_database(source: Path, names: Sequence[str], target: Path, database: int = 0) -> None:
    """Makes the new folder `target` a database; `source` stays unchanged.

    Skips segments, and files of other databases than `database`. Opening rewrites the MANIFEST, so a snapshot is never
    opened in place.
    """
    target.mkdir(parents=True, mode=0o700)
    for name in names:
        number, own_name = database_of(name)
        if number != database or segment_number(name) is not None or name == RANGES_FILE:
            continue
        if name.endswith(".sst"):
            link_or_copy(source / name, target / own_name)
        else:
            shutil.copyfile(source / name, target / own_name)


_MOVED_BYTES = 256 << 10  # limit of a `move` without the last entry


@dataclass
class Database:
    """A database besides the first, which has number 0. `folder` is removed once the database is empty."""

    number: int
    kv: KvStore
    folder: Path
    moved: list[KeyRange] = field(default_factory=list)  # moved to the first database; still here


class SideBySide:
    def __init__(self, first: KvStore, others: Sequence[Database], ranges: KeyRanges) -> None:
        """`others`: the last is emptied first. Each has only entries of the database's part of `ranges`."""
        self.first = first
        self._others = list(others)
        self._emptied: list[Database] = []
        self._compacting = False
        self._closing = threading.Lock()  # guards the two attributes above
        self._take(ranges)

    @property
    def kind(self) -> str:
        return self.first.kind

    @property
    def alone(self) -> bool:
        """Only the first database is left, for good."""
        return not self._others and not self._emptied

    def get(self, key: bytes) -> bytes | None:
        return self._stores[bisect_right(self._inner, key)].get(key)

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        found: list[bytes | None] = [None] * len(keys)
        for store, positions in self._by_store(keys):
            for position, value in zip(positions, store.get_many([keys[at] for at in positions]), strict=True):
                found[position] = value
        return found

    def write(self, entries: Sequence[Entry]) -> None:
        for store, positions in self._by_store([key for key, _ in entries]):
            store.write([entries[at] for at in positions])

    def delete_range(self, start: bytes, end: bytes) -> None:
        for first, stop, number in self._ranges.between(start, end):
            self._store(number).delete_range(first, stop)

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        while start < end:
            ranges = self._ranges
            first, stop, number = next(ranges.between(start, end))
            for entry in self._store(number).scan(first, stop):
                yield entry
                if self._ranges is not ranges:
                    start = entry[0] + b"\0"
                    break
            else:
                start = stop

    def move(self, most: int) -> bool:
        """Returns False if all entries are in the first database."""
        if not self._others:
            return False
        donor = self._others[-1]
        start, end = self._ranges.of(donor.number)[0]
        taken: list[Entry] = []
        size = 0
        for entry in donor.kv.scan(start, end):
            taken.append(entry)
            size += len(entry[1])
            if len(taken) == most or size >= _MOVED_BYTES:
                end = entry[0] + b"\0"
                break
        if taken:
            self.first.write(taken)
        if donor.moved and donor.moved[-1][1] == start:
            start = donor.moved.pop()[0]
        donor.moved.append((start, end))
        self._take(self._ranges.given(start, end, 0))
        return bool(self._others)

    def flush(self) -> None:
        with self._closing:
            while self._emptied and not self._compacting and self._emptied[-1].kv.closes_soon:
                emptied = self._emptied.pop()
                emptied.kv.close()
                shutil.rmtree(emptied.folder, ignore_errors=True)
        for each in self._others:
            for start, end in each.moved:
                each.kv.delete_range(start, end)
            each.moved = []
            each.kv.flush()
        self.first.flush()

    def checkpoint(self, directory: Path) -> None:
        self.first.checkpoint(directory)
        for each in self._others:
            apart = directory.with_name(f"{directory.name}-{each.number}")
            try:
                each.kv.checkpoint(apart)
                for path in apart.iterdir():
                    path.rename(directory / beside_name(each.number, path.name))
            finally:  # the links would keep files on a disk that may be full
                shutil.rmtree(apart, ignore_errors=True)
        if self._others:
            (directory / RANGES_FILE).write_bytes(self._ranges.stored())

    def compact(self) -> None:
        with self._closing:
            self._compacting = True
            stores = self._all
        try:
            for store in stores:
                store.compact()
        finally:
            self._compacting = False

    @property
    def compacts(self) -> bool:
        return any(store.compacts for store in self._all)

    def memory_bytes(self) -> int:
        return sum(store.memory_bytes() for store in self._all)

    @property
    def closes_soon(self) -> bool:
        return all(store.closes_soon for store in self._all)

    def close(self) -> None:
        with ExitStack() as closing:
            for each in (*self._others, *self._emptied):
                closing.callback(each.kv.close)
            closing.callback(self.first.close)

    @property
    def _all(self) -> list[KvStore]:
        return [self.first, *(each.kv for each in self._others)]

    def _take(self, ranges: KeyRanges) -> None:
        numbers = set(ranges.databases)
        self._emptied += [each for each in self._others if each.number not in numbers]
        self._others = [each for each in self._others if each.number in numbers]
        self._ranges = ranges
        self._inner = list(ranges.starts[1:])
        self._stores = [self._store(number) for number in ranges.databases]

    def _store(self, number: int) -> KvStore:
        return self.first if number == 0 else next(each.kv for each in self._others if each.number == number)

    def _by_store(self, keys: list[bytes]) -> list[tuple[KvStore, list[int]]]:
        positions: dict[int, list[int]] = {}
        inner, databases = self._inner, self._ranges.databases
        for position, key in enumerate(keys):
            positions.setdefault(databases[bisect_right(inner, key)], []).append(position)
        return [(self._store(number), found) for number, found in positions.items()]
