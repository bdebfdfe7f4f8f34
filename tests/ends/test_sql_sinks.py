"""Behaviours that the sinks of all SQL databases share, against PostgreSQL, MariaDB and SQLite."""

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from barrier_runtime import Dataflow
from barrier_runtime.connectors.sink_bases.sql import sink as sql_sink
from barrier_runtime.connectors.sink_bases.sql.sink import SqlSink
from barrier_runtime.coordinator.log.decision_log import DecisionLog, LogView
from barrier_runtime.coordinator.log.records import Complete, Fence, Record
from barrier_runtime.coordinator.wire.messages import CheckpointOptions, JobSpec
from barrier_runtime.state.errors import Corrupt, InvalidJob, Unavailable
from barrier_runtime.state.store.object_store import PutOutcome
from barrier_runtime.state.store.paths import Paths
from barrier_runtime.testing import certify
from tests.ends.sql_databases import (
    DATABASES,
    Database,
    Job,
    MySQL,
    Postgres,
    Sqlite,
    closing_all,
    new_name,
    numbers,
    pre_committed,
    written,
)
from tests.waiting import until

PATIENCE_S = 120.0
UPSERT: dict[str, Any] = {"mode": "upsert", "key": ["n"]}
WAYS: dict[str, dict[str, Any]] = {"insert": {}, "upsert": {"mode": "upsert", "key": ["id"]}}


@pytest.fixture(params=DATABASES)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    made: Database
    if request.param == "postgres":
        made = Postgres(request.getfixturevalue("postgres"))
    elif request.param == "mysql":
        made = MySQL(request.getfixturevalue("mariadb"))
    else:
        made = Sqlite(tmp_path / "rows.db")
    with contextlib.closing(made):
        yield made


@pytest.fixture
def job(database: Database) -> Job:
    return Job(database)


def tried_again(sink: SqlSink, checkpoint: int, committables: list[bytes]) -> None:
    """Retries as a slot does, while other sessions hold the server's rows."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return sink.commit_globally(checkpoint, committables)
        except Unavailable:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def lose_connections(sink: Any) -> None:
    """Closes connections as the kernel does when the process dies."""
    with contextlib.suppress(AttributeError):  # a sink without connection yet
        sink.close()


def decide(job: Job, *checkpoints: int) -> None:
    """A log in the job's store that has decided these, in the lineage that sinks are opened in."""
    log = DecisionLog(job.name, LogView())

    def append(kind: type[Record], token: int, **facts: Any) -> None:
        put_id = f"put-{log.next_position}"
        common = {"put_id": put_id, "parent_sha256": log.head_sha256, "token": token, "writer": "test", "wall_ms": 0}
        step = log.propose(kind(**common, prior_complete=log.prior_complete, lineage="lineage", **facts))
        assert job.store.put_if_absent(Paths(job.name).log_record(step.position), step.data) is PutOutcome.CREATED
        log.on_put(step.position, PutOutcome.CREATED)

    spec = JobSpec(
        job=job.name,
        run_id="run",
        submitter="test",
        parallelism=1,
        max_parallelism=128,
        chains=(),
        checkpoints=CheckpointOptions(interval_ms=1_000),
    )
    append(Fence, 1, reason="start", restored_checkpoint=0, checkpoint_floor=0, spec=spec)
    for checkpoint in checkpoints:
        append(Complete, 1, checkpoint=checkpoint, manifest=Paths(job.name).manifest(checkpoint, 1), sha256="")


# ------------------------------------------------------------ exactly once


@pytest.mark.parametrize("way", WAYS)
def test_the_sink_is_exactly_once_wherever_it_crashes(database: Database, way: str) -> None:
    """T1, T2, T3, T6, T7, T8, T9, T10, T11, T14, T15: see the scenarios of `certify`."""
    kind = "bigint not null primary key" if way == "upsert" else "bigint"
    quoted = f"{'`' if isinstance(database, MySQL) else ''}"
    table = database.table(f"id {kind}, {quoted}key{quoted} varchar(100), value bigint")
    certificate = certify(
        lambda: database.sink(table, **WAYS[way]),
        lambda: database.read(table),
        scenarios=12,
        seeds=range(2),
        ordered=way == "insert",
        kill=lose_connections,
        reset=lambda: database.reset(table),
    )
    print(certificate)
    assert certificate.crashes > 10


def test_zombie_and_successor_commit_the_same_rows_at_once_and_rows_appear_once(database: Database, job: Job) -> None:
    """T10, Z2"""
    table = database.table()
    zombie, successor = job.opened(table, token=1), job.opened(table, token=2)
    decided = [pre_committed(zombie, checkpoint, checkpoint * 10, checkpoint * 10 + 1) for checkpoint in range(1, 9)]
    troubles: list[BaseException] = []

    def work(sink: SqlSink) -> None:
        try:
            for checkpoint in range(1, 9):
                tried_again(sink, checkpoint, decided[:checkpoint])
        except BaseException as error:
            troubles.append(error)

    threads = [threading.Thread(target=work, args=(sink,)) for sink in (zombie, successor)]
    with closing_all([zombie, successor]):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
    assert troubles == []
    assert database.numbers(table) == [n for checkpoint in range(1, 9) for n in (checkpoint * 10, checkpoint * 10 + 1)]
    assert job.staged() == []


def test_a_commit_that_is_repeated_shows_nothing_twice_also_from_another_process(database: Database, job: Job) -> None:
    """T3, T6, T8, T10, T11, Z2: the other process has a newer token and another parallelism."""
    table = database.table()
    sink = job.opened(table)
    first, second = pre_committed(sink, 1, 1), pre_committed(sink, 2, 2)
    sink.commit_globally(1, [first])
    for _ in range(2):
        sink.commit_globally(2, [first, second])
    other = job.opened(table, token=9, parallelism=3)
    other.recover([first, second])
    other.commit_globally(2, [first, second])
    late = pre_committed(sink, 3, 3)  # a zombie's
    other.recover([])
    with closing_all([sink, other]), pytest.raises(Corrupt, match="of the 1 row that checkpoints up to 3 decided"):
        sink.commit_globally(3, [late])
    assert database.numbers(table) == [1, 2]
    assert job.staged() == []


def test_aborted_rows_can_never_be_committed(database: Database, job: Job) -> None:
    """T6: a hard error that names the cause, never silence."""
    table = database.table()
    sink = job.opened(table)
    written(sink, 1, 1)
    aborted = pre_committed(sink, 2, 2, 3)
    with closing_all([sink]):
        for _ in range(2):
            sink.abort(aborted)
        for _ in range(2):
            with pytest.raises(Corrupt, match="of the 2 rows that checkpoints up to 2 decided some are gone"):
                sink.commit_globally(2, [aborted])
    assert database.numbers(table) == [1]


def test_a_fresh_start_is_not_taken_for_an_earlier_one(database: Database, job: Job) -> None:
    """T14: tokens and checkpoint ids from 1 again, on a target that has seen higher ids."""
    table = database.table()
    first, second = job.opened(table, token=50), job.opened(table, token=1, lineage="another")
    with closing_all([first, second]):
        written(first, 100, 1)
        second.recover([])
        written(second, 1, 2)
    assert database.numbers(table) == [1, 2]


def test_rows_decided_in_two_lineages_appear_once(database: Database, job: Job) -> None:
    """A restore of an older checkpoint begins a lineage while the older lineage's rows still wait."""
    table = database.table()
    older, newer = job.opened(table, token=1, lineage="older"), job.opened(table, token=2)
    with closing_all([older, newer]):
        decided = [pre_committed(older, 100, 1), pre_committed(newer, 101, 2)]
        newer.commit_globally(101, decided)
    assert database.numbers(table) == [1, 2]


def test_a_mark_that_somebody_has_deleted_is_made_again(database: Database, job: Job) -> None:
    table = database.table()
    sink = job.opened(table)
    with closing_all([sink]):
        written(sink, 1, 1)
        database.execute(f"delete from {database.marks} where job = '{job.name}'")
        second = pre_committed(sink, 2, 2)
        with pytest.raises(Unavailable, match=r"barrier_runtime.commits has lost the row"):
            sink.commit_globally(2, [second])
        for _ in range(2):
            sink.commit_globally(2, [second])
    assert database.numbers(table) == [1, 2]


def test_the_bookkeeping_does_not_grow_with_the_checkpoints(database: Database, job: Job) -> None:
    sink = job.opened(database.table())
    with closing_all([sink]):
        for checkpoint in range(1, 11):
            written(sink, checkpoint, checkpoint)
    assert database.execute(f"select checkpoint from {database.marks} where job = '{job.name}'") == [(10,)]
    assert job.staged() == []


def test_an_empty_transaction_leaves_nothing_to_commit(database: Database, job: Job) -> None:
    """T7"""
    sink = job.opened(database.table())
    with closing_all([sink]):
        transaction = sink.begin_transaction()
        assert sink.pre_commit(transaction, 1) is None


def test_a_transaction_that_outgrows_memory_is_staged_early_in_parts(database: Database, job: Job) -> None:
    table = database.table()
    sink = job.opened(table, max_bytes_in_memory=10_000)
    transaction = sink.begin_transaction()
    with closing_all([sink]):
        for start in range(0, 3_000, 100):
            sink.write(transaction, numbers(*range(start, start + 100)).to_batches()[0])
            stage = sink.stage_early(transaction)
            if stage is not None:
                stage()
        assert len(job.staged()) > 3
        sink.write(transaction, numbers(*range(3_000, 9_000)).to_batches()[0])
        committable = sink.pre_commit(transaction, 1)
        assert committable is not None
        sink.commit_globally(1, [committable])
    assert database.numbers(table) == list(range(9_000))
    assert job.staged() == []


def test_a_job_that_ends_leaves_all_rows_once_and_nothing_else(database: Database, tmp_path: Path) -> None:
    """T13: the final checkpoint commits the rows after the last barrier."""
    table = database.table("n bigint not null primary key")
    flow = Dataflow(new_name())
    flow.rate("numbers", 20_000, 10_000, keys=7).select({"n": "value"}).sink("out", database.sink(table))
    flow.run_local(parallelism=2, checkpoint_interval=0.1, checkpoints=str(tmp_path / "checkpoints"))
    assert database.execute(f"select count(*), max(n) from {table}") == [(10_000, 9_999)]
    assert [path for path in (tmp_path / "checkpoints").rglob("*") if "staged" in str(path) and path.is_file()] == []


# ------------------------------------------------------------ readers' view


def test_rows_of_all_subtasks_and_of_several_checkpoints_appear_in_one_step(database: Database, job: Job) -> None:
    """T2: a concurrent reader sees all rows of a global commit or none, however many parts the commit has."""
    table = database.table()
    sinks = [job.opened(table, subtask=subtask, parallelism=3, max_bytes_in_memory=64) for subtask in range(3)]
    committables = [
        pre_committed(sink, checkpoint, *range(100 * checkpoint + 10 * subtask, 100 * checkpoint + 10 * subtask + 10))
        for checkpoint in (1, 2)
        for subtask, sink in enumerate(sinks)
    ]
    assert database.numbers(table) == []
    counts = set()
    over = threading.Event()

    def read() -> None:
        with contextlib.closing(database.beside()) as reader:
            while True:
                last = over.is_set()
                counts.add(len(reader.numbers(table)))
                if last:
                    return

    thread = threading.Thread(target=read)
    thread.start()
    with closing_all(sinks):
        until(lambda: counts, "the reader has looked")
        tried_again(sinks[0], 2, committables)
    over.set()
    thread.join(PATIENCE_S)
    assert counts == {0, 60}
    assert database.numbers(table) == [n for c in (100, 200) for n in range(c, c + 30)]


@pytest.mark.parametrize("arguments", [{}, {"max_bytes_in_memory": 64}], ids=["one part", "parts"])
def test_the_last_row_of_a_key_wins_within_and_across_checkpoints(
    database: Database, job: Job, arguments: dict[str, Any]
) -> None:
    """T15: a column that is missing in the rows keeps the value."""
    table = database.table("n bigint not null, t varchar(100), other varchar(100) default 'kept', unique (n)")
    sink = job.opened(table, **UPSERT, **arguments)
    database.execute(f"insert into {table} (n, t, other) values (1, 'old', 'mine')")

    def rows() -> list[tuple[Any, ...]]:
        return database.execute(f"select n, t, other from {table} order by n")

    with closing_all([sink]):
        three = [numbers(1, 2).set_column(1, "t", pa.array([t + "1", t + "2"])) for t in ("a", "b", "c")]
        first = pre_committed(sink, 1, *three)
        sink.commit_globally(1, [first])
        assert rows() == [(1, "c1", "mine"), (2, "c2", "kept")]
        sink.commit_globally(2, [first, pre_committed(sink, 2, 2, 3)])
        assert rows() == [(1, "c1", "mine"), (2, "text 2", "kept"), (3, "text 3", "kept")]


def test_a_key_of_several_columns_alone_is_upserted(database: Database, job: Job) -> None:
    table = database.table("a bigint not null, n bigint not null, unique (n, a)")
    sink = job.opened(table, mode="upsert", key=["a", "n"])
    with closing_all([sink]):
        for checkpoint in (1, 2):
            written(sink, checkpoint, pa.table({"a": [1, 1, 2], "n": [1, 1, 1]}))
    assert sorted(database.execute(f"select a, n from {table}")) == [(1, 1), (2, 1)]


def test_names_of_tables_and_columns_that_need_quotes_are_quoted(database: Database, job: Job) -> None:
    quote = "`" if isinstance(database, MySQL) else '"'
    name, column = f"The {quote}Table {new_name()}", f"a {quote}%s; --"
    shown, first = (quote + each.replace(quote, quote * 2) + quote for each in (name, column))
    database.execute(f"create table {shown} ({first} bigint not null, {quote}order{quote} bigint, unique ({first}))")
    for way in ({}, {"mode": "upsert", "key": [column]}):
        sink = job.opened(name, lineage=f"of {len(way)}", **way)
        with closing_all([sink]):
            written(sink, 1, pa.table({column: [len(way)], "order": [7]}))
    assert sorted(tuple(row.values()) for row in database.read(shown)) == [(0, 7), (2, 7)]


# ------------------------------------------------------------ backlogs


def test_a_failure_keeps_the_checkpoints_that_were_shown_before_it(database: Database, job: Job) -> None:
    """T2, T4: the row of the third checkpoint is refused until a person has removed the conflict."""
    table = database.table("n bigint not null unique, t varchar(100)")
    database.execute(f"insert into {table} (n) values (3)")
    sink = job.opened(table)
    backlog = [pre_committed(sink, checkpoint, checkpoint) for checkpoint in range(1, 6)]
    decide(job, *range(1, 6))
    with closing_all([sink]):
        for _ in range(2):
            with pytest.raises(InvalidJob, match=r"committing checkpoint 3 failed.*the server refuses a row"):
                sink.commit_globally(5, backlog)
            assert sorted(database.numbers(table)) == [1, 2, 3]
        database.execute(f"delete from {table} where n = 3")
        sink.commit_globally(5, backlog)
    assert sorted(database.numbers(table)) == [1, 2, 3, 4, 5]
    assert job.staged() == []


def test_rows_of_a_checkpoint_that_was_given_up_appear_with_the_next_decided_one(database: Database, job: Job) -> None:
    """T2: checkpoint 2 reached a single subtask, so these rows alone are not a state that the job ever had."""
    table = database.table("n bigint not null unique, t varchar(100)")
    first, second = (job.opened(table, subtask=subtask, parallelism=2) for subtask in range(2))
    backlog = [
        *(pre_committed(first, 1, 10), pre_committed(second, 1, 11)),
        pre_committed(first, 2, 20),
        *(pre_committed(first, 3, 30), pre_committed(second, 3, 31)),
    ]
    decide(job, 1, 3)
    database.execute(f"insert into {table} (n) values (31)")
    with closing_all([first, second]):
        with pytest.raises(InvalidJob, match="committing checkpoint 3 failed"):
            first.commit_globally(3, backlog)
        assert sorted(database.numbers(table)) == [10, 11, 31]
        database.execute(f"delete from {table} where n = 31")
        first.commit_globally(3, backlog)
    assert database.numbers(table) == [10, 11, 20, 30, 31]


def test_a_backlog_is_committed_together_after_rescaling(database: Database, job: Job) -> None:
    """T8: rows of two subtasks, and of three subtasks of the next generation. Undecided rows are cleaned up."""
    table = database.table()
    before = [job.opened(table, subtask=subtask, parallelism=2) for subtask in range(2)]
    backlog = [
        pre_committed(sink, checkpoint, 10 * checkpoint + subtask)
        for checkpoint in (1, 2, 3)
        for subtask, sink in enumerate(before)
    ]
    pre_committed(before[1], 4, 41)
    after = [job.opened(table, token=2, subtask=subtask, parallelism=3) for subtask in range(3)]
    with closing_all([*before, *after]):
        for subtask, sink in enumerate(after):
            sink.recover(backlog[subtask::2] if subtask < 2 else [])
        after[0].commit_globally(3, backlog)
        before[0].commit_globally(3, backlog)  # a zombie
    assert database.numbers(table) == [10, 11, 20, 21, 30, 31]
    assert job.staged() == []


def test_a_large_backlog_is_committed_in_groups(database: Database, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    table = database.table()
    monkeypatch.setattr(sql_sink, "MOST_ROWS", 2)
    sink = job.opened(table)
    backlog = [pre_committed(sink, checkpoint, checkpoint) for checkpoint in range(1, 6)]
    decide(job, *range(1, 6))
    groups: list[int] = []
    written_of = sink._written

    def counted(mark: Any, due: Any, what: str) -> bool:
        groups.append(len(due))
        return written_of(mark, due, what)

    monkeypatch.setattr(sink, "_written", counted)
    with closing_all([sink]):
        sink.commit_globally(5, backlog)
    assert groups == [2, 2, 1]
    assert database.numbers(table) == [1, 2, 3, 4, 5]


def test_checkpoints_with_other_columns_are_committed_too(database: Database, job: Job) -> None:
    """A changed program may find pending commits of the predecessor."""
    table = database.table()
    sink, changed = job.opened(table), job.opened(table, token=2)
    decide(job, 1, 2)
    with closing_all([sink, changed]):
        backlog = [pre_committed(sink, 1, 1), pre_committed(changed, 2, numbers(2).drop(["t"]))]
        changed.commit_globally(2, backlog)
    assert [tuple(row.values()) for row in database.read(table)] == [(1, "text 1"), (2, None)]


# ------------------------------------------------------------ refused before a row is written


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mode": "append"}, "mode is 'insert' or 'upsert'"),
        ({"mode": "upsert"}, r"mode='upsert' needs the columns of the key, key=\['id'\]"),
        ({"mode": "upsert", "key": []}, "needs the columns"),
        ({"key": ""}, "has an empty name"),
        ({"key": ["id"]}, "mode='insert' has none"),
        ({"max_bytes_in_memory": 0}, "max_bytes_in_memory=0"),
    ],
)
def test_arguments_that_cannot_be_are_refused_at_once(
    database: Database, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidJob, match=message):
        database.sink("t", **arguments)


def test_settings_make_an_equal_sink(database: Database) -> None:
    sink = database.sink("t", mode="upsert", key=["a", "b"], max_bytes_in_memory=1_000)
    assert type(sink)(**sink.settings()).settings() == sink.settings()
    assert repr(type(sink)(**sink.settings())) == repr(sink)
    assert ", upsert by a, b)" in repr(sink)


def test_a_table_that_is_missing_or_is_none_is_refused_when_the_sink_opens(database: Database, job: Job) -> None:
    with pytest.raises(InvalidJob, match=r"there is no table \S*absent"):
        job.opened("absent")
    view = f"view_{new_name().replace('-', '_')}"
    database.execute(f"create view {view} as select 1 as n")
    with pytest.raises(InvalidJob, match=rf"{view}\b.*(is not a table|is a view|there is no table)|no table '{view}'"):
        job.opened(view)


@pytest.mark.parametrize(
    ("columns", "key", "message"),
    [
        ("n bigint not null, t varchar(100)", "n", r"ADD UNIQUE \(n\)"),
        ("n bigint not null, t varchar(100), unique (n, t)", "n", r"ADD UNIQUE \(n\)"),
        ("m bigint not null primary key", "n", "has no key column 'n'; it has m"),
    ],
)
def test_an_upsert_without_its_unique_index_is_refused_when_the_sink_opens(
    database: Database, job: Job, columns: str, key: str, message: str
) -> None:
    with pytest.raises(InvalidJob, match=message):
        job.opened(database.table(columns), mode="upsert", key=[key])


@pytest.mark.parametrize(
    ("columns", "arguments", "message"),
    [
        ("n varchar(10), t varchar(100)", {}, "column 'n' is int64, in table .* it is .*varchar|character varying"),
        ("n bigint", {}, "the rows have a column 't', table .* has not; it has n"),
        ("n bigint, t varchar(100), must bigint not null", {}, "'must' of table .* is NOT NULL without a default"),
        ("k bigint not null unique, n bigint, t varchar(100)", {"mode": "upsert", "key": ["k"]}, "no key column 'k'"),
    ],
)
def test_columns_that_do_not_fit_are_refused_with_the_first_rows(
    database: Database, job: Job, columns: str, arguments: dict[str, Any], message: str
) -> None:
    sink = job.opened(database.table(columns), **arguments)
    with closing_all([sink]), pytest.raises(InvalidJob, match=message):
        sink.write(sink.begin_transaction(), numbers(1).to_batches()[0])


@pytest.mark.parametrize("way", ["not null", "key"])
def test_a_null_that_the_table_refuses_is_found_before_the_decision(database: Database, job: Job, way: str) -> None:
    table = database.table("n bigint not null unique, t varchar(100)")
    sink = job.opened(table, **(UPSERT if way == "key" else {}))
    transaction = sink.begin_transaction()
    sink.write(transaction, pa.record_batch({"n": pa.array([1, None], pa.int64()), "t": ["a", "b"]}))
    with closing_all([sink]):
        for _ in range(2):
            with pytest.raises(InvalidJob, match=r"column 'n' of a row is null, .*NOT NULL"):
                sink.pre_commit(transaction, 1)
    assert job.staged() == []
