"""Settings and errors of the Kafka sink's clients."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from barrier_runtime.connectors.kafka.clients import client_log
from barrier_runtime.connectors.kafka.errors import COORDINATOR, FENCED, SILENCE, Kind, Refusals, kind_of
from barrier_runtime.state.errors import InvalidJob, Unavailable, missing_extra

ANSWER_S = 10.0
_AGAIN_S = 0.02
_OURS = {
    "bootstrap.servers": "give bootstrap_servers",
    "transactional.id": "the sink names its transactions by job, sink and subtask",
    "enable.idempotence": "rows of one key keep their order only with it",
    "acks": "all in-sync replicas must have a row",
    "group.id": "the sink names its marker",
    "isolation.level": "the sink reads committed markers only",
    "enable.auto.commit": "the sink moves its marker itself",
    "delivery.report.only.error": "the sink sees to it",
    "message.timeout.ms": "rows are tried until the transaction, or the job, ends",
}
_DEFAULTS = {"retry.backoff.ms": 20, "retry.backoff.max.ms": 500, "log.connection.close": False}
_SHOWN = {  # allow-list: a list of secrets is never complete
    *("security.protocol", "sasl.mechanism", "sasl.mechanisms", "ssl.ca.location", "client.id", "client.rack"),
    *("compression.type", "compression.codec", "linger.ms", "batch.size", "message.max.bytes", "partitioner"),
    *("transaction.timeout.ms", "socket.timeout.ms", "request.timeout.ms", "retry.backoff.ms"),
}
T = TypeVar("T")


def library() -> Any:
    try:
        import confluent_kafka
        import confluent_kafka.admin
    except ImportError as error:
        raise missing_extra("KafkaSink", "kafka", error) from None
    return confluent_kafka


def checked_config(config: Mapping[str, Any]) -> dict[str, Any]:
    for name, reason in _OURS.items():
        if name in config:
            raise InvalidJob(f"KafkaSink: config={{{name!r}: …}} cannot be set: {reason}; remove it")
    return dict(config)


def shown_config(config: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name in _SHOWN and isinstance(value, str | int | float)}


class KafkaCluster:
    """A cluster and the client settings. `where`: job, sink and subtask, for messages.

    Keeps the errors of `error_cb`: after a wrong password the library raises only "timed out".
    """

    def __init__(self, bootstrap_servers: str, config: Mapping[str, Any], where: str) -> None:
        self.bootstrap_servers = bootstrap_servers
        self._config = dict(config)
        self.where = where
        self._heard = ""
        self._refusals = Refusals()

    def admin(self) -> Any:
        return self._made(library().admin.AdminClient, {}, _PRODUCER_ONLY)

    def producer(self, own: Mapping[str, Any]) -> Any:
        return self._made(library().Producer, own, ())

    def consumer(self, own: Mapping[str, Any]) -> Any:
        return self._made(library().Consumer, own, _PRODUCER_ONLY)

    def _made(self, client: Callable[[dict[str, Any]], Any], own: Mapping[str, Any], without: tuple[str, ...]) -> Any:
        config = {
            **_DEFAULTS,
            **{name: value for name, value in self._config.items() if name not in without},
            **own,
            "bootstrap.servers": self.bootstrap_servers,
            "error_cb": self._hear,
            "logger": client_log(),
        }
        with self.trouble("make a client for"):
            return client(config)

    def _hear(self, error: Any) -> None:
        self._heard = error.str()
        self._refusals.heard(error, time.monotonic())

    @property
    def refused(self) -> bool:
        return self._refusals.present

    def answers(self) -> None:
        self._heard = ""
        self._refusals.answered()

    @contextmanager
    def trouble(self, doing: str) -> Iterator[None]:
        """Turns the library's errors into `InvalidJob` if an operator must act, else into `Unavailable`."""
        kafka = library()
        try:
            yield
        except kafka.KafkaException as error:
            raise self.meaning(error, doing) from error

    def meaning(self, error: Exception, doing: str) -> InvalidJob | Unavailable:
        cause = error.args[0]
        kind, silent = kind_of(cause), cause.name() in SILENCE
        if kind is Kind.REFUSED:
            self._refusals.heard(cause, time.monotonic())
        said = f"{self.where}: cannot {doing} Kafka at {self.bootstrap_servers}: {cause.str()} ({cause.name()})"
        if lasting := self._refusals.lasting if silent or kind is Kind.REFUSED else "":
            return InvalidJob(f"{said}; {lasting}: correct the sasl.* and ssl.* in the sink's config=, or the brokers")
        if kind in (Kind.FOR_A_PERSON, Kind.MISSING):
            return InvalidJob(f"{said}: correct the sink's settings, the topic or the permissions")
        if cause.name() in FENCED:
            return Unavailable(
                f"{said}: it is tried again; another program writes by the name of this job and sink, or one did: give "
                "a fork a name of its own"
            )
        heard = f"; heard before: {self._heard}" if self._heard and silent else ""
        return Unavailable(f"{said}{heard}: it is tried again; are the brokers up, and is the address right?")

    def answered(self, ask: Callable[[float], T], doing: str) -> T:
        """Retries while the brokers look for Kafka's coordinator of the group or transaction."""
        kafka = library()
        deadline = time.monotonic() + ANSWER_S
        while True:
            try:
                answer = ask(max(0.1, deadline - time.monotonic()))
            except kafka.KafkaException as error:
                if error.args[0].name() not in COORDINATOR or time.monotonic() >= deadline:
                    raise self.meaning(error, doing) from error
                time.sleep(_AGAIN_S)
            else:
                self.answers()
                return answer


_PRODUCER_ONLY = (
    *("transaction.timeout.ms", "message.max.bytes", "partitioner", "linger.ms", "batch.size", "batch.num.messages"),
    *("compression.type", "compression.codec", "compression.level", "queue.buffering.max.messages"),
    *("queue.buffering.max.kbytes", "queue.buffering.max.ms", "request.timeout.ms", "sticky.partitioning.linger.ms"),
)
