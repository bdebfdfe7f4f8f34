"""A Kafka cluster with one topic for the exactly-once sink: transactions, epochs that fence, markers of groups.

Markers are committed with their transaction. The production sink runs down to the client library."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from servers import Doorway

from barrier_runtime.connectors.kafka.sink import exactly_once as kafka_exactly_once
from barrier_runtime.connectors.kafka.sink import transactions as kafka_transactions
from barrier_runtime.connectors.kafka.sink.sink import KafkaSink
from barrier_runtime.connectors.kafka.sink.topic_limits import LIMITS_VERSION, KafkaLimits
from barrier_runtime.state.errors import Unavailable

_LIMITS = KafkaLimits(LIMITS_VERSION, 1_000_000, 600_000, 10**9)


class KafkaException(Exception):
    """Exception of the client library; `args[0]` is the library's error."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(SimpleNamespace(name=lambda: name, str=lambda: text))


@dataclass
class _Position:  # the library's TopicPartition
    topic: str
    partition: int
    offset: int = -1001
    metadata: str | None = None
    error: Any = None


@dataclass
class _Transactional:
    epoch: int = 0
    rows: list[bytes] | None = None  # of the open transaction
    marker: tuple[str, _Position] | None = None


@dataclass
class Broker:
    """The cluster. Each commit with rows calls `on_visible(rows)`."""

    doorway: Doorway
    on_visible: Callable[[list[bytes]], None]
    ids: dict[str, _Transactional] = field(default_factory=dict)
    groups: dict[str, _Position] = field(default_factory=dict)
    fenced: int = 0  # requests of replaced producers

    def sink(self) -> KafkaSink:
        return KafkaSink("sim:9092", "rows", key="account", value="json")

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Replaces the client library."""
        library = SimpleNamespace(KafkaException=KafkaException, TopicPartition=_Position)
        cluster = lambda servers, config, where: _Cluster(self, servers, where)  # noqa: E731
        with (
            patch.object(kafka_exactly_once, "KafkaCluster", cluster),
            patch.object(kafka_exactly_once, "read_limits", lambda *_: _LIMITS),
            patch.object(kafka_transactions, "library", lambda: library),
            patch.object(kafka_transactions, "returns_within", lambda timeout_s, call: call()),  # no thread of its own
        ):
            yield

    # ------------------------------------------------------------ at the broker

    def begin_epoch(self, id: str) -> int:
        known = self.ids.setdefault(id, _Transactional())
        known.epoch += 1
        known.rows = known.marker = None
        return known.epoch

    def of(self, id: str, epoch: int) -> _Transactional:
        known = self.ids[id]
        if known.epoch != epoch:
            self.fenced += 1
            raise KafkaException("_FENCED", "a newer producer has this transactional id")
        return known

    def add(self, id: str, epoch: int, rows: list[bytes]) -> None:
        known = self.of(id, epoch)
        known.rows = [*(known.rows or []), *rows]

    def mark(self, id: str, epoch: int, group: str, position: _Position) -> None:
        self.of(id, epoch).marker = group, position

    def commit(self, id: str, epoch: int) -> None:
        known = self.of(id, epoch)
        rows, marker = known.rows or [], known.marker
        known.rows = known.marker = None
        if marker is not None:
            self.groups[marker[0]] = marker[1]
        if rows:
            self.on_visible(rows)

    def abort(self, id: str, epoch: int) -> None:
        known = self.of(id, epoch)
        known.rows = known.marker = None


class _Cluster:
    """Replacement of `kafka_client.KafkaCluster`."""

    refused = False

    def __init__(self, broker: Broker, bootstrap_servers: str, where: str) -> None:
        self._broker = broker
        self.bootstrap_servers = bootstrap_servers
        self.where = where

    def producer(self, own: dict[str, Any]) -> "_Producer":
        return _Producer(self._broker, own["transactional.id"])

    def consumer(self, own: dict[str, Any]) -> "_Consumer":
        return _Consumer(self._broker, own["group.id"])

    def answered(self, ask: Callable[[float], Any], doing: str) -> Any:
        try:
            return ask(10.0)
        except KafkaException as error:
            raise self.meaning(error, doing) from error

    def answers(self) -> None:
        """Nothing was heard before."""

    def meaning(self, error: Exception, doing: str) -> Unavailable:
        return Unavailable(f"{self.where}: cannot {doing} Kafka: {error.args[0].str()}: it is tried again")


def _lost(why: str) -> Exception:
    return KafkaException("_TIMED_OUT", why)


class _Producer:
    def __init__(self, broker: Broker, id: str) -> None:
        self._broker = broker
        self._id = id
        self._epoch = 0
        self._queued: list[bytes] = []

    def list_topics(self, topic: str, timeout: float) -> None:
        """Does nothing: the sink ignores the answer."""

    def init_transactions(self, timeout: float) -> None:
        self._epoch = self._ask("init", lambda: self._broker.begin_epoch(self._id))

    def begin_transaction(self) -> None:
        self._queued = []

    def produce_batch(self, topic: str, messages: list[dict[str, Any]]) -> int:
        self._queued += [message["value"] for message in messages]
        return len(messages)

    def poll(self, timeout: float) -> None:
        """Does nothing: no event is pending."""

    def send_offsets_to_transaction(self, offsets: list[_Position], group: str, timeout: float) -> None:
        rows, self._queued = self._queued, []
        id, epoch = self._id, self._epoch
        if rows:
            self._ask("produce", lambda: self._broker.add(id, epoch, rows))
        if offsets:
            self._ask("marker", lambda: self._broker.mark(id, epoch, group, offsets[0]))

    def commit_transaction(self, timeout: float) -> None:
        id, epoch = self._id, self._epoch
        self._ask("commit", lambda: self._broker.commit(id, epoch))

    def abort_transaction(self, timeout: float) -> None:
        id, epoch = self._id, self._epoch
        self._ask("abort", lambda: self._broker.abort(id, epoch))

    def purge(self) -> None:
        self._queued = []

    def _ask(self, what: str, effect: Callable[[], Any]) -> Any:
        return self._broker.doorway.ask(f"kafka {what}", effect, _lost)


class _Consumer:
    def __init__(self, broker: Broker, group: str) -> None:
        self._broker = broker
        self._group = group

    def poll(self, timeout: float) -> None:
        """Returns None: the consumer has no partition."""

    def consumer_group_metadata(self) -> str:
        return self._group

    def committed(self, wanted: list[_Position], timeout: float) -> list[_Position]:
        read = lambda: self._broker.groups.get(self._group, _Position(wanted[0].topic, 0))  # noqa: E731
        return [self._broker.doorway.ask("kafka committed", read, _lost)]
