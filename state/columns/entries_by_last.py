"""Entries of a columnar table that lie in the store by the last field of their keys (`EntryKeys.last_first`): which
last fields there are, and what lies under one of them."""

from collections.abc import Iterator
from itertools import islice

import numpy as np
import numpy.typing as npt

from barrier_runtime.state.columns.entry_keys import EntryKeys
from barrier_runtime.state.keys.distinct_ints import distinct_ints
from barrier_runtime.state.keys.row_index import Ints
from barrier_runtime.state.kv.shard import Shard, entry_key, range_end
from barrier_runtime.state.kv.store import Entry

_AT_ONCE = 1_024
_REKEYED_AT_ONCE = 8_192
_MOST = 2**63 - 1


class Lasts:
    """Last fields of the keys of entries that the store has, or had. There are few: windows, not keys."""

    def __init__(self, stored: EntryKeys) -> None:
        self._stored = stored
        self._found: set[int] = set()
        self._away: set[int] = set()  # of entries that may be in the store alone
        self._looked = True  # into the store, since it was opened
        self._sorted: Ints | None = None

    def unknown(self) -> None:
        """The store was opened with entries in it."""
        self._looked = False

    def away(self, lasts: Ints) -> None:
        """Of entries that have left memory."""
        self._away |= set(distinct_ints(lasts).tolist())

    @property
    def none_is_away(self) -> bool:
        """All entries are known to be in memory."""
        return self._looked and not self._away

    def none(self) -> None:
        """The store has no entries any more."""
        self._found, self._sorted = set(), None

    def add(self, lasts: Ints) -> None:
        unknown = lasts[~self._are_found(lasts)]
        if len(unknown):
            self._found |= set(distinct_ints(unknown).tolist())
            self._sorted = None

    def discard(self, last: int) -> None:
        self._found.discard(last)
        self._away.discard(last)
        self._sorted = None

    def has(self, lasts: Ints) -> npt.NDArray[np.bool_]:
        """Under which of these there may be an entry."""
        if not self._looked:
            return np.ones(len(lasts), np.bool_)
        return self._are_found(lasts)

    def _are_found(self, lasts: Ints) -> npt.NDArray[np.bool_]:
        if self._sorted is None:
            self._sorted = np.array(sorted(self._found), np.int64)
        known = self._sorted
        if not len(known):
            return np.zeros(len(lasts), np.bool_)
        at = np.minimum(np.searchsorted(known, lasts), len(known) - 1)
        found: npt.NDArray[np.bool_] = known[at] == lasts
        return found

    def all_from(self, first: int) -> Ints:
        """All of them, rising. Below `first` nobody needs to look: what was there may be a long row of deletions."""
        if not self._looked:
            self._looked = True
            self._away |= set(self._in_store(first))
            self._found |= self._away
            self._sorted = None
        return np.array(sorted(self._found), np.int64)

    def _in_store(self, first: int) -> Iterator[int]:
        """By one look per last field and key group."""
        stored, shard = self._stored, self._stored.shard
        group, last, end = shard.key_group_first, first, range_end(shard.key_group_last)
        while group <= shard.key_group_last:
            start, _ = stored.range_of(group, last)
            entry = next(iter(shard.kv.scan(start, end)), None)
            if entry is None:
                return
            found_group, state_id = shard.group_and_state(entry[0])
            if state_id == stored.state_id and found_group == group:
                found = stored.last_of(entry[0])
                yield found
                if found < _MOST:
                    last = found + 1
                    continue
                found_group += 1
            elif state_id > stored.state_id:
                found_group += 1
            group, last = found_group, first


def entries_under(stored: EntryKeys, last: int) -> Iterator[list[tuple[bytes, bytes]]]:
    """What the store has under that last field, some entries at a time, by key group and key. None is read before it is
    asked for: between two times entries may be deleted, and nobody would know of what was read before."""
    shard = stored.shard
    for group in range(shard.key_group_first, shard.key_group_last + 1):
        start, end = stored.range_of(group, last)
        while some := list(islice(shard.kv.scan(start, end), _AT_ONCE)):
            yield some
            start = some[-1][0] + b"\0"


def rekeyed(shard: Shard, state_id: int, stored: EntryKeys) -> None:
    """Entries of a release that stored keys as they are get the keys that they have now, once, when the table is
    opened; the checkpoint stays as it is."""
    rows = shard.scan_state(state_id)
    moved: list[Entry] = []
    while some := list(islice(rows, _REKEYED_AT_ONCE)):
        keys = [entry_key(data_key) for data_key, _ in some]
        moved += zip(stored.of_tuples(keys), [data for _, data in some], strict=True)
        shard.write([(data_key, None) for data_key, _ in some])
    for first in range(0, len(moved), _REKEYED_AT_ONCE):
        shard.write(moved[first : first + _REKEYED_AT_ONCE])
