"""Checkpoints that were decided while the exactly-once Kafka sink was busy: written together, as safe as one by one."""

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from barrier_runtime.connectors.kafka.sink import transactions as kafka_transactions
from barrier_runtime.connectors.kafka.sink.exactly_once import KafkaWriteAhead
from barrier_runtime.state.errors import Corrupt, Fenced, Unavailable
from barrier_runtime.state.store.object_store import ObjectNotFound
from examples.servers import KafkaServer
from examples.servers.kafka_ends import asked_again
from tests.ends.kafka_target import Job, Topic, kafka_sink, new_topic, numbers, sealed
from tests.ends.test_kafka_lost_marker import delete_markers


@pytest.fixture
def topic(kafka: KafkaServer) -> Iterator[Topic]:
    with new_topic(kafka, partitions=1) as topic:
        yield topic


def transactions_on(kafka: KafkaServer, topic: Topic) -> int:
    """Number of transactions. Each leaves a control record after the rows, which takes an offset and which readers
    never get.
    """
    rows = len(topic.read())
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "counting"})
    try:
        place = TopicPartition(topic.name, 0)
        return int(asked_again(lambda: consumer.get_watermark_offsets(place, timeout=10))[1]) - rows
    finally:
        consumer.close()


def staged(job: Job) -> list[str]:
    return [info.key for info in job.store.list("") if "/staged/" in info.key]


def test_several_checkpoints_become_visible_in_one_transaction(kafka: KafkaServer, topic: Topic, job: Job) -> None:
    """T2"""
    sink = job.open(kafka_sink(kafka, topic))
    assert sink.commits_together
    sink.commit_together([sealed(sink, 1, [1, 2]), sealed(sink, 2, [3]), sealed(sink, 5, [4, 5])])
    assert [row["n"] for row in topic.read()] == [1, 2, 3, 4, 5]
    assert transactions_on(kafka, topic) == 1
    assert staged(job) == []


def test_at_least_once_there_is_nothing_to_commit_and_so_nothing_to_gain(
    kafka: KafkaServer, topic: Topic, job: Job
) -> None:
    assert not job.open(kafka_sink(kafka, topic, guarantee="at_least_once")).commits_together


def test_what_was_committed_together_is_not_written_again(kafka: KafkaServer, topic: Topic, job: Job) -> None:
    """T6, T10: alone or together, with older and newer checkpoints, by this process or a successor."""
    sink = job.open(kafka_sink(kafka, topic))
    first, second, third, fourth = (sealed(sink, number, [number]) for number in range(1, 5))
    sink.commit(first)
    sink.commit_together([first, second, third])
    sink.commit_together([second, third])
    sink.commit(second)
    sink.commit_together([third, fourth])
    job.open(kafka_sink(kafka, topic), token=2, recover=[first, second, third, fourth])
    assert numbers(topic) == [1, 2, 3, 4]
    assert transactions_on(kafka, topic) == 3


def test_a_successor_writes_all_that_is_decided_in_one_transaction(kafka: KafkaServer, topic: Topic, job: Job) -> None:
    """T3"""
    sink = job.open(kafka_sink(kafka, topic))
    decided = [sealed(sink, number, [number]) for number in range(1, 6)]
    sink.commit(decided[0])
    job.open(kafka_sink(kafka, topic), token=2, recover=decided)
    assert numbers(topic) == [1, 2, 3, 4, 5]
    assert transactions_on(kafka, topic) == 2


def test_after_rescaling_each_origin_is_written_with_a_marker_of_its_own(
    kafka: KafkaServer, topic: Topic, job: Job
) -> None:
    """T8"""
    sinks = [job.open(kafka_sink(kafka, topic), subtask=number, parallelism=2) for number in range(2)]
    decided = [sealed(sinks[subtask], number, [10 * subtask + number]) for number in (1, 2) for subtask in range(2)]
    sinks[1].commit(decided[1])
    job.open(kafka_sink(kafka, topic), token=2, recover=decided)
    job.open(kafka_sink(kafka, topic), token=3, recover=decided)
    assert numbers(topic) == [1, 2, 11, 12]


def test_a_large_lot_goes_on_where_its_last_transaction_ended(
    kafka: KafkaServer, topic: Topic, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T10: transactions end within checkpoints, and the last object is unreadable: the rows already in the topic appear
    once.
    """
    monkeypatch.setattr(kafka_transactions, "_CHUNK_BYTES", 2_000)
    monkeypatch.setattr(KafkaWriteAhead, "delivers_from_memory", False)
    sink = job.open(kafka_sink(kafka, topic, max_bytes_in_memory=100_000))
    decided = [sealed(sink, number + 1, range(100 * number, 100 * (number + 1))) for number in range(3)]
    lost = staged(job)[-1]
    data = job.store.get(lost)
    job.store.put(lost, b"damaged")
    with pytest.raises(Corrupt, match="decided rows are damaged"):
        sink.commit_together(decided)
    partly = numbers(topic)
    assert 100 < len(partly) < 300
    assert partly == list(range(len(partly)))
    job.store.put(lost, data)
    job.open(kafka_sink(kafka, topic), token=2, recover=decided)
    assert [row["n"] for row in topic.read()] == list(range(300))


def test_damage_in_one_shows_nothing_of_it_and_leaves_the_older_ones_to_be_committed(
    kafka: KafkaServer, topic: Topic, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T12: no transaction stays open."""
    monkeypatch.setattr(KafkaWriteAhead, "delivers_from_memory", False)
    sink = job.open(kafka_sink(kafka, topic))
    first = sealed(sink, 1, [1])
    before = staged(job)
    second = sealed(sink, 2, [2])
    [damaged] = [key for key in staged(job) if key not in before]
    job.store.put(damaged, b"damaged")
    with pytest.raises(Corrupt, match="decided rows are damaged"):
        sink.commit_together([first, second])
    assert topic.read() == []
    sink.commit(first)
    assert numbers(topic) == [1]


def test_lost_unwritten_rows_are_named_after_the_older_rows_are_visible(
    kafka: KafkaServer, topic: Topic, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KafkaWriteAhead, "delivers_from_memory", False)
    sink = job.open(kafka_sink(kafka, topic))
    first = sealed(sink, 1, [1])
    before = staged(job)
    second = sealed(sink, 2, [2])
    job.store.delete([key for key in staged(job) if key not in before])
    with pytest.raises(Corrupt, match=r"1 decided rows of checkpoint 2, .* are gone") as raised:
        sink.commit_together([first, second])
    assert isinstance(raised.value.__cause__, ObjectNotFound)
    assert numbers(topic) == [1]


def test_a_lot_whose_answer_was_lost_is_looked_up(
    kafka: KafkaServer, topic: Topic, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T10, O3: the repeat begins with the oldest alone."""
    sink = job.open(kafka_sink(kafka, topic))
    decided = [sealed(sink, number, [number]) for number in (1, 2, 3)]
    lose_the_next_answer(monkeypatch, sink, decided)
    sink.commit(decided[0])
    sink.commit_together(decided[1:])
    assert numbers(topic) == [1, 2, 3]
    assert transactions_on(kafka, topic) == 1


def test_a_zombie_that_writes_a_lot_beside_its_successor_shows_nothing(
    kafka: KafkaServer, topic: Topic, job: Job
) -> None:
    """Z1, Z11"""
    zombie = job.open(kafka_sink(kafka, topic))
    decided = [sealed(zombie, number, [number]) for number in (1, 2, 3)]
    job.open(kafka_sink(kafka, topic), token=2, recover=decided)
    with pytest.raises(Unavailable):  # the producer was refused: the next attempt looks again
        zombie.commit_together(decided)
    with pytest.raises(Fenced):
        zombie.commit_together(decided)
    assert numbers(topic) == [1, 2, 3]
    assert transactions_on(kafka, topic) == 1


def test_a_marker_that_is_gone_after_a_lot_asks_how_far_its_rows_are_there(
    kafka: KafkaServer, topic: Topic, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T4: the lot may be in the topic as a whole, so the answer may name the lot's last checkpoint."""
    sink = job.open(kafka_sink(kafka, topic))
    decided = [sealed(sink, number, [number]) for number in (1, 2, 3)]
    lose_the_next_answer(monkeypatch, sink, decided)
    delete_markers(kafka, job)
    with pytest.raises(Corrupt, match=r"n is 1 if .*, 3 if all up to checkpoint 3 are, 0 if they are not"):
        sink.commit(decided[0])
    told = job.open(kafka_sink(kafka, topic, lost_marker={"line/0/1": 3}), token=2, recover=decided)
    told.commit(sealed(told, 4, [4]))
    assert numbers(topic) == [1, 2, 3, 4]


def lose_the_next_answer(monkeypatch: pytest.MonkeyPatch, sink: Any, decided: list[Any]) -> None:
    """The lot is committed at the broker, and the sink gets an error."""
    commit = kafka_transactions.MarkedProducer._commit

    def commit_without_answer(self: Any, marker: Any) -> None:
        commit(self, marker)
        raise Unavailable("the connection broke")

    with monkeypatch.context() as patch:
        patch.setattr(kafka_transactions.MarkedProducer, "_commit", commit_without_answer)
        with pytest.raises(Unavailable, match="the connection broke"):
            sink.commit_together(decided)
