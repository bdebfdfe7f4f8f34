"""Kafka to Kafka with `mode="at_most_once"`: no row is doubled, and `skipped_rows` is the number of missing rows."""

import collections
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from barrier_runtime import Dataflow, KafkaSink, count
from examples.servers import KafkaServer
from tests.ends.kafka_target import Topic as Target
from tests.ends.kafka_target import new_topic
from tests.ends.kafka_world import Topic
from tests.waiting import until

NAME = "at-most-once"
OPTIONS: dict[str, Any] = {"mode": "at_most_once", "checkpoint_interval": 0.1, "parallelism": 2}


@pytest.fixture
def target(kafka: KafkaServer) -> Iterator[Target]:
    with new_topic(kafka, partitions=3) as topic:
        yield topic


def take_name(kafka: KafkaServer, subtask: int) -> None:
    """Takes the name of a subtask's producer, as a later generation does: the subtask fails."""
    name = f"barrier-runtime.{NAME}.out.{subtask}"
    Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": name}).init_transactions(60)


def plain(row: dict[str, Any]) -> dict[str, Any]:
    return {"n": row["n"]}


class Feed:
    """Writes 0, 1, 2, … to the partitions of a topic in turn, until `stop`."""

    def __init__(self, topic: Topic, partitions: int) -> None:
        self.topic = topic
        self.partitions = partitions
        self.rows = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Feed":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> int:
        self._stop.set()
        self._thread.join()
        return self.rows

    def _run(self) -> None:
        while not self._stop.wait(0.005):
            for _ in range(10):
                self.topic.write([json.dumps({"n": self.rows})], self.rows % self.partitions)
                self.rows += 1


def flow_between(kafka: KafkaServer, source: Topic, target: Target) -> Dataflow:
    flow = Dataflow(NAME)
    rows = flow.read_kafka("src", kafka.bootstrap, source.name, group="g", value="json", schema={"n": int})
    rows.map(plain, schema={"n": int}).sink("out", KafkaSink(kafka.bootstrap, target.name, guarantee="at_most_once"))
    return flow


def skipped(handle: Any) -> int:
    return int(sum(slot.metrics.get("src.skipped_rows", 0) for slot in handle.status().slots))


def seen(target: Target) -> collections.Counter[int]:
    return collections.Counter(row["n"] for row in target.read_stable())


def check_skipped_are_missing(handle: Any, target: Target, fed: int) -> None:
    """Stops the job once all rows are visible or skipped."""
    until(lambda: fed - len(seen(target)) == skipped(handle), "all rows since the last failure are visible")
    handle.stop()
    handle.wait()
    rows = collections.Counter(row["n"] for row in target.read())
    assert [n for n, times in rows.items() if times > 1] == []
    assert 0 < skipped(handle) == fed - len(rows)


def newer(target: Target, feed: Feed) -> None:
    """Waits for a row that was fed after this call."""
    since = feed.rows
    until(lambda: any(n >= since for n in seen(target)), "a newer row is visible")


def test_missing_rows_are_exactly_the_skipped_ones_and_none_is_doubled(
    kafka: KafkaServer, target: Target, tmp_path: Path
) -> None:
    source = Topic(kafka, partitions=3)
    flow = flow_between(kafka, source, target)
    with Feed(source, 3) as feed:
        handle = flow.start_local(checkpoints=str(tmp_path), **OPTIONS)
        for subtask in (0, 1, 0, 1):
            newer(target, feed)
            take_name(kafka, subtask)
        newer(target, feed)
        fed = feed.stop()
    check_skipped_are_missing(handle, target, fed)


def test_another_parallelism_after_a_stop_skips_exactly_the_missing_rows(
    kafka: KafkaServer, target: Target, tmp_path: Path
) -> None:
    """Positions of subtasks that no longer exist count, and so do those of a generation after them that failed."""
    source = Topic(kafka, partitions=3)
    flow = flow_between(kafka, source, target)
    with Feed(source, 3) as feed:
        for parallelism in (3, 1, 2):
            handle = flow.start_local(checkpoints=str(tmp_path), **{**OPTIONS, "parallelism": parallelism})
            newer(target, feed)
            take_name(kafka, 0)
            newer(target, feed)
            if parallelism != 2:
                handle.stop("now")
                handle.wait()
        fed = feed.stop()
    check_skipped_are_missing(handle, target, fed)


def test_behind_an_exchange_nothing_doubles_and_skipped_rows_are_a_bound(
    kafka: KafkaServer, target: Target, tmp_path: Path
) -> None:
    source = Topic(kafka, partitions=3)
    flow = Dataflow(NAME)
    rows = flow.read_kafka("src", kafka.bootstrap, source.name, group="g", value="json", schema={"n": int})
    counted = rows.select(["n"]).key_by("n").aggregate("count", times=count())
    counted.sink("out", KafkaSink(kafka.bootstrap, target.name, guarantee="at_most_once"))
    with Feed(source, 3) as feed:
        handle = flow.start_local(checkpoints=str(tmp_path), **OPTIONS)
        for subtask in (0, 1):
            newer(target, feed)
            take_name(kafka, subtask)
        newer(target, feed)
        fed = feed.stop()
    until(lambda: skipped(handle) >= fed - len(seen(target)), "all rows are visible or within the bound")
    handle.stop()
    handle.wait()
    found = target.read()
    assert {row["times"] for row in found} == {1}
    assert len({row["n"] for row in found}) == len(found)
    assert skipped(handle) >= fed - len(found)


def test_the_mode_shows_in_explain_and_status(kafka: KafkaServer, target: Target, tmp_path: Path) -> None:
    flow = flow_between(kafka, Topic(kafka, partitions=1), target)
    assert "at_most_once" in flow.explain(mode="at_most_once")
    handle = flow.start_local(checkpoints=str(tmp_path), **OPTIONS)
    assert handle.status().options["mode"] == "at_most_once"
    handle.stop()
    handle.wait()
