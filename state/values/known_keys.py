"""How the keys of recent entries begin in the store: their key group, and they themselves. Where a user's key has many
entries, finding that out costs more than all else of a write."""

from collections.abc import Callable, Iterable
from typing import Any

from barrier_runtime.state.keys.key_codec import encode_key
from barrier_runtime.state.keys.key_groups import key_groups_of_keys
from barrier_runtime.state.kv.shard import Shard
from barrier_runtime.state.values.table import Key

_MOST = 16_384
_MOST_BYTES = 8 << 20


class KnownKeys:
    """Of one state. `make`: (key group and state id, encoded user key) -> what is remembered of the user key."""

    def __init__(self, shard: Shard, state_id: int, key_width: int, make: Callable[[bytes, bytes], Any]) -> None:
        self._shard = shard
        self._state_id = state_id
        self._key_width = key_width
        self._make = make
        self._known: dict[Key, Any] = {}
        self._bytes = 0

    def of(self, keys: list[Key]) -> list[Any]:
        """In the order of these user keys."""
        known = self._known
        try:
            return [known[key] for key in keys]
        except KeyError:
            self._know(keys)
            return [known[key] for key in keys]

    def _know(self, wanted: Iterable[Key]) -> None:
        if len(self._known) > _MOST or self._bytes > _MOST_BYTES:
            self._known.clear()
            self._bytes = 0
        keys, shard = list(set(wanted).difference(self._known)), self._shard
        groups = key_groups_of_keys(keys, self._key_width, shard.max_parallelism)
        prefixes = shard.checked_prefixes(self._state_id, groups, keys)
        for key, group in zip(keys, groups, strict=True):
            encoded = encode_key(key)
            self._known[key] = self._make(prefixes[group], encoded)
            self._bytes += 2 * len(encoded)  # the key itself is about as large
