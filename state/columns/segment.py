"""A *segment*: rows of a columnar table as bytes, in columns.

A segment is a *delta* (rows changed since the segment before, and removed keys) or a *base* (all rows). The segments
from the last base on, read in order, give the table. Keys of ints are int64 fields; all others are binary values of key
group (2 bytes, big endian) and encoded key (`key_codec`).

    magic, length and CRC-32 of the header (4 bytes each, big endian), header (JSON, see `Header`), then per column the
    bytes by significance (all first bytes, all second bytes, …), as an LZ4 block; the header has their CRC-32

A column of cells (`wide_columns`; dtype "binary" in the header) has two blocks: lengths, and all bytes.
"""

import itertools
import struct
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from barrier_runtime.state.columns.entry_keys import int_key, put_ints
from barrier_runtime.state.columns.wide_columns import empty_cells, from_binary, is_wide, to_binary
from barrier_runtime.state.errors import UNREADABLE
from barrier_runtime.state.keys.key_groups import key_groups_of_int64
from barrier_runtime.state.keys.row_index import IntKeys, Ints
from barrier_runtime.state.versioned import Format, check_magic

SEGMENT_VERSION = 1
MAGIC = b"barrier-segment-%d\n" % SEGMENT_VERSION
GROUP_BYTES = 2

Keys: TypeAlias = Ints | pa.LargeBinaryArray  # int64 of shape (fields, keys), or binary
Columns: TypeAlias = Mapping[str, npt.NDArray[Any]]

_fixed = struct.Struct(">II")
FIXED_BYTES = len(MAGIC) + _fixed.size
_CELLS = "binary"
_LZ4_AT_MOST = 255  # times the compressed size


@dataclass(frozen=True)
class Segment:
    """`columns`: name → value per key. `removed`: none of `keys`, and empty in a base."""

    state: str
    key_width: int  # key fields that determine the key group
    base: bool
    keys: Keys
    columns: Columns
    removed: Keys

    @property
    def entries(self) -> int:
        return count(self.keys) + count(self.removed)


class Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`fields`: of int keys; 0 for binary keys. `level`: number of merges of the rows."""

    state: str
    key_width: int
    base: bool
    level: int
    fields: int
    keys: int
    removed: int
    columns: list[tuple[str, str]]  # name and numpy dtype, or "binary"
    blocks: list[tuple[int, int]]  # bytes of each block: compressed, uncompressed
    crc32: int  # of all blocks as stored

    @property
    def entries(self) -> int:
        return self.keys + self.removed


_HEADER = msgspec.json.Decoder(Header)
_FORMAT = Format("segment of state {}", SEGMENT_VERSION, damaged="restore from another checkpoint")


def count(keys: Keys) -> int:
    return int(keys.shape[1]) if isinstance(keys, np.ndarray) else len(keys)


def encode(segment: Segment, level: int) -> list[bytes]:
    """Releases the interpreter's lock in the large steps."""
    columns = [part for column in segment.columns.values() for part in _column_arrays(column)]
    arrays = [*_key_arrays(segment.keys), *columns, *_key_arrays(segment.removed)]
    blocks = [_by_significance(array) for array in arrays]
    compressed = [pa.compress(block, codec="lz4_raw", asbytes=True) if len(block) else b"" for block in blocks]
    header = msgspec.json.encode(
        Header(
            state=segment.state,
            key_width=segment.key_width,
            base=segment.base,
            level=level,
            fields=len(segment.keys) if isinstance(segment.keys, np.ndarray) else 0,
            keys=count(segment.keys),
            removed=count(segment.removed),
            columns=[(name, _kind(column)) for name, column in segment.columns.items()],
            blocks=[(len(small), len(block)) for small, block in zip(compressed, blocks, strict=True)],
            crc32=_crc32(compressed),
        )
    )
    return [MAGIC + _fixed.pack(len(header), zlib.crc32(header)) + header, *compressed]


def header_bytes(fixed: bytes, where: str) -> int:
    """Raises `Corrupt` for another kind of file."""
    check_magic(fixed, MAGIC, _FORMAT, where)
    if len(fixed) < FIXED_BYTES:
        raise _FORMAT.unreadable("it is too short", where)
    return int(_fixed.unpack_from(fixed, len(MAGIC))[0])


def decode_header(data: bytes, where: str) -> tuple[Header, int]:
    """Header, and position of the first block. Raises `Corrupt` for bytes of another format."""
    end = FIXED_BYTES + header_bytes(data[:FIXED_BYTES], where)
    header = data[FIXED_BYTES:end]
    if zlib.crc32(header) != _fixed.unpack_from(data, len(MAGIC))[1]:
        raise _FORMAT.unreadable("its header is damaged", where)
    try:
        return _HEADER.decode(header), end
    except UNREADABLE as error:
        raise _FORMAT.unreadable(error, where) from error


def decode(data: bytes, where: str, columns: Collection[str] | None = None) -> Segment:
    """Raises `Corrupt` for bytes that `encode` never makes."""
    header, at = decode_header(data, where)
    if len(data) != at + sum(small for small, _ in header.blocks) or _crc32([memoryview(data)[at:]]) != header.crc32:
        raise _FORMAT.unreadable("its rows are damaged", where)
    if any(small < 0 or not 0 <= size <= _LZ4_AT_MOST * small for small, size in header.blocks):
        raise _FORMAT.unreadable("it has blocks of impossible sizes", where)
    wanted = [(name, kind) for name, kind in header.columns if columns is None or name in columns]
    blocks = []
    try:
        for (small, size), is_read in zip(header.blocks, _blocks_read(header, wanted), strict=True):
            if is_read:
                block = pa.decompress(data[at : at + small], size, codec="lz4_raw", asbytes=True) if size else b""
                blocks.append(block)
            at += small
        keys = _decoded_keys(blocks, header.fields, header.keys)
        found = {name: _decoded_column(blocks, kind, header.keys) for name, kind in wanted}
        removed = _decoded_keys(blocks, header.fields, header.removed)
    except (OSError, ValueError, TypeError, IndexError) as error:
        raise _FORMAT.unreadable(error, where) from error
    return Segment(header.state, header.key_width, header.base, keys, found, removed)


def _blocks_read(header: Header, wanted: Collection[tuple[str, str]]) -> list[bool]:
    keys = [True] * (header.fields or 2)
    columns = [each in wanted for each in header.columns for _ in range(2 if each[1] == _CELLS else 1)]
    return [*keys, *columns, *keys]


def _crc32(parts: Iterable[bytes | memoryview]) -> int:
    found = 0
    for part in parts:
        found = zlib.crc32(part, found)
    return found


def _key_arrays(keys: Keys) -> list[npt.NDArray[Any]]:
    if isinstance(keys, np.ndarray):
        return list(keys)
    offsets, data = _buffers(keys)
    return [np.diff(offsets).astype("<u4"), data]


def _decoded_keys(blocks: list[bytes], fields: int, keys: int) -> Keys:
    if fields:
        return np.array([_of_significance(blocks.pop(0), "<i8", keys) for _ in range(fields)]).reshape(fields, keys)
    return _decoded_binary(blocks, keys)


def _kind(column: npt.NDArray[Any]) -> str:
    return _CELLS if is_wide(column.dtype) else column.dtype.newbyteorder("<").str


def _column_arrays(column: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
    return _key_arrays(to_binary(column)) if is_wide(column.dtype) else [column]


def _decoded_column(blocks: list[bytes], kind: str, keys: int) -> npt.NDArray[Any]:
    if kind == _CELLS:
        return from_binary(_decoded_binary(blocks, keys))
    return _of_significance(blocks.pop(0), kind, keys)


def _decoded_binary(blocks: list[bytes], values: int) -> pa.LargeBinaryArray:
    lengths = _of_significance(blocks.pop(0), "<u4", values)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    data = blocks.pop(0)
    if offsets[-1] != len(data):
        raise ValueError(f"values of {offsets[-1]} bytes in {len(data)}")
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), values, buffers)


def _by_significance(values: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    little = np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
    return np.ascontiguousarray(little.view(np.uint8).reshape(len(values), values.dtype.itemsize).T).reshape(-1)


def _of_significance(block: bytes, kind: str, values: int) -> npt.NDArray[Any]:
    dtype = np.dtype(kind)
    planes = np.frombuffer(block, np.uint8).reshape(dtype.itemsize, values)
    return np.ascontiguousarray(planes.T).reshape(-1).view(dtype)


def _buffers(keys: pa.LargeBinaryArray) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    if not len(keys):
        return np.zeros(1, np.int64), np.empty(0, np.uint8)
    _, offsets_buffer, data_buffer = keys.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int64)[keys.offset : keys.offset + len(keys) + 1]
    data = np.frombuffer(data_buffer, np.uint8) if data_buffer is not None else np.empty(0, np.uint8)
    return offsets - offsets[0], data[offsets[0] : offsets[-1]]


def merged(segments: Sequence[Segment], max_parallelism: int, base: bool) -> Segment:
    """Merges consecutive segments: the latest version of each key counts.

    A base omits removed keys. A column that older segments lack is 0 there.
    """
    first = next((at for at in range(len(segments) - 1, -1, -1) if segments[at].base), 0)
    parts = segments[first:]
    last = parts[-1]
    fields = {len(part.keys) if isinstance(part.keys, np.ndarray) else 0 for part in parts}
    runs: list[Keys] = []
    for part in parts:
        runs += [part.removed, part.keys]
    if len(fields) > 1 or 0 in fields:
        runs = [as_binary(run, last.key_width, max_parallelism) for run in runs]
    every = _joined(runs)
    newest = _newest(every)  # a position in `every` for each key
    is_row = np.concatenate([np.full(count(run), at % 2 == 1) for at, run in enumerate(runs)])
    row_number = np.cumsum(is_row) - 1
    rows, gone = newest[is_row[newest]], newest[~is_row[newest]]
    kinds = {name: column.dtype for part in parts for name, column in part.columns.items()}
    columns = {name: np.concatenate([_column(part, name, kinds[name]) for part in parts]) for name in kinds}
    columns = {name: column[row_number[rows]] for name, column in columns.items()}
    removed = chosen(every, gone[:0] if base else gone)
    return Segment(last.state, last.key_width, base, chosen(every, rows), columns, removed)


def joined(segments: Sequence[Segment], max_parallelism: int) -> Segment:
    """Joins segments without common keys to a base; ignores removed keys."""
    first, fields = segments[0], {len(each.keys) if isinstance(each.keys, np.ndarray) else 0 for each in segments}
    keys = [each.keys for each in segments]
    if len(fields) > 1 or 0 in fields:
        keys = [as_binary(run, first.key_width, max_parallelism) for run in keys]
    kinds = {name: column.dtype for each in segments for name, column in each.columns.items()}
    columns = {name: np.concatenate([_column(each, name, kinds[name]) for each in segments]) for name in kinds}
    every = _joined(keys)
    return Segment(first.state, first.key_width, True, every, columns, part(every, 0, 0))


def _column(segment: Segment, name: str, kind: np.dtype[Any]) -> npt.NDArray[Any]:
    column = segment.columns.get(name)
    if column is not None:
        return column
    return empty_cells(count(segment.keys)) if is_wide(kind) else np.zeros(count(segment.keys), kind)


def chosen(keys: Keys, positions: npt.NDArray[np.intp]) -> Keys:
    return keys[:, positions] if isinstance(keys, np.ndarray) else keys.take(pa.array(positions))


def part(keys: Keys, start: int, end: int) -> Keys:
    return keys[:, start:end] if isinstance(keys, np.ndarray) else keys[start:end]


def within(segment: Segment, first: int, last: int, max_parallelism: int) -> Segment:
    def inside(keys: Keys) -> npt.NDArray[np.intp]:
        groups = groups_of(keys, segment.key_width, max_parallelism)
        return np.flatnonzero((groups >= first) & (groups <= last))

    rows, gone = inside(segment.keys), inside(segment.removed)
    columns = {name: column[rows] for name, column in segment.columns.items()}
    keys, removed = chosen(segment.keys, rows), chosen(segment.removed, gone)
    return Segment(segment.state, segment.key_width, segment.base, keys, columns, removed)


def chunks(segment: Segment, entries: int) -> list[Segment]:
    """Splits a segment into segments of at most `entries` rows.

    Only the first has the removed keys and can be a base.
    """
    rows = count(segment.keys)
    cut = []
    for start in range(0, max(rows, 1), entries):
        columns = {name: column[start : start + entries] for name, column in segment.columns.items()}
        removed = segment.removed if start == 0 else part(segment.removed, 0, 0)
        base = segment.base and start == 0
        keys = part(segment.keys, start, start + entries)
        cut.append(Segment(segment.state, segment.key_width, base, keys, columns, removed))
    return cut


def groups_of(keys: Keys, key_width: int, max_parallelism: int) -> npt.NDArray[np.uint16]:
    if isinstance(keys, np.ndarray):
        return key_groups_of_int64(keys[0], max_parallelism, *keys[1:key_width])
    offsets, data = _buffers(keys)
    starts = offsets[:-1]
    return np.left_shift(data[starts], 8, dtype=np.uint16) | data[starts + 1]


def as_binary(keys: Keys, key_width: int, max_parallelism: int) -> pa.LargeBinaryArray:
    if not isinstance(keys, np.ndarray):
        return keys
    encoded = np.empty(count(keys), int_key(len(keys), ("group",)))
    encoded["group"] = groups_of(keys, key_width, max_parallelism)
    put_ints(encoded, keys)
    offsets = np.arange(len(encoded) + 1, dtype=np.int64) * np.int64(encoded.itemsize)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(encoded.tobytes())]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(encoded), buffers)


def _joined(runs: Sequence[Keys]) -> Keys:
    if isinstance(runs[0], np.ndarray):
        return np.concatenate(runs, 1)
    return pa.concat_arrays(runs)


def _newest(keys: Keys) -> npt.NDArray[np.intp]:
    if isinstance(keys, np.ndarray):
        codes, _ = IntKeys(len(keys)).place(keys)
    else:
        codes = keys.dictionary_encode().indices.to_numpy(zero_copy_only=False)
    last = np.zeros(int(codes.max()) + 1 if len(codes) else 0, np.intp)
    np.maximum.at(last, codes, np.arange(len(codes)))
    return last


BOTTOM = 1_000_000  # level of a base and of chunks of a base
_MANY = 24


@dataclass(frozen=True)
class Size:
    entries: int
    level: int


def merge_from(sizes: Sequence[Size]) -> int | None:
    """Index in a state's segments, oldest first, from which all are merged; None: no merge.

    When the deltas have as many entries as the base, all become a new base: besides merges of deltas, a changed row is
    written at most twice. Many deltas of the same level are merged, so a restore reads some dozens of files at most.
    """
    below = list(itertools.takewhile(lambda size: size.level == BOTTOM, sizes))
    above = sizes[len(below) :]
    if not above:
        return None
    if sum(size.entries for size in above) >= sum(size.entries for size in below):
        return 0
    start, level = len(sizes), 0
    while True:
        alike = sum(1 for _ in itertools.takewhile(lambda size: size.level == level, reversed(sizes[:start])))  # noqa: B023
        if alike + (start < len(sizes)) < _MANY:
            return start if start < len(sizes) else None
        start, level = start - alike, level + 1
