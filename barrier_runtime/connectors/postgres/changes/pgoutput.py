"""Decoder of the plugin `pgoutput`, protocol version 1: bytes in, values out. Pure.

Transactions arrive complete, after their commit, in commit order:

    Begin · (Relation | Insert | Update | Delete | Truncate)* · Commit

A Relation precedes the first change of a table, and the first change after each change of its columns, on each
connection. Values are text as the server writes it, `None` for null. `UNCHANGED` stands for an unchanged value that is
stored out of line (TOAST) and is therefore missing in the log.
"""

import struct
from dataclasses import dataclass
from typing import Final, TypeAlias

UNCHANGED: Final = b"\0unchanged"  # no text of PostgreSQL has a zero byte
Value: TypeAlias = bytes | None
Values: TypeAlias = tuple[Value, ...]
_EPOCH_US = 946_684_800_000_000  # 2000-01-01, PostgreSQL's epoch


@dataclass(frozen=True, slots=True)
class TransactionBegin:
    commit_lsn: int  # position of the commit that will follow
    committed_us: int  # since 1970
    xid: int


@dataclass(frozen=True, slots=True)
class TransactionCommit:
    commit_lsn: int
    end_lsn: int  # first byte after the commit


@dataclass(frozen=True, slots=True)
class RelationColumn:
    """Column in the log. `identifies`: part of the replica identity. `type`: the server's id of the type."""

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
class Change:
    """Change of a row; `op` is c, u or d.

    `before` is the old key (other columns are `None`), or the old row if `whole`, or `None` if the log has neither.
    """

    op: str
    relation: int
    before: Values | None
    after: Values | None
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Truncate:
    relations: tuple[int, ...]


Message: TypeAlias = TransactionBegin | TransactionCommit | Relation | Change | Truncate


def decoded(data: memoryview) -> Message | None:
    """Decodes a message. None: a message without rows (types, origins, users' own messages).

    Raises `ValueError` for messages that version 1 does not have.
    """
    kind = chr(data[0])
    if kind in "IUD":
        return _change(kind, data)
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


def _change(kind: str, data: memoryview) -> Change:
    (relation,) = struct.unpack_from(">I", data, 1)
    at, before, whole = 5, None, False
    part = chr(data[at])
    if part in "KO":
        whole = part == "O"
        before, at = _values(data, at + 1)
    if kind == "D":
        return Change("d", relation, before, None, whole)
    if chr(data[at]) != "N":
        raise ValueError(f"a change whose new row begins with {data[at]}")
    after, _ = _values(data, at + 1)
    return Change("c" if kind == "I" else "u", relation, before, after, whole)


def _values(data: memoryview, at: int) -> tuple[Values, int]:
    (count,) = struct.unpack_from(">H", data, at)
    at += 2
    values: list[Value] = []
    for _ in range(count):
        kind = data[at]
        at += 1
        if kind == 116:  # t
            size = int.from_bytes(data[at : at + 4], "big")
            at += 4
            values.append(bytes(data[at : at + size]))
            at += size
        elif kind == 110:  # n
            values.append(None)
        elif kind == 117:  # u
            values.append(UNCHANGED)
        else:
            raise ValueError(f"a value of kind {chr(kind)!r}")
    return tuple(values), at
