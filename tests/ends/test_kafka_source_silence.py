"""A client that goes silent: it is made so behind the fetcher's back, and must be found out, and nobody else."""

import contextlib
import logging
import threading
import time
from functools import partial
from typing import Any

import msgspec
import pytest
from confluent_kafka import TopicPartition

from barrier_runtime.connectors.kafka.source.client import KafkaClient
from barrier_runtime.connectors.kafka.source.fetcher_pool import FetcherPool
from barrier_runtime.connectors.kafka.source.position import KafkaPosition, KafkaSplit
from barrier_runtime.connectors.kafka.source.reader import KafkaReader
from barrier_runtime.connectors.kafka.source.records import RecordConverter
from barrier_runtime.connectors.kafka.source.stall_detector import StallTimeouts, StallWatch
from barrier_runtime.state.errors import Unavailable
from examples.servers import KafkaServer
from tests.ends.kafka_world import Topic, prepared, rows_from, source_of
from tests.waiting import until

SHORT = StallTimeouts(quiet=0.4, still=0.8, answer=1.0, probe=20.0, tried=60.0)


class World:
    """A topic, and the readers of one pool."""

    def __init__(self, kafka: KafkaServer, timeouts: StallTimeouts = SHORT, partitions: int = 1) -> None:
        self.topic = Topic(kafka, partitions)
        source = source_of(kafka, self.topic.name)
        self._splits = [msgspec.json.decode(split.payload, type=KafkaSplit) for split in source.splits(1)]
        self.config: dict[str, Any] = {}
        client = KafkaClient("source 'src'", kafka.bootstrap, "readers", lambda: self.config)
        converter = partial(RecordConverter, source._columns, "source 'src'")
        self.pool = FetcherPool("source 'src'", client, converter, 1 << 20, timeouts)

    def reading(
        self, partition: int = 0, position: bytes | None = None
    ) -> contextlib.AbstractContextManager[KafkaReader]:
        return prepared(KafkaReader("source 'src'", self._splits[partition], self.pool), position)

    def silence(self, reader: KafkaReader, partition: int = 0) -> None:
        """The client fetches no more of it, and the fetcher does not know."""
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
    """Answers to the questions for ends; None: there was none."""
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


def trouble_of(reader: KafkaReader) -> str:
    def met() -> bool:
        try:
            assert reader.poll(100, time.time_ns()) is None
        except Unavailable as error:
            found.append(str(error))
        return bool(found)

    found: list[str] = []
    until(met, "the silence is noticed")
    return found[0]


def test_a_client_that_goes_silent_is_replaced_and_nothing_is_lost_or_doubled(kafka: KafkaServer) -> None:
    """The other partition, which has nothing to read, explains nothing and is not blamed."""
    world = World(kafka, partitions=2)
    world.topic.write(numbers(0, 10))
    with world.reading(0) as reader, world.reading(1) as other:
        assert values(rows_from(reader, 10)) == numbers(0, 10)
        world.silence(reader)
        world.topic.write(numbers(10, 30))
        said = trouble_of(reader)
        assert f"topic {world.topic.name!r}, partition 0: the client went silent at offset 10 although there " in said
        assert "are records up to" in said
        position, others = reader.position(), other.position()
    with world.reading(0, position) as reader, world.reading(1, others) as other:
        world.topic.write(numbers(30, 40))
        assert values(rows_from(reader, 30)) == numbers(10, 40)
        world.topic.write(["other"], 1)
        assert values(rows_from(other, 1)) == ["other"]


def test_a_client_that_goes_silent_in_an_outage_is_found_out_after_it(kafka: KafkaServer, questions: list[Any]) -> None:
    """While no broker answers nobody is blamed."""
    world = World(kafka)
    world.topic.write(numbers(0, 10))
    with world.reading() as reader:
        assert values(rows_from(reader, 10)) == numbers(0, 10)
        kafka.kill()
        try:
            world.silence(reader)
            until(lambda: questions.count(None) >= 2, "questions have no answer")
            assert reader.poll(10, time.time_ns()) is None
        finally:
            kafka.start()
        world.topic.write(numbers(10, 20))
        assert "went silent at offset 10" in trouble_of(reader)
        position = reader.position()
    with world.reading(0, position) as reader:
        assert values(rows_from(reader, 10)) == numbers(10, 20)


def test_who_has_nothing_to_read_is_not_silent(kafka: KafkaServer, questions: list[Any]) -> None:
    """An empty partition, one that ends in transactions that were given up, and one with a transaction still open."""
    world = World(kafka, partitions=2)

    def asked_again() -> None:
        before = len(questions)
        until(lambda: len(questions) > before + 5, "the ends were asked for")
        assert all(reader.poll(10, time.time_ns()) is None for reader in readers)

    with world.reading(0) as empty, world.reading(1) as given_up:
        readers = [empty, given_up]
        asked_again()
        world.topic.write_transactions((numbers(0, 5), True), *[(["no"] * 5, False)] * 3, partition=1)
        assert values(rows_from(given_up, 5)) == numbers(0, 5)
        asked_again()
        assert msgspec.json.decode(given_up.position(), type=KafkaPosition).offset == 24
        world.topic.write_transactions((["no"] * 5, False), partition=1)
        asked_again()
        assert msgspec.json.decode(given_up.position(), type=KafkaPosition).offset == 30
        world.topic.write(["a"], 0)
        world.topic.write(["b"], 1)
        assert values(rows_from(empty, 1) + rows_from(given_up, 1)) == ["a", "b"]


def test_where_another_client_reads_nothing_either_the_source_waits_and_says_so(
    kafka: KafkaServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Here since the other client finds no broker."""
    world = World(kafka, StallTimeouts(quiet=0.4, still=0.5, answer=1.0, probe=1.0, tried=60.0))
    world.topic.write(numbers(0, 10))
    with world.reading() as reader, caplog.at_level(logging.WARNING, "barrier_runtime.kafka"):
        assert values(rows_from(reader, 10)) == numbers(0, 10)
        world.silence(reader)
        world.config = {"broker.address.family": "v6"}
        world.topic.write(numbers(10, 20))
        until(lambda: "nothing comes at offset 10 although there are records" in caplog.text, "it is said")
        assert reader.poll(10, time.time_ns()) is None


def test_a_thread_that_hangs_in_the_client_is_said_to_and_goes_on_after_it(
    kafka: KafkaServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it was held up for is no silence of the client."""
    monkeypatch.setattr("barrier_runtime.connectors.kafka.source.turns._MANY_TICKS", 5)
    world = World(kafka)
    world.topic.write(numbers(0, 10))
    with world.reading() as reader, caplog.at_level(logging.WARNING, "barrier_runtime.kafka"):
        assert values(rows_from(reader, 10)) == numbers(0, 10)
        assert reader._fetcher is not None
        asked, answered = threading.Event(), threading.Event()

        def hang(consumer: object) -> None:
            asked.set()
            answered.wait()

        reader._fetcher._orders.put(hang)
        assert asked.wait(60)  # else the rows come with what is being fetched
        world.topic.write(numbers(10, 20))

        def said() -> bool:
            assert reader.poll(10, time.time_ns()) is None
            return "nothing is fetched while the client is in wait (" in caplog.text

        try:
            until(said, "the thread is missed")
        finally:
            answered.set()
        assert values(rows_from(reader, 10)) == numbers(10, 20)
