"""Maps keys to key groups, and key groups to subtasks.

The hash must never change: all snapshots depend on the hash. Hash of a field (modulo 2**64):

    None                      NULL_HASH
    bool, int (64 bits)       splitmix64(value)
    float                     splitmix64(IEEE-754 bits), with -0.0 as 0.0 and a single NaN
    str (UTF-8), bytes        splitmix64(crc32(bytes) | length << 32)
    date                      splitmix64(days since 1970-01-01)
    datetime                  splitmix64(microseconds since 1970-01-01T00:00Z; without time zone: as UTC)

A key of several fields is folded: h = splitmix64(h * 31 + next). The group is (h >> 32) * max_parallelism >> 32.
Subtasks own contiguous ranges of groups, with Flink's formula.
"""

import datetime as dt
import struct
import sys
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from barrier_runtime.state.errors import InvalidJob

MAX_PARALLELISM_LIMIT = 32_768
NULL_HASH = 0x9E3779B97F4A7C15
NAN_BITS = 0x7FF8000000000000

_MASK = 0xFFFFFFFFFFFFFFFF
_EPOCH_DAY = dt.date(1970, 1, 1).toordinal()
_EPOCH = dt.datetime(1970, 1, 1)
_EPOCH_UTC = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
_MICROSECOND = dt.timedelta(microseconds=1)
_SMALL_ROWS = 512  # below, look-ups of strings are faster
_FEW_ROWS = 128
_REMEMBERED_STRINGS = 65_536
_REMEMBERED_KEYS = 65_536
_REMEMBERED_BYTES = 16 * 1024 * 1024  # total size of cached texts

U64 = npt.NDArray[np.uint64]


def splitmix64(value: int) -> int:
    """Java's SplittableRandom."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def hash_field(value: Any) -> int:
    hasher = _HASHERS.get(type(value))
    if hasher is None:
        hasher = _hasher_of_subclass(value)
    return hasher(value)


def key_group(key: tuple[Any, ...], max_parallelism: int) -> int:
    """The key must not be empty."""
    combined = hash_field(key[0])
    for field in key[1:]:
        combined = splitmix64(combined * 31 + hash_field(field))
    return ((combined >> 32) * max_parallelism) >> 32


def _hash_int(value: int) -> int:
    if not -(1 << 63) <= value < 1 << 64:
        raise InvalidJob(f"key field {value} does not fit in 64 bits: use a string as the key")
    return splitmix64(value & _MASK)


def _hash_float(value: float) -> int:
    if value != value:
        return splitmix64(NAN_BITS)
    return splitmix64(struct.unpack("<Q", struct.pack("<d", value + 0.0))[0])


def _hash_bytes(value: bytes) -> int:
    return splitmix64(zlib.crc32(value) | (len(value) << 32) & _MASK)


def _hash_str(value: str) -> int:
    try:
        return _hash_bytes(value.encode())
    except UnicodeEncodeError as error:
        raise InvalidJob(f"key field {value!r} is not valid text ({error.reason}): clean it before key_by") from error


def _hash_date(value: dt.date) -> int:
    return splitmix64((value.toordinal() - _EPOCH_DAY) & _MASK)


def microseconds_of(value: dt.datetime) -> int:
    return (value - (_EPOCH if value.tzinfo is None else _EPOCH_UTC)) // _MICROSECOND


def _hash_datetime(value: dt.datetime) -> int:
    return splitmix64(microseconds_of(value) & _MASK)


class _StringHashes(dict[Any, int]):
    """Most streams repeat few strings."""

    def __init__(self, hasher: Callable[[Any], int]) -> None:
        super().__init__()
        self._hasher = hasher
        self._bytes = 0

    def __missing__(self, value: Any) -> int:
        self._bytes += _text_bytes(value)
        if len(self) >= _REMEMBERED_STRINGS or self._bytes > _REMEMBERED_BYTES:
            self.clear()
            self._bytes = _text_bytes(value)
        hashed = self[value] = NULL_HASH if value is None else self._hasher(value)
        return hashed


def _text_bytes(value: Any) -> int:
    return sys.getsizeof(value) if isinstance(value, str | bytes) else 0


_remembered = {_hash_str: _StringHashes(_hash_str), _hash_bytes: _StringHashes(_hash_bytes)}


_HASHERS: dict[type, Callable[[Any], int]] = {
    type(None): lambda value: NULL_HASH,
    bool: lambda value: splitmix64(int(value)),
    int: _hash_int,
    float: _hash_float,
    str: _hash_str,
    bytes: _hash_bytes,
    dt.date: _hash_date,
    dt.datetime: _hash_datetime,
}


def _hasher_of_subclass(value: Any) -> Callable[[Any], int]:
    if isinstance(value, np.generic):
        return lambda scalar: hash_field(scalar.item())
    for kind in (dt.datetime, dt.date, bool, int, float, str, bytes):  # datetime before date, bool before int
        if isinstance(value, kind):
            return _HASHERS[kind]
    raise InvalidJob(
        f"a value of type {type(value).__name__} cannot be a key: use int, str, bytes, bool, float, date or datetime"
    )


# Made once: making a numpy scalar costs as much as using the scalar on a small batch.
_GAMMA, _MIX_1, _MIX_2 = map(np.uint64, (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
_27, _30, _31, _32 = map(np.uint64, (27, 30, 31, 32))


def splitmix64_of(values: U64) -> U64:
    mixed: U64 = values + _GAMMA
    mixed ^= mixed >> _30
    mixed *= _MIX_1
    mixed ^= mixed >> _27
    mixed *= _MIX_2
    mixed ^= mixed >> _31
    return mixed


def key_groups_of(columns: Sequence[pa.Array], max_parallelism: int) -> npt.NDArray[np.uint16]:
    if len(columns[0]) <= _FEW_ROWS:
        few = _groups_of_few(columns, max_parallelism)
        if few is not None:
            return few
    combined = _hash_column(columns[0])
    for column in columns[1:]:
        combined = splitmix64_of(combined * _31 + _hash_column(column))
    return _groups_of_hashes(combined, max_parallelism)


def key_groups_of_int64(
    values: npt.NDArray[np.int64], max_parallelism: int, *more: npt.NDArray[np.int64]
) -> npt.NDArray[np.uint16]:
    """As `key_groups_of`, for int64 columns without nulls."""
    combined = splitmix64_of(values.view(np.uint64))
    for field in more:
        combined = splitmix64_of(combined * _31 + splitmix64_of(field.view(np.uint64)))
    return _groups_of_hashes(combined, max_parallelism)


def key_groups_of_few(columns: Sequence[list[Any]], kinds: Sequence[int], max_parallelism: int) -> list[int] | None:
    """Groups of a few rows of integers, booleans, text or dates.

    `kinds`: ids of the columns' types. Returns None for other types, or after too many different keys.
    """
    known = _known_groups((max_parallelism, *kinds))
    if known is None:
        return None
    return list(map(known.__getitem__, columns[0] if len(columns) == 1 else zip(*columns, strict=True)))


def _groups_of_hashes(hashes: U64, max_parallelism: int) -> npt.NDArray[np.uint16]:
    if max_parallelism & (max_parallelism - 1) == 0:  # same result in a single step
        return (hashes >> _64_MINUS[max_parallelism]).astype(np.uint16) if max_parallelism > 1 else _zeros(len(hashes))
    hashes = hashes >> _32
    hashes *= np.uint64(max_parallelism)
    hashes >>= _32
    return hashes.astype(np.uint16)


_64_MINUS = {1 << bits: np.uint64(64 - bits) for bits in range(1, 16)}


def _zeros(rows: int) -> npt.NDArray[np.uint16]:
    return np.zeros(rows, np.uint16)


class _RememberedGroups(dict[Any, int]):
    """Gives up for good when full: then computing is faster."""

    def __init__(self, single: bool, max_parallelism: int) -> None:
        super().__init__()
        self._single = single
        self._max_parallelism = max_parallelism
        self._bytes = 0
        self.gave_up = False

    def __missing__(self, key: Any) -> int:
        group = key_group((key,) if self._single else key, self._max_parallelism)
        self._bytes += _text_bytes(key) if self._single else sum(map(_text_bytes, key))
        if len(self) < _REMEMBERED_KEYS and self._bytes <= _REMEMBERED_BYTES:
            self[key] = group
        else:
            self.gave_up = True
        return group


# By max_parallelism and column types, because 1, 1.0 and True are the same key of a dict.
_remembered_groups: dict[tuple[int, ...], _RememberedGroups | None] = {}


def _known_groups(kinds: tuple[int, ...]) -> _RememberedGroups | None:
    try:
        known = _remembered_groups[kinds]
    except KeyError:
        wanted = all(kind in _QUICK_KINDS for kind in kinds[1:])
        known = _remembered_groups[kinds] = _RememberedGroups(len(kinds) == 2, kinds[0]) if wanted else None
    if known is not None and known.gave_up:
        known = _remembered_groups[kinds] = None
    return known


def _groups_of_few(columns: Sequence[pa.Array], max_parallelism: int) -> npt.NDArray[np.uint16] | None:
    known = _known_groups((max_parallelism, *[column.type.id for column in columns]))
    if known is None:
        return None
    if len(columns) == 1:
        keys: Any = columns[0].to_pylist()
    else:
        keys = zip(*[column.to_pylist() for column in columns], strict=True)
    return np.fromiter(map(known.__getitem__, keys), np.uint16, len(columns[0]))


def _hash_column(column: Any) -> U64:
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    kind = column.type
    hasher = _COLUMN_HASHERS.get(kind.id)
    if hasher is not None:
        return hasher(column)
    raise InvalidJob(f"a column of type {kind} cannot be a key: cast it to an integer, string, date or timestamp first")


def _with_nulls(column: Any, hashes: U64) -> U64:
    if column.null_count:
        hashes[column.is_null().to_numpy(zero_copy_only=False)] = NULL_HASH
    return hashes


def _integers(column: Any) -> U64:
    """Values as uint64 (two's complement); nulls are 0."""
    if column.null_count:
        column = pc.fill_null(column, 0)
    values = column.to_numpy(zero_copy_only=False)
    if values.dtype == np.uint64:
        return values  # type: ignore[no-any-return]
    if values.dtype != np.int64:
        values = values.astype(np.int64)
    return values.view(np.uint64)  # type: ignore[no-any-return]


def _float_bits(column: Any) -> U64:
    if column.null_count:
        column = pc.fill_null(column, 0.0)
    values = column.to_numpy(zero_copy_only=False).astype(np.float64) + 0.0  # -0.0 + 0.0 is 0.0
    bits = values.view(np.uint64)
    not_numbers = np.isnan(values)
    if not_numbers.any():
        bits[not_numbers] = NAN_BITS
    return bits  # type: ignore[no-any-return]


_MICROSECONDS_PER = {"s": 1_000_000, "ms": 1_000, "us": 1}


def _time_as_int64(column: Any) -> Any:
    kind = column.type
    if pa.types.is_date32(kind):
        return column.cast(pa.int32())
    if pa.types.is_date64(kind):
        return column.cast(pa.date32()).cast(pa.int32())
    ticks = column.cast(pa.int64())
    if kind.unit == "us":
        return ticks
    nulls = ticks.is_null().to_numpy(zero_copy_only=False) if ticks.null_count else None
    values = (pc.fill_null(ticks, 0) if ticks.null_count else ticks).to_numpy(zero_copy_only=False)
    values = values // 1_000 if kind.unit == "ns" else values * _MICROSECONDS_PER[kind.unit]
    return pa.array(values, mask=nulls)


def _hash_texts(column: Any, hasher: Callable[[Any], int]) -> U64:
    known = _remembered[hasher]
    if len(column) <= _SMALL_ROWS:
        values = column.to_pylist()
        return np.fromiter(map(known.__getitem__, values), np.uint64, len(values))
    return _hash_dictionary(column.dictionary_encode(null_encoding="encode"))


def _hash_dictionary(column: Any) -> U64:
    dictionary, indices = column.dictionary, column.indices
    hasher = _hash_str if dictionary.type in _STRINGS else _hash_bytes
    if len(dictionary) <= _SMALL_ROWS or not isinstance(dictionary, _TEXTS):
        hashes = _hash_column(dictionary)
    else:
        hashes = np.fromiter(map(_remembered[hasher].__getitem__, dictionary.to_pylist()), np.uint64, len(dictionary))
    if not indices.null_count:
        return hashes[indices.to_numpy(zero_copy_only=False)] if len(dictionary) else np.empty(0, np.uint64)
    hashes = np.append(hashes, np.uint64(NULL_HASH))
    positions: npt.NDArray[np.int64] = pc.fill_null(indices.cast(pa.int64()), len(dictionary)).to_numpy()
    return hashes[positions]


def _hash_integers(column: Any) -> U64:
    return _with_nulls(column, splitmix64_of(_integers(column)))


def _hash_times(column: Any) -> U64:
    return _hash_integers(_time_as_int64(column))


_STRINGS = (pa.string(), pa.large_string())
_TEXTS = (pa.StringArray, pa.LargeStringArray, pa.BinaryArray, pa.LargeBinaryArray, pa.FixedSizeBinaryArray)
_INTEGERS = [pa.type_for_alias(f"{sign}int{bits}").id for sign in ("", "u") for bits in (8, 16, 32, 64)]
_QUICK_KINDS = frozenset([*_INTEGERS, *[kind.id for kind in (*_STRINGS, pa.bool_(), pa.date32())]])
_COLUMN_HASHERS: dict[int, Callable[[Any], U64]] = {
    **dict.fromkeys(_INTEGERS, _hash_integers),
    **dict.fromkeys([kind.id for kind in _STRINGS], lambda column: _hash_texts(column, _hash_str)),
    **dict.fromkeys(
        [kind.id for kind in (pa.binary(), pa.large_binary(), pa.binary(1))],
        lambda column: _hash_texts(column, _hash_bytes),
    ),
    **dict.fromkeys([kind.id for kind in (pa.date32(), pa.date64(), pa.timestamp("us"))], _hash_times),
    **dict.fromkeys(
        [kind.id for kind in (pa.float16(), pa.float32(), pa.float64())],
        lambda column: _with_nulls(column, splitmix64_of(_float_bits(column))),
    ),
    pa.dictionary(pa.int32(), pa.string()).id: lambda column: _hash_dictionary(column),
    pa.bool_().id: lambda column: _hash_integers(column.cast(pa.int8())),
    pa.null().id: lambda column: np.full(len(column), NULL_HASH, np.uint64),
}


def key_groups_of_keys(keys: Sequence[tuple[Any, ...]], key_width: int, max_parallelism: int) -> list[int]:
    combined = _hash_fields([key[0] for key in keys])
    for position in range(1, key_width):
        combined = splitmix64_of(combined * _31 + _hash_fields([key[position] for key in keys]))
    groups: list[int] = _groups_of_hashes(combined, max_parallelism).tolist()
    return groups


def _hash_fields(fields: list[Any]) -> U64:
    kinds = set(map(type, fields))
    if kinds == {int}:
        try:
            return splitmix64_of(np.array(fields, np.int64).view(np.uint64))
        except OverflowError:  # values above 2**63 - 1
            pass
    elif kinds == {str}:
        return np.fromiter(map(_remembered[_hash_str].__getitem__, fields), np.uint64, len(fields))
    return np.fromiter(map(hash_field, fields), np.uint64, len(fields))


def check_max_parallelism(parallelism: int, max_parallelism: int) -> int:
    """Raises `InvalidJob` unless 1 <= parallelism <= max_parallelism <= 32,768."""
    if not 1 <= max_parallelism <= MAX_PARALLELISM_LIMIT:
        raise InvalidJob(f"max_parallelism {max_parallelism} is not allowed: use 1 to {MAX_PARALLELISM_LIMIT}")
    if not 1 <= parallelism <= max_parallelism:
        raise InvalidJob(
            f"parallelism {parallelism} is not allowed: use 1 to {max_parallelism}, the job's max_parallelism"
        )
    return max_parallelism


def key_group_range(subtask: int, parallelism: int, max_parallelism: int) -> tuple[int, int]:
    """First and last key group (inclusive) of `subtask`, i.e. `group * parallelism // max_parallelism`.

    >>> [key_group_range(subtask, 3, 10) for subtask in range(3)]
    [(0, 3), (4, 6), (7, 9)]
    """
    first = (subtask * max_parallelism + parallelism - 1) // parallelism
    last = ((subtask + 1) * max_parallelism - 1) // parallelism
    return first, last
