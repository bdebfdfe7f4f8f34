"""Tables whose columns, types or keys are altered while the source reads their changes."""

import decimal
from typing import Any

import pytest

from barrier_runtime.state.errors import InvalidJob
from tests.ends.changes_world import ChangedTables, reading, rows_from

BEFORE = (
    "id int primary key, flag bool, n int, price numeric(10,4), at timestamp, code varchar(5), pad char(3), doc json"
)


# Source: our own trial
@pytest.mark.parametrize(
    ("alter", "said"),
    [
        ("alter flag type int using flag::int", "type of column 'flag' was changed: bool .* int4"),
        ("alter n type text", "type of column 'n' was changed: int4 .* text"),
        ("alter n type float8", "type of column 'n' was changed: int4 .* float8"),
        ("alter n type int[] using array[n]", r"type of column 'n' was changed: int4 .* int4\[\]"),
        ("alter price type numeric(10,2)", r"numeric\(10,4\) when the flow was written, numeric\(10,2\)"),
        ("alter at type timestamptz", "type of column 'at' was changed: timestamp .* timestamptz"),
        ("alter at type timestamp(0)", r"type of column 'at' was changed: timestamp .* timestamp\(0\)"),
        ("alter pad type char(9)", r"type of column 'pad' was changed: bpchar\(3\) .* bpchar\(9\)"),
        ("alter doc type jsonb", "type of column 'doc' was changed: json .* jsonb"),
        ("rename n to m", "column 'n' is named 'm' now"),
        ("drop n, add n int", "column 'n' was dropped and made again"),
        ("drop n, add n text", "column 'n' was dropped and made again"),
        ("drop constraint {table}_pkey, add primary key (code)", "identified by id, and in the log code identifies"),
    ],
)
def test_an_altered_column_that_changes_values_ends_the_job(tables: ChangedTables, alter: str, said: str) -> None:
    table = tables.table(BEFORE)
    tables.execute(f"insert into {table} (id, code, n) values (1, 'a', 5)")
    source = tables.source(table, form="upsert")
    with reading(source) as reader:
        rows_from(reader, 1)
        for each in alter.format(table=table).split(", "):
            tables.execute(f"alter table {table} {each}")
        tables.execute(f"insert into {table} (id, code) values (2, 'b')")
        with pytest.raises(InvalidJob, match=rf"table public\.{table}.*{said}.*restore='none'"):
            rows_from(reader, 1)


# Source: our own trial
def test_an_altered_column_that_keeps_values_goes_on_until_one_has_no_room(tables: ChangedTables) -> None:
    table = tables.table(BEFORE)
    source = tables.source(table, form="upsert")
    tables.execute(
        f"insert into {table} (id, n, price, code) values (1, 5, 1.5, 'a')",
        f"alter table {table} alter n type bigint, alter price type numeric(14,4), alter code type text, add w int",
        f"insert into {table} values (2, false, 6, 2.5, null, 'longer text', 'x', '{{}}', 9)",
        f"alter table {table} drop w",
        f"insert into {table} (id, n) values (3, {1 << 40})",
    )
    with reading(source) as reader:
        first, second = rows_from(reader, 2)
        assert (first["n"], first["price"], first["code"]) == (5, decimal.Decimal("1.5"), "a")
        assert (second["flag"], second["n"], second["code"]) == (False, 6, "longer text")
        assert second["price"] == decimal.Decimal("2.5")
        with pytest.raises(InvalidJob, match=f"column 'n' has '{1 << 40}', which the type int32 does not have"):
            rows_from(reader, 1)


# Source: our own trial
def test_older_log_is_read_after_an_altered_column_only_if_values_were_kept(
    tables: ChangedTables,
) -> None:
    table = tables.table("id int primary key, flag bool, n int, gone text")
    source = tables.source(table)
    tables.execute(f"insert into {table} values (1, true, 5, 'x')")

    def started_again() -> Any:
        again = tables.source(table, staged=False)
        again._staged = source._staged
        return again

    tables.execute(f"alter table {table} alter n type bigint, drop gone, add w int")
    with reading(started_again()) as reader:
        assert rows_from(reader, 1)[0]["after"] == {"id": 1, "flag": True, "n": 5, "w": None}
    tables.execute(f"alter table {table} alter flag type int using flag::int")
    with reading(started_again()) as reader, pytest.raises(InvalidJob, match=r"'flag' was changed: int4 .* bool in"):
        rows_from(reader, 1)


# Source: our own trial
def test_columns_that_exchange_their_names_or_tables_that_do_end_the_job(tables: ChangedTables) -> None:
    table, other = tables.table("id int primary key, a int, b int"), tables.table("id int primary key, a int, b int")
    source, both = tables.source(table), tables.source(table, other)
    tables.execute(f"insert into {table} values (1, 2, 3)")
    for old, new in (("a", "c"), ("b", "a"), ("c", "b")):
        tables.execute(f"alter table {table} rename {old} to {new}")
    with reading(source) as reader, pytest.raises(InvalidJob, match="column 'a' is named 'b' now"):
        rows_from(reader, 1)
    again = tables.source(table, staged=False)
    again._staged = source._staged
    with reading(again) as reader, pytest.raises(InvalidJob, match="exchanged its name with another column"):
        rows_from(reader, 1)
    for old, new in ((table, "kept"), (other, table), ("kept", other)):
        tables.execute(f"alter table {old} rename to {new}")
    with reading(both) as reader, pytest.raises(InvalidJob, match=rf"public\.{other} was renamed to public\.{table}"):
        rows_from(reader, 1)


# Source: our own trial
def test_changes_without_the_whole_old_row_any_more_end_the_job(tables: ChangedTables) -> None:
    table = tables.table()
    tables.execute(f"alter table {table} replica identity full")
    changes, upserts = tables.source(table), tables.source(table, form="upsert")
    tables.execute(f"insert into {table} values (1, 'a')", f"alter table {table} replica identity default")
    tables.execute(f"update {table} set v = 'b'")
    with reading(upserts) as reader:
        assert [r["v"] for r in rows_from(reader, 2)] == ["a", "b"]
    with reading(changes) as reader, pytest.raises(InvalidJob, match="`before` had all columns"):
        rows_from(reader, 2)


# Source: our own trial
def test_a_key_of_all_columns_identifies_rows(tables: ChangedTables) -> None:
    table = tables.table("a int, b int, primary key (a, b)")
    source = tables.source(table, form="upsert")
    tables.execute(f"insert into {table} values (1, 2)", f"update {table} set b = 3", f"delete from {table}")
    with reading(source) as reader:
        found = [(row["a"], row["b"], row["deleted"]) for row in rows_from(reader, 4)]
    assert found == [(1, 2, False), (1, 2, True), (1, 3, False), (1, 3, True)]
