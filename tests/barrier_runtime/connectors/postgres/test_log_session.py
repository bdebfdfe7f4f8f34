"""A replication session becomes bounded items, and a position after any row continues with exactly the next row."""

import struct
from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrier_runtime.connectors.postgres.changes.log_session import PART_BYTES, PART_ROWS, Item, LoggedRows, LogSession
from barrier_runtime.connectors.postgres.changes.pgoutput import HEADER, Relation
from barrier_runtime.connectors.postgres.changes.position import ChangePosition
from barrier_runtime.connectors.postgres.changes.rows import ChangedTable, ChangeRowLayout, Form
from barrier_runtime.connectors.postgres.changes.shape import CatalogTable
from barrier_runtime.connectors.postgres.changes.values import ChangedColumn, ServerType
from tests.drawn import examples

TABLE = ChangedTable("public.t", (ChangedColumn("id", pa.int64(), True), ChangedColumn("v", pa.string(), False)))
START = ChangePosition(10)


class KeptItems:
    """Feed that keeps all items. The catalog has the table as it was when the flow was written."""

    def __init__(self, at: ChangePosition = START, form: Form = "changes", end: int | None = None) -> None:
        self.at = at
        self.end = end
        self.ids = {1: "public.t"}
        self.layout = ChangeRowLayout([TABLE], form, unchanged_as_null=False, where="source 's'")
        self.tables = {"public.t": 0}
        self.where = "source 's'"
        self.items: list[Item] = []

    def put(self, item: Item, at: ChangePosition) -> None:
        assert (at.lsn, at.commit_lsn, at.skip) >= (self.at.lsn, 0, 0)
        self.items.append(item)
        self.at = at

    def is_end(self, lsn: int) -> bool:
        return self.end is not None and lsn >= self.end

    def look_at(self, relation: Relation) -> CatalogTable:
        columns = {1: ("id", ServerType("int8")), 2: ("v", ServerType("text"))}
        return CatalogTable("d", columns, {(20, -1): ServerType("int8"), (25, -1): ServerType("text")})

    @property
    def logged(self) -> list[LoggedRows]:
        return [item for item in self.items if isinstance(item, LoggedRows)]

    @property
    def rows(self) -> list[int]:
        return [row["after"]["id"] for item in self.logged for row in item.rows.to_pylist()]


def logged(message: bytes) -> memoryview:
    return memoryview(b"w" + bytes(HEADER - 1) + message)


def begin(commit_lsn: int) -> memoryview:
    return logged(b"B" + struct.pack(">QqI", commit_lsn, 5, 7))


def commit(commit_lsn: int) -> memoryview:
    return logged(b"C" + struct.pack(">BQQq", 0, commit_lsn, commit_lsn + 5, 5))


def relation(id: int = 1, name: bytes = b"t") -> memoryview:
    columns = b"\x01id\0" + struct.pack(">Ii", 20, -1) + b"\0v\0" + struct.pack(">Ii", 25, -1)
    return logged(b"R" + struct.pack(">I", id) + b"public\0" + name + b"\0d" + struct.pack(">H", 2) + columns)


def insert(id: int, text: bytes = b"", table: int = 1) -> memoryview:
    key = str(id).encode()
    values = b"".join(b"t" + struct.pack(">I", len(value)) + value for value in (key, text))
    return logged(b"I" + struct.pack(">I", table) + b"N" + struct.pack(">H", 2) + values)


def keepalive(end: int) -> memoryview:
    return memoryview(b"k" + struct.pack(">QqB", end, 0, 0))


def read(messages: Sequence[memoryview], at: ChangePosition = START) -> KeptItems:
    feed = KeptItems(at)
    session = LogSession(feed, at)
    for message in messages:
        session.message(message)
    session.flush()
    return feed


@pytest.mark.slow
def test_a_large_transaction_becomes_bounded_items_with_positions_between_them() -> None:
    count = 3 * PART_ROWS + 1
    feed = read([begin(100), relation(), *map(insert, range(count)), commit(100)])
    assert [item.rows.num_rows for item in feed.logged] == [PART_ROWS] * 3 + [1]
    assert [item.at for item in feed.logged] == [ChangePosition(10, 100, PART_ROWS * n) for n in (1, 2, 3)] + [
        ChangePosition(105)
    ]
    assert feed.rows == list(range(count))


def test_items_of_large_rows_are_bounded_by_bytes() -> None:
    large = b"x" * (PART_BYTES // 2)
    feed = read([begin(100), relation(), *(insert(id, large) for id in range(4)), insert(4, 2 * large), commit(100)])
    assert [item.rows.num_rows for item in feed.logged] == [2, 2, 1]


def test_a_keepalive_keeps_the_position_in_a_transaction_that_is_yet_to_be_repeated() -> None:
    at = ChangePosition(10, 100, 2)
    assert read([keepalive(50)], at).at == at
    feed = read([keepalive(50), begin(100), relation(), *map(insert, range(4)), commit(100), keepalive(200)], at)
    assert (feed.rows, feed.at) == ([2, 3], ChangePosition(200))


def test_transactions_before_the_position_are_left_out() -> None:
    messages = [begin(20), relation(), insert(1), commit(20), begin(30), insert(2), commit(30)]
    assert read(messages, ChangePosition(25)).rows == [2]


def test_rows_before_the_end_come_before_the_end() -> None:
    feed = KeptItems(end=50)
    session = LogSession(feed, START)
    for message in (begin(20), relation(), insert(1), commit(20), begin(60)):
        session.message(message)
    assert (feed.rows, feed.at) == ([1], ChangePosition(50))


def test_the_catalog_is_asked_before_rows_of_another_shape_are_decoded() -> None:
    feed = read([begin(20), relation(), insert(1), relation(), insert(2), commit(20)])
    assert [item.rows.num_rows for item in feed.logged] == [1, 1]


_SIZES = st.lists(st.integers(0, 5), min_size=1, max_size=6)


@examples(50)
@given(_SIZES, st.lists(st.integers(1, 4), min_size=1, max_size=5), st.booleans())
def test_a_position_after_any_row_continues_with_the_next_row(sizes: list[int], cuts: list[int], idle: bool) -> None:
    messages, id = [relation(), relation(2, b"other")], 0
    for number, size in enumerate(sizes, 2):
        messages.append(begin(10 * number))
        for _ in range(size):
            messages += [insert(id), insert(-1, table=2)]
            id += 1
        messages.append(commit(10 * number))
        if idle:
            messages.append(keepalive(10 * number + 7))
    position, rows, turn = START, list[int](), 0
    while len(rows) < id:  # each turn is a restart after a few rows
        (item, *_) = read(messages, position).logged
        count = min(cuts[turn % len(cuts)], item.rows.num_rows)
        part = item if count == item.rows.num_rows else item.split(count)[0]
        rows += [row["after"]["id"] for row in part.rows.to_pylist()]
        position, turn = part.at, turn + 1
    assert rows == list(range(id))
    assert read(messages, position).rows == []


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_both_parts_of_an_item_have_all_its_rows_and_positions(count: int) -> None:
    messages = [relation(), begin(20), insert(0), insert(1), commit(20), begin(30), insert(2), insert(3), insert(4)]
    (item,) = read([*messages, commit(30)]).logged
    ahead, rest = item.split(count)
    expected = {1: ChangePosition(10, 20, 1), 2: ChangePosition(25), 3: ChangePosition(25, 30, 1)}
    assert ahead.at == expected.get(count, ChangePosition(25, 30, 2))
    assert rest.at == item.at == ChangePosition(35)
    assert ahead.rows.num_rows + rest.rows.num_rows == 5
    assert rest.split(1)[1].at == item.at if count < 4 else rest.rows.num_rows == 1
    assert ahead.transactions is rest.transactions is item.transactions, "a split costs as much as all transactions"
