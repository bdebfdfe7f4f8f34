"""Changes of tables from a real PostgreSQL server: no change is left out, doubled, or confirmed too early."""

import datetime
import decimal
import json
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest

from barrier_runtime import CollectSink, Dataflow, JsonlSink
from barrier_runtime.connectors.files.sink.commit_log import committed_files
from barrier_runtime.connectors.postgres.changes.log_session import PART_ROWS
from barrier_runtime.connectors.postgres.changes.position import decode_position
from barrier_runtime.connectors.postgres.changes.source import ChangesReader, PostgresChangesSource
from barrier_runtime.launch.outcome import JobFailed
from barrier_runtime.state.errors import InvalidJob, Unavailable
from examples.servers.postgres import PostgresServer, postgres_server
from tests.ends.changes_world import ChangedTables, all_rows, reading, rows_from, told
from tests.waiting import until


def row(id: int, v: str | None) -> dict[str, Any]:
    return {"id": id, "v": v}


def test_changes_end_only_with_until(tables: ChangedTables) -> None:
    table = tables.table()
    assert tables.source(table).endless
    assert not tables.source(table, until="current").endless


# ---------------------------------------------------------------- rows of changes


def test_the_rows_that_are_there_come_first_then_every_change(tables: ChangedTables) -> None:
    table = tables.table()
    tables.execute(f"insert into {table} values (1, 'a'), (2, null), (3, '')")
    source = tables.source(table)
    tables.execute(
        f"insert into {table} values (4, 'd')",
        f"update {table} set v = 'b' where id = 2",
        f"delete from {table} where id = 1",
        f"truncate {table}",
    )
    with reading(source) as reader:
        rows = rows_from(reader, 7)
    assert told(rows) == [
        ("r", None, row(1, "a")),
        ("r", None, row(2, None)),
        ("r", None, row(3, "")),
        ("c", None, row(4, "d")),
        ("u", None, row(2, "b")),
        ("d", row(1, None), None),
        ("t", None, None),
    ]
    assert [r["xid"] is None for r in rows] == [True] * 3 + [False] * 4
    assert [r["lsn"] for r in rows] == sorted(r["lsn"] for r in rows)


def test_a_snapshot_and_the_log_write_every_type_alike(tables: ChangedTables) -> None:
    table = tables.table(
        "id int primary key, s smallint, l bigint, r real, f double precision, b boolean, n numeric(12,3), "
        "m numeric, d date, t time, at timestamp, tz timestamptz, y bytea, u uuid, j jsonb, a int[], i interval"
    )
    values = (
        "-3, 9007199254740993, 1.5, 0.1, true, -12.345, 1e30, '1969-07-20', '23:59:59.999999', '0001-01-01 00:00:00', "
        "'2024-03-31 02:30:00.000001+02', '\\x00ff', '123e4567-e89b-12d3-a456-426614174000', '{\"k\": [1]}', "
        "'{1,null,3}', '1 day 2 hours'"
    )
    tables.execute(f"insert into {table} values (1, {values})", f"insert into {table} (id) values (2)")
    source = tables.source(table)
    tables.execute(f"insert into {table} values (3, {values})", f"insert into {table} (id) values (4)")
    with reading(source) as reader:
        first, empty, third, fourth = (each["after"] for each in rows_from(reader, 4))
    assert {**first, "id": 3} == third
    assert {**empty, "id": 4} == fourth
    assert {name for name, value in empty.items() if value is not None} == {"id"}
    assert first["l"] == 9007199254740993
    assert first["n"] == decimal.Decimal("-12.345")
    assert first["m"] == "1000000000000000000000000000000"
    assert first["t"] == datetime.time(23, 59, 59, 999999)
    assert first["tz"] == datetime.datetime(2024, 3, 31, 0, 30, 0, 1, tzinfo=datetime.timezone.utc)
    assert (first["y"], first["a"], first["j"]) == (b"\x00\xff", "{1,NULL,3}", '{"k": [1]}')


def test_a_value_that_arrow_does_not_have_names_the_column_and_the_remedy(tables: ChangedTables) -> None:
    table = tables.table("id int primary key, at timestamptz, d date")
    source = tables.source(table)
    tables.execute(f"insert into {table} values (1, 'infinity', '0044-03-15 BC')")
    with reading(source) as reader, pytest.raises(InvalidJob, match=r"'at' has 'infinity'.*as_text=\['at'\]"):
        rows_from(reader, 1)
    with reading(tables.source(table, as_text=["at", "d"])) as reader:
        (read,) = rows_from(reader, 1)
    assert read["after"] == {"id": 1, "at": "infinity", "d": "0044-03-15 BC"}


def test_large_values_that_did_not_change_are_named_or_filled_in(tables: ChangedTables) -> None:
    table = tables.table("id int primary key, v text, big text")
    tables.execute(f"alter table {table} alter big set storage external")
    tables.execute(f"insert into {table} values (1, 'a', repeat('x', 10000))")
    source = tables.source(table)
    tables.execute(f"update {table} set v = 'b'", f"alter table {table} replica identity full")
    tables.execute(f"update {table} set v = 'c'")
    with reading(source) as reader:
        _, without, full = rows_from(reader, 3)
    assert (without["unchanged"], without["after"]) == (["big"], {"id": 1, "v": "b", "big": None})
    assert full["unchanged"] == []
    assert (full["before"]["v"], full["after"]["v"], full["after"]["big"]) == ("b", "c", "x" * 10000)


def test_an_upsert_refuses_a_large_value_that_is_not_in_the_log_unless_null_will_do(tables: ChangedTables) -> None:
    table = tables.table("id int primary key, v text, big text")
    tables.execute(f"alter table {table} alter big set storage external")
    tables.execute(f"insert into {table} values (1, 'a', repeat('x', 10000))")
    strict, lax = (tables.source(table, form="upsert", unchanged=how) for how in ("fail", "null"))
    tables.execute(f"update {table} set v = 'b'")
    with reading(strict) as reader, pytest.raises(InvalidJob, match=r"left big as it was.*REPLICA IDENTITY FULL"):
        rows_from(reader, 2)
    with reading(lax) as reader:
        assert [(r["v"], r["big"] is None) for r in rows_from(reader, 2)] == [("a", False), ("b", True)]


def test_upserts_delete_the_old_key_when_a_key_changes(tables: ChangedTables) -> None:
    table = tables.table()
    tables.execute(f"insert into {table} values (1, 'a')")
    source = tables.source(table, form="upsert")
    tables.execute(f"update {table} set id = 2", f"update {table} set v = 'b'", f"delete from {table}")
    with reading(source) as reader:
        rows = rows_from(reader, 5)
    assert [(r["id"], r["v"], r["deleted"]) for r in rows] == [
        (1, "a", False),
        (1, None, True),
        (2, "a", False),
        (2, "b", False),
        (2, None, True),
    ]


def test_upserts_of_a_truncated_table_end_the_job(tables: ChangedTables) -> None:
    table = tables.table()
    source = tables.source(table, form="upsert")
    tables.execute(f"truncate {table}")
    with reading(source) as reader, pytest.raises(InvalidJob, match=r"was truncated.*form='changes'"):
        rows_from(reader, 1)


def test_columns_that_come_are_left_out_and_columns_that_go_are_null(tables: ChangedTables) -> None:
    table = tables.table()
    source = tables.source(table)
    tables.execute(
        f"insert into {table} values (1, 'a')",
        f"alter table {table} add column w int",
        f"insert into {table} values (2, 'b', 2)",
        f"alter table {table} drop column v",
        f"insert into {table} values (3, 3)",
    )
    with reading(source) as reader:
        assert [r["after"] for r in rows_from(reader, 3)] == [row(1, "a"), row(2, "b"), row(3, None)]


def test_transactions_come_in_the_order_of_their_commits(tables: ChangedTables) -> None:
    table = tables.table()
    source = tables.source(table)
    with psycopg.connect(tables.url) as other:
        other.execute(f"insert into {table} values (1, 'began first')")
        tables.execute(f"insert into {table} values (2, 'committed first')")
        other.commit()
        other.execute(f"insert into {table} values (3, 'taken back')")
        other.rollback()
    tables.execute(f"insert into {table} values (4, 'last')")
    with reading(source) as reader:
        assert [r["after"]["id"] for r in rows_from(reader, 3)] == [2, 1, 4]


# ---------------------------------------------------------------- positions


def test_a_reader_goes_on_exactly_behind_any_row(tables: ChangedTables) -> None:
    """Also within the snapshot, and within a transaction."""
    table = tables.table()
    tables.execute(f"insert into {table} select n, 'old' from generate_series(1, 5) n")
    source = tables.source(table, form="upsert")
    with tables.connection.transaction():
        tables.execute(f"insert into {table} select n, 'new' from generate_series(6, 9) n")
        tables.execute(f"update {table} set id = id + 100 where id < 3")
    tables.execute(f"delete from {table} where id > 100", f"insert into {table} values (50, 'last')")
    count = 5 + 4 + 4 + 2 + 1
    with reading(source) as reader:
        whole = rows_from(reader, count)
    cut: list[dict[str, Any]] = []
    position = None
    for _ in range(count):
        with reading(source, position) as reader:
            cut += rows_from(reader, 1)
            position = reader.position()
    assert cut == whole


def test_a_large_transaction_is_read_in_parts_with_positions_between_them(tables: ChangedTables) -> None:
    count, position, read = 2 * PART_ROWS + 10, None, list[int]()
    table = tables.table()
    source = tables.source(table)
    tables.execute(f"insert into {table} select n, 'v' from generate_series(1, {count}) n")
    while len(read) < count:
        with reading(source, position) as reader:
            polls = list[list[int]]()

            def polled(reader: ChangesReader = reader, polls: list[list[int]] = polls) -> bool:
                found = reader.poll(count, time.time_ns())
                if found is not None:
                    polls.append([row["after"]["id"] for row in found.rows.to_pylist()])
                return found is not None

            until(polled, "rows had come")
            position = reader.position()
        assert len(polls[0]) <= PART_ROWS
        read += polls[0]
        in_transaction = decode_position(position, "source").skip
        assert in_transaction == (len(read) if len(read) < count else 0)
    assert read == list(range(1, count + 1))


def test_only_what_a_completed_checkpoint_covers_is_confirmed(tables: ChangedTables) -> None:
    table = tables.table()
    source = tables.source(table)
    begun = tables.confirmed(source)
    with reading(source) as reader:
        with tables.connection.transaction():
            tables.execute(f"insert into {table} values (1, 'a'), (2, 'b')")
        rows_from(reader, 1)  # half of the transaction
        reader.snapshotted(1)
        reader.completed(1)
        tables.execute(f"insert into {table} values (3, 'c')")
        rows_from(reader, 2)
        reader.snapshotted(2)  # never completed
        assert reader._feed is not None
        assert reader._feed._confirmed <= begun, "the server will be told of it"
        assert tables.confirmed(source) <= begun
        reader.poll(1, 0)
        reader.snapshotted(3)
        reader.completed(3)
        until(lambda: tables.confirmed(source) > begun, "checkpoint 3 was confirmed")
        at = tables.confirmed(source)
    with reading(source, reader.position()):
        assert tables.confirmed(source) == at


def test_the_slot_advances_when_only_other_tables_change(tables: ChangedTables) -> None:
    table, other = tables.table(), tables.table()
    source = tables.source(table)
    begun = tables.confirmed(source)
    with reading(source) as reader:
        checkpoint = 0

        def advanced() -> bool:
            nonlocal checkpoint
            checkpoint += 1
            tables.execute(f"insert into {other} values ({checkpoint}, 'x')")
            assert reader.poll(10, 0) is None
            reader.snapshotted(checkpoint)
            reader.completed(checkpoint)
            return tables.confirmed(source) > begun

        until(advanced, "the slot had advanced")


def test_a_source_can_end_with_what_was_committed_when_the_job_began(tables: ChangedTables) -> None:
    table = tables.table()
    tables.execute(f"insert into {table} values (1, 'a')")
    source = tables.source(table, until="current")
    tables.execute(f"insert into {table} values (2, 'too late')")
    with reading(source) as reader:
        assert [r["after"]["id"] for r in all_rows(reader)] == [1]


# ---------------------------------------------------------------- trouble


def test_a_server_that_is_killed_loses_and_doubles_nothing(tables: ChangedTables, postgres: PostgresServer) -> None:
    table = tables.table()
    source = tables.source(table)
    tables.execute(f"insert into {table} select n, 'x' from generate_series(1, 300) n")
    with reading(source) as reader:
        ids = [r["after"]["id"] for r in rows_from(reader, 100, most=7)]
        postgres.kill()
        postgres.start()
        tables.connection = psycopg.connect(tables.url, autocommit=True)
        tables.execute(f"insert into {table} values (301, 'x')")
        ids += [r["after"]["id"] for r in rows_from(reader, 301 - len(ids))]
    assert ids == list(range(1, 302))


def test_a_session_that_is_ended_is_made_again(tables: ChangedTables) -> None:
    table = tables.table()
    source = tables.source(table)
    with reading(source) as reader:
        for n in range(2):
            tables.execute(f"insert into {table} values ({n}, 'x')")
            assert [r["after"]["id"] for r in rows_from(reader, 1)] == [n]
            tables.execute(
                "select pg_terminate_backend(active_pid) from pg_replication_slots "
                f"where slot_name = '{tables.slot_of(source)}' and active_pid is not null"
            )


def test_a_successor_takes_the_slot_from_a_stalled_generation(tables: ChangedTables) -> None:
    table = tables.table()
    source = tables.source(table)
    with reading(source) as stalled:
        tables.execute(f"insert into {table} values (1, 'x')")
        rows_from(stalled, 1)
        with reading(source) as successor:
            assert [r["after"]["id"] for r in rows_from(successor, 1)] == [1]


def test_a_slot_that_is_gone_says_what_is_lost(tables: ChangedTables) -> None:
    table = tables.table()
    source = tables.source(table)
    tables.execute(f"select pg_drop_replication_slot('{tables.slot_of(source)}')")
    with reading(source) as reader, pytest.raises(InvalidJob, match=r"slot .* is gone.*restore='none'"):
        rows_from(reader, 1)


def test_a_slot_that_somebody_else_has_advanced_ends_the_job(tables: ChangedTables) -> None:
    table = tables.table()
    source = tables.source(table)
    tables.execute(
        f"insert into {table} values (1, 'x')",
        f"select pg_replication_slot_advance('{tables.slot_of(source)}', pg_current_wal_lsn())",
    )
    with reading(source) as reader, pytest.raises(InvalidJob, match="the changes between them are gone"):
        rows_from(reader, 1)


@pytest.mark.slow
def test_a_log_that_the_server_has_removed_ends_the_job(tmp_path: Path) -> None:
    with postgres_server(max_slot_wal_keep_size="1MB", min_wal_size="32MB", max_wal_size="32MB") as server:
        world = ChangedTables(server.url, tmp_path)
        try:
            table = world.table()
            source = world.source(table)
            for _ in range(4):
                world.execute("select pg_switch_wal()", f"insert into {table} values (1, 'x')", f"delete from {table}")
            world.execute("checkpoint")
            with reading(source) as reader, pytest.raises(InvalidJob, match="the server has removed the log"):
                rows_from(reader, 1)
        finally:
            world.close()


def test_a_driver_that_died_leaves_no_slot_and_a_staging_that_stands_is_used_again(tables: ChangedTables) -> None:
    table = tables.table()
    source, later, last = (tables.source(table, staged=False) for _ in range(3))
    source.stage("job-dies", tables.storage, fresh=False)
    (current,) = Path(tables.storage).rglob("current.json")
    current.unlink()  # the job died before this write
    later.stage("job-dies", tables.storage, fresh=False)
    last.stage("job-dies", tables.storage, fresh=False)
    slots = tables.connection.execute("select slot_name from pg_replication_slots where slot_name like 'barrier%'")
    assert slots.fetchall() == [(tables.slot_of(later),)]
    assert tables.slot_of(last) == tables.slot_of(later) != tables.slot_of(source)
    last.stage("job-dies", tables.storage, fresh=True)
    assert tables.slot_of(last) != tables.slot_of(later)


def test_another_server_is_refused(tables: ChangedTables, tmp_path: Path) -> None:
    table = tables.table()
    source = tables.source(table)
    with postgres_server() as other:
        source._parameters["port"] = str(other.port)
        with reading(source) as reader, pytest.raises(InvalidJob, match="is another server"):
            rows_from(reader, 1)


def test_server_or_table_that_cannot_report_changes_is_refused_at_the_job_start(tables: ChangedTables) -> None:
    with pytest.raises(InvalidJob, match=r"no table public\.nothing"):
        tables.source("nothing")
    with pytest.raises(InvalidJob, match=r"nothing that identifies its rows.*ADD PRIMARY KEY"):
        tables.source(tables.table("id int"))
    with pytest.raises(InvalidJob, match="the name of a table, or a list of names"):
        PostgresChangesSource(tables.url, ()).named("changes")
    with pytest.raises(InvalidJob, match=r"'deleted', which rows of form='upsert' need"):
        tables.source(tables.table("id int primary key, deleted bool"), form="upsert")
    table = tables.table()
    tables.execute("select pg_create_logical_replication_slot('taken', 'pgoutput')")
    try:
        with pytest.raises(InvalidJob, match="there is a slot 'taken' already"):
            tables.source(table, slot="taken")
        with reading(tables.source(table, slot="taken", snapshot=False)) as reader:
            tables.execute(f"insert into {table} values (1, 'x')")
            assert [r["op"] for r in rows_from(reader, 1)] == ["c"]
    finally:
        until(
            lambda: tables.connection.execute(
                "select 1 from pg_replication_slots where slot_name = 'taken' and not active"
            ).fetchone(),
            "the slot was free",
        )


def test_a_server_without_logical_wal_says_which_setting(tmp_path: Path) -> None:
    with postgres_server(wal_level="replica") as server:
        world = ChangedTables(server.url, tmp_path)
        try:
            with pytest.raises(InvalidJob, match="set wal_level = logical"):
                world.source(world.table())
        finally:
            world.close()


# ---------------------------------------------------------------- jobs


def test_tables_of_one_slot_are_streams_of_their_own(tables: ChangedTables) -> None:
    customers, orders = tables.table(), tables.table("id int primary key, customer int, amount numeric(8,2)")
    tables.execute(f"insert into {customers} values (1, 'ada')", f"insert into {orders} values (7, 1, 9.5)")
    flow, named, bought = Dataflow("shop"), CollectSink(), CollectSink()
    first, second = flow.read_postgres_changes(
        "shop", tables.url, [customers, orders], form="upsert", until="current", event_time="changed_at"
    )
    first.select({"id": "id", "v": "v", "deleted": "deleted"}).sink("customers", named)
    second.select({"id": "id", "amount": "amount"}).sink("orders", bought)
    flow.run_local(parallelism=2, checkpoints=tables.storage)
    assert named.rows() == [{"id": 1, "v": "ada", "deleted": False}]
    assert bought.rows() == [{"id": 7, "amount": decimal.Decimal("9.50")}]
    slots = tables.connection.execute("select count(*) from pg_replication_slots where slot_name like 'barrier%'")
    assert slots.fetchone() == (0,), "a finished job leaves its slot, and the server keeps its log for ever"


def test_upserts_are_the_changes_of_a_table_join(tables: ChangedTables) -> None:
    customers = tables.table()
    tables.execute(f"insert into {customers} values (1, 'ada'), (2, 'bob')")
    flow, out = Dataflow("join"), CollectSink()
    table = flow.read_postgres_changes("customers", tables.url, customers, form="upsert", until="current")
    orders = flow.read_postgres_changes("orders", tables.url, customers, form="upsert", until="current")
    joined = orders.select({"id": "id"}).key_by("id").table_join("c", table.key_by("id"), deleted="deleted", how="left")
    joined.sink("out", out)
    flow.run_local(parallelism=2, checkpoints=tables.storage)
    assert sorted(row["id"] for row in out.rows()) == [1, 2]


def test_names_as_they_are_written_partitions_and_domains(tables: ChangedTables) -> None:
    domain = f"cents_{tables.table()}"
    tables.execute(
        'create schema if not exists "Sales Of"',
        'drop table if exists "Sales Of"."Items"',
        f"create domain {domain} as numeric(9,2)",
        f'create table "Sales Of"."Items" ("Id" int primary key, "A ""b" {domain}) partition by range ("Id")',
        'create table "Sales Of".low partition of "Sales Of"."Items" for values from (0) to (10)',
        'create table "Sales Of".high partition of "Sales Of"."Items" for values from (10) to (20)',
        'insert into "Sales Of"."Items" values (1, 1.5), (11, 2.5)',
    )
    source = tables.source("Sales Of.Items")
    tables.execute('update "Sales Of"."Items" set "Id" = 12 where "Id" = 1', 'delete from "Sales Of"."Items"')
    with reading(source) as reader:
        rows = rows_from(reader, 6)
    assert sorted((r["after"]["Id"], r["after"]['A "b']) for r in rows[:2]) == [
        (1, decimal.Decimal("1.50")),
        (11, decimal.Decimal("2.50")),
    ]
    assert [r["op"] for r in rows[2:]] == ["d", "c", "d", "d"], "a row that moves to another partition is a new one"
    tables.execute('drop table "Sales Of"."Items"', f"drop domain {domain}")


def test_a_job_goes_on_at_another_parallelism(tables: ChangedTables) -> None:
    """The first run ends by a fault, after a checkpoint in the snapshot or in the log."""
    table = tables.table()
    tables.execute(f"insert into {table} select n, 'x' from generate_series(1, 400) n")
    seen: list[int] = []

    def build(*, fails: bool) -> Dataflow:
        def once(row: dict[str, Any]) -> dict[str, Any]:
            if fails and len(seen) > 0 and row["n"] > 300:
                raise ValueError("the first run ends here")
            seen.append(row["n"])
            return row

        flow = Dataflow("rescaled")
        rows = flow.read_postgres_changes("changes", tables.url, table, until="current")
        numbers = rows.map(lambda row: {"n": row["after"]["id"]}, schema={"n": int})
        spread = numbers.rebalance().map(once, schema={"n": int})
        spread.sink("out", JsonlSink(tables.storage + "-out"))
        return flow

    with pytest.raises(JobFailed, match="the first run ends here"):
        build(fails=True).run_local(parallelism=1, checkpoints=tables.storage, checkpoint_interval=0.02)
    build(fails=False).run_local(parallelism=3, checkpoints=tables.storage, checkpoint_interval=0.05)
    files = committed_files(tables.storage + "-out", "rescaled", "out")
    lines = [
        json.loads(line)["n"] for url in files for line in Path(url.removeprefix("file://")).read_text().splitlines()
    ]
    assert sorted(lines) == list(range(1, 401))


def test_a_restart_goes_on_in_the_middle_of_a_transaction(tables: ChangedTables) -> None:
    """A function fails once, after a checkpoint."""
    table = tables.table()
    slot = f"slot_{table}"
    tables.execute(
        f"create publication {slot} for table {table}",
        f"select pg_create_logical_replication_slot('{slot}', 'pgoutput')",
        f"insert into {table} select n, 'x' from generate_series(1, 500) n",
        f"update {table} set v = 'y'",
    )
    failed = Path(tables.storage + "-failed")

    def fail_once(row: dict[str, Any]) -> dict[str, Any]:
        if row["n"] == 400 and row["op"] == "u" and not failed.exists():
            failed.write_text("")
            raise Unavailable("once")
        return row

    options: dict[str, Any] = {"slot": slot, "publication": slot, "snapshot": False, "until": "current"}
    flow, out = Dataflow("restarts"), CollectSink()
    rows = flow.read_postgres_changes("changes", tables.url, table, **options)
    numbers = rows.map(lambda row: {"n": row["after"]["id"], "op": row["op"]}, schema={"n": int, "op": str})
    numbers.map(fail_once, schema={"n": int, "op": str}).sink("out", out)
    flow.run_local(parallelism=1, checkpoints=tables.storage, checkpoint_interval=0.05, restart="fixed_delay")
    assert failed.exists()
    expected = [{"n": n, "op": op} for op in "cu" for n in range(1, 501)]
    assert sorted(out.rows(), key=lambda row: (row["op"], row["n"])) == expected
    tables.execute(f"select pg_drop_replication_slot('{slot}')", f"drop publication {slot}")
