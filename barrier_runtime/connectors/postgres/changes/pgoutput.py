"""Messages of PostgreSQL's plugin `pgoutput`, protocol version 1: bytes in, values out. Pure.

A transaction comes whole, after its commit, and in the order of commits:

    Begin · (Relation | Insert | Update | Delete | Truncate)* · Commit

A Relation comes before the first change of a table and after each change of its columns, and again on each connection.
Values are text as the server writes it, `None` for null; `UNCHANGED` stands for a value that is stored out of line
(TOAST), did not change, and therefore is not in the log.
"""

import struct
from dataclasses import dataclass
from typing import Final, TypeAlias

UNCHANGED: Final = b"\0unchanged"  # no text of PostgreSQL has a zero byte
Value: TypeAlias = bytes | None
Values: TypeAlias = tuple[Value, ...]
_EPOCH_US = 946_684_800_000_000  # 2000-01-01, which PostgreSQL counts from


@dataclass(frozen=True, slots=True)
class TransactionBegin:
    commit_lsn: int  # where the commit stands that is to come
    committed_us: int  # since 1970
    xid: int


@dataclass(frozen=True, slots=True)
class TransactionCommit:
    commit_lsn: int
    end_lsn: int  # the first byte behind it


@dataclass(frozen=True, slots=True)
class RelationColumn:
    """A column as the log has it. `identifies`: it is part of the replica identity. `type`: the server's id of it."""

    name: str
    identifies: bool
    type: int
    typmod: int


@dataclass(frozen=True, slots=True)
class Relation:
    """A table as it was where the log is read. `identity`: d (default), n (nothing), f (full) or i (an index)."""

    id: int
    schema: str
    table: str
    identity: str
    columns: tuple[RelationColumn, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """`op`: c, u or d. `before`: the old key (other columns are `None`) or, `whole`, the old row; `None` when the log
    does not have it."""

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
    """None: a message that says nothing of rows (types, origins, users' own). Raises `ValueError` for what is not of
    version 1."""
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
