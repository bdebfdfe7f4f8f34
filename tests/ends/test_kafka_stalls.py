"""The product's own clients of a broker that is killed, started again and stopped for 5 to 60 seconds at any moment.

`BARRIER_STALLS=50 pytest tests/ends/test_kafka_stalls.py` runs many rounds; a few rounds only show that the test world
works.
"""

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer

from barrier_runtime.connectors.kafka.sink.sink import KafkaSink
from barrier_runtime.connectors.kafka.source.reader import KafkaReader
from barrier_runtime.connectors.kafka.source.source import KafkaTopics, _Listing
from barrier_runtime.data.elements import Batch
from barrier_runtime.state.errors import Unavailable
from examples.run_topic import TopicReader
from examples.servers import KafkaServer, kafka_server
from tests.ends.kafka_target import Job, Topic, new_job, new_topic
from tests.ends.kafka_world import source_of

ROUNDS = int(os.environ.get("BARRIER_STALLS", "2"))
SEED = int(os.environ.get("BARRIER_STALLS_SEED", "1"))
PARTITIONS = 2
PATIENCE_S = 150.0
_STEP_S = 0.1


class Copy(threading.Thread):
    """Copies a topic to another topic as a job does: source readers, successive checkpoints, an exactly-once sink.
    Replaced readers continue from the last checkpoint. `commits` and `listings` count successes.
    """

    def __init__(self, kafka: KafkaServer, source: str, target: Topic) -> None:
        super().__init__(name="copy")
        self.commits = 0
        self.listings = 0
        self.replaced: list[str] = []
        self.error: BaseException | None = None
        self._stop_asked = threading.Event()
        self._source: KafkaTopics = source_of(kafka, source)
        self._splits = list(self._source.splits(1))
        self._positions: list[bytes | None] = [None] * len(self._splits)
        self._readers: list[KafkaReader] = []
        self._listing = _Listing(self._source._client, self._source._topics, frozenset(), "listing")
        self._sink_place = (kafka.bootstrap, target.name)

    def end(self) -> None:
        self._stop_asked.set()
        self.join()

    def run(self) -> None:
        try:
            with new_job() as job:
                sink = self._open_sink(job)
                self._open_readers()
                checkpoint = 0
                while not self._stop_asked.is_set():
                    checkpoint += 1
                    self._checkpoint(sink, checkpoint)
                    self._list()
        except BaseException as error:
            self.error = error
        finally:
            for reader in self._readers:
                reader.close()

    def _open_sink(self, job: Job) -> Any:
        while True:
            try:
                return job.open(KafkaSink(*self._sink_place))
            except Unavailable:
                time.sleep(_STEP_S)

    def _open_readers(self) -> None:
        for reader in self._readers:
            reader.close()
        self._readers = [self._source.reader(split) for split in self._splits]
        for reader, position in zip(self._readers, self._positions, strict=True):
            if position is not None:
                reader.seek(position)
            reader.prepare()

    def _checkpoint(self, sink: Any, checkpoint: int) -> None:
        transaction = sink.begin_transaction()
        try:
            deadline = time.monotonic() + _STEP_S
            while time.monotonic() < deadline:
                for reader in self._readers:
                    polled = reader.poll(10_000, time.time_ns())
                    if polled is not None:
                        rows = Batch(polled.rows, polled.emit_ns).rows
                        sink.write(transaction, rows.select(["value"]).cast(pa.schema([("value", pa.string())])))
                time.sleep(0.005)
            self._positions = [reader.position() for reader in self._readers]
        except Unavailable as error:  # rows after the last checkpoint are dropped, as with a generation
            self.replaced.append(str(error))
            self._open_readers()
            return
        committable = sink.pre_commit(transaction, checkpoint)
        while committable is not None and not self._stop_asked.is_set():
            try:
                sink.commit(committable)
                break
            except Unavailable:
                time.sleep(_STEP_S)
        self.commits += 1

    def _list(self) -> None:
        try:
            self._listing.splits()
            self.listings += 1
        except Unavailable:
            time.sleep(_STEP_S)


class PartitionQueue(threading.Thread):
    """Successive numbers, all of which reach the topic."""

    def __init__(self, kafka: KafkaServer, topic: str) -> None:
        super().__init__(name="feed")
        self.fed = 0
        self._topic = topic
        self._stop_asked = threading.Event()
        settings = {"bootstrap.servers": kafka.bootstrap, "enable.idempotence": True, "message.timeout.ms": 0}
        self._producer = Producer({**settings, "log_level": 0})

    def run(self) -> None:
        while not self._stop_asked.is_set():
            self._producer.produce(self._topic, str(self.fed), partition=self.fed % PARTITIONS)
            self._producer.poll(0)
            self.fed += 1
            time.sleep(0.01)
        assert self._producer.flush(PATIENCE_S) == 0

    def end(self) -> None:
        self._stop_asked.set()
        self.join()


def strike(kafka: KafkaServer, chance: random.Random, stall_s: float) -> str:
    killed = chance.random() < 0.7
    before_s = chance.uniform(0, 3)
    if killed:
        kafka.kill()
        time.sleep(chance.choice([0.2, 3.0]))
        kafka.start()
        time.sleep(before_s)
    pids = kafka.pids
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(stall_s)
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    return f"{'killed, ' if killed else ''}stopped after {before_s:.1f} s for {stall_s:.0f} s"


def gets_on(copy: Copy, what: str, figure: Callable[[], int]) -> None:
    before, deadline = figure(), time.monotonic() + PATIENCE_S
    while figure() <= before:
        assert copy.error is None, copy.error
        assert time.monotonic() < deadline, f"{what} does not get on within {PATIENCE_S:.0f} s"
        time.sleep(_STEP_S)


@pytest.mark.slow
@pytest.mark.timeout(120 + ROUNDS * 400)
def test_all_clients_go_on_after_the_broker_was_killed_started_again_and_stopped() -> None:
    """T4: no client answers with an error of leadership for ever, and every row appears once."""
    chance = random.Random(SEED)
    with kafka_server() as kafka, new_topic(kafka, PARTITIONS) as source, new_topic(kafka, PARTITIONS) as target:
        target.decode = lambda value: value
        feed, copy = PartitionQueue(kafka, source.name), Copy(kafka, source.name, target)
        feed.start()
        copy.start()
        seen: list[bytes] = []
        try:
            with closing(TopicReader(kafka.bootstrap, target.name)) as reader:
                seen += reader.read()
                for number in range(1, ROUNDS + 1):
                    what = strike(kafka, chance, 5.0 if ROUNDS <= 2 else chance.choice([5, 10, 25, 40, 60]))
                    gets_on(copy, "the sink", lambda: copy.commits)
                    gets_on(copy, "the listing", lambda: copy.listings)
                    fed, deadline = feed.fed, time.monotonic() + PATIENCE_S
                    while len(seen) < fed:
                        assert copy.error is None, copy.error
                        assert time.monotonic() < deadline, f"{len(seen)} of {fed} rows are visible after {what}"
                        seen += reader.read()
                    print(f"round {number}: {what}: {fed} rows, {len(copy.replaced)} clients replaced", flush=True)
                feed.end()
                deadline = time.monotonic() + PATIENCE_S
                while len(seen) < feed.fed and time.monotonic() < deadline:
                    seen += reader.read()
        finally:
            feed.end()
            copy.end()
        assert copy.error is None
        numbers = sorted(int(_value(row)) for row in seen)
        assert numbers == list(range(feed.fed))
        assert sorted(int(_value(row)) for row in target.read()) == numbers


def _value(row: bytes) -> str:
    import json

    return str(json.loads(row)["value"])
