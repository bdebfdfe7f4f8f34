"""Rows that a topic's own settings refuse: the Kafka sink refuses on opening or staging, not after the decision."""

import time
from typing import Any

import pyarrow as pa
import pytest

from barrier_runtime.connectors.kafka.sink.topic_limits import LIMITS_VERSION, decode_limits
from barrier_runtime.state.errors import InvalidJob
from examples.servers import KafkaServer
from tests.ends.kafka_target import Job, alter, kafka_sink, new_topic, numbers, sealed

HOUR_MS = 3_600_000


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def staged(sink: Any, *rows: dict[str, Any]) -> Any:
    transaction = sink.begin_transaction()
    sink.write(transaction, pa.RecordBatch.from_pylist(list(rows)))
    return sink.pre_commit(transaction, 1)


# ---------------------------------------------------------------- keys


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_a_compacted_topic_is_refused_to_a_sink_without_keys(kafka: KafkaServer, job: Job, guarantee: Any) -> None:
    with (
        new_topic(kafka, cleanup_policy="compact,delete") as topic,
        pytest.raises(InvalidJob, match=rf"topic '{topic.name}' is compacted \(cleanup.policy\).*: pass key="),
    ):
        job.open(kafka_sink(kafka, topic, guarantee=guarantee))


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_a_row_without_a_key_is_refused_where_the_topic_is_compacted(
    kafka: KafkaServer, job: Job, guarantee: Any
) -> None:
    with new_topic(kafka, cleanup_policy="compact") as topic:
        sink = job.open(kafka_sink(kafka, topic, key="k", guarantee=guarantee))
        with pytest.raises(InvalidJob, match=rf"a row has no key, and topic '{topic.name}' is compacted.*'n': 2"):
            staged(sink, {"k": "a", "n": 1}, {"k": None, "n": 2})
        assert topic.read() == []


def test_rows_with_keys_and_tombstones_go_to_a_compacted_topic(kafka: KafkaServer, job: Job) -> None:
    with new_topic(kafka, cleanup_policy="compact") as topic:
        sink = job.open(kafka_sink(kafka, topic, key="k", value="v"))
        topic.decode = lambda value: value
        sink.commit(staged(sink, {"k": "a", "v": "1"}, {"k": "a", "v": None}))
        assert topic.read() == [b"1", None]


# ---------------------------------------------------------------- times


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_a_row_of_the_future_is_refused_where_the_topic_refuses_it(
    kafka: KafkaServer, job: Job, guarantee: Any
) -> None:
    with new_topic(kafka, message_timestamp_after_max_ms=HOUR_MS) as topic:
        sink = job.open(kafka_sink(kafka, topic, timestamp="at", guarantee=guarantee))
        late = now_ms() + 2 * HOUR_MS
        with pytest.raises(
            InvalidJob,
            match=rf"time {late} ms \(column 'at'\), topic '{topic.name}' takes none of more than 3600000 ms ahead "
            r"\(message.timestamp.after.max.ms\): correct the row",
        ):
            staged(sink, {"at": now_ms(), "n": 1}, {"at": late, "n": 2})
        assert topic.read() == []


def test_rows_within_the_topics_limit_are_written_with_their_time(kafka: KafkaServer, job: Job) -> None:
    """The limit of an hour into the future is the brokers' default; the default for the past is unlimited."""
    with new_topic(kafka, partitions=1) as topic:
        sink = job.open(kafka_sink(kafka, topic, timestamp="at"))
        times = [1, now_ms() - 365 * 24 * HOUR_MS, now_ms() + HOUR_MS // 2, None]
        sink.commit(staged(sink, *({"at": at, "n": number} for number, at in enumerate(times))))
        topic.read()
        found = [message.timestamp()[1] for message in topic.messages[0]]
        assert found[:3] == times[:3]
        assert abs(found[3] - now_ms()) < HOUR_MS


def test_a_topic_without_limits_takes_any_time_after_1970(kafka: KafkaServer, job: Job) -> None:
    with new_topic(kafka, message_timestamp_after_max_ms=2**63 - 1) as topic:
        sink = job.open(kafka_sink(kafka, topic, timestamp="at"))
        sink.commit(staged(sink, {"at": now_ms() + 1000 * HOUR_MS, "n": 1}))
        assert numbers(topic) == [1]
        with pytest.raises(InvalidJob, match=r"a row has the time 0 ms .* takes none of 1970-01-01T00:00Z or before:"):
            staged(sink, {"at": 0, "n": 2})  # the client would write the present instead


def test_a_topic_that_stamps_rows_itself_takes_any_time(kafka: KafkaServer, job: Job) -> None:
    limits = {"message_timestamp_after_max_ms": 1000, "message_timestamp_before_max_ms": 1000}
    with new_topic(kafka, message_timestamp_type="LogAppendTime", **limits) as topic:
        sink = job.open(kafka_sink(kafka, topic, timestamp="at"))
        sink.commit(staged(sink, {"at": now_ms() + 2 * HOUR_MS, "n": 1}, {"at": 1, "n": 2}))
        assert numbers(topic) == [1, 2]


def test_exactly_once_refuses_a_topic_that_would_refuse_decided_rows_once_old(kafka: KafkaServer, job: Job) -> None:
    """T4: an outage of the brokers may last longer than any limit."""
    with new_topic(kafka, message_timestamp_before_max_ms=HOUR_MS) as topic:
        with pytest.raises(
            InvalidJob,
            match=rf"topic '{topic.name}' refuses rows whose time is more than 3600000 ms ago .*remove the limit .*"
            r"or leave out timestamp='at'",
        ):
            job.open(kafka_sink(kafka, topic, timestamp="at"))
        sink = job.open(kafka_sink(kafka, topic), token=2)  # these have the time at which they are sent
        sink.commit(sealed(sink, 1, [1]))
        assert numbers(topic) == [1]


def test_at_least_once_a_row_that_is_too_old_for_the_topic_is_refused(kafka: KafkaServer, job: Job) -> None:
    with new_topic(kafka, message_timestamp_before_max_ms=HOUR_MS) as topic:
        sink = job.open(kafka_sink(kafka, topic, timestamp="at", guarantee="at_least_once"))
        staged(sink, {"at": now_ms() - HOUR_MS // 2, "n": 1})
        with pytest.raises(
            InvalidJob, match=r"or more than 3600000 ms ago \(message.timestamp.before.max.ms\).*'n': 2"
        ):
            staged(sink, {"at": now_ms() - 2 * HOUR_MS, "n": 2})
        assert numbers(topic) == [1]


# ---------------------------------------------------------------- sizes


def test_the_names_of_headers_count_as_bytes_of_a_row(kafka: KafkaServer, job: Job) -> None:
    with new_topic(kafka, max_message_bytes=20_000) as topic:
        sink = job.open(kafka_sink(kafka, topic, headers={"h" * 15_000: "n"}))
        with pytest.raises(InvalidJob, match=rf"a row takes 2\d{{4}} bytes, topic '{topic.name}' allows about 19800"):
            staged(sink, {"n": 1, "text": "x" * 6_000})


# ---------------------------------------------------------------- later changes


@pytest.mark.parametrize(
    ("setting", "value", "row", "error"),
    [
        ("cleanup.policy", "compact", {"n": 1, "k": None, "at": 1}, "INVALID_RECORD"),
        ("message.timestamp.before.max.ms", "1000", {"n": 1, "k": "a", "at": 1}, "INVALID_TIMESTAMP"),
    ],
)
def test_setting_changed_after_the_decision_needs_a_person_and_loses_nothing(
    kafka: KafkaServer, job: Job, setting: str, value: str, row: dict[str, Any], error: str
) -> None:
    """T4: the error names the setting that refuses the row; once the setting is corrected the commit succeeds."""
    with new_topic(kafka) as topic:
        sink = job.open(kafka_sink(kafka, topic, key="k", timestamp="at"))
        committable = staged(sink, row)
        alter(kafka, topic, setting, value)
        with pytest.raises(InvalidJob, match=rf"{error}\): correct the sink's settings, the topic or the permissions"):
            sink.commit(committable)
        alter(kafka, topic, setting, None)
        sink.commit(committable)
        assert numbers(topic) == [1]


def test_what_an_older_release_knew_of_the_topic_is_not_enough_to_stage_rows() -> None:
    older = b'{"version":1,"message_max_bytes":1000,"transaction_timeout_ms":1000,"refresh_marker_s":10}'
    assert decode_limits(older, "note") is None
    newer = older.replace(b'"version":1', f'"version":{LIMITS_VERSION + 1}'.encode())
    with pytest.raises(InvalidJob, match="note has version"):
        decode_limits(newer, "note")
