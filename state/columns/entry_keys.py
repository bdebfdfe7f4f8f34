"""Stored keys of a columnar table's entries: key group, state id, and key fields (`key_codec`).

With `last_first` the last field, such as a window's start, comes first: a window's entries are adjacent in each key
group.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from barrier_runtime.state.errors import Corrupt
from barrier_runtime.state.keys.key_codec import INT_TAG, decode_key, encode_key, encode_keys
from barrier_runtime.state.keys.key_groups import key_groups_of_int64
from barrier_runtime.state.keys.row_index import Ints, Key
from barrier_runtime.state.kv.shard import PREFIX_BYTES, Shard

_INT_SIGN = np.uint64(1 << 63)
_INT_BYTES = 9


@dataclass(slots=True, eq=False)
class EntryKeys:
    shard: Shard
    state_id: int
    key_width: int
    last_first: bool = False

    def groups_of_ints(self, key_batch: Ints) -> npt.NDArray[np.uint16]:
        shard = self.shard
        groups = key_groups_of_int64(key_batch[0], shard.max_parallelism, *key_batch[1 : self.key_width])
        foreign = (groups < shard.key_group_first) | (groups > shard.key_group_last)
        if foreign.any():
            at = int(np.argmax(foreign))
            raise shard.foreign(tuple(key_batch[:, at].tolist()), int(groups[at]))
        return groups

    def order_of_ints(self, key_batch: Ints, groups: npt.NDArray[np.uint16]) -> npt.NDArray[np.intp]:
        """Positions of the keys in nearly the store's order: by the first stored field."""
        if self.last_first:
            return np.lexsort((key_batch[0], key_batch[-1], groups))
        return np.lexsort((key_batch[0], groups))

    def of_ints(self, key_batch: Ints, groups: npt.NDArray[np.uint16]) -> npt.NDArray[np.void]:
        encoded = np.empty(key_batch.shape[1], int_key(len(key_batch)))
        encoded["group"] = groups
        encoded["state"] = self.state_id
        put_ints(encoded, np.roll(key_batch, 1, axis=0) if self.last_first else key_batch)
        return encoded

    def of_tuples(self, keys: Sequence[Key]) -> list[bytes]:
        if not keys:
            return []
        shard = self.shard
        if not self.last_first:
            return shard.kv_keys(self.state_id, self.key_width, keys)
        return shard.kv_keys(self.state_id, self.key_width, keys, encode_keys([(key[-1], *key[:-1]) for key in keys]))

    def of_any(self, key_batch: Ints | Sequence[Key]) -> list[bytes]:
        if not isinstance(key_batch, np.ndarray):
            return self.of_tuples(key_batch)
        encoded = self.of_ints(key_batch, self.groups_of_ints(key_batch))
        width = encoded.itemsize
        data = encoded.tobytes()
        return [data[at : at + width] for at in range(0, len(data), width)]

    def key(self, data_key: bytes) -> Key:
        fields = decode_key(data_key, PREFIX_BYTES)
        return (*fields[1:], fields[0]) if self.last_first else fields

    def ints(self, data_keys: Sequence[bytes], fields: int) -> Ints | None:
        found = decoded_ints(data_keys, fields)
        return np.roll(found, -1, axis=0) if found is not None and self.last_first else found

    # ---- the last field, stored first

    def range_of(self, group: int, last: int) -> tuple[bytes, bytes]:
        prefix = self.shard.prefix(group, self.state_id)
        start = prefix + encode_key((last,))
        return start, start + b"\xff"  # no key field begins with FF

    @staticmethod
    def last_of(data_key: bytes) -> int:
        head = data_key[PREFIX_BYTES : PREFIX_BYTES + _INT_BYTES]
        if len(head) < _INT_BYTES or head[0] != INT_TAG:
            raise Corrupt(f"key bytes {data_key[:64].hex()} have no int first: restore from another checkpoint")
        (last,) = decode_key(head)
        assert isinstance(last, int)
        return last


def int_key(fields: int, prefix: Sequence[str] = ("group", "state")) -> np.dtype[np.void]:
    """Layout of stored keys of that many ints (`key_codec`), after key group and state id."""
    parts = [(name, ">u2") for name in prefix]
    for number in range(fields):
        parts += [(f"tag{number}", "u1"), (f"field{number}", ">u8")]
    return np.dtype(parts)


def put_ints(encoded: npt.NDArray[np.void], key_batch: Ints) -> None:
    for number, field in enumerate(key_batch):
        encoded[f"tag{number}"] = INT_TAG
        encoded[f"field{number}"] = field.view(np.uint64) ^ _INT_SIGN


def decoded_ints(data_keys: Sequence[bytes], fields: int) -> Ints | None:
    layout = int_key(fields)
    if set(map(len, data_keys)) != {layout.itemsize}:
        return None
    stored = np.frombuffer(b"".join(data_keys), layout)
    if any((stored[f"tag{number}"] != INT_TAG).any() for number in range(fields)):
        return None
    return np.stack(
        [(stored[f"field{number}"].astype(np.uint64) ^ _INT_SIGN).view(np.int64) for number in range(fields)]
    )


def int_fields(data_key: bytes) -> int:
    return (len(data_key) - PREFIX_BYTES) // _INT_BYTES
