"""Comparison of a table's shape in the log with the shape that the flow was written for. Pure.

ALTER TABLE rewrites rows without a change in the log, so a job may continue only if no value of the table changed
(docs/changes.md, "Altered tables"). If the log is older than the table, the catalog shows by column numbers, which
never change, whether a missing column was dropped, renamed, or comes later.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import pyarrow as pa

from barrier_runtime.connectors.postgres.changes.pgoutput import Relation
from barrier_runtime.connectors.postgres.changes.rows import ChangedTable, Form
from barrier_runtime.connectors.postgres.changes.values import ChangedColumn, ServerType, arrow_type
from barrier_runtime.state.errors import InvalidJob

_ANEW = "start the job without state (restore='none'), which takes the table as it is now"
_INTEGERS = ("int2", "int4", "int8")
_TIMED = ("time", "timetz", "timestamp", "timestamptz")
_ANY_TEXT = ("text", "varchar")
_NO_SUCH_TEXT = ("bool", "bpchar", "timestamptz", "bytea")  # a cast to text changes these
_HEADER = 4  # of a modifier


@dataclass(frozen=True)
class CatalogTable:
    """Table in the server's current catalog, without dropped columns and types.

    `columns`: number → name and type. `types`: id and modifier of the log's columns → type.
    """

    identity: str
    columns: Mapping[int, tuple[str, ServerType]]
    types: Mapping[tuple[int, int], ServerType]


def places_of(
    table: ChangedTable, relation: Relation, now: CatalogTable, form: Form, where: str
) -> tuple[int | None, ...]:
    """Place of each column of `table` in the rows of the log; None: a column of nulls.

    Raises `InvalidJob` if values may have changed without a change in the log.
    """
    shown = f"{where}: table {table.name}"
    places = {column.name: at for at, column in enumerate(relation.columns)}
    gone = ", ".join(column.name for column in table.columns if column.key and column.name not in places)
    if gone and table.has_key:
        raise InvalidJob(f"{shown} has no column {gone} any more, which was of its key: {_ANEW}")
    for column in table.columns:
        _check_column(column, now, shown)
        if column.name in places:
            there = relation.columns[places[column.name]]
            _check_type(column, now.types.get((there.type, there.typmod)), now, shown)
    _check_order(table, places, shown)
    _check_identity(table, relation, now, form, shown)
    return tuple(places.get(column.name) for column in table.columns)


def keeps_values(old: ServerType, new: ServerType) -> bool:
    """True if ALTER COLUMN … TYPE from `old` to `new` keeps every value, or the server refuses it.

    >>> keeps_values(ServerType("int4"), ServerType("int8")), keeps_values(ServerType("bool"), ServerType("int4"))
    (True, False)
    """
    if old == new:
        return True
    if new.base in _ANY_TEXT:  # the server refuses text that is too long
        return old.base in _ANY_TEXT or (_is_text(old) and old.base not in _NO_SUCH_TEXT)
    if new.base in _INTEGERS:
        return old.base in _INTEGERS
    if new.base == "numeric":
        return _scale(new) >= (_scale(old) if old.base == "numeric" else 0) and old.base in ("numeric", *_INTEGERS)
    return old.base == new.base and old.base in _TIMED and _digits(new) >= _digits(old)


def _is_text(kind: ServerType) -> bool:
    return pa.types.is_string(arrow_type(kind.base, kind.typmod)) or kind.base in _INTEGERS


def _scale(kind: ServerType) -> int:
    if kind.typmod < _HEADER:
        return 1 << 20
    return (((kind.typmod - _HEADER) & 0x7FF) ^ 1024) - 1024


def _digits(kind: ServerType) -> int:
    return 6 if kind.typmod < 0 else kind.typmod


def _reads(kind: pa.DataType, there: ServerType) -> bool:
    """True if text of type `there` reads as the right value of `kind`, or is refused."""
    if pa.types.is_string(kind):
        return _is_text(there)
    if pa.types.is_integer(kind):
        return there.base in (*_INTEGERS, "oid")
    if pa.types.is_decimal(kind):
        return there.base == "numeric" or there.base in _INTEGERS
    return bool(arrow_type(there.base, there.typmod) == kind)


def _check_column(column: ChangedColumn, now: CatalogTable, shown: str) -> None:
    if not column.number:
        return
    found = now.columns.get(column.number)
    if found is None:
        if any(name == column.name for name, _ in now.columns.values()):
            raise InvalidJob(
                f"{shown}: column {column.name!r} was dropped and made again, which changes rows without a change in "
                f"the log: {_ANEW}"
            )
        return
    if found[0] != column.name:
        raise InvalidJob(
            f"{shown}: column {column.name!r} is named {found[0]!r} now: give it its name back, or {_ANEW}"
        )


def _check_type(column: ChangedColumn, there: ServerType | None, now: CatalogTable, shown: str) -> None:
    declared = column.server_type
    if declared is None or column.as_text:
        return
    current = now.columns[column.number][1] if column.number in now.columns else there
    if there is None or current is None:
        raise InvalidJob(f"{shown}: the type of column {column.name!r} in the log was dropped since: {_ANEW}")
    changed = None
    if not keeps_values(declared, current):
        changed = current
    elif not keeps_values(there, current) or not _reads(column.type, there):
        changed = there
    if changed is not None:
        raise InvalidJob(
            f"{shown}: the type of column {column.name!r} was changed: {declared} when the flow was written, {changed} "
            f"in the {'table now' if changed == current else 'log'}. ALTER TABLE rewrites rows without a change in the "
            f"log: {_ANEW}"
        )


def _check_order(table: ChangedTable, places: Mapping[str, int], shown: str) -> None:
    known = [(places[column.name], column.name) for column in table.columns if column.name in places]
    for (before, _), (after, name) in pairwise(known):
        if after < before:
            raise InvalidJob(
                f"{shown}: column {name!r} has another place in the log than in the table: it was dropped and made "
                f"again, or exchanged its name with another column: {_ANEW}"
            )


def _check_identity(table: ChangedTable, relation: Relation, now: CatalogTable, form: Form, shown: str) -> None:
    full = relation.identity == "f"
    identifying = {column.name for column in relation.columns if column.identifies}
    lost = [column.name for column in table.columns if column.key and column.name not in identifying]
    if lost and not full:
        raise InvalidJob(
            f"{shown}: rows were identified by {', '.join(c.name for c in table.columns if c.key)}, and in the log "
            f"{', '.join(sorted(identifying)) or 'nothing'} identifies them (its primary key or REPLICA IDENTITY "
            f"changed): {_ANEW}"
        )
    if form == "changes" and table.identity == "f" and not full and now.identity != "f":
        raise InvalidJob(
            f"{shown}: its REPLICA IDENTITY was FULL, so `before` had all columns; now it would have the key alone: "
            f"ALTER TABLE {table.name} REPLICA IDENTITY FULL, or start the program again for rows without them"
        )
