"""Logic of the source of PostgreSQL changes, without a server: messages, rows, positions, slots."""

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrier_runtime.connectors.postgres.changes.pgoutput import (
    HEADER,
    Relation,
    RelationColumn,
    RowChanges,
    RowMessages,
    TextRows,
    TransactionBegin,
    TransactionCommit,
    Truncate,
    decoded,
    truncation,
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
    ChangeRowLayout,
    Stamps,
    table_rows,
    upserts_of,
)
from barrier_runtime.connectors.postgres.changes.server import ReplicationSlot, check_slot
from barrier_runtime.connectors.postgres.changes.values import ChangedColumn, arrow_type
from barrier_runtime.state.errors import InvalidJob
from tests.drawn import examples

TABLE = ChangedTable("public.t", (ChangedColumn("id", pa.int64(), True), ChangedColumn("v", pa.string(), False)))
OTHER = ChangedTable("public.u", (ChangedColumn("id", pa.int32(), True),))


UNCHANGED = b"unchanged"


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


def row_message(kind: bytes, relation: int, *parts: tuple[bytes, Sequence[bytes | None]]) -> bytes:
    rows = b"".join(part + tuple_data(*values) for part, values in parts)
    return bytes(HEADER) + kind + struct.pack(">I", relation) + rows


def changes_of(*messages: bytes, width: int = 2, places: Sequence[int | None] = (0, 1)) -> RowChanges:
    return RowMessages(messages).changes(np.arange(len(messages)), width, places)


def values(rows: TextRows) -> list[object]:
    """Rows as tuples with UNCHANGED; None for missing rows."""
    columns = [
        [UNCHANGED if unchanged else text for text, unchanged in zip(c.texts.to_pylist(), c.unchanged, strict=True)]
        for c in rows.columns
    ]
    tuples = list(zip(*columns, strict=True))
    return [None if missing else row for missing, row in zip(rows.missing, tuples, strict=True)]


def test_messages_are_read() -> None:
    assert read(b"B" + struct.pack(">QqI", 100, 5, 7)) == TransactionBegin(100, 946_684_800_000_005, 7)
    assert read(b"C" + struct.pack(">BQQq", 0, 100, 120, 5)) == TransactionCommit(100, 120)
    column = b"\x01id\0" + struct.pack(">Ii", 20, -1)
    relation = b"R" + struct.pack(">I", 9) + b"public\0t\0d" + struct.pack(">H", 2) + column + column
    assert read(relation) == Relation(9, "public", "t", "d", (RelationColumn("id", True, 20, -1),) * 2)
    assert read(b"T" + struct.pack(">IBII", 2, 0, 9, 8)) == Truncate((9, 8))
    assert read(b"Y whatever") is None
    with pytest.raises(ValueError, match="kind 'S'"):
        read(b"S")


def test_messages_of_rows_are_read_together() -> None:
    messages = (
        row_message(b"I", 9, (b"N", (b"1", None))),
        row_message(b"U", 9, (b"O", (b"1", b"a")), (b"N", (b"", UNCHANGED))),
        row_message(b"D", 9, (b"K", (b"1", None))),
        row_message(b"U", 9, (b"N", (b"3", b"long" * 100))),
        truncation(9),
    )
    assert RowMessages(messages).relations.tolist() == [9] * 5
    changes = changes_of(*messages)
    assert changes.ops.tobytes() == b"cudut"
    assert values(changes.before) == [None, (b"1", b"a"), (b"1", None), None, None]
    assert values(changes.after) == [(b"1", None), (b"", UNCHANGED), None, (b"3", b"long" * 100), None]
    assert changes.whole.tolist() == [False, True, False, False, False]


def test_columns_of_a_table_may_have_other_places_in_the_log() -> None:
    changes = changes_of(row_message(b"I", 9, (b"N", (b"1", b"x", b"2"))), width=3, places=(2, None))
    assert values(changes.after) == [(b"2", None)]


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (row_message(b"I", 9, (b"N", (b"1",))), "without 2 values"),
        (row_message(b"I", 9, (b"X", (b"1", b"2"))), "without a new row"),
        (row_message(b"I", 9, (b"N", (b"1", b"2"))).replace(b"t", b"b", 1), "unknown kind"),
    ],
)
def test_a_message_of_another_protocol_is_refused(message: bytes, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        changes_of(message)


_TEXT = st.one_of(st.none(), st.just(UNCHANGED), st.binary(max_size=20).filter(lambda text: text != UNCHANGED))
_TUPLE = st.lists(_TEXT, min_size=3, max_size=3).map(tuple)
_ROW = st.one_of(
    st.tuples(st.just(b"I"), st.none(), _TUPLE),
    st.tuples(st.just(b"U"), st.none() | st.tuples(st.sampled_from([b"K", b"O"]), _TUPLE), _TUPLE),
    st.tuples(st.just(b"D"), st.tuples(st.sampled_from([b"K", b"O"]), _TUPLE), st.none()),
)


@examples(100)
@given(st.lists(_ROW, max_size=30))
def test_any_messages_have_the_values_that_were_written(rows: list[Any]) -> None:
    messages = []
    for kind, before, after in rows:
        parts = [before] if before else []
        messages.append(row_message(kind, 1, *parts, *([(b"N", after)] if after else [])))
    changes = changes_of(*messages, width=3, places=(0, 1, 2))
    assert values(changes.before) == [None if before is None else before[1] for _, before, _ in rows]
    assert values(changes.after) == [after for _, _, after in rows]
    assert changes.whole.tolist() == [before is not None and before[0] == b"O" for _, before, _ in rows]


@pytest.mark.parametrize(
    ("message", "rows"),
    [
        (row_message(b"I", 1, (b"N", (b"1", b"a"))), [(False, (b"1", b"a"))]),
        (row_message(b"U", 1, (b"N", (b"1", b"b"))), [(False, (b"1", b"b"))]),
        (row_message(b"U", 1, (b"O", (b"1", b"a")), (b"N", (b"1", UNCHANGED))), [(False, (b"1", b"a"))]),
        (row_message(b"U", 1, (b"K", (b"1", None)), (b"N", (b"1", UNCHANGED))), [(False, (b"1", UNCHANGED))]),
        (
            row_message(b"U", 1, (b"K", (b"1", None)), (b"N", (b"2", b"a"))),
            [(True, (b"1", None)), (False, (b"2", b"a"))],
        ),
        (row_message(b"D", 1, (b"K", (b"1", None))), [(True, (b"1", None))]),
    ],
)
def test_upserts_of_a_change(message: bytes, rows: Sequence[object]) -> None:
    other = row_message(b"I", 1, (b"N", (b"7", b"z")))
    upserts = upserts_of(changes_of(other, message, other), TABLE)
    found = list(zip(upserts.deleted.tolist(), values(upserts.rows), strict=True))
    assert found == [(False, (b"7", b"z")), *rows, (False, (b"7", b"z"))]
    assert upserts.message.tolist() == [0, *[1] * len(rows), 2]


def test_rows_of_several_tables_are_in_one_batch_in_their_order() -> None:
    layout = ChangeRowLayout([TABLE, OTHER], "upsert", unchanged_as_null=False, where="source 's'")
    other = changes_of(
        row_message(b"I", 2, (b"N", (b"7",))), row_message(b"D", 2, (b"K", (b"8",))), width=1, places=(0,)
    )
    moved = changes_of(row_message(b"U", 1, (b"K", (b"0", None)), (b"N", (b"1", b"a"))))
    stamps = Stamps(np.array([5, 6, 7]), np.array([10] * 3), np.array([1] * 3))
    batch, counts = layout.of_changes({1: (np.array([0, 2]), other), 0: (np.array([1]), moved)}, stamps)
    assert counts.tolist() == [1, 2, 1]
    assert batch.schema.equals(layout.schema)
    assert batch.column("table").to_pylist() == ["public.u", "public.t", "public.t", "public.u"]
    assert batch.column("changed_at").cast(pa.int64()).to_pylist() == [5, 6, 6, 7]
    assert table_rows(batch, "public.u").select(["id", "deleted"]).to_pylist() == [
        {"id": 7, "deleted": False},
        {"id": 8, "deleted": True},
    ]
    assert table_rows(batch, "public.t").select(["id", "v"]).to_pylist() == [
        {"id": 0, "v": None},
        {"id": 1, "v": "a"},
    ]


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
