"""A transaction whose client never returns: the sink abandons the client and continues with another producer."""

import math
import threading
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from barrier_runtime.connectors.kafka.sink import transactions as kafka_transactions
from barrier_runtime.connectors.kafka.sink.client import KafkaCluster
from barrier_runtime.connectors.kafka.sink.transactions import MarkedProducer, Marker, TransactionOrigin, returns_within
from barrier_runtime.state.errors import InvalidJob, Unavailable
from barrier_runtime.state.ids import check_job_id
from barrier_runtime.state.threads import Threads


class Library:
    """Replacement for the client library's producer and consumer: offset requests of the first producer are never
    answered.
    """

    def __init__(self) -> None:
        self.producers = 0
        self.committed_by: list[int] = []
        self.comes_back = threading.Event()

    def producer(self, own: Any) -> Any:
        self.producers += 1
        library, number = self, self.producers

        class Producer:
            def list_topics(self, topic: str, timeout: float) -> None: ...
            def init_transactions(self, timeout: float) -> None: ...
            def begin_transaction(self) -> None: ...
            def purge(self) -> None: ...

            def send_offsets_to_transaction(self, offsets: Any, group: Any, timeout: float) -> None:
                if number == 1:
                    library.comes_back.wait(60)

            def commit_transaction(self, timeout: float) -> None:
                library.committed_by.append(number)

        return Producer()

    def consumer(self, own: Any) -> Any:
        class Nothing:
            offset, error = -1, None

        class Consumer:
            def poll(self, timeout: float) -> None: ...
            def consumer_group_metadata(self) -> None: ...
            def committed(self, wanted: Any, timeout: float) -> Any:
                return [Nothing]

        return Consumer()


def test_a_commit_that_never_comes_back_is_left_and_another_producer_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    """T4: librdkafka ignores the timeout after an outage of the group coordinator (librdkafka issues 5456 and 5511)."""
    monkeypatch.setattr("barrier_runtime.connectors.kafka.clients._OVERDUE_S", 0.01)
    library, cluster = Library(), KafkaCluster("10.0.0.1:9092", {}, "sink")
    monkeypatch.setattr(cluster, "producer", library.producer)
    monkeypatch.setattr(cluster, "consumer", library.consumer)
    producer = MarkedProducer(
        cluster, "topic", TransactionOrigin("job", "out", "line", 0), 1, {"transaction.timeout.ms": 50}
    )
    marker = Marker(1, 1, 1, 1)
    try:
        producer.connect()
        producer.begin()
        with pytest.raises(Unavailable, match="cannot commit a transaction"):
            producer.commit(marker)
        assert not producer.connected
        monkeypatch.setattr("barrier_runtime.connectors.kafka.clients._OVERDUE_S", 60.0)  # this producer answers
        producer.connect()
        producer.begin()
        producer.commit(marker)
        assert producer.marker == marker
    finally:
        library.comes_back.set()
    assert library.committed_by == [2]


def test_thread_serves_again_after_its_call_and_a_hanging_thread_delays_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    served: list[int] = []
    comes_back = threading.Event()
    calls = Threads(math.inf, "kafka-transaction")
    monkeypatch.setattr(kafka_transactions, "_CALLS", calls)

    def serve() -> None:
        served.append(threading.get_ident())

    for _ in range(100):
        returns_within(30, serve)
    assert len(set(served)) == 1
    with pytest.raises(KafkaException, match="does not say how a question ended"):
        returns_within(-0.9, comes_back.wait)
    returns_within(30, serve)
    assert served[-1] != served[0]
    comes_back.set()
    calls.close()
    assert calls.join(60)


def test_what_a_call_raises_comes_out() -> None:
    def fail() -> None:
        raise KafkaException(KafkaError(KafkaError._FENCED))

    with pytest.raises(KafkaException) as caught:
        returns_within(10, fail)
    assert caught.value.args[0].code() == KafkaError._FENCED


def test_jobs_sinks_and_subtasks_own_transactions_and_lineages_of_a_job_share_them() -> None:
    """1.8: a fork under another name fences no producer of the original job. Names of jobs have no dots, so the next
    dot ends the job's name.
    """
    origins = [
        TransactionOrigin("orders", "out", "line", 0),
        TransactionOrigin("orders-fork", "out", "line", 0),
        TransactionOrigin("orders", "fork.out", "line", 0),
        TransactionOrigin("orders", "out", "line", 1),
        TransactionOrigin("orders", "out.1", "line", 0),
    ]
    assert len({each.transactional_id for each in origins}) == len(origins)
    assert all(each.transactional_id.split(".")[1] == each.job for each in origins)
    assert origins[0].transactional_id == TransactionOrigin("orders", "out", "other", 0).transactional_id
    with pytest.raises(InvalidJob):
        check_job_id("orders.fork")
