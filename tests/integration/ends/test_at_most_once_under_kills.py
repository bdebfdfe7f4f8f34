"""From a topic to another one with `mode="at_most_once"`, on Spark, while slots are killed and stopped."""

import collections
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from barrier_runtime import Dataflow, KafkaSink
from examples.servers import KafkaServer
from tests.ends.kafka_target import Topic, new_topic
from tests.integration.ends.kafka_feed import PARTITIONS, Feed, read_numbers
from tests.waiting import until

PATIENCE_S = 300.0
OPTIONS: dict[str, Any] = {
    "mode": "at_most_once",
    "parallelism": 2,
    "checkpoint_interval": 0.2,
    "slot_timeout": 4.0,
}


@pytest.fixture
def target(kafka: KafkaServer) -> Iterator[Topic]:
    with new_topic(kafka, partitions=3) as topic:
        yield topic


@pytest.fixture
def feed(kafka: KafkaServer) -> Iterator[Feed]:
    kafka.create_topic("numbers", PARTITIONS)
    feed = Feed(kafka, "numbers")
    yield feed
    feed.stop()


def seen(target: Topic) -> collections.Counter[int]:
    return collections.Counter(row["value"] for row in target.read_stable())


def skipped(handle: Any) -> int:
    return int(sum(slot.metrics.get("numbers.skipped_rows", 0) for slot in handle.status().slots))


def going_on(handle: Any, target: Topic) -> Callable[[], bool]:
    """Whether both slots have completed two checkpoints and written rows since this call."""
    completed, rows = handle.status().checkpoints.completed, len(seen(target))

    def found() -> bool:
        status = handle.status()
        assert status.outcome is None, status.error
        return status.phase == "running" and status.checkpoints.completed > completed + 1 and len(seen(target)) > rows

    return found


@pytest.mark.long(60)
@pytest.mark.spark
def test_killed_and_stalled_slots_skip_exactly_the_missing_rows(
    spark: Any, kafka: KafkaServer, target: Topic, feed: Feed, tmp_path: Path
) -> None:
    """The strikes come whenever they come: within transactions, between transactions and checkpoints. The stalled slot
    goes on when the successor has taken over.
    """
    flow = Dataflow("at-most-once")
    sink = KafkaSink(kafka.bootstrap, target.name, guarantee="at_most_once")
    read_numbers(flow, kafka.bootstrap, "numbers").sink("out", sink)
    with flow.start(spark=spark, checkpoints=str(tmp_path), **OPTIONS) as handle:
        assert handle.status().options["mode"] == "at_most_once"
        for slot, strike in ((0, signal.SIGKILL), (1, signal.SIGKILL), (1, signal.SIGSTOP), (0, signal.SIGKILL)):
            until(going_on(handle, target), "rows are written", PATIENCE_S)
            status = handle.status()
            pid = status.slots[slot].pid
            os.kill(pid, strike)
            generations = status.generations
            until(lambda n=generations: handle.status().generations > n, "a generation follows", PATIENCE_S)
            if strike == signal.SIGSTOP:
                send_again(pid)
        until(going_on(handle, target), "rows are written", PATIENCE_S)
        fed = feed.drain()
        until(
            lambda: fed - len(seen(target)) == skipped(handle), "all rows since the last strike are visible", PATIENCE_S
        )
        missing = skipped(handle)
        handle.stop()
        handle.wait()
    rows = collections.Counter(row["value"] for row in target.read())
    assert [value for value, times in rows.items() if times > 1] == []
    assert fed - len(rows) == missing
    assert missing > 0


def send_again(pid: int) -> None:
    """Lets a stopped process go on, unless the task was killed meanwhile."""
    try:
        os.kill(pid, signal.SIGCONT)
    except ProcessLookupError:
        return
