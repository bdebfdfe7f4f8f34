"""A 64-bit hash per row over key columns, for Bloom filters: whole columns in numpy, no Python object per row.

It lives in memory only, so it may change from release to release. (The hash that decides where state lives,
`state.keys.key_groups`, may not, and tells texts of one length apart by 32 bits only.)
"""

import hashlib
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from barrier_runtime.state.keys.key_groups import NULL_HASH, splitmix64_of

U64: TypeAlias = npt.NDArray[np.uint64]

_LONG = 256  # bytes; a longer text is hashed by itself, so that it does not cost the others a round each
_31 = np.uint64(31)
_FIRST_BYTES = np.array([(1 << 8 * count) - 1 for count in range(9)], np.uint64)  # masks of the first 0 to 8 bytes


def hash_rows(columns: Sequence[pa.Array]) -> U64:
    """One hash per row. `columns` (one or more) are as `KeyCodec.arrays` gives them; nulls are a value."""
    hashes = _hash_column(columns[0])
    for column in columns[1:]:
        hashes = splitmix64_of(hashes * _31 + _hash_column(column))
    return hashes


def _hash_column(column: pa.Array) -> U64:
    kind = column.type
    if pa.types.is_boolean(kind):
        column = column.cast(pa.int8())
    if pa.types.is_integer(column.type):
        values = pc.fill_null(column, 0).to_numpy(zero_copy_only=False)
        hashes = splitmix64_of(values.astype(np.uint64, copy=False))
    elif pa.types.is_floating(kind):
        hashes = splitmix64_of(pc.fill_null(column, 0.0).to_numpy(zero_copy_only=False).view(np.uint64))
    else:
        hashes = _hash_texts(column)
    if column.null_count:
        hashes[column.is_null().to_numpy(zero_copy_only=False)] = NULL_HASH
    return hashes


def _hash_texts(column: pa.Array) -> U64:
    """Eight bytes of every row at a time, as many rounds as the longest row needs."""
    wide = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
    _, offsets_buffer, data_buffer = column.buffers()
    rows = len(column)
    if not rows:
        return np.empty(0, np.uint64)
    offsets = np.frombuffer(offsets_buffer, np.int64 if wide else np.int32)
    offsets = offsets[column.offset : column.offset + rows + 1].astype(np.int64)
    first, last = int(offsets[0]), int(offsets[-1])
    data = np.zeros(last - first + 8, np.uint8)  # so that eight bytes can be taken from any place
    if last > first:
        data[:-8] = np.frombuffer(data_buffer, np.uint8)[first:last]
    words = np.ndarray((last - first + 1,), "<u8", data.data, strides=(1,))
    starts, lengths = offsets[:-1] - first, np.diff(offsets)
    hashes = splitmix64_of(lengths.astype(np.uint64))
    long = lengths > _LONG
    some = np.flatnonzero((lengths > 0) & ~long)
    done = 0
    while len(some):
        left = lengths[some] - done
        taken = words[starts[some] + done] & _FIRST_BYTES[np.minimum(left, 8)]
        hashes[some] = splitmix64_of(hashes[some] * _31 + taken)
        some = some[left > 8]
        done += 8
    for row in np.flatnonzero(long).tolist():
        text = data[starts[row] : starts[row] + lengths[row]].tobytes()
        hashes[row] = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
    return hashes
