"""The Redis upsert sink against a real server: certified if the declaration holds, and wrong if the declaration is
false.
"""

import json
import math
import random
import uuid
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
import redis as client

from barrier_runtime.api.dataflow import Dataflow
from barrier_runtime.connectors.redis import sink as redis_sink
from barrier_runtime.connectors.redis.sink import RedisUpsertSink
from barrier_runtime.state.errors import Fenced, InvalidJob, Unavailable
from barrier_runtime.state.store.memory import MemoryStore
from barrier_runtime.testing import certify
from examples.servers import RedisServer
from tests.ends.kafka_target import Job, written
from tests.ends.late_requests import LateRequests
from tests.ends.random_keys import ROWS, run_with_a_failure
from tests.first_record import begin_log


@pytest.fixture
def prefix() -> str:
    return f"{uuid.uuid4().hex[:8]}:"


@pytest.fixture
def database(redis: RedisServer) -> Iterator[client.Redis]:
    with client.Redis.from_url(redis.url, decode_responses=True) as database:
        yield database


def hashes(database: client.Redis, prefix: str) -> dict[str, Any]:
    return {key.removeprefix(prefix): database.hgetall(key) for key in database.scan_iter(f"{prefix}*")}


@pytest.mark.parametrize("argument", ["deterministic", "after_decision"])
def test_the_sink_holds_what_it_declares_wherever_it_crashes(
    redis: RedisServer, database: client.Redis, prefix: str, argument: str
) -> None:
    """T3, T8, T14, T15: see the scenarios of `certify`; no row is lost or doubled in the end. Undecided rows may be
    visible with `deterministic`, and never with `after_decision`.
    """

    def read() -> list[dict[str, Any]]:
        rows = hashes(database, prefix).items()
        return [{"id": int(key), "key": row["key"], "value": int(row["value"])} for key, row in rows]

    certify(
        lambda: RedisUpsertSink(redis.url, key="id", prefix=prefix, **{argument: True}),
        read,
        scenarios=20,
        seeds=range(3),
        shows_early=argument == "deterministic",
        kill=lambda sink: sink.close(),
        reset=lambda: [database.delete(key) for key in database.scan_iter(f"{prefix}*")],
    )


def replayed(redis: RedisServer, job: Job, prefix: str, compute: Any) -> None:
    """Ten rows are computed and written, the process dies before their checkpoint is decided, a successor replays."""
    for token in (1, 2):
        sink = job.open(RedisUpsertSink(redis.url, key="key", prefix=prefix, deterministic=True), token=token)
        sink.pre_commit(written(sink, [compute(number) for number in range(10)]), 1)


def test_a_replay_of_deterministic_rows_leaves_what_one_run_would_leave(
    redis: RedisServer, database: client.Redis, prefix: str, job: Job
) -> None:
    replayed(redis, job, prefix, lambda number: {"key": f"user-{number}", "score": number * 2})
    assert hashes(database, prefix) == {f"user-{number}": {"score": str(number * 2)} for number in range(10)}


def test_a_stale_row_stays_for_ever_when_the_declaration_is_a_lie(
    redis: RedisServer, database: client.Redis, prefix: str, job: Job
) -> None:
    """The key is random: the replay writes other keys, and no later row overwrites the first keys. This is the example
    of docs/upserts.md.
    """
    replayed(redis, job, prefix, lambda number: {"key": f"user-{number}-{random.random()}", "score": number * 2})
    found = hashes(database, prefix)
    assert len(found) == 20
    assert sum(int(row["score"]) for row in found.values()) == 2 * sum(number * 2 for number in range(10))


def test_random_keys_leave_no_stale_row_after_the_decision(
    redis: RedisServer, database: client.Redis, prefix: str
) -> None:
    sink = RedisUpsertSink(redis.url, key="id", prefix=prefix, after_decision=True)
    drawn = run_with_a_failure(sink, lambda: any(True for _ in database.scan_iter(f"{prefix}*")))
    assert sorted(int(row["value"]) for row in hashes(database, prefix).values()) == list(range(ROWS))
    assert drawn > ROWS, "the failure repeats rows"


def test_only_a_deterministic_sink_is_called_exactly_once() -> None:
    assert RedisUpsertSink("redis://host", key="id").guarantee == "at_least_once"
    assert RedisUpsertSink("redis://host", key="id", deterministic=True).guarantee == "exactly_once"


@pytest.mark.parametrize(("deterministic", "refused"), [(False, False), (True, True)])
def test_the_declaration_counts_when_the_job_is_checked(deterministic: bool, refused: bool) -> None:
    """A source that cannot replay the same rows makes a deterministic sink impossible, and the job is refused."""
    from barrier_runtime.graph.compiler import compile_plan

    flow = Dataflow("upserts")
    stream = flow.from_iterator("numbers", lambda index, of: [{"id": 1}], schema={"id": int}, replayable=False)
    stream.sink("out", RedisUpsertSink("redis://host", key="id", deterministic=deterministic))
    if refused:
        with pytest.raises(InvalidJob, match="is exactly-once, but source 'numbers' has no stable positions"):
            compile_plan(flow.plan, 1)
    else:
        compile_plan(flow.plan, 1)


def test_a_zombie_cannot_overwrite_what_its_successor_has_written(
    redis: RedisServer, database: client.Redis, prefix: str, job: Job
) -> None:
    """Z1: the zombie is refused in the same atomic step as the write."""

    def sink() -> RedisUpsertSink:
        return RedisUpsertSink(redis.url, key="id", prefix=prefix, deterministic=True)

    zombie, successor = job.open(sink()), job.open(sink(), token=2)
    successor.pre_commit(written(successor, [{"id": 1, "n": 7}]), 2)
    with pytest.raises(Fenced, match="generation 2 writes to Redis"):
        zombie.pre_commit(written(zombie, [{"id": 1, "n": 5}]), 1)
    assert hashes(database, prefix) == {"1": {"n": "7"}}
    with pytest.raises(Fenced):
        job.open(sink(), token=1)


def test_a_request_that_was_repeated_and_arrives_after_newer_rows_changes_nothing(
    redis: RedisServer, database: client.Redis, prefix: str, job: Job
) -> None:
    """T12: the request is of the same generation, so the fence cannot distinguish it from a live request."""
    with LateRequests("127.0.0.1", redis.port) as network:
        sink = job.open(
            RedisUpsertSink(f"redis://127.0.0.1:{network.port}", key="id", prefix=prefix, deterministic=True)
        )
        transaction = written(sink, [{"id": 1, "n": 5}])
        network.keep_next(prefix.encode())
        with pytest.raises(Unavailable):
            sink.pre_commit(transaction, 1)
        assert hashes(database, prefix) == {}
        sink.pre_commit(transaction, 1)
        assert hashes(database, prefix) == {"1": {"n": "5"}}
        sink.pre_commit(written(sink, [{"id": 1, "n": 7}]), 2)
        network.deliver()
        assert hashes(database, prefix) == {"1": {"n": "7"}}
        sink.pre_commit(written(sink, [{"id": 1, "n": 8}]), 3)
        assert hashes(database, prefix) == {"1": {"n": "8"}}


def other_checkpoints(job: Job) -> None:
    """A private store for this job, empty but for the beginning of the log."""
    job.store = MemoryStore()
    begin_log(job.store, job.name, uuid.uuid4().hex)


def test_an_older_generation_that_opens_late_gets_no_fence_whatever_its_lineage(
    redis: RedisServer, database: client.Redis, prefix: str, job: Job
) -> None:
    """Z1: the older generation stalled in the first request, while the job was started anew without a checkpoint to
    restore.
    """

    def sink() -> RedisUpsertSink:
        return RedisUpsertSink(redis.url, key="id", prefix=prefix, deterministic=True)

    other_checkpoints(job)
    job.lineage = "newer"
    newer = job.open(sink(), token=2)
    job.lineage = "older"
    with pytest.raises(Fenced, match="generation 2 writes to Redis"):
        job.open(sink(), token=1)
    newer.pre_commit(written(newer, [{"id": 1, "n": 7}]), 1)
    assert hashes(database, prefix) == {"1": {"n": "7"}}
    again = job.open(sink(), token=3)
    again.pre_commit(written(again, [{"id": 1, "n": 8}]), 1)
    with pytest.raises(Fenced, match="generation 3 writes to Redis"):
        newer.pre_commit(written(newer, [{"id": 1, "n": 9}]), 2)
    assert hashes(database, prefix) == {"1": {"n": "8"}}


def test_start_with_other_checkpoints_takes_over_and_replaced_rows_never_return(
    redis: RedisServer, database: client.Redis, prefix: str, job: Job
) -> None:
    """T14: the fencing tokens of the new start begin from 1 again."""

    def sink() -> RedisUpsertSink:
        return RedisUpsertSink(redis.url, key="id", prefix=prefix, deterministic=True)

    other_checkpoints(job)
    before, old = job.store, job.open(sink(), token=50)
    other_checkpoints(job)
    new = job.open(sink(), token=1)
    new.pre_commit(written(new, [{"id": 1, "n": 7}]), 1)
    with pytest.raises(Unavailable, match="held by this job with other checkpoints"):
        old.pre_commit(written(old, [{"id": 1, "n": 5}]), 1)
    job.store = before
    for token in (49, 50):
        with pytest.raises(Fenced, match="generation 50 writes"):
            job.open(sink(), token=token, subtask=1)
    assert hashes(database, prefix) == {"1": {"n": "7"}}
    new.pre_commit(written(new, [{"id": 1, "n": 8}]), 2)
    job.open(sink(), token=51)
    with pytest.raises(Unavailable, match="held by this job with other checkpoints"):
        new.pre_commit(written(new, [{"id": 1, "n": 9}]), 3)
    assert hashes(database, prefix) == {"1": {"n": "8"}}


def test_a_fence_that_is_gone_is_taken_again_by_the_next_generation(
    redis: RedisServer, database: client.Redis, prefix: str, job: Job
) -> None:
    def sink() -> RedisUpsertSink:
        return RedisUpsertSink(redis.url, key="id", prefix=prefix, deterministic=True)

    first = job.open(sink())
    database.delete(f"barrier-runtime:{job.name}:out:fence")
    with pytest.raises(Unavailable, match=r"fence .* is gone"):
        first.pre_commit(written(first, [{"id": 1, "n": 5}]), 1)
    second = job.open(sink(), token=2)
    second.pre_commit(written(second, [{"id": 1, "n": 5}]), 1)
    assert hashes(database, prefix) == {"1": {"n": "5"}}


@pytest.mark.parametrize(
    ("value", "expected"),
    [("hash", {"n": "5", "t": "x"}), ("json", '{"n":5,"t":"x","none":null}'), ("t", "x"), ("none", None)],
)
def test_values_are_hashes_or_json_or_one_column(
    redis: RedisServer, database: client.Redis, prefix: str, job: Job, value: str, expected: Any
) -> None:
    sink = job.open(RedisUpsertSink(redis.url, key=["a", "b"], value=value, prefix=prefix))
    sink.pre_commit(written(sink, [{"a": "u", "b": 3, "n": 5, "t": "x", "none": None}]), 1)
    key = f"{prefix}u:3"
    assert (database.hgetall(key) if value == "hash" else database.get(key)) == expected


def test_rows_with_different_keys_never_overwrite_each_other(
    redis: RedisServer, database: client.Redis, prefix: str, job: Job
) -> None:
    """A colon in a value is no boundary between columns, and a null is not the text "null"."""
    pairs = [("x:y", "z"), ("x", "y:z"), (None, "a"), ("null", "a"), ("\\N", "a"), ("x\\", "y"), ("x", "\\y")]
    sink = job.open(RedisUpsertSink(redis.url, key=["a", "b"], prefix=prefix))
    rows = [{"a": a, "b": b, "n": number} for number, (a, b) in enumerate(pairs)]
    transaction = sink.begin_transaction()
    sink.write(transaction, pa.RecordBatch.from_pylist(rows))
    sink.pre_commit(transaction, 1)
    found = hashes(database, prefix)
    assert sorted(int(row["n"]) for row in found.values()) == list(range(len(pairs)))
    assert found["x\\:y:z"] == {"n": "0"}


def test_floats_that_are_no_numbers_come_back(
    redis: RedisServer, database: client.Redis, prefix: str, job: Job
) -> None:
    floats = [math.nan, math.inf, -math.inf, 1.5]
    rows = [{"id": number, "f": value} for number, value in enumerate(floats)]
    for value in ("hash", "json", "f"):
        sink = job.open(RedisUpsertSink(redis.url, key="id", value=value, prefix=f"{prefix}{value}:"))
        sink.pre_commit(written(sink, rows), 1)
    for number, expected in enumerate(floats):
        stored = [
            database.hget(f"{prefix}hash:{number}", "f"),
            json.loads(str(database.get(f"{prefix}json:{number}")))["f"],
            database.get(f"{prefix}f:{number}"),
        ]
        assert [repr(float(str(each))) for each in stored] == [repr(expected)] * 3


def test_a_server_that_stops_between_writes_is_waited_for(redis: RedisServer, prefix: str, job: Job) -> None:
    """T4: the checkpoint fails until the server is back; then all rows are in the database."""
    sink = job.open(RedisUpsertSink(redis.url, key="id", prefix=prefix, deterministic=True))
    transaction = written(sink, [{"id": number, "n": number} for number in range(1000)])
    redis.kill()
    with pytest.raises(Unavailable, match="does not answer"):
        sink.pre_commit(transaction, 1)
    redis.start()
    sink.pre_commit(transaction, 1)
    with client.Redis.from_url(redis.url) as database:
        assert sum(1 for _ in database.scan_iter(f"{prefix}*")) == 1000


def test_a_server_that_is_down_at_the_start_is_named(job: Job) -> None:
    with pytest.raises(Unavailable, match=r"Redis at redis://127.0.0.1:1 does not answer"):
        job.open(RedisUpsertSink("redis://127.0.0.1:1", key="id"))


def test_a_column_that_is_missing_is_named_with_those_that_are_there(redis: RedisServer, job: Job) -> None:
    sink = job.open(RedisUpsertSink(redis.url, key="id"))
    with pytest.raises(InvalidJob, match="there is no column 'id' for Redis: use one of n, m"):
        written(sink, [{"n": 1, "m": 2}])


@pytest.mark.parametrize(
    "url",
    [
        "http://host",
        "redis://",
        "redis://host?password=hunter2",
        "redis://a:hun/ter2@host",
        "redis://a:1/hunter2@host",
        "redis://a:1#hunter2@host",
        "host:1",
        "redis://[::1",
    ],
)
def test_urls_that_name_no_server_are_refused_without_being_repeated(url: str) -> None:
    with pytest.raises(InvalidJob, match="redis://host:port/database") as caught:
        RedisUpsertSink(url, key="id")
    assert "hunter2" not in str(caught.value)


def test_a_password_is_used_and_never_shown(
    redis: RedisServer, database: client.Redis, prefix: str, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J6: in the URL, as an argument, or from the environment."""
    address = redis.url.partition("://")[2]
    database.acl_setuser("writer", enabled=True, passwords=["+hunter2"], keys=["*"], categories=["+@all"])
    try:
        sinks = [
            RedisUpsertSink(f"redis://writer:hunter2@{address}", key="id", prefix=prefix),
            RedisUpsertSink(redis.url, key="id", prefix=prefix, username="writer", password="hunter2"),
        ]
        for sink in sinks:
            assert "hunter2" not in f"{sink!r} {sink.settings()} {sink.url}"
            job.open(sink)
        monkeypatch.setenv("REDIS_USERNAME", "writer")
        monkeypatch.setenv("REDIS_PASSWORD", "hunter2")
        job.open(RedisUpsertSink(redis.url, key="id", prefix=prefix))
        monkeypatch.setenv("REDIS_PASSWORD", "hunter3")
        with pytest.raises(InvalidJob, match="refuses user or password") as caught:
            job.open(RedisUpsertSink(redis.url, key="id", prefix=prefix))
        assert "hunter" not in str(caught.value)
    finally:
        database.acl_deluser("writer")


# ---------------------------------------------------------------- waits for the server


def test_five_thousand_rows_are_written_with_two_waits(
    redis: RedisServer, database: client.Redis, prefix: str, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are written in scripts of 256 rows, sixteen scripts per request."""
    sink = job.open(RedisUpsertSink(redis.url, key="key", prefix=prefix, deterministic=True))
    sent = []
    send = client.Connection.send_packed_command

    def counted(self: Any, command: Any, check_health: bool = True) -> None:
        sent.append(command)
        send(self, command, check_health)

    monkeypatch.setattr(client.Connection, "send_packed_command", counted)
    sink.upsert(pa.record_batch({"key": list(range(5_000)), "score": list(range(5_000))}))
    assert len(sent) == 2
    assert len(list(database.scan_iter(f"{prefix}*", count=1_000))) == 5_000
    sink.close()


def test_scripts_resent_after_partial_execution_write_each_row_once_and_in_order(
    redis: RedisServer, database: client.Redis, prefix: str, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client library resends when a connection ends before the last answer."""
    monkeypatch.setattr(redis_sink, "_ROWS_AT_ONCE", 2)
    sink = job.open(RedisUpsertSink(redis.url, key="key", prefix=prefix, deterministic=True))
    rows = pa.record_batch({"key": [1, 2, 1, 2, 1, 3], "score": [10, 20, 11, 21, 12, 30]})
    execute, attempts = client.client.Pipeline.execute, []

    def again(self: Any, raise_on_error: bool = True) -> Any:
        """The first two scripts of an attempt that fails, then all of them."""
        calls = list(self.command_stack)
        attempts.append(len(calls))
        self.command_stack = calls[:2]
        execute(self, raise_on_error)
        self.command_stack = calls
        return execute(self, raise_on_error)

    monkeypatch.setattr(client.client.Pipeline, "execute", again)
    sink.upsert(rows)
    sink.upsert(rows.slice(0, 2))
    assert attempts == [3, 1]
    assert hashes(database, prefix) == {"1": {"score": "10"}, "2": {"score": "20"}, "3": {"score": "30"}}
    sink.close()
