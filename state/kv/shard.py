"""Key-value store, key groups and permission to write, shared by a backend's tables.

Between a barrier and the hard links of the snapshot, only frozen entries of that checkpoint may be written.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any

from barrier_runtime.state.errors import ProtocolViolation
from barrier_runtime.state.keys.key_codec import decode_key, encode_key, encode_keys
from barrier_runtime.state.keys.key_groups import key_group, key_groups_of_keys
from barrier_runtime.state.kv.store import Entry, KvStore

PREFIX_BYTES = 4  # key group and state id
_FIRST_LISTED = 4  # entries; many readers need a single entry
MOST_LISTED = 64  # entries; even at 8 MB each, they fit in memory
_pack_prefix = struct.Struct(">HH").pack
_read_prefix = struct.Struct(">HH").unpack_from


@dataclass
class Shard:
    kv: KvStore
    operator: str
    subtask: int
    max_parallelism: int
    key_group_first: int
    key_group_last: int
    may_write: Callable[[], bool] = lambda: True
    _prefixes: dict[int, list[bytes]] = field(default_factory=dict)  # state id -> prefix per key group

    def kv_key(self, state_id: int, key_width: int, key: tuple[Any, ...]) -> bytes:
        group = key_group(key if len(key) == key_width else key[:key_width], self.max_parallelism)
        if not self.key_group_first <= group <= self.key_group_last:
            raise self.foreign(key, group)
        return _pack_prefix(group, state_id) + encode_key(key)

    def kv_keys(
        self, state_id: int, key_width: int, keys: Sequence[tuple[Any, ...]], encoded: Sequence[bytes] | None = None
    ) -> list[bytes]:
        groups = key_groups_of_keys(keys, key_width, self.max_parallelism)
        prefixes = self.checked_prefixes(state_id, groups, keys)
        if encoded is None:
            encoded = encode_keys(keys)
        return [prefixes[group] + data for group, data in zip(groups, encoded, strict=True)]

    @staticmethod
    def prefix(group: int, state_id: int) -> bytes:
        return _pack_prefix(group, state_id)

    def checked_prefixes(self, state_id: int, groups: Sequence[int], keys: Sequence[tuple[Any, ...]]) -> list[bytes]:
        if not self.key_group_first <= min(groups) or not max(groups) <= self.key_group_last:
            at = next(at for at, g in enumerate(groups) if not self.key_group_first <= g <= self.key_group_last)
            raise self.foreign(keys[at], groups[at])
        prefixes = self._prefixes.get(state_id)
        if prefixes is None:
            prefixes = [_pack_prefix(group, state_id) for group in range(self.max_parallelism)]
            self._prefixes[state_id] = prefixes
        return prefixes

    def foreign(self, key: tuple[Any, ...], group: int) -> ProtocolViolation:
        return ProtocolViolation(
            f"key {key!r} belongs to key group {group}, but subtask {self.subtask} of {self.operator} owns "
            f"{self.key_group_first} to {self.key_group_last}: records were partitioned by other columns than the "
            "state is keyed by; please report this with the job's graph"
        )

    def write(self, entries: Sequence[Entry]) -> None:
        if entries:
            self.kv.write(entries)

    def scan_state(self, state_id: int) -> Iterator[tuple[bytes, bytes]]:
        return scan_state(self.kv, state_id, self.key_group_first, self.key_group_last)

    def scan_state_behind(self, state_id: int, last: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yields the state's entries after the key `last`; all entries if `last` is empty."""
        if not last:
            yield from self.scan_state(state_id)
            return
        prefix = last[:PREFIX_BYTES]
        yield from self.kv.scan(last + b"\0", prefix + b"\xff")  # no key field begins with FF
        yield from scan_state(self.kv, state_id, _read_prefix(last)[0] + 1, self.key_group_last)

    def state_behind(self, state_id: int, first: int, last: int, behind: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Beginning after the state's encoded key `behind`. With several groups, entries of other states are
        among them.
        """
        end = range_end(last) if last > first else _pack_prefix(first, state_id + 1)
        return self.kv.scan(_pack_prefix(first, state_id) + behind + b"\0", end)

    @staticmethod
    def group_and_state(data_key: bytes) -> tuple[int, int]:
        group, state_id = _read_prefix(data_key)
        return group, state_id


def scan_state(kv: KvStore, state_id: int, first: int, last: int) -> Iterator[tuple[bytes, bytes]]:
    return chain.from_iterable(scan_state_lists(kv, state_id, first, last))


def scan_state_lists(kv: KvStore, state_id: int, first: int, last: int) -> Iterator[list[tuple[bytes, bytes]]]:
    """Yields lists of up to 64 entries. Seeks past other states and empty groups."""
    group = first
    while group <= last:
        start = _pack_prefix(group, state_id)
        next_group, most = last + 1, _FIRST_LISTED
        entries = kv.scan(start, range_end(last))
        while some := list(islice(entries, most)):
            ended = None
            if not some[0][0].startswith(start) or not some[-1][0].startswith(start):
                some, start, ended = _own_of(some, start, state_id)
            if some:
                yield some
            if ended is not None:
                next_group = ended
                break
            most = min(4 * most, MOST_LISTED)
        group = next_group


def _own_of(
    some: list[tuple[bytes, bytes]], start: bytes, state_id: int
) -> tuple[list[tuple[bytes, bytes]], bytes, int | None]:
    """Splits the state's entries off the beginning of `some`.

    Also returns the last prefix and, if another state follows, the next group to search.
    """
    for at, (key, _) in enumerate(some):
        if not key.startswith(start):
            found_group, found_state = _read_prefix(key)
            if found_state != state_id:
                return some[:at], start, found_group if found_state < state_id else found_group + 1
            start = key[:PREFIX_BYTES]  # the next group follows directly: continue the same scan
    return some, start, None


def range_start(group: int) -> bytes:
    return group.to_bytes(2, "big")


def range_end(group: int) -> bytes:
    return (group + 1).to_bytes(2, "big")


def entry_key(kv_key: bytes) -> tuple[Any, ...]:
    return decode_key(kv_key, PREFIX_BYTES)
