"""What a keyed operator remembers besides its tables: how far event time was, and the types its state was written with.

The watermark must survive: without it, rows that were late before a failure would be accepted after it, into windows
that have fired already.
"""

from collections.abc import Iterable, Sequence

import msgspec
import pyarrow as pa

from barrier_runtime.elements import WATERMARK_MIN
from barrier_runtime.snapshot_values import decode_msgpack
from state.errors import InvalidJob
from state.snapshot import OperatorSnapshot

VALUE = "progress"  # name of the snapshot value


class Progress(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`schema`: Arrow IPC bytes of the columns that the state depends on; empty while no batch has come."""

    watermark_ms: int = WATERMARK_MIN
    emit_ns: int = 0  # latest intended emission time seen: that of results made by a watermark
    schema: bytes = b""
    version: int = 1

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self)


def restored_progress(snapshots: Iterable[OperatorSnapshot], operator: str) -> Progress:
    """One progress from one or (after rescaling) several snapshots: the lowest watermark loses no row."""
    found = [decode_msgpack(snapshot.values[VALUE], Progress, f"operator {operator!r}") for snapshot in snapshots]
    if not found:
        return Progress()
    return Progress(
        watermark_ms=min(progress.watermark_ms for progress in found),
        emit_ns=max(progress.emit_ns for progress in found),
        schema=next((progress.schema for progress in found if progress.schema), b""),
    )


def columns_of(schema: pa.Schema, columns: Sequence[str], where: str) -> pa.Schema:
    """The part of `schema` that `columns` names, each once, without metadata."""
    fields = []
    for column in dict.fromkeys(columns):
        if column not in schema.names:
            raise InvalidJob(f"{where}: there is no column {column!r}: the rows have {', '.join(schema.names)}")
        fields.append(pa.field(column, schema.field(column).type))
    return pa.schema(fields)


def schema_bytes(schema: pa.Schema) -> bytes:
    return bytes(schema.serialize().to_pybytes())


def schema_of(data: bytes) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(data))


def check_same(now: pa.Schema, before: pa.Schema, where: str) -> None:
    """State was written for `before`; rows come as `now`."""
    if not now.equals(before):
        raise InvalidJob(
            f"{where}: its state was made of ({_one_line(before)}), but now its rows have ({_one_line(now)}): "
            "keep the columns and types, or give the operator a new name to start without state"
        )


def _one_line(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)
