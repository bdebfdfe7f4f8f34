"""A client that goes silent, unknown to the fetcher, is replaced; a client without rows to read is kept."""

import contextlib
import logging
import os
import signal
import threading
import time
from functools import partial
from typing import Any

import msgspec
import pytest
from confluent_kafka import TopicPartition

from barrier_runtime.connectors.kafka.source.client import KafkaClient
from barrier_runtime.connectors.kafka.source.fetcher import FetcherPool
from barrier_runtime.connectors.kafka.source.position import KafkaPosition, KafkaSplit
from barrier_runtime.connectors.kafka.source.reader import KafkaReader
from barrier_runtime.connectors.kafka.source.records import RecordConverter
from barrier_runtime.connectors.kafka.source.stall_detector import StallTimeouts, StallWatch
from barrier_runtime.coordinator.metric_table import CLIENTS_REPLACED
from examples.servers import KafkaServer
from tests.ends.kafka_world import Topic, prepared, rows_from, source_of
from tests.waiting import until

LOG = "barrier_runtime.kafka"
SHORT = StallTimeouts(quiet=0.4, still=0.8, answer=1.0)


class World:
    """A topic, and the readers of a single pool."""

    def __init__(self, kafka: KafkaServer, partitions: int = 1, limit_bytes: int = 1 << 20) -> None:
        self.topic = Topic(kafka, partitions)
        source = source_of(kafka, self.topic.name)
        self._splits = [msgspec.json.decode(split.payload, type=KafkaSplit) for split in source.splits(1)]
        client = KafkaClient("source 'src'", kafka.bootstrap, "readers", {})
        converter = partial(RecordConverter, source._columns, "source 'src'")
        self.pool = FetcherPool("source 'src'", client, converter, limit_bytes, SHORT)

    def reading(
        self, partition: int = 0, position: bytes | None = None
    ) -> contextlib.AbstractContextManager[KafkaReader]:
        return prepared(KafkaReader("source 'src'", self._splits[partition], self.pool), position)

    def silence(self, reader: KafkaReader, partition: int = 0) -> None:
        """The client stops fetching the partition, unknown to the fetcher."""
        assert reader._fetcher is not None
        place = TopicPartition(self.topic.name, partition)
        silent = threading.Event()

        def pause(consumer: Any) -> None:
            consumer.pause([place])
            silent.set()

        reader._fetcher._orders.put(pause)
        until(silent.is_set, "the client is silent")


@pytest.fixture
def questions(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Answers to the queries for ends; None: no answer."""
    ask, answers = StallWatch._ends, []

    def heard(self: StallWatch, *args: Any) -> Any:
        answers.append(ask(self, *args))
        return answers[-1]

    monkeypatch.setattr(StallWatch, "_ends", heard)
    return answers


def numbers(first: int, last: int) -> list[str]:
    return [str(number) for number in range(first, last)]


def values(rows: list[dict[str, Any]]) -> list[str]:
    return [row["value"].decode() for row in rows]


def replaced(reader: KafkaReader) -> list[float]:
    """Collects the number of replaced clients of the reader, as the reader's metric counts them."""
    counted: list[float] = []
    reader.count_by(lambda metric, amount: counted.append(amount) if metric is CLIENTS_REPLACED else None)
    return counted


def test_a_client_that_goes_silent_is_replaced_and_nothing_is_lost_or_doubled(
    kafka: KafkaServer, caplog: pytest.LogCaptureFixture
) -> None:
    """The other partition is empty: it is not blamed, and the new client reads both."""
    world = World(kafka, partitions=2)
    world.topic.write(numbers(0, 10))
    with world.reading(0) as reader, world.reading(1) as other, caplog.at_level(logging.WARNING, LOG):
        counted = replaced(reader)
        assert values(rows_from(reader, 10)) == numbers(0, 10)
        world.silence(reader)
        world.topic.write(numbers(10, 30))
        assert values(rows_from(reader, 20)) == numbers(10, 30)
        logged = [record.message for record in caplog.records if "silent" in record.message]
        said = f"topic {world.topic.name!r}, partition 0: the client went silent at offset 10 although there are"
        assert [said in line for line in logged] == [True]
        assert counted == [1]
        world.topic.write(numbers(30, 40))
        world.topic.write(["other"], 1)
        assert values(rows_from(reader, 10)) == numbers(30, 40)
        assert values(rows_from(other, 1)) == ["other"]


def test_a_full_queue_is_still_full_for_the_next_client(kafka: KafkaServer) -> None:
    """The queue's rows wait while the client of both partitions is replaced; no row appears twice."""
    world = World(kafka, partitions=2, limit_bytes=1)
    text = [f"{number:0100000}" for number in range(30)]
    world.topic.write(text, 1)
    with world.reading(0) as reader, world.reading(1) as full:
        counted = replaced(reader)
        assert full._queue is not None
        until(lambda: full._queue.waiting, "the queue is full")
        world.silence(reader)
        world.topic.write(numbers(0, 10))
        assert values(rows_from(reader, 10)) == numbers(0, 10)
        assert counted == [1]
        assert values(rows_from(full, 30)) == text


def test_a_client_that_goes_silent_in_an_outage_is_replaced_after_it(kafka: KafkaServer, questions: list[Any]) -> None:
    """While no broker answers, no client is blamed."""
    world = World(kafka)
    world.topic.write(numbers(0, 10))
    with world.reading() as reader:
        counted = replaced(reader)
        assert values(rows_from(reader, 10)) == numbers(0, 10)
        kafka.kill()
        try:
            world.silence(reader)
            until(lambda: questions.count(None) >= 2, "questions have no answer")
            assert reader.poll(10, time.time_ns()) is None
            assert counted == []
        finally:
            kafka.start()
        world.topic.write(numbers(10, 20))
        assert values(rows_from(reader, 10)) == numbers(10, 20)
        assert counted == [1]


def test_a_broker_that_stands_still_is_no_silence_of_the_client(kafka: KafkaServer, questions: list[Any]) -> None:
    """SIGSTOP: connections stay open, and no question is answered."""
    world = World(kafka)
    world.topic.write(numbers(0, 10))
    with world.reading() as reader:
        counted = replaced(reader)
        assert values(rows_from(reader, 10)) == numbers(0, 10)
        pids = kafka.pids
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            until(lambda: questions.count(None) >= 2, "questions have no answer")
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
        world.topic.write(numbers(10, 20))
        assert values(rows_from(reader, 10)) == numbers(10, 20)
        assert counted == []


def test_who_has_nothing_to_read_is_not_silent(kafka: KafkaServer, questions: list[Any]) -> None:
    """An empty partition, a partition that ends in aborted transactions, and a partition with an open transaction."""
    world = World(kafka, partitions=2)

    def asked_again() -> None:
        before = len(questions)
        until(lambda: len(questions) > before + 5, "the ends were asked for")
        assert nothing_to_read()

    def nothing_to_read() -> bool:
        return all(reader.poll(10, time.time_ns()) is None for reader in readers)

    def passed(offset: int) -> bool:
        return nothing_to_read() and msgspec.json.decode(given_up.position(), type=KafkaPosition).offset == offset

    with world.reading(0) as empty, world.reading(1) as given_up:
        readers = [empty, given_up]
        asked_again()
        world.topic.write_transactions((numbers(0, 5), True), *[(["no"] * 5, False)] * 3, partition=1)
        assert values(rows_from(given_up, 5)) == numbers(0, 5)
        asked_again()
        until(lambda: passed(24), "the transactions were passed over")
        world.topic.write_transactions((["no"] * 5, False), partition=1)
        asked_again()
        until(lambda: passed(30), "the transaction was passed over")
        world.topic.write(["a"], 0)
        world.topic.write(["b"], 1)
        assert values(rows_from(empty, 1) + rows_from(given_up, 1)) == ["a", "b"]


def test_a_thread_that_hangs_in_the_client_is_said_to_and_goes_on_after_it(
    kafka: KafkaServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time of the thread's delay does not count as silence of the client."""
    monkeypatch.setattr("barrier_runtime.connectors.kafka.source.fetcher._HANGS_S", 0.5)
    world = World(kafka)
    world.topic.write(numbers(0, 10))
    with world.reading() as reader, caplog.at_level(logging.WARNING, LOG):
        assert values(rows_from(reader, 10)) == numbers(0, 10)
        assert reader._fetcher is not None
        asked, answered = threading.Event(), threading.Event()

        def hang(consumer: object) -> None:
            asked.set()
            answered.wait()

        reader._fetcher._orders.put(hang)
        assert asked.wait(60)  # else the fetch under way may return them
        world.topic.write(numbers(10, 20))

        def said() -> bool:
            assert reader.poll(10, time.time_ns()) is None
            return "nothing is fetched while the client is in wait (" in caplog.text

        try:
            until(said, "the thread is missed")
        finally:
            answered.set()
        assert values(rows_from(reader, 10)) == numbers(10, 20)
