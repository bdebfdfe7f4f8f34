"""At-most-once Kafka sink: short transactions of rows and the source's positions after these rows.

A transaction takes all rows that arrived during the transaction before. Design:
docs/design/at-most-once.md.
"""

import base64
import math
import threading
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from barrier_runtime.connectors.kafka.sink.client import KafkaCluster
from barrier_runtime.connectors.kafka.sink.records import RecordFormat
from barrier_runtime.connectors.kafka.sink.topic_limits import limits_of_chosen, read_limits
from barrier_runtime.connectors.kafka.sink.transactions import MarkedProducer, Marker, TransactionOrigin
from barrier_runtime.connectors.sink import SinkContext, TwoPhaseCommitSink
from barrier_runtime.operators.base import SplitPosition
from barrier_runtime.state.errors import Fenced, InvalidJob
from barrier_runtime.state.threads import Threads

_GROUP_SUFFIX = ".positions"
_MOST_WAITING = 1 << 20  # bytes of waiting rows; above, the sink takes no rows
_MOST_METADATA = 4_000  # characters; the brokers' default limit is 4,096 (offset.metadata.max.bytes)
_WRITERS = Threads(math.inf, "kafka-at-most-once")  # a hanging transaction must not block another sink
_POSITIONS = msgspec.json.Decoder(dict[str, tuple[int, msgspec.Raw]])


class KafkaWithPositions(TwoPhaseCommitSink):
    guarantee = "at_most_once"
    takes_positions = True

    def __init__(self, cluster_of: Mapping[str, Any], topic: str, format: RecordFormat) -> None:
        self._cluster_of = cluster_of
        self._topic = topic
        self._format = format

    def open(self, context: SinkContext) -> None:
        self._context = context
        config = self._cluster_of["config"]
        self._cluster = KafkaCluster(self._cluster_of["bootstrap_servers"], config, context.where)
        limits = read_limits(self._cluster, self._topic, config)
        self._format.open(context.where, limits, lambda name: limits_of_chosen(self._cluster, name, limits))
        self._settings = {
            "partitioner": "murmur2_random",  # as Java's clients
            "linger.ms": 0,
            **config,
            "transaction.timeout.ms": limits.transaction_timeout_ms,
            "message.max.bytes": limits.message_max_bytes,
        }
        self._schema_checked = False
        self._batch: list[pa.RecordBatch] = []  # only for the loop, as the next field
        self._reached: dict[str, SplitPosition] = {}
        self._changed = threading.Condition()  # guards the next seven
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        self._waiting_reached: dict[str, SplitPosition] = {}
        self._released = 0
        self._written = 0
        self._writing = False
        self._failed: Exception | None = None
        self._positions: dict[str, SplitPosition] = {}  # only for the writing thread
        self._producer = self._producer_of(context.subtask)
        self._producer.connect()
        if self._producer.marker is not None:
            self._positions = _decoded(self._producer.marker.positions)
        for former in range(context.subtask + context.parallelism, context.restored_subtasks, context.parallelism):
            fence = self._producer_of(former)
            fence.connect()
            fence.close()

    def _producer_of(self, subtask: int) -> MarkedProducer:
        of = self._context
        origin = TransactionOrigin(of.job, of.sink, of.lineage, subtask, _GROUP_SUFFIX)
        return MarkedProducer(self._cluster, self._topic, origin, of.token, self._settings)

    def written(self) -> Mapping[str, SplitPosition]:
        of = self._context
        rescaled = of.parallelism != of.restored_subtasks
        subtasks = range(max(of.parallelism, of.restored_subtasks)) if rescaled else (of.subtask,)
        found: dict[str, SplitPosition] = {}
        for subtask in subtasks:
            reader = self._producer_of(subtask)
            marker = reader.read_marker()
            reader.close()
            for split, at in _decoded("" if marker is None else marker.positions).items():
                if split not in found or found[split].rows < at.rows:
                    found[split] = at
        return found

    # ------------------------------------------------------------ on the loop

    def begin_transaction(self) -> "_Rows":
        return _Rows()

    def write(self, transaction: "_Rows", rows: pa.RecordBatch) -> None:
        if self._failed is not None:
            raise self._failed
        if not self._schema_checked:
            self._format.check_schema(rows.schema)
            self._schema_checked = True
        self._batch.append(rows)

    def reached(self, split: str, at: SplitPosition) -> None:
        self._reached[split] = at

    def stage_early(self, transaction: "_Rows") -> Callable[[], None] | None:
        """Releases the rows written so far. Returns a wait if too many rows wait."""
        with self._changed:
            self._waiting += self._batch
            self._waiting_bytes += sum(rows.nbytes for rows in self._batch)
            self._waiting_reached.update(self._reached)
            self._released += len(self._batch)
            transaction.until = self._released
            self._batch, self._reached = [], {}
            if self._waiting and not self._writing:
                self._writing = True
                _WRITERS.submit(self._write_waiting)
            return None if self._waiting_bytes < _MOST_WAITING else self._wait_for_room

    # ------------------------------------------------------------ off the loop

    def pre_commit(self, transaction: "_Rows", checkpoint: int) -> None:
        self._wait(lambda: self._written >= transaction.until)

    def _wait_for_room(self) -> None:
        self._wait(lambda: self._waiting_bytes < _MOST_WAITING)

    def _wait(self, condition: Callable[[], bool]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._failed is not None or condition())
            if self._failed is not None:
                raise self._failed

    def commit(self, committable: bytes) -> None:
        raise InvalidJob(
            f"{self._context.where}: the restored checkpoint has decided rows of an exactly-once sink, which this sink "
            'cannot commit: run the job once with guarantee="exactly_once", and stop it with a checkpoint'
        )

    def abort(self, committable: bytes) -> None:
        """`pre_commit` makes no committable."""

    def close(self) -> None:
        if getattr(self, "_producer", None) is not None:
            self._fail(Fenced(f"{self._context.where}: closed"))
            self._producer.close()

    def _fail(self, error: Exception) -> None:
        with self._changed:
            self._failed = self._failed or error
            self._changed.notify_all()

    def _write_waiting(self) -> None:
        while True:
            with self._changed:
                batches, self._waiting, self._waiting_bytes = self._waiting, [], 0
                if not batches or self._failed is not None:
                    self._writing = False
                    return
                reached, self._waiting_reached = self._waiting_reached, {}
                self._changed.notify_all()
            try:
                self._write(batches, reached)
            except Exception as error:
                self._fail(error)
            else:
                with self._changed:
                    self._written += len(batches)
                    self._changed.notify_all()

    def _write(self, batches: Sequence[pa.RecordBatch], reached: Mapping[str, SplitPosition]) -> None:
        positions = {**self._positions, **reached}
        before = self._producer.marker
        token = self._context.token
        number, rows = 1 if before is None else before.checkpoint + 1, sum(batch.num_rows for batch in batches)
        marker = Marker(number, token, rows, token, self._encoded(positions))
        records = self._format.records(batches)
        self._producer.begin()
        for each in records:
            self._producer.send(each)
        self._producer.commit(marker)
        self._positions = positions

    def _encoded(self, positions: Mapping[str, SplitPosition]) -> str:
        plain = msgspec.json.encode({split: (at.rows, msgspec.Raw(at.position)) for split, at in positions.items()})
        text = base64.b85encode(zlib.compress(plain, 1)).decode()
        if len(text) > _MOST_METADATA:
            raise InvalidJob(
                f"{self._context.where}: the positions of {len(positions)} splits do not fit into the metadata of an "
                'offset: raise parallelism=, so that a subtask reads fewer splits, or use mode="at_least_once"'
            )
        return text


class _Rows:
    """Transaction of a checkpoint: `until` counts the record batches released before the barrier."""

    __slots__ = ("until",)

    def __init__(self) -> None:
        self.until = 0


def _decoded(text: str) -> dict[str, SplitPosition]:
    if not text:
        return {}
    found = _POSITIONS.decode(zlib.decompress(base64.b85decode(text)))
    return {split: SplitPosition(rows, bytes(position)) for split, (rows, position) in found.items()}
