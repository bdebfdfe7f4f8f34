"""What an outage of the table has piled up in PostgreSQL: shown decision by decision, none of it torn."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from barrier_runtime import Dataflow, PostgresSink
from barrier_runtime.connectors.postgres import staged as postgres_staged
from barrier_runtime.coordinator.log.decision_log import DecisionLog, LogView
from barrier_runtime.coordinator.log.records import Complete, Fence, Record
from barrier_runtime.coordinator.wire.messages import CheckpointOptions, JobSpec
from barrier_runtime.state.errors import Corrupt, InvalidJob, Unavailable
from barrier_runtime.state.store.object_store import PutOutcome
from barrier_runtime.state.store.paths import Paths
from examples.servers import PostgresServer, postgres_server
from tests.ends.postgres_tables import (
    STORE,
    left_over,
    made_visible,
    new_job,
    new_table,
    opened,
    pre_committed,
    seen,
)
from tests.waiting import until


@pytest.fixture
def connection(postgres: PostgresServer) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        yield connection


def decide(job: str, *checkpoints: int) -> None:
    """A log in the job's store that has decided these, in the lineage that `opened` has."""
    log = DecisionLog(job, LogView())

    def append(kind: type[Record], token: int, **facts: Any) -> None:
        put_id = f"put-{log.next_position}"
        common = {"put_id": put_id, "parent_sha256": log.head_sha256, "token": token, "writer": "test", "wall_ms": 0}
        step = log.propose(kind(**common, prior_complete=log.prior_complete, lineage="lineage", **facts))
        assert STORE.put_if_absent(Paths(job).log_record(step.position), step.data) is PutOutcome.CREATED
        log.on_put(step.position, PutOutcome.CREATED)

    spec = JobSpec(
        job=job,
        run_id="run",
        submitter="test",
        parallelism=1,
        max_parallelism=128,
        chains=(),
        checkpoints=CheckpointOptions(interval_ms=1_000),
    )
    append(Fence, 1, reason="start", restored_checkpoint=0, checkpoint_floor=0, spec=spec)
    for checkpoint in checkpoints:
        append(Complete, 1, checkpoint=checkpoint, manifest=f"manifest-{checkpoint}", sha256="")


def test_a_failure_keeps_the_checkpoints_that_were_shown_before_it(
    postgres: PostgresServer, connection: psycopg.Connection[Any]
) -> None:
    """T2, T4: the row of the third checkpoint is refused until a person has made room for it."""
    table, job = new_table(connection, "n bigint unique, t text"), new_job()
    connection.execute(f"insert into {table} values (3)")
    sink = opened(postgres.url, table, job)
    backlog = [pre_committed(sink, checkpoint, checkpoint) for checkpoint in range(1, 6)]
    decide(job, *range(1, 6))
    for _ in range(2):
        with pytest.raises(InvalidJob, match="committing checkpoint 3 failed"):
            made_visible(sink, 5, backlog)
        assert seen(connection, table) == [3, 1, 2]
    connection.execute(f"delete from {table} where n = 3")
    made_visible(sink, 5, backlog)
    assert seen(connection, table) == [1, 2, 3, 4, 5]
    assert left_over(connection, job) == []
    sink.close()


def test_rows_of_a_checkpoint_that_was_given_up_appear_with_the_next_decided_one(
    postgres: PostgresServer, connection: psycopg.Connection[Any]
) -> None:
    """T2: checkpoint 2 reached one subtask only, so that its rows alone are no state that the job ever had."""
    table, job = new_table(connection, "n bigint unique, t text"), new_job()
    sinks = [opened(postgres.url, table, job, subtask=subtask, parallelism=2) for subtask in range(2)]
    first, second = sinks
    backlog = [
        *(pre_committed(first, 1, 10), pre_committed(second, 1, 11)),
        pre_committed(first, 2, 20),
        *(pre_committed(first, 3, 30), pre_committed(second, 3, 31)),
    ]
    decide(job, 1, 3)
    connection.execute(f"insert into {table} values (31)")
    with pytest.raises(InvalidJob, match="committing checkpoint 3 failed"):
        made_visible(first, 3, backlog)
    assert seen(connection, table) == [31, 10, 11]
    connection.execute(f"delete from {table} where n = 31")
    made_visible(first, 3, backlog)
    assert seen(connection, table) == [10, 11, 20, 30, 31]
    for sink in sinks:
        sink.close()


def test_a_backlog_is_committed_together_after_rescaling(
    postgres: PostgresServer, connection: psycopg.Connection[Any]
) -> None:
    """T8: rows of two subtasks, and three of the next generation. Each finishes those that are its own."""
    table, job = new_table(connection), new_job()
    before = [opened(postgres.url, table, job, subtask=subtask, parallelism=2) for subtask in range(2)]
    backlog = [
        pre_committed(sink, checkpoint, 10 * checkpoint + subtask)
        for checkpoint in (1, 2, 3)
        for subtask, sink in enumerate(before)
    ]
    undecided = pre_committed(before[1], 4, 41)
    after = [opened(postgres.url, table, job, token=2, subtask=subtask, parallelism=3) for subtask in range(3)]
    for subtask, sink in enumerate(after):
        sink.recover(backlog[subtask::2] if subtask < 2 else [])
    made_visible(after[0], 3, backlog)
    made_visible(before[0], 3, backlog)  # a zombie
    assert seen(connection, table) == [10, 11, 20, 21, 30, 31]
    assert left_over(connection, job) == []
    with pytest.raises(Corrupt, match="1 rows that checkpoint 4 decided"):
        after[1].recover([undecided])
    for sink in (*before, *after):
        sink.close()


def test_a_large_backlog_is_committed_in_groups(
    postgres: PostgresServer, connection: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    table, job = new_table(connection), new_job()
    first = opened(postgres.url, table, job)
    backlog = [pre_committed(first, checkpoint, checkpoint) for checkpoint in range(1, 6)]
    first.close()
    decide(job, *range(1, 6))
    size = connection.execute("select max(length(data)) from barrier_runtime.staged where job = %s", (job,)).fetchone()
    assert size is not None
    monkeypatch.setattr(postgres_staged, "_MOVE_BYTES", 2 * size[0])
    sink = opened(postgres.url, table, job)
    made_visible(sink, 5, backlog)
    groups = connection.execute(
        f"select array_agg(n order by n) from {table} group by xmin::text order by 1"
    ).fetchall()
    assert groups == [([1, 2],), ([3, 4],), ([5],)]
    sink.close()


@pytest.mark.parametrize("arguments", [{}, {"mode": "upsert", "key": ["n"]}])
def test_a_backlog_that_no_single_statement_could_move_in_time_is_moved(
    postgres: PostgresServer, connection: psycopg.Connection[Any], arguments: dict[str, Any]
) -> None:
    """Three seconds of work in all, and two that a statement may take: the next attempt takes half of the decisions."""
    table, job = new_table(connection, "n bigint unique, t text"), new_job()
    connection.execute(
        f"create function slow_{table}() returns trigger language plpgsql as "
        "$$ begin perform pg_sleep(0.3); return new; end $$"
    )
    connection.execute(f"create trigger slow before insert on {table} for each row execute function slow_{table}()")
    sink = opened(postgres.url, table, job, statement_timeout=2.0, **arguments)
    backlog = [pre_committed(sink, checkpoint, checkpoint) for checkpoint in range(1, 11)]
    decide(job, *range(1, 11))
    with pytest.raises(Unavailable, match=r"committing checkpoint 10 failed .*statement timeout"):
        made_visible(sink, 10, backlog)
    made_visible(sink, 10, backlog)
    assert seen(connection, table) == list(range(1, 11))
    sink.close()


class SlowCommits(PostgresSink):
    """Its commits wait until they are let go."""

    def __deepcopy__(self, memo: dict[int, Any]) -> "SlowCommits":
        return self

    def commit(self, committable: bytes) -> None:
        assert LET_GO.wait(60), "the test let the commits go"
        super().commit(committable)


LET_GO = threading.Event()


@pytest.mark.slow
def test_prepared_transactions_never_outgrow_the_server_while_commits_are_slower_than_checkpoints() -> None:
    """T4: the stream waits; checkpoints go on without rows, and no generation is lost."""
    LET_GO.clear()
    rows = 3_000
    results: list[Any] = []
    with postgres_server(max_prepared_transactions=4) as server, psycopg.connect(server.url, autocommit=True) as own:
        own.execute("create table slow (value bigint)")
        flow = Dataflow(new_job())
        sink = SlowCommits(server.url, "slow", transactions="prepared")
        flow.rate("numbers", 1_000, rows).select(["value"]).sink("out", sink)
        run = threading.Thread(target=lambda: results.append(flow.run_local(parallelism=1, checkpoint_interval=0.1)))
        run.start()
        try:
            until(lambda: prepared(own) >= 3, "three transactions are prepared")
            most, looked = 0, time.monotonic() + 2
            while time.monotonic() < looked:  # twenty checkpoints, were they all to prepare one
                most = max(most, prepared(own))
                time.sleep(0.05)
        finally:
            LET_GO.set()
            run.join(60)
        assert most <= 4
        assert len(results[0].status.recoveries) == 1
        failed = [each for each in results[0].status.checkpoints.history if each.outcome in ("declined", "expired")]
        assert failed == []
        found = own.execute("select count(*), count(distinct value) from slow").fetchone()
        assert found == (rows, rows)


def prepared(connection: psycopg.Connection[Any]) -> int:
    found = connection.execute("select count(*) from pg_prepared_xacts").fetchone()
    assert found is not None
    return int(found[0])
