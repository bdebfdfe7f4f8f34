"""Sink of Kafka topics."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import pyarrow as pa

from barrier_runtime.connectors.kafka.brokers import KafkaBrokers, with_brokers
from barrier_runtime.connectors.kafka.sink.at_least_once import KafkaDirect
from barrier_runtime.connectors.kafka.sink.at_most_once import KafkaWithPositions
from barrier_runtime.connectors.kafka.sink.client import checked_config, shown_config
from barrier_runtime.connectors.kafka.sink.exactly_once import KafkaWriteAhead
from barrier_runtime.connectors.kafka.sink.markers import LostMarkers, checked_answers
from barrier_runtime.connectors.kafka.sink.records import RecordFormat, SerialiserFactory
from barrier_runtime.connectors.sink import Acknowledgement, Guarantee, SinkContext, TwoPhaseCommitSink
from barrier_runtime.data.argument_types import kinds_checked
from barrier_runtime.data.few_rows import FewRows
from barrier_runtime.operators.base import SplitPosition
from barrier_runtime.state.errors import InvalidJob


@kinds_checked
class KafkaSink(TwoPhaseCommitSink):
    """Records of an existing Kafka topic, exactly once, at least once or (for `mode="at_most_once"`) at most once.

    Exactly once: readers with `isolation.level=read_committed` see every row once, in order per key. Two jobs on a
    cluster must not share both job name and sink name.

    Text columns are written as UTF-8, binary columns unchanged, numbers and times as text.

    - `key`: a column, or a factory of a serialiser `(row, SerializationContext) -> bytes`, such as the client's for
      Avro, Protobuf and JSON Schema. Rows of a key go to one partition.
    - `value`: "json" (the whole row as an object), a column, or such a factory. None from a serialiser is a tombstone.
    - `headers`: columns, or header name -> column.
    - `timestamp`: a timestamp column, or integers in ms since 1970; null: sending time. With exactly once, the topic
      must not limit the age of rows (`message.timestamp.before.max.ms`).
    - `topic_column`: a text column with the topic of each row; null: `topic`. Each topic must exist and accept rows as
      large as `topic` does. `value=` may omit the column.
    - `config`: client settings (librdkafka's names). Credentials are never shown or stored.
    - `max_bytes_in_memory`: Arrow bytes per subtask above which rows of an open checkpoint are staged early.
    - `lost_marker`: how far rows with a lost marker are in the topic; the error about the marker shows the value,
      valid for that loss only.
    """

    kind: ClassVar[str] = "kafka"

    def __init__(
        self,
        bootstrap_servers: str | KafkaBrokers,
        topic: str,
        *,
        key: str | SerialiserFactory | None = None,
        value: str | SerialiserFactory = "json",
        headers: Mapping[str, str] | Sequence[str] = (),
        timestamp: str | None = None,
        topic_column: str | None = None,
        guarantee: Guarantee = "exactly_once",
        config: Mapping[str, Any] | None = None,
        max_bytes_in_memory: int = 32 << 20,
        lost_marker: LostMarkers | None = None,
    ) -> None:
        bootstrap_servers, config = with_brokers(bootstrap_servers, config, "KafkaSink")
        if not isinstance(bootstrap_servers, str) or not bootstrap_servers.strip() or "@" in bootstrap_servers:
            raise InvalidJob("KafkaSink: bootstrap_servers is a text 'host:port,host:port', without credentials")
        if not isinstance(topic, str) or not topic:
            raise InvalidJob("KafkaSink: topic is the name of a topic")
        if guarantee not in ("exactly_once", "at_least_once", "at_most_once"):
            raise InvalidJob(
                f"KafkaSink: guarantee={guarantee!r}: use 'exactly_once', 'at_least_once' or 'at_most_once'"
            )
        self.guarantee = guarantee
        self.takes_positions = guarantee == "at_most_once"
        self.commits_together = guarantee == "exactly_once"
        self.writes_at_once = guarantee == "at_least_once"
        self._bootstrap_servers = bootstrap_servers
        self._topic = topic
        self._key = key
        self._value = value
        self._headers = dict(headers) if isinstance(headers, Mapping) else {name: name for name in headers}
        self._timestamp = timestamp
        self._topic_column = topic_column
        self._config = checked_config(config or {})
        self._max_bytes_in_memory = max_bytes_in_memory
        self._lost_markers = checked_answers({} if lost_marker is None else lost_marker)

    def __repr__(self) -> str:
        return f"KafkaSink({self._bootstrap_servers!r}, {self._topic!r}, {self.guarantee})"

    def target(self) -> str:
        return f"topic {self._topic}"

    def settings(self) -> dict[str, Any]:
        """Omits the serialisers: pending rows are serialised already."""
        return {
            "bootstrap_servers": self._bootstrap_servers,
            "topic": self._topic,
            **({"key": self._key} if isinstance(self._key, str) else {}),
            **({"value": self._value} if isinstance(self._value, str) else {}),
            "headers": self._headers,
            "timestamp": self._timestamp,
            "topic_column": self._topic_column,
            "guarantee": self.guarantee,
            "config": shown_config(self._config),
            "max_bytes_in_memory": self._max_bytes_in_memory,
        }

    def open(self, context: SinkContext) -> None:
        cluster = {"bootstrap_servers": self._bootstrap_servers, "config": self._config}
        format = RecordFormat(self._topic, self._key, self._value, self._headers, self._timestamp, self._topic_column)
        self._delivery: TwoPhaseCommitSink
        if self.guarantee == "exactly_once":
            self._delivery = KafkaWriteAhead(
                cluster, self._topic, format, self._lost_markers, self._max_bytes_in_memory
            )
        elif self.guarantee == "at_least_once":
            self._delivery = KafkaDirect(cluster, self._topic, format)
        else:
            self._delivery = KafkaWithPositions(cluster, self._topic, format)
        self._delivery.open(context)

    def begin_transaction(self) -> Any:
        return self._delivery.begin_transaction()

    def write(self, transaction: Any, rows: pa.RecordBatch) -> None:
        self._delivery.write(transaction, rows)

    def write_few(self, transaction: Any, rows: FewRows) -> None:
        self._delivery.write_few(transaction, rows)

    def reached(self, split: str, at: SplitPosition) -> None:
        self._delivery.reached(split, at)

    def written(self) -> Mapping[str, SplitPosition]:
        return self._delivery.written()

    def stage_early(self, transaction: Any) -> Callable[[], Any] | None:
        return self._delivery.stage_early(transaction)

    def stage_now(self, transaction: Any) -> Callable[[], Acknowledgement | None] | None:
        return self._delivery.stage_now(transaction)

    def pre_commit(self, transaction: Any, checkpoint: int) -> bytes | None:
        return self._delivery.pre_commit(transaction, checkpoint)

    def commit(self, committable: bytes) -> None:
        self._delivery.commit(committable)

    def commit_together(self, committables: Sequence[bytes]) -> None:
        self._delivery.commit_together(committables)

    def abort(self, committable: bytes) -> None:
        self._delivery.abort(committable)

    def recover(self, decided: Sequence[bytes]) -> None:
        self._delivery.recover(decided)

    def close(self) -> None:
        delivery = getattr(self, "_delivery", None)
        if delivery is not None:
            delivery.close()
