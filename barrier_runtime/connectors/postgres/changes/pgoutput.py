"""Decoder of the plugin `pgoutput`, protocol version 1, of all messages except those of rows. Pure.

Transactions arrive complete, after their commit, in commit order:

    Begin · (Relation | Insert | Update | Delete | Truncate)* · Commit

A Relation precedes the first change of a table, and the first change after each change of its columns, on each
connection. `row_messages` decodes Insert, Update and Delete.
"""

import struct
from dataclasses import dataclass
from typing import TypeAlias

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
class Truncate:
    relations: tuple[int, ...]


Message: TypeAlias = TransactionBegin | TransactionCommit | Relation | Truncate


def decoded(data: memoryview) -> Message | None:
    """Decodes a message. None: a message without rows (types, origins, users' own messages).

    Raises `ValueError` for messages that version 1 does not have.
    """
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
