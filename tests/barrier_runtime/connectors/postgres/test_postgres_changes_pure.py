"""Logic of the source of PostgreSQL changes, without a server: messages, rows, positions, slots."""

import struct
from collections.abc import Sequence

import pyarrow as pa
import pytest

from barrier_runtime.connectors.postgres.changes.pgoutput import (
    UNCHANGED,
    Change,
    Relation,
    RelationColumn,
    TransactionBegin,
    TransactionCommit,
    Truncate,
    decoded,
)
from barrier_runtime.connectors.postgres.changes.position import (
    ChangePosition,
    decode_position,
    encode_position,
    parsed_lsn,
    shown_lsn,
)
from barrier_runtime.connectors.postgres.changes.rows import (
    ChangedTable,
    ChangeRow,
    ChangeRowLayout,
    rows_of_change,
    table_rows,
)
from barrier_runtime.connectors.postgres.changes.server import ReplicationSlot, check_slot
from barrier_runtime.connectors.postgres.changes.values import ChangedColumn, arrow_type
from barrier_runtime.state.errors import InvalidJob

TABLE = ChangedTable("public.t", (ChangedColumn("id", pa.int64(), True), ChangedColumn("v", pa.string(), False)))
OTHER = ChangedTable("public.u", (ChangedColumn("id", pa.int32(), True),))


def tuple_data(*values: bytes | None) -> bytes:
    parts = [struct.pack(">H", len(values))]
    for value in values:
        if value is None:
            parts.append(b"n")
        elif value == UNCHANGED:
            parts.append(b"u")
        else:
            parts.append(b"t" + struct.pack(">I", len(value)) + value)
    return b"".join(parts)


def read(data: bytes) -> object:
    return decoded(memoryview(data))


def test_messages_are_read() -> None:
    assert read(b"B" + struct.pack(">QqI", 100, 5, 7)) == TransactionBegin(100, 946_684_800_000_005, 7)
    assert read(b"C" + struct.pack(">BQQq", 0, 100, 120, 5)) == TransactionCommit(100, 120)
    column = b"\x01id\0" + struct.pack(">Ii", 20, -1)
    relation = b"R" + struct.pack(">I", 9) + b"public\0t\0d" + struct.pack(">H", 2) + column + column
    assert read(relation) == Relation(9, "public", "t", "d", (RelationColumn("id", True, 20, -1),) * 2)
    nine = struct.pack(">I", 9)
    assert read(b"I" + nine + b"N" + tuple_data(b"1", None)) == Change("c", 9, None, (b"1", None))
    update = b"U" + nine + b"O" + tuple_data(b"1", b"a") + b"N" + tuple_data(b"1", UNCHANGED)
    assert read(update) == Change("u", 9, (b"1", b"a"), (b"1", UNCHANGED), True)
    assert read(b"D" + nine + b"K" + tuple_data(b"1", None)) == Change("d", 9, (b"1", None), None)
    assert read(b"T" + struct.pack(">IBII", 2, 0, 9, 8)) == Truncate((9, 8))
    assert read(b"Y whatever") is None
    with pytest.raises(ValueError, match="kind 'S'"):
        read(b"S")


@pytest.mark.parametrize(
    ("change", "rows"),
    [
        (Change("c", 1, None, (b"1", b"a")), [("c", None, (b"1", b"a"))]),
        (Change("u", 1, None, (b"1", b"b")), [("u", None, (b"1", b"b"))]),
        (Change("u", 1, (b"1", b"a"), (b"1", UNCHANGED), True), [("u", None, (b"1", b"a"))]),
        (Change("u", 1, (b"1", None), (b"2", b"a")), [("d", (b"1", None), None), ("u", None, (b"2", b"a"))]),
        (Change("d", 1, (b"1", None), None), [("d", (b"1", None), None)]),
    ],
)
def test_upserts_of_a_change(change: Change, rows: Sequence[object]) -> None:
    assert rows_of_change(change, change.before, change.after, TABLE, "upsert") == rows


def test_rows_of_several_tables_are_in_one_batch_in_their_order() -> None:
    layout = ChangeRowLayout([TABLE, OTHER], "upsert", unchanged_as_null=False, where="source 's'")
    rows = [
        ChangeRow(1, "c", 5, 10, 1, None, (b"7",), 1),
        ChangeRow(0, "c", 6, 10, 1, None, (b"1", b"a"), 1),
        ChangeRow(1, "d", 7, 10, 1, (b"8",), None, 1),
    ]
    batch = layout.of_changes(rows)
    assert batch.schema.equals(layout.schema)
    assert batch.column("table").to_pylist() == ["public.u", "public.t", "public.u"]
    assert batch.column("changed_at").cast(pa.int64()).to_pylist() == [5, 6, 7]
    assert table_rows(batch, "public.u").select(["id", "deleted"]).to_pylist() == [
        {"id": 7, "deleted": False},
        {"id": 8, "deleted": True},
    ]
    assert table_rows(batch, "public.t").select(["id", "v"]).to_pylist() == [{"id": 1, "v": "a"}]


def test_a_row_of_the_snapshot_has_the_columns_of_now() -> None:
    layout = ChangeRowLayout([TABLE], "changes", unchanged_as_null=False, where="source 's'")
    batch = layout.of_snapshot(0, pa.record_batch({"id": pa.array([1], pa.int32()), "gone": ["x"]}), 5, 10)
    assert batch.column("after").to_pylist() == [{"id": 1, "v": None}]
    assert batch.column("before").to_pylist() == [None]


@pytest.mark.parametrize(
    ("base", "typmod", "kind"),
    [
        ("numeric", (12 << 16) + 3 + 4, pa.decimal128(12, 3)),
        ("numeric", (60 << 16) + 3 + 4, pa.string()),
        ("numeric", -1, pa.string()),
        ("int8", -1, pa.int64()),
        ("tsvector", -1, pa.string()),
    ],
)
def test_types(base: str, typmod: int, kind: pa.DataType) -> None:
    assert arrow_type(base, typmod) == kind


def test_positions_are_stored_and_older_ones_are_read() -> None:
    at = ChangePosition(1 << 40, 17, 3)
    assert decode_position(encode_position(at), "source") == at
    assert decode_position(b'{"lsn": 5, "chunk": 2, "row": 7}', "source") == ChangePosition(5, chunk=2, row=7)
    assert parsed_lsn(shown_lsn(0x16_B374_D848)) == 0x16_B374_D848


def slot_state(**changes: object) -> ReplicationSlot:
    values: dict[str, object] = {"plugin": "pgoutput", "database": "d", "wal_status": "reserved", "confirmed": 50}
    return ReplicationSlot(**{**values, "active_pid": None, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("state", "lsn", "end", "said"),
    [
        (None, 50, 100, "is gone"),
        (slot_state(plugin="wal2json"), 50, 100, "not pgoutput"),
        (slot_state(wal_status="lost"), 50, 100, "removed the log"),
        (slot_state(confirmed=51), 50, 100, "the changes between them are gone"),
        (slot_state(), 101, 100, "a failover or a backup has lost them"),
    ],
)
def test_a_slot_that_would_leave_changes_out_is_refused(
    state: ReplicationSlot | None, lsn: int, end: int, said: str
) -> None:
    with pytest.raises(InvalidJob, match=said):
        check_slot("s", state, lsn, end, "source")


def test_a_slot_that_can_go_on_is_taken() -> None:
    check_slot("s", slot_state(), 50, 100, "source")
    check_slot("s", slot_state(wal_status="extended", confirmed=0), 100, 100, "source")
