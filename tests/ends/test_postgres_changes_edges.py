"""Cases in which changes of PostgreSQL tables would silently be left out, or assigned to the wrong row, are refused."""

import uuid
from collections.abc import Iterator

import pytest

from barrier_runtime.state.errors import InvalidJob
from tests.ends.changes_world import ChangedTables, reading, rows_from, told


def test_a_table_that_is_renamed_ends_the_job(tables: ChangedTables) -> None:
    table = tables.table()
    source = tables.source(table)
    with reading(source) as reader:
        tables.execute(f"insert into {table} values (1, 'a')")
        rows_from(reader, 1)
        tables.execute(f"alter table {table} rename to {table}_new", f"insert into {table}_new values (2, 'b')")
        with pytest.raises(InvalidJob, match=rf"{table} was renamed to public\.{table}_new: give it its name back"):
            rows_from(reader, 1)
    with reading(source) as reader, pytest.raises(InvalidJob, match=rf"has not public\.{table}:.* is renamed"):
        rows_from(reader, 1)


def test_a_table_that_was_dropped_and_made_again_ends_the_job(tables: ChangedTables) -> None:
    """The publication no longer contains the table."""
    table = tables.table()
    source = tables.source(table)
    tables.execute(f"drop table {table}", f"create table {table} (id int primary key, v text)")
    with reading(source) as reader, pytest.raises(InvalidJob, match=r"dropped and made again.*restore='none'"):
        rows_from(reader, 1)


def test_a_publication_that_is_dropped_ends_the_job(tables: ChangedTables) -> None:
    source = tables.source(tables.table())
    assert source._staged is not None
    tables.execute(f'drop publication "{source._staged[1].publication}"')
    with reading(source) as reader, pytest.raises(InvalidJob, match=r"publication 'barrier_.* is gone"):
        rows_from(reader, 1)


@pytest.fixture
def publication(tables: ChangedTables) -> Iterator[str]:
    name = f"publication_{uuid.uuid4().hex[:8]}"
    yield name
    tables.execute(f"drop publication if exists {name}")


def test_a_publication_without_some_operations_is_refused(tables: ChangedTables, publication: str) -> None:
    table = tables.table()
    tables.execute(f"create publication {publication} for table {table} with (publish = 'insert, truncate')")
    with pytest.raises(InvalidJob, match=rf"leaves out update, delete: ALTER PUBLICATION {publication} SET \(publish"):
        tables.source(table, publication=publication)
    tables.execute(f"alter publication {publication} set (publish = 'insert, update, delete, truncate')")
    source = tables.source(table, publication=publication)
    tables.execute(f"alter publication {publication} set (publish = 'insert')")
    with reading(source) as reader, pytest.raises(InvalidJob, match="leaves out update, delete, truncate"):
        rows_from(reader, 1)


@pytest.mark.parametrize("part", ["(id)", "where (id > 5)"])
def test_a_publication_of_some_rows_or_columns_is_refused(tables: ChangedTables, publication: str, part: str) -> None:
    table, other = tables.table(), tables.table()
    tables.execute(f"create publication {publication} for table {other}, {table} {part}")
    with pytest.raises(InvalidJob, match=rf"has only some rows or columns of public\.{table}:"):
        tables.source(table, publication=publication)
    tables.source(other, publication=publication)


def test_a_table_from_which_others_inherit_is_refused(tables: ChangedTables) -> None:
    """The table shows the children's rows, and the log has the children's changes under the children's names."""
    table = tables.table()
    tables.execute(f"create table {table}_heir () inherits ({table})")
    with pytest.raises(InvalidJob, match=rf"other tables inherit from public\.{table}"):
        tables.source(table)
    tables.execute(f"drop table {table}_heir")
    tables.source(table)


def test_a_deferrable_key_identifies_no_row(tables: ChangedTables) -> None:
    """The server refuses updates of such a table, and with whole rows in the log keys can be swapped."""
    table = tables.table("id int primary key deferrable, v text")
    with pytest.raises(InvalidJob, match="nothing that identifies its rows"):
        tables.source(table)
    tables.execute(f"alter table {table} replica identity full", f"insert into {table} values (1, 'a'), (2, 'b')")
    with pytest.raises(InvalidJob, match=r"may swap the keys of rows.*form='changes'"):
        tables.source(table, form="upsert")
    source = tables.source(table)
    tables.execute(f"update {table} set id = 3 - id")
    with reading(source) as reader:
        assert told(rows_from(reader, 4))[2:] == [
            ("u", {"id": 1, "v": "a"}, {"id": 2, "v": "a"}),
            ("u", {"id": 2, "v": "b"}, {"id": 1, "v": "b"}),
        ]


@pytest.mark.parametrize("form", ["changes", "upsert"])
def test_a_key_that_is_gone_ends_the_job(tables: ChangedTables, form: str) -> None:
    table = tables.table()
    source = tables.source(table, form=form)
    tables.execute(f"alter table {table} rename id to number", f"insert into {table} values (1, 'a')")
    with reading(source) as reader, pytest.raises(InvalidJob, match="has no column id any more, which was of its key"):
        rows_from(reader, 1)


def test_a_large_key_that_did_not_change_is_that_of_the_row(tables: ChangedTables) -> None:
    """The key is stored out of line, so the log has the value only as the old key."""
    table = tables.table("id text primary key, v text")
    key = "".join(uuid.uuid4().hex for _ in range(70))  # 2,240 bytes, which an index takes and no compression shortens
    tables.execute(f"alter table {table} alter id set storage external")
    tables.execute(f"insert into {table} values ('{key}', 'a')")
    upserts, changes = tables.source(table, form="upsert"), tables.source(table)
    tables.execute(f"update {table} set v = 'b'")
    with reading(upserts) as reader:
        assert [(r["id"] == key, r["v"], r["deleted"]) for r in rows_from(reader, 2)] == [
            (True, "a", False),
            (True, "b", False),
        ]
    with reading(changes) as reader:
        update = rows_from(reader, 2)[1]
    assert (update["op"], update["after"], update["unchanged"]) == ("u", {"id": key, "v": "b"}, [])


def test_an_upsert_whose_key_the_log_does_not_have_ends_the_job(tables: ChangedTables) -> None:
    """Another column identifies the rows since the job has begun."""
    table = tables.table("id int primary key, v text not null unique")
    source = tables.source(table, form="upsert")
    tables.execute(f"insert into {table} values (1, 'a')")
    tables.execute(f"alter table {table} replica identity using index {table}_v_key", f"delete from {table}")
    with reading(source) as reader, pytest.raises(InvalidJob, match="identified by id, and in the log v identifies"):
        rows_from(reader, 2)


def test_rows_that_a_policy_hides_are_not_left_out_of_the_snapshot(tables: ChangedTables) -> None:
    table, role, url = tables.table(), f"reader_{uuid.uuid4().hex[:8]}", tables.url
    tables.execute(
        f"insert into {table} values (1, 'a'), (2, 'b')",
        f"create role {role} login replication in role pg_read_all_data",
        f"alter table {table} enable row level security",
        f"create policy few on {table} using (id = 1)",
        f"create publication {role} for table {table}",
    )
    try:
        tables.url = url.replace("://barrier@", f"://{role}@")
        assert role in tables.url
        with pytest.raises(InvalidJob, match="row-level security"):
            tables.source(table, publication=role)
    finally:
        tables.url = url
        tables.execute(f"drop publication {role}", f"drop policy few on {table}", f"drop role {role}")


def test_a_large_transaction_is_given_row_by_row_in_bounded_memory(tables: ChangedTables) -> None:
    """100 MB, of which no more than the buffer's 16 MB wait."""
    table = tables.table()
    source = tables.source(table)
    tables.execute(f"insert into {table} select n, repeat('x', 10000) from generate_series(1, 10000) n")
    seen = most = 0
    with reading(source) as reader:
        while seen < 10_000:
            rows = rows_from(reader, 500)
            assert [r["after"]["id"] for r in rows] == list(range(seen + 1, seen + 501))
            assert reader._feed is not None
            seen, most = seen + 500, max(most, reader._feed._bytes)
    assert most < 18 << 20
