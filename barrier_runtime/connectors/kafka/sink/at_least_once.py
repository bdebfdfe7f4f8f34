"""At-least-once Kafka sink: sends rows as they arrive; a barrier waits until the brokers have them.

One thread at a time serves the client's callbacks (`_serve`).

The rows of a write form a *flight*:

| flight | event                          | next    |
|--------|--------------------------------|---------|
| open   | a row is handed to the client  | open    |
| open   | the write ended, or raised     | closed  |
| any    | the brokers acknowledged a row | same    |
| closed | all its rows are acknowledged  | arrived |

A barrier waits only for earlier flights. A flight with a refused row never arrives: the job restarts.
"""

import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from barrier_runtime.connectors.kafka.sink.client import KafkaCluster, library
from barrier_runtime.connectors.kafka.sink.records import RecordFormat, handed_over
from barrier_runtime.connectors.kafka.sink.topic_limits import limits_of_chosen, read_limits
from barrier_runtime.connectors.sink import Acknowledgement, SinkContext
from barrier_runtime.connectors.sink_bases.upsert import DirectSink, Rows
from barrier_runtime.state.errors import InvalidJob, Unavailable
from barrier_runtime.state.texts import counted


class Flight:
    """Rows of one write.
    The serving thread writes `acknowledged`; the writing thread writes `sent`, once (None: open).
    """

    __slots__ = ("acknowledged", "sent")

    def __init__(self) -> None:
        self.sent: int | None = None
        self.acknowledged = 0

    @property
    def arrived(self) -> bool:
        return self.acknowledged == self.sent


class Flights:
    """Flights in the order of their rows. For several threads."""

    def __init__(self) -> None:
        self._flights: deque[Flight] = deque()
        self._lock = threading.Lock()

    def begin(self) -> Flight:
        flight = Flight()
        with self._lock:
            self._flights.append(flight)
        return flight

    def unacknowledged(self) -> tuple[Flight, ...]:
        """Forgets the arrived flights."""
        with self._lock:
            if any(flight.arrived for flight in self._flights):
                self._flights = deque(flight for flight in self._flights if not flight.arrived)
            return tuple(self._flights)


_QUEUE_KB = 64 << 10
_FLUSH_S = 30.0
_WAIT_S = 0.05
_LINGER_MS = 50  # longer than a write: `flush` sends a partition's rows of a write in one request
_LINGERS = {"linger.ms", "queue.buffering.max.ms"}


class KafkaDirect(DirectSink):
    guarantee = "at_least_once"
    write_bytes = 1 << 20

    def __init__(self, cluster_of: Mapping[str, Any], topic: str, format: RecordFormat) -> None:
        self._cluster_of = cluster_of
        self._topic = topic
        self._format = format

    def open(self, context: SinkContext) -> None:
        super().open(context)
        config = self._cluster_of["config"]
        self._cluster = KafkaCluster(self._cluster_of["bootstrap_servers"], config, self._where)
        limits = read_limits(self._cluster, self._topic, config)
        self._format.open(self._where, limits, lambda name: limits_of_chosen(self._cluster, name, limits))
        self._flights = Flights()
        self._serving = threading.Lock()
        self._refused: InvalidJob | Unavailable | None = None
        self._closed = False
        self._lingers = not _LINGERS.isdisjoint(config)  # True: rows leave when the user's config says
        self._producer = self._cluster.producer(
            {
                "partitioner": "murmur2_random",  # as Java's clients
                "linger.ms": _LINGER_MS,
                **config,
                "message.max.bytes": limits.message_max_bytes,
                "enable.idempotence": True,
                "message.timeout.ms": 0,
                "queue.buffering.max.kbytes": _QUEUE_KB,
            }
        )

    def check_schema(self, schema: pa.Schema) -> None:
        self._format.check_schema(schema)

    def check_rows(self, schema: pa.Schema) -> None:
        self._raise_refusal()
        super().check_rows(schema)

    def write_out(self, batches: Sequence[pa.RecordBatch]) -> None:
        """Waits at most `_WAIT_S` for the acknowledgement; later rows gather meanwhile.

        While a partition has five rows in flight, the idempotent client sends none, and spins if rows are due.
        """
        self._raise_refusal()
        made = self._format.records(batches)
        flight = self._flights.begin()
        with self._cluster.trouble("write rows to"):
            self._send(made, flight)
        self._arrive((flight,), _WAIT_S)

    def acknowledgement(self) -> Acknowledgement | None:
        flights = self._flights.unacknowledged()
        if not flights:
            return None

        def wait() -> None:
            self._wait_for(flights)

        return wait

    def pre_commit(self, transaction: Rows, checkpoint: int) -> None:
        super().pre_commit(transaction, checkpoint)
        flights = self._flights.unacknowledged()
        if not self._wait_for(flights, _FLUSH_S):
            waiting = sum((flight.sent or 0) - flight.acknowledged for flight in flights)
            raise Unavailable(
                f"{self._where}: Kafka at {self._cluster.bootstrap_servers} has not taken {counted(waiting, 'row')} "
                f"for topic {self._topic!r} within {_FLUSH_S:.0f} s: they go on being sent; are the brokers up?"
            )
        self._cluster.answers()

    def close(self) -> None:
        self._closed = True
        producer, self._producer = getattr(self, "_producer", None), None
        if producer is not None:
            producer.purge()

    def _raise_refusal(self) -> None:
        if self._refused is not None:
            raise self._refused

    def _wait_for(self, flights: Sequence[Flight], timeout_s: float | None = None) -> bool:
        """Returns False after `timeout_s` or `close`; raises the refusal of any row."""
        arrived = self._arrive(flights, timeout_s)
        self._raise_refusal()
        return arrived

    def _arrive(self, flights: Sequence[Flight], timeout_s: float | None) -> bool:
        """Returns False after `timeout_s`, `close` or a refusal."""
        began = time.monotonic()
        while not all(flight.arrived for flight in flights):
            late = timeout_s is not None and time.monotonic() - began >= timeout_s
            if late or self._closed or self._refused is not None:
                return False
            self._serve(_WAIT_S, flights)
        return True

    def _serve(self, wait_s: float, flights: Sequence[Flight]) -> None:
        if not self._serving.acquire(timeout=wait_s):
            return
        try:
            producer = self._producer
            if producer is not None:
                arrived = all(flight.arrived for flight in flights)
                serve = producer.poll if arrived or self._lingers else producer.flush
                serve(0 if arrived else wait_s)
        finally:
            self._serving.release()

    def _send(self, made: Sequence[pa.RecordBatch], flight: Flight) -> None:
        sent, delivered, wait = 0, partial(self._delivered, flight), partial(self._wait_for_room, flight)
        try:
            for records in made:
                for taken in handed_over(self._producer, records, self._topic, wait, on_delivery=delivered):
                    sent += taken
                    self._serve(0, ())
        finally:
            flight.sent = sent

    def _wait_for_room(self, flight: Flight) -> None:
        """The brokers are slow or away: waits off the loop."""
        self._serve(_WAIT_S, (flight,))
        self._raise_refusal()

    def _delivered(self, flight: Flight, error: Any, message: Any) -> None:
        if error is None:
            flight.acknowledged += 1
        elif self._refused is None:
            self._refused = self._cluster.meaning(
                library().KafkaException(error), f"write to topic {message.topic()!r} of"
            )
