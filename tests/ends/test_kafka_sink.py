"""The exactly-once Kafka sink against a real broker: certified; zombies, lost answers, long outages."""

import logging
import time
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from barrier_runtime.connectors.kafka.sink import client as kafka_client
from barrier_runtime.connectors.kafka.sink import topic_limits as kafka_target
from barrier_runtime.connectors.kafka.sink import transactions as kafka_transactions
from barrier_runtime.connectors.kafka.sink.exactly_once import KafkaWriteAhead
from barrier_runtime.state.errors import Corrupt, Fenced, Unavailable
from barrier_runtime.state.store.memory import Fault, MemoryStore
from barrier_runtime.testing import certify
from examples.servers import KafkaServer, kafka_server
from examples.servers.kafka_ends import asked_again
from tests.ends.kafka_target import Job, Topic, commit_until, kafka_sink, new_job, new_topic, numbers, sealed


def markers_of(kafka: KafkaServer, job: Job) -> dict[str, int]:
    from confluent_kafka import ConsumerGroupTopicPartitions

    admin = AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    known = asked_again(lambda: admin.list_consumer_groups().result()).valid
    groups = [each.group_id for each in known if job.name in each.group_id]
    found: dict[str, int] = {}
    for group in groups:
        asked = [ConsumerGroupTopicPartitions(group)]
        offsets = asked_again(lambda asked=asked, group=group: admin.list_consumer_group_offsets(asked)[group].result())
        found[group] = offsets.topic_partitions[0].offset
    return found


def test_the_sink_is_exactly_once_wherever_it_crashes(kafka: KafkaServer, topic: Topic, store: MemoryStore) -> None:
    """T1, T2, T3, T6, T7, T8, T9, T10, T11, T12, T14, T15: see the scenarios of `certify`."""

    def lose(sink: Any) -> None:
        sink.close()

    certificate = certify(
        lambda: kafka_sink(kafka, topic, key="key"),
        topic.read,
        scenarios=12,
        seeds=range(2),
        ordered=True,
        job_store=store,
        kill=lose,
        leftovers=lambda: [info.key for info in store.list("") if "/staged/" in info.key],
    )
    assert certificate.crashes > 12


def test_a_producer_looks_for_its_coordinator_over_a_connection_that_is_there(
    kafka: KafkaServer, topic: Topic, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an open connection the library looks again after half a second, which a recovery would wait for."""
    said: list[str] = []
    log = logging.Logger("of this test", logging.DEBUG)
    log.addFilter(lambda record: said.append(record.getMessage()) or False)
    monkeypatch.setattr(kafka_client, "client_log", lambda: log)
    monkeypatch.setattr(kafka_transactions, "_REACH_S", 60.0)
    for token in range(1, 6):
        sink = job.open(kafka_sink(kafka, topic, config={"debug": "eos"}), token)
        sink.commit(sealed(sink, token, [token]))
    assert numbers(topic) == [1, 2, 3, 4, 5]
    assert sum("Querying for transaction coordinator" in each for each in said) >= 5
    assert [each for each in said if "Unable to query" in each] == []


def test_rows_are_visible_after_the_commit_and_not_before(kafka: KafkaServer, topic: Topic, job: Job) -> None:
    """T2: pre-commit leaves rows in the job's store and no record in the topic, not even a transaction."""
    sink = job.open(kafka_sink(kafka, topic))
    committable = sealed(sink, 1, [1, 2, 3])
    assert topic.read() == []
    sink.commit(committable)
    assert numbers(topic) == [1, 2, 3]


def test_a_commit_that_is_repeated_shows_nothing_twice(kafka: KafkaServer, topic: Topic, job: Job) -> None:
    """T6, T10: by the same process, by a successor, and after a newer checkpoint."""
    sink = job.open(kafka_sink(kafka, topic))
    first, second = sealed(sink, 1, [1]), sealed(sink, 2, [2])
    for committable in (first, first, second, first):
        sink.commit(committable)
    job.open(kafka_sink(kafka, topic), token=2, recover=[first, second])
    assert numbers(topic) == [1, 2]


def test_a_successor_ends_the_transaction_that_a_dead_process_left_open(
    kafka: KafkaServer, topic: Topic, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T3, T9, T12: the dead process's transaction does not hold up readers, the rows are written once, and the late
    requests are refused.
    """
    zombie = job.open(kafka_sink(kafka, topic))
    committable = sealed(zombie, 1, [1, 2])

    def held_up(self: Any, marker: Any) -> None:
        self._producer.flush(60)
        raise Unavailable("sent, not committed")

    with monkeypatch.context() as patch:
        patch.setattr(kafka_transactions.MarkedProducer, "commit", held_up)
        patch.setattr(kafka_transactions.MarkedProducer, "abandon", lambda self: None)  # the dead are silent
        with pytest.raises(Unavailable, match="sent, not committed"):
            zombie.commit(committable)
    assert topic.has_open_transactions()
    assert topic.read_stable() == []
    producer = zombie._delivery._producers["line", 0]
    job.open(kafka_sink(kafka, topic), token=2, recover=[committable])
    assert numbers(topic) == [1, 2]
    with pytest.raises(Unavailable, match=r"_FENCED|_STATE"):
        producer.commit(kafka_transactions.Marker(1, 1, 2, 1))
    assert numbers(topic) == [1, 2]


def test_a_zombie_that_commits_beside_its_successor_stops(kafka: KafkaServer, topic: Topic, job: Job) -> None:
    """Z1, Z11: once the successor has written, the zombie's error names the successor; the zombie shows no row and
    disturbs no process again.
    """
    zombie = job.open(kafka_sink(kafka, topic))
    first = sealed(zombie, 1, [1])
    successor = job.open(kafka_sink(kafka, topic), token=2, recover=[first])
    second = sealed(successor, 2, [2])
    successor.commit(second)
    with pytest.raises(Unavailable):  # the producer was refused: the next attempt looks again
        zombie.commit(first)
    for _ in range(3):
        with pytest.raises(Fenced):
            zombie.commit(first)
    with pytest.raises(Fenced, match="generation 2 writes to topic"):
        zombie.commit(first)
    third = sealed(successor, 3, [3])
    with pytest.raises(Unavailable):  # refused once, by the zombie's only attempt
        successor.commit(third)
    successor.commit(third)
    with pytest.raises(Fenced):
        zombie.commit(first)
    successor.commit(sealed(successor, 4, [4]))
    assert numbers(topic) == [1, 2, 3, 4]


def test_a_transaction_whose_answer_was_lost_is_looked_up(
    kafka: KafkaServer, topic: Topic, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T10, O3: the commit succeeded and the process got an error: the retry finds the marker, writes nothing."""
    sink = job.open(kafka_sink(kafka, topic))
    commit = kafka_transactions.MarkedProducer._commit

    def commit_without_answer(self: Any, marker: Any) -> None:
        commit(self, marker)
        raise Unavailable("the connection broke")

    committable = sealed(sink, 1, [1])
    with monkeypatch.context() as patch:
        patch.setattr(kafka_transactions.MarkedProducer, "_commit", commit_without_answer)
        with pytest.raises(Unavailable):
            sink.commit(committable)
    sink.commit(committable)
    sink.commit(sealed(sink, 2, [2]))
    assert numbers(topic) == [1, 2]


def test_a_new_life_of_a_job_writes_from_its_first_checkpoint_on(kafka: KafkaServer, topic: Topic, job: Job) -> None:
    """T14: the topic has seen checkpoint 100 of another lineage; checkpoint 1 of this lineage counts as new."""
    sink = job.open(kafka_sink(kafka, topic))
    sink.commit(sealed(sink, 100, [1]))
    job.lineage, job.store = "another", MemoryStore()
    again = job.open(kafka_sink(kafka, topic))
    again.commit(sealed(again, 1, [2]))
    assert numbers(topic) == [1, 2]


def test_after_rescaling_others_finish_what_a_subtask_had_decided(kafka: KafkaServer, topic: Topic, job: Job) -> None:
    """T8, R2: three subtasks, of which one had committed; then 1, then 2; each row once."""
    before = [job.open(kafka_sink(kafka, topic), subtask=number, parallelism=3) for number in range(3)]
    decided = [sealed(sink, 1, [number]) for number, sink in enumerate(before)]
    before[1].commit(decided[1])
    alone = job.open(kafka_sink(kafka, topic), token=2, recover=decided)
    alone.commit(sealed(alone, 2, [3]))
    for number in range(2):
        sink = job.open(kafka_sink(kafka, topic), token=3, subtask=number, parallelism=2)
        sink.commit(sealed(sink, 3, [4 + number]))
    assert numbers(topic) == [0, 1, 2, 3, 4, 5]


def test_large_transaction_is_written_in_short_parts_and_continued_after_a_break(
    kafka: KafkaServer, topic: Topic, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T10: the rows' second object is unreadable; the rows of the first object are in the topic, in order, and once."""
    monkeypatch.setattr(kafka_transactions, "_CHUNK_BYTES", 2_000)
    monkeypatch.setattr(KafkaWriteAhead, "delivers_from_memory", False)
    sink = job.open(kafka_sink(kafka, topic, max_bytes_in_memory=100_000))
    rows = 300
    committable = sealed(sink, 1, range(rows))
    keys = [info.key for info in job.store.list("") if "/staged/" in info.key]
    assert len(keys) > 3
    lost, data = keys[-1], job.store.get(keys[-1])
    job.store.delete([lost])
    with pytest.raises(Exception, match="no object"):
        sink.commit(committable)
    partly = numbers(topic)
    assert 0 < len(partly) < rows
    assert partly == list(range(len(partly)))
    job.store.put(lost, data)
    job.open(kafka_sink(kafka, topic), token=2, recover=[committable])
    assert numbers(topic) == list(range(rows))


def test_a_transaction_that_cannot_go_on_holds_no_reader_up(
    kafka: KafkaServer, topic: Topic, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T12: half of the rows are sent, the other half cannot be read: the transaction is ended at once, not by time."""
    monkeypatch.setattr(KafkaWriteAhead, "delivers_from_memory", False)
    sink = job.open(kafka_sink(kafka, topic, max_bytes_in_memory=100_000))
    committable = sealed(sink, 1, range(100))
    keys = [info.key for info in job.store.list("") if "/staged/" in info.key]
    assert len(keys) > 1
    job.store.put(keys[-1], b"damaged")
    with pytest.raises(Corrupt, match="decided rows are damaged"):
        sink.commit(committable)
    assert topic.read() == []  # fails if a transaction stays open


def test_no_transaction_is_open_while_brokers_are_away_longer_than_its_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """T4: `transaction.max.timeout.ms` is 2 s, the outage 5 s: rows decided before the outage are written after it."""
    with (
        kafka_server(transaction_max_timeout_ms=2_000) as kafka,
        new_topic(kafka) as topic,
        new_job() as job,
    ):
        sink = job.open(kafka_sink(kafka, topic))
        assert sink._delivery._limits.transaction_timeout_ms == 2_000
        commit_until(sink, [sealed(sink, 1, [1])])  # on a busy machine 2 s may be too short for an attempt
        decided = [sealed(sink, 2, [2])]
        kafka.kill()
        out = time.monotonic()
        decided.append(sealed(sink, 3, [3]))  # checkpoints continue
        with monkeypatch.context() as patch:
            patch.setattr(kafka_client, "ANSWER_S", 2.0)
            with pytest.raises(Unavailable, match="it is tried again"):
                sink.commit(decided[0])
        while time.monotonic() < out + 5:
            time.sleep(0.05)
        kafka.start()
        commit_until(sink, decided)
        assert numbers(topic) == [1, 2, 3]


def test_a_subtask_that_starts_while_the_brokers_are_away_goes_on_staging(monkeypatch: pytest.MonkeyPatch) -> None:
    """T4: the subtask knows the topic's limits from the predecessor, without a metadata request; the rows are written
    when the brokers are back.
    """
    with kafka_server() as kafka, new_topic(kafka) as topic, new_job() as job:
        job.store.inject(Fault.STALE_LIST, "list", times=None)
        sink = job.open(kafka_sink(kafka, topic))
        decided = sealed(sink, 1, [1])
        kafka.kill()
        successor = kafka_sink(kafka, topic)
        with monkeypatch.context() as patch:
            patch.setattr(kafka_client, "ANSWER_S", 2.0)
            with pytest.raises(Unavailable):
                job.open(successor, token=2, recover=[decided])  # the sink is open; only the recovery failed
        later = sealed(successor, 2, [2])
        kafka.start()
        deadline = time.monotonic() + 240
        while True:
            try:
                successor.recover([decided])
                break
            except Unavailable:
                assert time.monotonic() < deadline
        commit_until(successor, [later])
        assert numbers(topic) == [1, 2]


def test_a_sink_that_is_closed_takes_the_producer_from_nobody(kafka: KafkaServer, topic: Topic, job: Job) -> None:
    """Z1: the commit was still queued when the generation ended, in a process that continues to live."""
    sink = job.open(kafka_sink(kafka, topic))
    committable = sealed(sink, 1, [1])
    sink.close()
    successor = job.open(kafka_sink(kafka, topic), token=2, recover=[committable])
    with pytest.raises(Fenced, match="closed"):
        sink.commit(committable)
    successor.commit(sealed(successor, 2, [2]))
    assert numbers(topic) == [1, 2]


def test_a_marker_that_gets_old_is_written_again_without_rows(
    kafka: KafkaServer, topic: Topic, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that writes no row for longer than offsets.retention.minutes keeps the marker."""
    sink = job.open(kafka_sink(kafka, topic))
    assert sealed(sink, 1, []) is None
    monkeypatch.setattr(kafka_target, "_REFRESH_S", 0)
    sink = job.open(kafka_sink(kafka, topic), token=2)
    committable = sealed(sink, 2, [])
    assert committable is not None
    sink.commit(committable)
    assert list(markers_of(kafka, job).values()) == [2]
    assert topic.read() == []
