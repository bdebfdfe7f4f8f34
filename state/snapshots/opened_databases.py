"""Chooses which databases of restored snapshots a subtask opens, and which are copied. Pure.

| the database …                                                        | is                            | as number |
|-----------------------------------------------------------------------|-------------------------------|-----------|
| of the one snapshot that fits unchanged                               | opened unchanged              | its own   |
| of another backend, or with other state ids                           | copied                        | -         |
| with the most key groups, of which at least half stay                 | opened, and narrowed          | 0         |
| with more than `copied_bytes` to copy                                 | opened side by side, narrowed | 1, 2, …   |
| with fewer, or beyond `MOST_BESIDE`                                   | copied into 0                 | -         |

If no database becomes number 0, number 0 is a new, empty database. Side-by-side databases may keep any share of their
key groups: they exist for a short time only (`kv/side_by_side`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from barrier_runtime.state.kv.key_ranges import KeyRange, KeyRanges
from barrier_runtime.state.kv.shard import range_end, range_start
from barrier_runtime.state.scratch import database_of, segment_number
from barrier_runtime.state.snapshots.plan import is_immutable
from barrier_runtime.state.snapshots.restore_plan import RestorePart, RestorePlan

MOST_BESIDE = 7


@dataclass(frozen=True)
class StoredDatabase:
    """A database of a snapshot."""

    part: RestorePart
    number: int  # in the snapshot
    stored: tuple[KeyRange, ...]  # all key ranges of the database
    wanted: tuple[KeyRange, ...]  # ranges for this subtask; not empty

    @property
    def names(self) -> list[str]:
        """Names of the database's files."""
        names = (ref.name for ref in self.part.keyed.files)
        return [name for name in names if segment_number(name) is None and database_of(name)[0] == self.number]

    @property
    def foreign(self) -> list[KeyRange]:
        """Key ranges of the database that this subtask does not take."""
        first, end = range_start(self.part.first), range_end(self.part.last)
        cut = [(start, min(stop, first)) for start, stop in self.stored]
        cut += [(max(start, end), stop) for start, stop in self.stored]
        return [(start, stop) for start, stop in cut if start < stop]

    def fits(self, kind: str) -> bool:
        return self.part.keyed.backend == kind and all(old == new for old, new in self.part.state_ids.items())

    @property
    def groups(self) -> int:
        return _groups(self.wanted)

    @property
    def mostly_wanted(self) -> bool:
        return 2 * self.groups >= _groups(self.stored)

    @property
    def wanted_bytes(self) -> int:
        """Approximate size of the wanted entries in the immutable files, in bytes."""
        names = {name for name in self.names if is_immutable(name)}
        size = sum(ref.size for ref in self.part.keyed.files if ref.name in names)
        return size * self.groups // _groups(self.stored)


@dataclass(frozen=True)
class OpenedDatabases:
    opened: Mapping[int, StoredDatabase]  # by new number
    copied: tuple[StoredDatabase, ...] = ()

    @property
    def ranges(self) -> KeyRanges:
        ranges = KeyRanges()
        for number, database in self.opened.items():
            for start, end in database.wanted if number else ():
                ranges = ranges.given(start, end, number)
        return ranges


def stored_databases(part: RestorePart, ranges: KeyRanges) -> list[StoredDatabase]:
    """Databases of the snapshot of `part` with wanted entries.

    `ranges`: key ranges of the snapshot's databases.
    """
    all_of = range_start(part.keyed.key_group_first), range_end(part.keyed.key_group_last)
    some = range_start(part.first), range_end(part.last)
    each = [StoredDatabase(part, n, ranges.of(n, *all_of), ranges.of(n, *some)) for n in ranges.numbers()]
    return [database for database in each if database.wanted]


def opened_databases(
    plan: RestorePlan, kind: str, databases: Sequence[StoredDatabase], copied_bytes: int
) -> OpenedDatabases:
    """Chooses among `databases`, those of all parts of `plan`.

    `copied_bytes`: up to this size, a database is copied instead of opened side by side.
    """
    if plan.adopts(kind) is not None:
        return OpenedDatabases({database.number: database for database in databases})
    fitting = [each for each in databases if each.fits(kind)]
    first = max((each for each in fitting if each.mostly_wanted), key=lambda each: each.groups, default=None)
    rest = sorted((each for each in fitting if each is not first), key=lambda each: -each.wanted_bytes)
    beside = [each for each in rest if each.wanted_bytes > copied_bytes][:MOST_BESIDE]
    opened = dict(enumerate(beside, 1)) if first is None else {0: first, **dict(enumerate(beside, 1))}
    return OpenedDatabases(opened, tuple(each for each in databases if each is not first and each not in beside))


def _groups(ranges: Sequence[KeyRange]) -> int:
    """Number of key groups that the ranges touch."""
    return sum(_group(end) - _group(start) + (len(end) > 2) for start, end in ranges)


def _group(key: bytes) -> int:
    return int.from_bytes(key[:2], "big")
