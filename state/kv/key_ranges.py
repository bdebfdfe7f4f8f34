"""Key ranges of several databases.

A boundary is a key, and may lie within a key group. An incarnation never reuses the number of a database.
"""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import msgspec

from barrier_runtime.state.versioned import Format, VersionedDecoder

RANGES_FILE = "beside.json"
KeyRange = tuple[bytes, bytes]  # start inclusive, end exclusive
_BEHIND_ALL = b"\xff\xff"  # above all keys
_FORMAT = Format("ranges of keys {}", 1, damaged="restore from another checkpoint")


class _StoredRange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    start: bytes
    database: int


class _Stored(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    ranges: tuple[_StoredRange, ...]


_decoder = VersionedDecoder(_FORMAT, msgspec.json.Decoder(_Stored))


@dataclass(frozen=True)
class KeyRanges:
    """A key belongs to the database of the last start at or before the key. The first start is empty."""

    starts: tuple[bytes, ...] = (b"",)
    databases: tuple[int, ...] = (0,)

    def numbers(self) -> tuple[int, ...]:
        return tuple(sorted(set(self.databases)))

    def between(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes, int]]:
        at = bisect_right(self.starts, start) - 1
        while start < end:
            stop = min(end, self.starts[at + 1]) if at + 1 < len(self.starts) else end
            yield start, stop, self.databases[at]
            start, at = stop, at + 1

    def of(self, database: int, start: bytes = b"", end: bytes = _BEHIND_ALL) -> tuple[KeyRange, ...]:
        return tuple((first, stop) for first, stop, number in self.between(start, end) if number == database)

    def given(self, start: bytes, end: bytes, database: int) -> "KeyRanges":
        each = list(zip(self.starts, self.databases, strict=True))
        behind = self.databases[bisect_right(self.starts, end) - 1]
        changed = [
            *[pair for pair in each if pair[0] < start],
            (start, database),
            (end, behind),
            *[pair for pair in each if pair[0] > end],
        ]
        kept = [pair for at, pair in enumerate(changed) if at == 0 or changed[at - 1][1] != pair[1]]
        return KeyRanges(tuple(pair[0] for pair in kept), tuple(pair[1] for pair in kept))

    def stored(self) -> bytes:
        pairs = zip(self.starts, self.databases, strict=True)
        return msgspec.json.encode(_Stored(_FORMAT.version, tuple(_StoredRange(*pair) for pair in pairs)))


def read_ranges(data: bytes, where: str) -> KeyRanges:
    ranges = _decoder.decode(data, where).ranges
    starts, databases = tuple(each.start for each in ranges), tuple(each.database for each in ranges)
    if starts[:1] != (b"",) or any(one >= other for one, other in pairwise(starts)):
        raise _FORMAT.unreadable("its ranges are in no order", where)
    if min(databases) < 0:
        raise _FORMAT.unreadable("a database has a number below 0", where)
    return KeyRanges(starts, databases)
