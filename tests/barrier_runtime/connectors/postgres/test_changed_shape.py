"""Table alterations that keep every value, checked without a server."""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest

from barrier_runtime.connectors.postgres.changes.pgoutput import Relation, RelationColumn
from barrier_runtime.connectors.postgres.changes.rows import ChangedTable, ChangeRowLayout, Form
from barrier_runtime.connectors.postgres.changes.shape import CatalogTable, keeps_values, places_of
from barrier_runtime.connectors.postgres.changes.values import (
    ChangedColumn,
    ServerType,
    arrow_type,
    as_stored,
    from_text,
)
from barrier_runtime.state.errors import InvalidJob


def numeric(precision: int, scale: int) -> ServerType:
    return ServerType("numeric", ((precision << 16) | (scale & 0x7FF)) + 4)


PLAIN = ServerType("numeric")
TEXT, VARCHAR, CHAR = ServerType("text"), ServerType("varchar", 14), ServerType("bpchar", 7)
INT2, INT4, INT8 = (ServerType(f"int{bytes_}") for bytes_ in (2, 4, 8))


@pytest.mark.parametrize(
    ("old", "new", "kept"),
    [
        *((old, new, True) for old in (INT2, INT4, INT8) for new in (INT2, INT4, INT8)),  # the server refuses overflow
        (INT8, PLAIN, True),
        (INT4, numeric(10, 0), True),
        (INT4, numeric(10, -2), False),
        (numeric(10, 2), numeric(12, 2), True),
        (numeric(10, 2), numeric(8, 2), True),
        (numeric(10, 2), numeric(10, 1), False),
        (numeric(10, 2), PLAIN, True),
        (PLAIN, numeric(10, 2), False),
        (numeric(10, 2), INT8, False),
        (ServerType("bool"), INT4, False),
        (INT4, ServerType("bool"), False),
        (INT4, ServerType("float8"), False),
        (ServerType("float4"), ServerType("float8"), False),
        (ServerType("timestamp", 3), ServerType("timestamp"), True),
        (ServerType("timestamp", 3), ServerType("timestamp", 6), True),
        (ServerType("timestamp"), ServerType("timestamp", 3), False),
        (ServerType("timestamp", 6), ServerType("timestamp", 0), False),
        (ServerType("time"), ServerType("time", 6), True),
        (ServerType("timestamp"), ServerType("timestamptz"), False),
        (ServerType("timestamp"), ServerType("date"), False),
        (VARCHAR, TEXT, True),
        (TEXT, VARCHAR, True),
        (ServerType("mood"), TEXT, True),
        (ServerType("uuid"), TEXT, True),
        (ServerType("jsonb"), TEXT, True),
        (ServerType("_int4"), TEXT, True),
        (INT4, TEXT, True),
        (TEXT, ServerType("uuid"), False),
        (ServerType("json"), ServerType("jsonb"), False),
        (ServerType("_int4"), ServerType("_text"), False),
        (CHAR, TEXT, False),
        (TEXT, CHAR, False),
        (CHAR, ServerType("bpchar", 9), False),
        (CHAR, CHAR, True),
        (ServerType("bool"), TEXT, False),
        (ServerType("timestamptz"), TEXT, False),
        (ServerType("bytea"), TEXT, False),
    ],
)
def test_an_alteration_keeps_every_value_or_does_not(old: ServerType, new: ServerType, kept: bool) -> None:
    assert keeps_values(old, new) is kept


OIDS: dict[str, int] = {"int4": 23, "int8": 20, "text": 25, "bool": 16, "bpchar": 1042}


def declared(*columns: tuple[str, str], key: tuple[str, ...] = ("id",), identity: str = "d") -> ChangedTable:
    return ChangedTable(
        "public.t",
        tuple(
            ChangedColumn(name, arrow_type(base, -1), name in key or not key, number, ServerType(base))
            for number, (name, base) in enumerate(columns, 1)
        ),
        identity,
    )


def in_log(*columns: tuple[str, str], key: tuple[str, ...] = ("id",), identity: str = "d") -> Relation:
    return Relation(
        *(1, "public", "t", identity),
        tuple(RelationColumn(name, name in key or identity == "f", OIDS[base], -1) for name, base in columns),
    )


def catalog(columns: Mapping[int, tuple[str, str]], identity: str = "d") -> CatalogTable:
    named = {number: (name, ServerType(base)) for number, (name, base) in columns.items()}
    return CatalogTable(identity, named, {(oid, -1): ServerType(base) for base, oid in OIDS.items()})


ID, N, V = ("id", "int4"), ("n", "int4"), ("v", "text")


@pytest.mark.parametrize(
    ("table", "relation", "now", "places"),
    [
        (declared(ID, N, V), in_log(ID, N, V), {1: ID, 2: N, 3: V}, (0, 1, 2)),
        (declared(ID, N, key=("id", "n")), in_log(ID, N, key=("id", "n")), {1: ID, 2: N}, (0, 1)),
        (declared(ID, N, V), in_log(ID, V, ("w", "int4")), {1: ID, 3: V, 4: ("w", "int4")}, (0, None, 1)),  # n dropped
        (declared(ID, N), in_log(ID), {1: ID, 2: N}, (0, None)),  # n is added later in the log
        (declared(ID, N), in_log(ID, ("n", "int8")), {1: ID, 2: ("n", "int8")}, (0, 1)),
        (declared(ID, ("n", "int8")), in_log(ID, N), {1: ID, 2: ("n", "int8")}, (0, 1)),  # the log is behind
        (declared(ID, ("n", "text")), in_log(ID, N), {1: ID, 2: ("n", "text")}, (0, 1)),
        (declared(ID, N), in_log(ID, N), {1: ID, 2: ("n", "text")}, (0, 1)),  # ends where the text begins
        (declared(ID, N, key=(), identity="f"), in_log(ID, identity="f"), {1: ID}, (0, None)),  # n dropped, no key
    ],
)
def test_a_shape_that_keeps_values_is_read(table: ChangedTable, relation: Relation, now: Any, places: Any) -> None:
    assert places_of(table, relation, catalog(now), "changes", "source 's'") == places


@pytest.mark.parametrize(
    ("table", "relation", "now", "said"),
    [
        (declared(ID, N), in_log(("no", "int4"), N, key=("no",)), {1: ID, 2: N}, "has no column id any more"),
        (declared(ID, N), in_log(ID, ("m", "int4")), {1: ID, 2: ("m", "int4")}, "'n' is named 'm' now"),
        (declared(ID, N), in_log(ID, N), {1: ID, 3: N}, "'n' was dropped and made again"),
        (
            declared(ID, N),
            in_log(ID, ("n", "text")),
            {1: ID, 2: ("n", "text")},
            "int4 .* written, text in the table now",
        ),
        (declared(ID, N), in_log(ID, N), {1: ID, 2: ("n", "bool")}, "int4 .* written, bool in the table now"),
        (declared(ID, N), in_log(ID, ("n", "bool")), {1: ID, 2: N}, "int4 .* written, bool in the log"),
        (declared(ID, V), in_log(ID, ("v", "bpchar")), {1: ID, 2: V}, "text .* written, bpchar in the log"),
        (declared(ID, N, V), in_log(ID, V, N), {1: ID, 2: N, 3: V}, "'v' has another place in the log"),
        (declared(ID, N), in_log(ID, N, key=("n",)), {1: ID, 2: N}, "identified by id, and in the log n identifies"),
        (declared(ID, N, key=()), in_log(ID, N), {1: ID, 2: N}, "identified by id, n, and in the log id identifies"),
        (declared(ID, N, identity="f"), in_log(ID, N), {1: ID, 2: N}, "`before` had all columns"),
    ],
)
def test_a_shape_that_changes_values_is_refused(table: ChangedTable, relation: Relation, now: Any, said: str) -> None:
    with pytest.raises(InvalidJob, match=rf"source 's': table public\.t.*{said}"):
        places_of(table, relation, catalog(now), "changes", "source 's'")


def test_a_type_that_was_dropped_since_is_refused() -> None:
    relation = Relation(1, "public", "t", "d", (RelationColumn("id", True, 99_999, -1),))
    with pytest.raises(InvalidJob, match="the type of column 'id' in the log was dropped"):
        places_of(declared(ID), relation, catalog({1: ID}), "upsert", "s")


@pytest.mark.parametrize(("form", "refused"), [("upsert", False), ("changes", True)])
def test_only_rows_with_before_need_the_whole_old_row(form: Form, refused: bool) -> None:
    table, relation, now = declared(ID, identity="f"), in_log(ID), catalog({1: ID})
    assert places_of(table, in_log(ID, identity="f"), now, form, "s") == (0,)
    assert places_of(table, relation, catalog({1: ID}, identity="f"), form, "s") == (0,), "the log is behind"
    if refused:
        with pytest.raises(InvalidJob, match="`before`"):
            places_of(table, relation, now, form, "s")
    else:
        assert places_of(table, relation, now, form, "s") == (0,)


def test_a_column_as_text_may_have_any_type() -> None:
    column = ChangedColumn("n", pa.string(), False, 2, ServerType("bool"), as_text=True)
    table = ChangedTable("public.t", (*declared(ID).columns, column))
    assert places_of(table, in_log(ID, N), catalog({1: ID, 2: N}), "upsert", "s") == (0, 1)


@pytest.mark.parametrize(
    ("kind", "text"),
    [(pa.bool_(), "1"), (pa.bool_(), "true"), (pa.binary(), "abc"), (pa.binary(), "\\xzz"), (pa.time64("us"), "noon")],
)
def test_text_of_another_type_is_refused_with_the_column(kind: pa.DataType, text: str) -> None:
    with pytest.raises(InvalidJob, match="column 'c' has"):
        from_text(pa.array([None, text]), ChangedColumn("c", kind, False), "s")


def test_a_column_of_the_snapshot_whose_type_changed_is_refused() -> None:
    def layout(kind: pa.DataType) -> ChangeRowLayout:
        table = ChangedTable("public.t", (ChangedColumn("c", kind, True),))
        return ChangeRowLayout([table], "upsert", unchanged_as_null=False, where="s")

    rows = pa.record_batch({"c": pa.array([1, 2], pa.int32())})
    assert layout(pa.int64()).of_snapshot(0, rows, 5, 10).column("c").to_pylist() == [1, 2]
    for kind in (pa.bool_(), pa.string(), pa.float64()):
        with pytest.raises(InvalidJob, match=f"column 'c' is {kind} now, and int32 in the snapshot"):
            layout(kind).of_snapshot(0, rows, 5, 10)
    with pytest.raises(InvalidJob, match="column 'c' is int8 now"):
        as_stored(pa.array([300], pa.int32()), ChangedColumn("c", pa.int8(), True), "s")
