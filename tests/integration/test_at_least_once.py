"""Kafka at least once on Spark, with killed slots: rows double, none is lost, and stored rows repeat identically."""

import random
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import psutil
import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from harness import NumbersUntilEnough, enough, kill

from barrier_runtime import Dataflow, KafkaSink
from examples.servers import kafka_server
from tests.waiting import until

pytestmark = pytest.mark.spark

ROWS, RATE, PARTITIONS, KEYS = 40_000, 800, 2, 7


class Topic:
    """Reads all rows of `out`: (key, value) in the order of each partition."""

    def __init__(self, bootstrap: str, parse: Callable[[bytes], Any] = int) -> None:
        self._parse = parse
        self._consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "test", "enable.auto.commit": False})
        self._parts = [TopicPartition("out", number, 0) for number in range(PARTITIONS)]
        self._consumer.assign(self._parts)
        self.rows: list[tuple[bytes, Any]] = []

    def read(self) -> list[tuple[bytes, Any]]:
        wanted = sum(self._consumer.get_watermark_offsets(part, timeout=30)[1] for part in self._parts)
        deadline = time.monotonic() + 120
        while len(self.rows) < wanted:
            assert time.monotonic() < deadline, f"{len(self.rows)} of {wanted} rows"
            for message in self._consumer.consume(10_000, timeout=0.2):
                if message.error() is not None:
                    raise KafkaException(message.error())
                self.rows.append((message.key(), self._parse(message.value())))
        return self.rows

    def close(self) -> None:
        self._consumer.close()


def numbers_of(flow, out):
    return flow.source("numbers", NumbersUntilEnough(RATE, ROWS, keys=KEYS, splits=1, out=str(out)))


def write_at_least_once(rows, kafka):
    sink = KafkaSink(kafka.bootstrap, "out", key="key", value="value", guarantee="at_least_once")
    rows.key_by("key").sink("out", sink)


def start_without_interval(flow, spark, tmp_path):
    """Checkpoints are taken on request only."""
    return flow.start(spark=spark, parallelism=2, checkpoints=str(tmp_path / "checkpoints"), checkpoint_interval=3600.0)


@pytest.mark.long(60)
@pytest.mark.timeout(600)
def test_killed_slots_double_rows_of_an_at_least_once_topic_and_lose_none(spark, tmp_path):
    """R3: the first kill comes before any checkpoint, so that rows already visible are certainly written again."""
    out = tmp_path / "out"
    with kafka_server() as kafka:
        kafka.create_topic("out", PARTITIONS)
        topic = Topic(kafka.bootstrap)
        flow = Dataflow("at-least-once")
        write_at_least_once(numbers_of(flow, out).select(["key", "value"]), kafka)
        with start_without_interval(flow, spark, tmp_path) as handle:
            until(lambda: len(topic.read()) > 200, "rows are visible without a checkpoint")
            assert handle.status().checkpoints.completed == 0
            slot = handle.status().slots[0]
            killed = psutil.Process(slot.pid)
            kill(slot.pid)
            until(lambda: not killed.is_running(), "the slot is dead")
            seen = len(topic.read())
            until(lambda: len(topic.read()) > 3 * seen, "rows are visible again")
            handle.savepoint(str(tmp_path / "savepoint"))
            after = len(topic.read())
            until(lambda: len(topic.read()) > after, "rows follow the savepoint")
            kill(handle.status().slots[1].pid)
            enough(out)
            handle.wait(240)
        rows = topic.read()
        topic.close()
    lost = set(range(ROWS)) - {number for _, number in rows}
    doubled = len(rows) - len({number for _, number in rows})
    assert not lost
    assert doubled >= 200, "the rows before the first kill were visible, and no checkpoint covered them"
    assert_in_order(rows)


@pytest.mark.long(60)
@pytest.mark.timeout(600)
def test_a_killed_slot_repeats_stored_random_rows_identically(spark, tmp_path):
    """Rows of the only decided checkpoint are visible when the slot is killed, so the restart writes them again."""
    out = tmp_path / "out"

    def draw(row):
        return {"key": row["key"], "value": f"{row['value']} {random.random()}"}

    with kafka_server() as kafka:
        kafka.create_topic("out", PARTITIONS)
        topic = Topic(kafka.bootstrap, lambda value: tuple(value.split()))
        flow = Dataflow("stored-rows")
        write_at_least_once(numbers_of(flow, out).map(draw, schema={"key": int, "value": str}).stable(), kafka)

        def doubled() -> int:
            rows = topic.read()
            return len(rows) - len({number for _, (number, _) in rows})

        with start_without_interval(flow, spark, tmp_path) as handle:
            until(lambda: handle.status().records > 400, "rows are read")
            assert topic.read() == [], "no checkpoint is decided"
            handle.trigger_checkpoint()
            until(lambda: len(topic.read()) > 200, "rows are visible after the decision")
            assert doubled() == 0
            kill(handle.status().slots[0].pid)
            until(lambda: doubled() > 200, "the rows are visible again")
            enough(out)
            handle.wait(240)
        rows = topic.read()
        topic.close()
    found = defaultdict(set)
    for _, (number, value) in rows:
        found[int(number)].add(value)
    assert set(found) == set(range(ROWS))
    assert [number for number, values in found.items() if len(values) > 1] == [], "a row was written with two values"


def assert_in_order(rows):
    """Per key and generation numbers rise: a smaller number is a replay of rows already seen, never a new row."""
    newest: dict[bytes, int] = {}
    seen: set[int] = set()
    for key, number in rows:
        assert number > newest.get(key, -1) or number in seen, (key, number)
        newest[key] = max(number, newest.get(key, -1))
        seen.add(number)
