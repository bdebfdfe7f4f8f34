"""The RabbitMQ source against a real broker: no message acknowledged too early or lost; redeliveries dropped."""

import contextlib
import datetime
import itertools
import json
import logging
import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from barrier_runtime import CollectSink, Dataflow, JsonlSink, RabbitMQSource
from barrier_runtime.connectors.rabbitmq.source import RabbitMQQueue, RabbitReader
from barrier_runtime.graph.compiler import compile_plan
from barrier_runtime.launch.outcome import JobFailed
from barrier_runtime.state.errors import InvalidJob, Unavailable
from examples.servers import RabbitServer
from tests.ends.rabbitmq_world import Queue, Wire, address, connected, queue_of
from tests.integration.harness import visible_files
from tests.waiting import until

NUMBERS = pa.schema([("value", pa.int64())])
SECOND = datetime.timedelta(seconds=1)
PATIENCE = datetime.timedelta(hours=1)  # of a reader whose test sets the clock


@pytest.fixture
def queue(rabbitmq: RabbitServer) -> Iterator[Queue]:
    with queue_of(rabbitmq) as found:
        yield found


def source_of(url: str, queue: str, **options: Any) -> RabbitMQQueue:
    settings = {"deduplicate": "forever", "value": "json", "schema": NUMBERS, "prefetch": 1_000, **options}
    return RabbitMQSource(url, queue, **settings).named("messages")


@contextlib.contextmanager
def reading(url: str, queue: str, **options: Any) -> Iterator[RabbitReader]:
    """A private reader; the end closes the reader and the connection."""
    source = source_of(url, queue, **options)
    reader = source.reader(source.splits(1)[0])
    reader.prepare()
    try:
        yield reader
    finally:
        reader.close()
        assert reader._consumer is not None
        assert reader._consumer.join(60), "the consumer's thread did not end"


def rows_from(reader: RabbitReader, count: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []

    def enough() -> bool:
        polled = reader.poll(count - len(rows), time.time_ns())
        if polled is not None:
            rows.extend(polled.rows.to_pylist())
        return len(rows) >= count

    until(enough, f"{count} rows had come")
    return rows


def in_patience(times: int) -> int:
    """The time in so many times `PATIENCE`."""
    return time.time_ns() + times * int(PATIENCE.total_seconds()) * 1_000_000_000


def values(rows: list[dict[str, Any]]) -> list[int]:
    return [row["value"] for row in rows]


def complete(reader: RabbitReader, checkpoint: int) -> None:
    reader.snapshotted(checkpoint)
    reader.completed(checkpoint)


# ---------------------------------------------------------------- acknowledgements


def test_message_is_acknowledged_only_once_its_covering_checkpoint_is_complete(
    rabbitmq: RabbitServer, queue: Queue
) -> None:
    """U12: messages that were only snapshotted are delivered again."""
    queue.publish_numbers(0, 10)
    with reading(address(rabbitmq), queue.name) as reader:
        assert values(rows_from(reader, 6)) == list(range(6))
        reader.snapshotted(1)
        rows_from(reader, 2)
    assert queue.left() == 10
    with reading(address(rabbitmq), queue.name) as reader:
        rows = rows_from(reader, 6)
        assert values(rows) == list(range(6))
        assert all(row["redelivered"] for row in rows)
        reader.snapshotted(2)
        rows_from(reader, 2)
        reader.completed(2)
    assert queue.left() == 4


def test_a_checkpoint_that_was_given_up_is_covered_by_the_next_one(rabbitmq: RabbitServer, queue: Queue) -> None:
    queue.publish_numbers(0, 10)
    with reading(address(rabbitmq), queue.name) as reader:
        rows_from(reader, 3)
        reader.snapshotted(1)
        rows_from(reader, 3)
        reader.snapshotted(2)
        rows_from(reader, 3)
        reader.completed(2)
        reader.completed(2)
    assert queue.left() == 4


def test_acknowledgements_ordered_before_the_end_reach_the_broker(rabbitmq: RabbitServer, queue: Queue) -> None:
    """`close` follows the last checkpoint at once."""
    for _ in range(5):
        queue.publish_numbers(0, 20)
        with reading(address(rabbitmq), queue.name) as reader:
            rows_from(reader, 20)
            complete(reader, 1)
        assert queue.left() == 0


def test_the_stream_waits_for_a_checkpoint_when_it_holds_as_many_messages_as_it_may(
    rabbitmq: RabbitServer, queue: Queue
) -> None:
    queue.publish_numbers(0, 25)
    with reading(address(rabbitmq), queue.name, prefetch=10, until_idle=PATIENCE) as reader:
        assert values(rows_from(reader, 10)) == list(range(10))
        for later in range(1, 10):
            assert reader.poll(100, in_patience(later)) is None
        assert not reader.finished, "waiting for a checkpoint is not idleness"
        complete(reader, 1)
        assert values(rows_from(reader, 10)) == list(range(10, 20))
        complete(reader, 2)
        assert values(rows_from(reader, 5)) == list(range(20, 25))


def test_two_consumers_share_a_queue(rabbitmq: RabbitServer, queue: Queue) -> None:
    queue.publish_numbers(0, 40)
    with (
        reading(address(rabbitmq), queue.name, prefetch=20) as one,
        reading(address(rabbitmq), queue.name, prefetch=20) as other,
    ):
        both = values(rows_from(one, 20)) + values(rows_from(other, 20))
        assert sorted(both) == list(range(40))
        complete(one, 1)
        complete(other, 1)
    assert queue.left() == 0


# ---------------------------------------------------------------- trouble on the way


def test_unacknowledged_messages_return_on_reconnect_and_old_tags_acknowledge_none(
    rabbitmq: RabbitServer, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    """Tags begin at 1 on every connection: a tag of the old connection must not acknowledge a message of the new
    connection.
    """
    queue.publish_numbers(0, 10)
    with contextlib.closing(Wire(rabbitmq.port)) as wire, caplog.at_level(logging.WARNING):
        with reading(address(rabbitmq, wire.port), queue.name) as reader:
            assert values(rows_from(reader, 8)) == list(range(8))
            reader.snapshotted(1)
            wire.cut()
            assert reader._consumer is not None
            until(lambda: reader._consumer.connection == 2, "it had connected again")
            again = rows_from(reader, 10)
            assert values(again) == list(range(10))
            reader.completed(1)
        assert queue.left() == 10
    assert "connecting again" in caplog.text
    assert "guest" not in caplog.text


def test_a_reader_and_a_job_read_on_when_the_broker_is_back(
    rabbitmq: RabbitServer, queue: Queue, tmp_path: Path
) -> None:
    """After a stop, and in a job after a kill: no slot fails during the outage. The stop is first: definitions reach
    the broker's disk seconds later, and a SIGKILL would lose the queue itself.
    """
    queue.publish_numbers(0, 10)
    with reading(address(rabbitmq), queue.name, until_idle=PATIENCE) as reader:
        rows_from(reader, 5)
        complete(reader, 1)
        until(lambda: not reader._consumer._orders, "the acknowledgement was sent")  # type: ignore[union-attr]
        rabbitmq.stop()
        until(lambda: not reader._consumer.connected, "the connection was gone")  # type: ignore[union-attr]
        for later in range(1, 10):
            reader.poll(10, in_patience(later))
        assert not reader.finished, "without a connection nobody knows that the queue is idle"
        rabbitmq.start()
        queue.publish_numbers(10, 12)
        seen: set[int] = set()

        def all_came() -> bool:
            polled = reader.poll(10, time.time_ns())
            seen.update(values(polled.rows.to_pylist()) if polled is not None else [])
            return len(seen) >= 7

        until(all_came, "all messages had come")
        assert sorted(seen) == list(range(5, 12))
        assert not reader.finished
        later_and_later = itertools.count(1)
        until(lambda: reader.poll(10, in_patience(2 * next(later_and_later))) is None and reader.finished, "it ends")
        complete(reader, 2)
    assert queue.left() == 0

    queue.publish_numbers(0, 300)
    struck = []

    def strike(row: dict[str, Any]) -> dict[str, Any]:
        if not struck and row["value"] > 100:
            struck.append(os.getpid())
            rabbitmq.kill()
            rabbitmq.start()
        return row

    flow = Dataflow("messages")
    stream = flow.read_rabbitmq(
        "messages",
        address(rabbitmq),
        queue.name,
        deduplicate="forever",
        value="json",
        schema={"value": int},
        prefetch=30,
        until_idle=2 * SECOND,
    )
    stream.map(strike, schema=stream.schema).sink("out", JsonlSink(str(tmp_path / "out")))
    flow.run_local(parallelism=2, checkpoint_interval=0.1, restart_attempts=0, slot_timeout=120.0)
    assert struck
    assert visible(tmp_path / "out") == list(range(300))
    assert queue.left() == 0


def test_a_queue_that_is_deleted_ends_the_job_with_its_name(rabbitmq: RabbitServer, queue: Queue) -> None:
    queue.publish_numbers(0, 1)
    with reading(address(rabbitmq), queue.name) as reader:
        rows_from(reader, 1)
        queue.channel.queue_delete(queue.name)

        with pytest.raises(InvalidJob, match=queue.name):
            rows_from(reader, 1)


# ---------------------------------------------------------------- contents of a row


def test_a_row_has_the_body_and_what_the_broker_says_of_the_message(rabbitmq: RabbitServer, queue: Queue) -> None:
    queue.publish(b"\x00plain")
    queue.publish(
        b"",
        message_id="m-1",
        timestamp=1_700_000_000,
        headers={"shop": "a", "tries": 3, "deep": {"x": [1, None]}, "raw": b"\xff"},
    )
    with reading(address(rabbitmq), queue.name, value="bytes", schema=None, deduplicate=None) as reader:
        plain, full = rows_from(reader, 2)
    nothing = {"message_id": None, "timestamp": None, "headers": None}
    assert plain == {"body": b"\x00plain", "routing_key": queue.name, "redelivered": False, **nothing}
    assert full["body"] == b""
    assert full["message_id"] == "m-1"
    assert full["timestamp"] == datetime.datetime.fromtimestamp(1_700_000_000, datetime.timezone.utc)
    assert json.loads(full["headers"]) == {"shop": "a", "tries": 3, "deep": {"x": [1, None]}, "raw": "/w=="}


def test_a_json_body_becomes_typed_columns(rabbitmq: RabbitServer, queue: Queue) -> None:
    queue.publish(b'{\n "value": 1,\n "at": "2024-01-01T00:00:00Z", "more": [1]}', message_id="a")
    queue.publish(b'{"at": null}', message_id="b")
    shape = pa.schema([("value", pa.int64()), ("at", pa.timestamp("ms", "UTC"))])
    with reading(address(rabbitmq), queue.name, schema=shape, metadata=("message_id",)) as reader:
        rows = rows_from(reader, 2)
    first = datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone.utc)
    assert rows == [{"value": 1, "at": first, "message_id": "a"}, {"value": None, "at": None, "message_id": "b"}]


def test_the_id_may_be_a_header(rabbitmq: RabbitServer, queue: Queue) -> None:
    queue.publish(b'{"value": 1}', headers={"order": 17})
    with reading(address(rabbitmq), queue.name, message_id="headers.order") as reader:
        assert [row["message_id"] for row in rows_from(reader, 1)] == ["17"]


BAD = {
    "no JSON": (b"{", {"message_id": "x"}),
    "no object": (b"5", {"message_id": "x"}),
    "two objects": (b'{"value": 1} {"value": 2}', {"message_id": "x"}),
    "nothing": (b"", {"message_id": "x"}),
    "another type": (b'{"value": "many"}', {"message_id": "x"}),
    "no text": (b'{"value": "\xff"}', {"message_id": "x"}),
    "no id": (b'{"value": 1}', {}),
    "an empty id": (b'{"value": 1}', {"message_id": ""}),
    "milliseconds": (b'{"value": 1}', {"message_id": "x", "timestamp": 1_700_000_000_000}),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_message_stops_the_job_and_is_named_and_stays_in_the_queue(
    rabbitmq: RabbitServer, queue: Queue, what: str
) -> None:
    body, properties = BAD[what]
    queue.publish_numbers(0, 1)
    queue.publish(body, **properties)
    with (
        reading(address(rabbitmq), queue.name) as reader,
        pytest.raises(InvalidJob, match=f"{queue.name}.*delivery 2 of connection 1.*bad_records"),
    ):
        rows_from(reader, 2)
    assert queue.left() == 2


def test_bad_messages_are_handed_to_the_dead_letter_exchange_and_the_others_pass(rabbitmq: RabbitServer) -> None:
    with queue_of(rabbitmq) as dead, queue_of(rabbitmq, dead_letters=dead.name) as queue:
        queue.publish_numbers(0, 3)
        for body, properties in BAD.values():
            queue.publish(body, **properties)
        queue.publish_numbers(3, 5)
        with reading(address(rabbitmq), queue.name, bad_records="reject") as reader:
            assert values(rows_from(reader, 5)) == list(range(5))
            complete(reader, 1)
        assert queue.left() == 0
        until(lambda: dead.left() == len(BAD), "all bad messages were in the other queue")


def test_a_checkpoint_right_after_a_rejected_message_acknowledges_those_before_it(rabbitmq: RabbitServer) -> None:
    """The broker does not know a rejected delivery any more, and would close the channel."""
    with queue_of(rabbitmq) as dead, queue_of(rabbitmq, dead_letters=dead.name) as queue:
        queue.publish_numbers(0, 3)
        body, properties = BAD["no JSON"]
        queue.publish(body, **properties)
        with reading(address(rabbitmq), queue.name, bad_records="reject") as reader:
            assert values(rows_from(reader, 3)) == [0, 1, 2]

            def rejected() -> bool:
                assert reader.poll(10, time.time_ns()) is None
                return dead.left() == 1

            until(rejected, "the bad message was in the other queue")
            complete(reader, 1)
        assert queue.left() == 0


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"value": "xml"}, '"bytes" or "json"'),
        ({"value": "json"}, "pass schema="),
        ({"schema": {"value": int}}, "schema= goes with"),
        ({"value": "json", "schema": {"timestamp": int}}, "two columns 'timestamp'"),
        ({"metadata": ["timestamp"]}, "needs the column 'message_id'"),
        ({"metadata": ["message_id", "priority"]}, "'priority'"),
        ({"message_id": "id"}, "headers.<name>"),
        ({"prefetch": 0}, "prefetch=0"),
        ({"prefetch": 65_536}, "prefetch=65536"),
        ({"bad_records": "skip"}, '"fail" or "reject"'),
        ({"deduplicate": SECOND}, "event_time"),
        ({"deduplicate": "always"}, "'always'"),
        ({"url": "http://here"}, "amqp://host"),
        ({"url": "amqp://here:port/"}, "amqp://host"),
        ({"queue": ""}, "queue is ''"),
    ],
)
def test_a_choice_that_cannot_work_is_refused_at_once(options: dict[str, Any], complaint: str) -> None:
    chosen = {"url": "amqp://here", "queue": "orders", "deduplicate": "forever", **options}
    with pytest.raises(InvalidJob, match=complaint):
        Dataflow("messages").read_rabbitmq("messages", chosen.pop("url"), chosen.pop("queue"), **chosen)


# ---------------------------------------------------------------- before anything is processed


def flow_of(url: str, queue: str, sink: Any, **options: Any) -> Dataflow:
    flow = Dataflow("messages")
    chosen = {"deduplicate": "forever", "value": "json", "schema": {"value": int}, "until_idle": 2 * SECOND, **options}
    flow.read_rabbitmq("messages", url, queue, **chosen).sink("out", sink)
    return flow


def refusal_of(url: str, queue: str) -> tuple[type, str]:
    with pytest.raises((InvalidJob, Unavailable)) as caught:
        compile_plan(flow_of(url, queue, CollectSink()).plan, 2)
    return caught.type, str(caught.value)


def test_a_broker_that_is_down_is_named_before_anything_is_processed() -> None:
    kind, text = refusal_of("amqp://127.0.0.1:1/", "orders")
    assert kind is Unavailable
    assert "127.0.0.1:1" in text
    assert "Connection refused" in text


def test_wrong_credentials_are_refused_and_not_shown(rabbitmq: RabbitServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """J6: the error shows the user's name, to identify the account."""
    monkeypatch.setenv("RABBITMQ_USERNAME", "orders-reader")
    monkeypatch.setenv("RABBITMQ_PASSWORD", "hush-hush")
    kind, text = refusal_of(address(rabbitmq), "orders")
    assert kind is InvalidJob
    assert "'orders-reader'" in text
    assert "RABBITMQ_PASSWORD" in text
    assert "hush-hush" not in text


def test_a_password_in_the_url_is_refused_and_not_repeated() -> None:
    """J6: neither in the message nor anywhere else."""
    with pytest.raises(InvalidJob, match="RABBITMQ_PASSWORD") as caught:
        flow_of("amqp://reader:hush-hush@127.0.0.1/", "orders", CollectSink())
    assert "hush-hush" not in str(caught.value)


def test_a_user_in_the_url_is_used_and_not_shown(rabbitmq: RabbitServer, queue: Queue) -> None:
    url = address(rabbitmq).replace("//", "//guest@")
    queue.publish_numbers(0, 1)
    with reading(url, queue.name) as reader:
        rows_from(reader, 1)
    assert "guest" not in repr(source_of(url, queue.name))


def test_a_missing_virtual_host_is_named(rabbitmq: RabbitServer) -> None:
    kind, text = refusal_of(address(rabbitmq).replace("%2F", "other"), "orders")
    assert kind is InvalidJob
    assert "virtual host" in text
    assert "/other" in text


def test_a_missing_queue_is_named(rabbitmq: RabbitServer) -> None:
    kind, text = refusal_of(address(rabbitmq), "no-such-queue")
    assert kind is InvalidJob
    assert "'no-such-queue'" in text
    assert "durable" in text


def test_a_queue_that_another_connection_has_for_itself_is_named(rabbitmq: RabbitServer) -> None:
    with contextlib.closing(connected(rabbitmq)) as connection:
        name = f"own-{uuid.uuid4().hex[:8]}"
        connection.channel().queue_declare(name, exclusive=True)
        kind, text = refusal_of(address(rabbitmq), name)
    assert kind is InvalidJob
    assert "exclusive" in text


def test_an_exactly_once_sink_needs_the_deduplication(rabbitmq: RabbitServer, queue: Queue, tmp_path: Path) -> None:
    """Without deduplication a redelivered message would be written twice."""
    bare = flow_of(address(rabbitmq), queue.name, JsonlSink(str(tmp_path)), deduplicate=None)
    with pytest.raises(InvalidJob, match="'messages' has no stable positions"):
        compile_plan(bare.plan, 2)
    compile_plan(bare.plan, 2, mode="at_least_once")
    compile_plan(flow_of(address(rabbitmq), queue.name, JsonlSink(str(tmp_path))).plan, 2)


# ---------------------------------------------------------------- whole jobs, in this process


def visible(out: Path) -> list[int]:
    return sorted(json.loads(line)["value"] for path in visible_files(out) for line in path.read_text().splitlines())


def test_messages_delivered_or_published_twice_are_emitted_once_and_queue_empties(
    rabbitmq: RabbitServer, queue: Queue, tmp_path: Path
) -> None:
    """T13: including the last acknowledgements, of the checkpoint that ends the job."""
    queue.publish_numbers(0, 500)
    queue.publish_numbers(100, 300)
    with reading(address(rabbitmq), queue.name, prefetch=200) as reader:
        rows_from(reader, 200)
    flow = flow_of(address(rabbitmq), queue.name, JsonlSink(str(tmp_path / "out")), prefetch=60)
    flow.run_local(parallelism=2, checkpoint_interval=0.1)
    assert visible(tmp_path / "out") == list(range(500))
    assert queue.left() == 0


def test_failing_job_resumes_its_queue_with_each_message_once_at_any_parallelism(
    rabbitmq: RabbitServer, queue: Queue, tmp_path: Path
) -> None:
    """R2, U10: each run fails in mid-stream, after a checkpoint; consumers become more and fewer."""
    queue.publish_numbers(0, 3_000)
    url = f"memory://{uuid.uuid4().hex}"
    out = tmp_path / "out"
    shown: list[int] = []
    for parallelism in (1, 3, 2):
        rows_of_run = 0

        def fail(row: dict[str, Any], at: int = 600) -> dict[str, Any]:
            nonlocal rows_of_run
            rows_of_run += 1
            if rows_of_run > at:
                raise RuntimeError("in mid-stream")
            return row

        flow = Dataflow("messages")
        stream = flow.read_rabbitmq(
            "messages",
            address(rabbitmq),
            queue.name,
            deduplicate=datetime.timedelta(hours=2),
            value="json",
            schema={"value": int},
            prefetch=100,
            event_time="timestamp",
            idle_timeout=SECOND,
        )
        stream.map(fail, schema=stream.schema).sink("out", JsonlSink(str(out)))
        with pytest.raises(JobFailed, match="in mid-stream"):
            flow.run_local(parallelism=parallelism, checkpoints=url, checkpoint_interval=0.05, restart_attempts=0)
        shown.append(len(visible(out)))
    flow = flow_of(
        address(rabbitmq),
        queue.name,
        JsonlSink(str(out)),
        deduplicate=datetime.timedelta(hours=2),
        event_time="timestamp",
        idle_timeout=SECOND,
    )
    flow.run_local(parallelism=2, checkpoints=url, checkpoint_interval=0.05, allow_non_restored=True)
    assert visible(out) == list(range(3_000))
    assert shown == sorted(shown)
    assert shown[1] > 0
    assert queue.left() == 0


def test_job_that_ended_on_an_idle_queue_reads_new_messages_and_knows_old_messages(
    rabbitmq: RabbitServer, queue: Queue, tmp_path: Path
) -> None:
    url, out = f"memory://{uuid.uuid4().hex}", tmp_path / "out"
    for first, last in ((0, 100), (50, 200)):
        queue.publish_numbers(first, last)
        flow = flow_of(address(rabbitmq), queue.name, JsonlSink(str(out)), until_idle=SECOND)
        flow.run_local(parallelism=2, checkpoints=url, checkpoint_interval=0.1)
        assert visible(out) == list(range(last))
        assert queue.left() == 0
