"""Decoder of the plugin `pgoutput`, protocol version 1, many changes at a time. Pure.

Transactions arrive whole, in commit order: Begin · (Relation | Insert | Update | Delete | Truncate)* · Commit. On each
connection a Relation precedes a table's first change, and the first change after ALTER TABLE.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Flags: TypeAlias = npt.NDArray[np.bool_]
Numbers: TypeAlias = npt.NDArray[np.int64]

HEADER: Final = 25  # bytes before each message of the plugin
ROW_KINDS: Final = b"IUD"
_PADDING = bytes(8)  # a length may be read, and then ignored, after the last value
_OPS = np.zeros(256, np.uint8)
_OPS[list(b"IUDT")] = list(b"cudt")
_KEY, _OLD, _NEW = b"KON"
_TEXT, _NULL, _UNCHANGED = b"tnu"


@dataclass(frozen=True, slots=True)
class TextColumn:
    """Values as PostgreSQL writes them; null also for missing rows and `unchanged` values.

    `unchanged`: large values (TOAST) that the log omits.
    """

    texts: pa.Array
    unchanged: Flags


@dataclass(frozen=True, slots=True)
class TextRows:
    """Rows in columns. `missing`: rows that the log omits."""

    columns: tuple[TextColumn, ...]
    missing: Flags


@dataclass(frozen=True, slots=True)
class RowChanges:
    """Changes of a table; `ops` has the codes of the letters c, u, d and t.

    `before` has old keys (other columns are null), or old rows if `whole`.
    """

    ops: npt.NDArray[np.uint8]
    before: TextRows
    after: TextRows
    whole: Flags


def truncation(relation: int) -> bytes:
    return bytes(HEADER) + b"T" + relation.to_bytes(4, "big") + b"\0"


class RowMessages:
    """Messages with headers. `relations`: the server's id of each message's table."""

    def __init__(self, messages: Sequence[bytes | memoryview]) -> None:
        self._buffer = pa.py_buffer(b"".join([*messages, _PADDING]))
        self._bytes = np.frombuffer(self._buffer, np.uint8)
        self._shorts, self._words = (
            np.ndarray((len(self._bytes) - size + 1,), f">u{size}", self._buffer, 0, (1,)) for size in (2, 4)
        )
        lengths = np.fromiter(map(len, messages), np.int64, len(messages))
        self._starts: Numbers = np.cumsum(lengths) - lengths + HEADER
        self.relations: Numbers = self._words[self._starts + 1].astype(np.int64)

    def changes(self, chosen: Numbers, width: int, places: Sequence[int | None]) -> RowChanges:
        """Decodes the messages `chosen`, of a table with `width` columns in the log.

        `places`: of each wanted column in the log; None: a column of nulls. Raises `ValueError` for unknown messages.
        """
        starts = self._starts[chosen]
        ops = _OPS[self._bytes[starts]]
        part = self._bytes[starts + 5]
        has_before = (part == _KEY) | (part == _OLD)
        at = starts + 5
        before = self._rows(at, has_before, width, places)
        has_after = (ops == ord("c")) | (ops == ord("u"))
        if (self._bytes[at[has_after]] != _NEW).any():
            raise ValueError("a change without a new row")
        after = self._rows(at, has_after, width, places)
        return RowChanges(ops, before, after, part == _OLD)

    def _rows(self, at: Numbers, present: Flags, width: int, places: Sequence[int | None]) -> TextRows:
        """Moves `at` after the rows."""
        rows = np.flatnonzero(present)
        begins = at[rows] + 1
        if (self._shorts[begins] != width).any():
            raise ValueError(f"a row without {width} values")
        begins += 2
        found: dict[int, TextColumn] = {}
        for place in range(width if len(rows) else 0):
            kinds = self._bytes[begins]
            is_text, unchanged = kinds == _TEXT, kinds == _UNCHANGED
            if not (is_text | unchanged | (kinds == _NULL)).all():
                raise ValueError("a value of an unknown kind")
            starts = np.where(is_text, begins + 5, begins + 1)
            ends = starts + np.where(is_text, self._words[begins + 1].astype(np.int64), 0)
            if place in places:
                found[place] = self._column(rows, present, starts, ends, is_text, unchanged)
            begins = ends
        at[rows] = begins
        empty = TextColumn(pa.nulls(len(at), pa.binary()), np.zeros(len(at), np.bool_))
        return TextRows(tuple(empty if place is None else found.get(place, empty) for place in places), ~present)

    def _column(
        self, rows: Numbers, present: Flags, starts: Numbers, ends: Numbers, is_text: Flags, unchanged: Flags
    ) -> TextColumn:
        count = len(present)
        # Every second element of an array over the whole buffer is a value.
        offsets = np.empty(2 * len(rows), np.int32)
        offsets[::2], offsets[1::2] = starts, ends
        spans = pa.Array.from_buffers(
            pa.binary(), max(0, len(offsets) - 1), [None, pa.py_buffer(offsets), self._buffer]
        )
        index, absent, not_there = np.zeros(count, np.int64), np.ones(count, np.bool_), np.zeros(count, np.bool_)
        index[rows] = np.arange(0, 2 * len(rows), 2)
        absent[rows] = ~is_text
        not_there[rows] = unchanged
        return TextColumn(spans.take(pa.array(index, mask=absent)), not_there)


_EPOCH_US = 946_684_800_000_000  # PostgreSQL's epoch, 2000-01-01


@dataclass(frozen=True, slots=True)
class TransactionBegin:
    commit_lsn: int
    committed_us: int  # since 1970
    xid: int


@dataclass(frozen=True, slots=True)
class TransactionCommit:
    commit_lsn: int
    end_lsn: int  # first byte after the commit


@dataclass(frozen=True, slots=True)
class RelationColumn:
    """`identifies`: part of the replica identity. `type`: the server's type id."""

    name: str
    identifies: bool
    type: int
    typmod: int


@dataclass(frozen=True, slots=True)
class Relation:
    """Table at this place of the log. `identity`: d (default), n (nothing), f (full) or i (an index)."""

    id: int
    schema: str
    table: str
    identity: str
    columns: tuple[RelationColumn, ...]


@dataclass(frozen=True, slots=True)
class Truncate:
    relations: tuple[int, ...]


Message: TypeAlias = TransactionBegin | TransactionCommit | Relation | Truncate


def decoded(data: memoryview) -> Message | None:
    """Returns None for a message without rows. Raises `ValueError` for unknown messages."""
    kind = chr(data[0])
    if kind == "B":
        commit_lsn, committed, xid = struct.unpack_from(">QqI", data, 1)
        return TransactionBegin(commit_lsn, committed + _EPOCH_US, xid)
    if kind == "C":
        _, commit_lsn, end_lsn = struct.unpack_from(">BQQ", data, 1)
        return TransactionCommit(commit_lsn, end_lsn)
    if kind == "R":
        return _relation(data)
    if kind == "T":
        count, _ = struct.unpack_from(">IB", data, 1)
        return Truncate(struct.unpack_from(f">{count}I", data, 6))
    if kind in "YOM":
        return None
    raise ValueError(f"a message of kind {kind!r}")


def _relation(data: memoryview) -> Relation:
    (id,) = struct.unpack_from(">I", data, 1)
    schema, at = _text(data, 5)
    table, at = _text(data, at)
    identity, count = struct.unpack_from(">cH", data, at)
    at += 3
    columns = []
    for _ in range(count):
        flags = data[at]
        name, at = _text(data, at + 1)
        kind, typmod = struct.unpack_from(">Ii", data, at)
        columns.append(RelationColumn(name, bool(flags & 1), kind, typmod))
        at += 8
    return Relation(id, schema or "pg_catalog", table, identity.decode(), tuple(columns))


def _text(data: memoryview, at: int) -> tuple[str, int]:
    text = bytes(data[at:]).partition(b"\0")[0]
    return text.decode(), at + len(text) + 1
