"""Access to a Kafka cluster. Settings may hold secrets, so messages and `repr` omit them."""

import logging
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from barrier_runtime.connectors.kafka.clients import Asker, answered, client_log, raised
from barrier_runtime.connectors.kafka.errors import CURABLE, Kind, Refusals, kind_of
from barrier_runtime.state.errors import InvalidJob, Unavailable, missing_extra
from barrier_runtime.state.texts import counted

_SAY_AGAIN_S = 30.0


class LogThrottle:
    """Log of the fetching thread and the client's callbacks. Raises lasting refusals."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._said_s: dict[str, float] = {}
        self._refusals = Refusals()
        self._commit_failures = 0

    def say(self, kind: str, reason: str) -> None:
        now = time.monotonic()
        if now - self._said_s.get(kind, float("-inf")) > _SAY_AGAIN_S:
            self._said_s[kind] = now
            log.warning("%s %s", self._where, reason)

    def read(self) -> None:
        self._refusals.answered()

    def on_commit(self, error: Any, partitions: Any) -> None:
        if error is not None:
            self._commit_failures += 1
            times = counted(self._commit_failures, "time")
            self.say("commit", f"commits to its group failed ({times}): {error.str()}. No record is lost by that")

    def on_error(self, error: Any) -> None:
        self._refusals.heard(error, time.monotonic())
        if self._refusals.lasting:
            raise InvalidJob(
                f"{self._where}: Kafka refuses the credentials or the handshake ({self._refusals.lasting}): correct "
                "the sasl.* and ssl.* in config="
            )
        self.say("client", f"waits for Kafka: {error.str()}")


log = logging.getLogger("barrier_runtime.kafka")

Settings: TypeAlias = Mapping[str, Any]
Partition: TypeAlias = tuple[str, int]

EARLIEST, LATEST = -2, -1  # instead of a time, in requests for offsets

_TIMEOUT_S = 15.0
_AGAIN_S = 0.05
_OURS = {
    "bootstrap.servers": "pass bootstrap_servers=",
    "metadata.broker.list": "pass bootstrap_servers=",
    "group.id": "pass group=",
    "enable.auto.commit": "offsets are kept in checkpoints",
    "enable.auto.offset.store": "offsets are kept in checkpoints",
    "enable.partition.eof": "the source needs it",
    "auto.offset.reset": "pass start=; what is no longer retained is never skipped",
    "isolation.level": "only committed records are read",
    "fetch.error.backoff.ms": "a topic that is made again is noticed in this time",
    "group.instance.id": "the source joins no group",
    "partition.assignment.strategy": "the source joins no group",
}
_READING = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
    "isolation.level": "read_committed",
    "fetch.error.backoff.ms": 500,
    "fetch.queue.backoff.ms": 5,  # pause when the client's queue is full
    "queued.max.messages.kbytes": 16_384,  # in the client; `PartitionQueue` has another bound
}


def load_client(where: str) -> Any:
    try:
        import confluent_kafka
    except ImportError as error:
        raise missing_extra(where, "kafka", error) from None
    return confluent_kafka


@dataclass(frozen=True)
class KafkaClient:
    """Connection settings; pickled.
    `config`: librdkafka's, or a function that returns them in driver and slots.
    """

    where: str
    servers: str
    group: str
    config: Settings | Callable[[], Settings] = field(repr=False)

    def settings(self) -> dict[str, Any]:
        given = self.config() if callable(self.config) else self.config
        for name in given:
            if name in _OURS:
                raise InvalidJob(f"{self.where}: config= must not set {name!r}: {_OURS[name]}")
        return {"bootstrap.servers": self.servers, **given}

    def consumer(self, **callbacks: Callable[..., None]) -> Any:
        kafka = load_client(self.where)
        given = self.settings()
        return self._make(kafka.Consumer, {"group.id": self.group, **_READING, **given, **callbacks})

    def admin(self) -> Any:
        """Admin client without a log, which would need polls."""
        load_client(self.where)
        from confluent_kafka.admin import AdminClient

        return self._make(AdminClient, {**self.settings(), "log_level": 0})

    def _make(self, make: Callable[..., Any], settings: dict[str, Any]) -> Any:
        kafka = load_client(self.where)
        try:
            return make(settings, logger=client_log())
        except (kafka.KafkaException, TypeError, ValueError) as error:
            reason = error.args[0].str() if isinstance(error, kafka.KafkaException) else error
            raise InvalidJob(f"{self.where}: Kafka's client refuses its settings: {reason}. Correct config=") from error


class Cluster:
    """Requests to the cluster. Blocks. `must_exist`: False if topics may appear and disappear.

    Raises `Unavailable` without an answer in time, and `InvalidJob` for errors that an operator must fix.
    """

    def __init__(self, client: KafkaClient, must_exist: bool = True) -> None:
        self._client = client
        self._must_exist = must_exist
        self._kafka = load_client(client.where)
        errors = self._kafka.KafkaError
        self._unheard_of = (errors._UNKNOWN_PARTITION, errors._UNKNOWN_TOPIC)
        self._errors: list[Any] = []
        self._consumer = Asker(lambda: client.consumer(error_cb=self._errors.append))
        self._admin = Asker(client.admin)
        _ = self._consumer.client  # raises errors of refused settings at once

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()
        self._admin.close()

    def partitions(self, topics: Collection[str], pattern: str | None) -> list[Partition]:
        """Partitions of `topics`, or of all topics except `__…` whose whole name matches `pattern`."""
        found = self._patiently(self._consumer, lambda consumer, left: consumer.list_topics(timeout=left)).topics
        if pattern is not None:
            wanted = sorted(name for name in found if re.fullmatch(pattern, name) and not name.startswith("__"))
        else:
            wanted = [topic for topic in sorted(topics) if self._must_exist or topic in found]
        for topic in wanted:
            if topic not in found:
                raise InvalidJob(
                    f"{self._client.where}: there is no topic {topic!r} at {self._client.servers}: create it first, or "
                    "correct topics="
                )
            if found[topic].error is not None:
                raise self._what_to_do(found[topic].error, f"{self._client.where}, topic {topic!r}")
        return [(topic, number) for topic in wanted for number in sorted(found[topic].partitions)]

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """Ids of topics, which change when a topic is recreated; "" for brokers before 2.8."""
        wanted = sorted(set(topics))
        if not wanted:
            return {}

        def ask(admin: Any, left: float) -> dict[str, str]:
            futures = admin.describe_topics(self._kafka.TopicCollection(wanted), request_timeout=left)
            described = {topic: answered(future, left, self._kafka) for topic, future in futures.items()}
            return {topic: known_id(found.topic_id) for topic, found in described.items()}

        found: dict[str, str] = self._patiently(self._admin, ask)
        return found

    def offsets(self, partitions: Sequence[Partition], time_ms: int) -> dict[Partition, int]:
        """First offset at or after `time_ms`, which may be EARLIEST or LATEST; if there is none, LATEST.
        LATEST is the end before any open transaction.
        """
        if not partitions:
            return {}
        # Asked first: records that arrive between the two requests may be of that time.
        ends = self.offsets(partitions, LATEST) if time_ms >= 0 else {}
        wanted = [self._kafka.TopicPartition(topic, number, time_ms) for topic, number in partitions]
        found = self._per_partition(lambda consumer, left: consumer.offsets_for_times(wanted, timeout=left))
        return {at: ends.get(at, offset) if offset < 0 else offset for at, offset in found.items()}

    def committed(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        wanted = [self._kafka.TopicPartition(topic, number) for topic, number in partitions]
        found = self._per_partition(lambda consumer, left: consumer.committed(wanted, timeout=left))
        return {partition: offset for partition, offset in found.items() if offset >= 0}

    def _per_partition(self, ask: Callable[[Any, float], Any]) -> dict[Partition, int]:
        def sure(consumer: Any, left: float) -> Any:
            answers = ask(consumer, left)
            raised([each for each in answers if each.error is not None and self._is_curable(each.error)])
            return answers

        found = {}
        for answer in self._patiently(self._consumer, sure):
            if answer.error is not None:
                where = f"{self._client.where}, topic {answer.topic!r}, partition {answer.partition}"
                raise self._what_to_do(answer.error, where)
            found[(answer.topic, answer.partition)] = answer.offset
        return found

    def _patiently(self, asker: Asker, ask: Callable[[Any, float], Any]) -> Any:
        deadline = time.monotonic() + _TIMEOUT_S
        while True:
            try:
                return asker.ask(lambda client: ask(client, max(0.1, min(1.0, deadline - time.monotonic()))))
            except self._kafka.KafkaException as error:
                self._consumer.client.poll(0)
                for seen in [*self._errors, error.args[0]]:
                    if not self._is_curable(seen) or (self._must_exist and is_refusal_of_credentials(seen)):
                        raise self._what_to_do(seen, self._client.where) from error
                if time.monotonic() > deadline:
                    said = f" ({(self._errors or error.args)[-1].str()})"
                    raise Unavailable(
                        f"{self._client.where}: no answer from Kafka at {self._client.servers} for {_TIMEOUT_S:.0f} s"
                        f"{said}: start the broker, or correct bootstrap_servers= and the security settings in config="
                    ) from error
                self._errors.clear()
                time.sleep(_AGAIN_S)

    def _is_curable(self, error: Any) -> bool:
        """Requests name only listed partitions, so an unknown partition is only unknown yet."""
        return is_transient(error) or (self._must_exist and error.code() in self._unheard_of)

    def _what_to_do(self, error: Any, where: str) -> InvalidJob | Unavailable:
        if not self._must_exist and kind_of(error) is Kind.MISSING:
            return Unavailable(f"{where}: it is going or coming ({error.str()}): it is looked for again")
        return what_to_do(error, where)


def known_id(id: Any) -> str:
    return str(id) if id.get_most_significant_bits() or id.get_least_significant_bits() else ""


def is_transient(error: Any) -> bool:
    return kind_of(error) in CURABLE


def is_refusal_of_credentials(error: Any) -> bool:
    """True for refused credentials, raised at once by a start; otherwise see `Refusals`."""
    return bool(error.name() in ("_AUTHENTICATION", "SASL_AUTHENTICATION_FAILED"))


def what_to_do(error: Any, where: str) -> InvalidJob | Unavailable:
    kind, text = kind_of(error), error.str()
    if kind is Kind.REFUSED:
        return InvalidJob(
            f"{where}: Kafka refuses the credentials or the handshake ({text}): correct the sasl.* and ssl.* in config="
        )
    if kind in CURABLE:
        return Unavailable(f"{where}: Kafka does not answer ({text}): it is tried again")
    if error.name().endswith("_AUTHORIZATION_FAILED"):
        return InvalidJob(f"{where}: {text}: allow this user to read and describe topics and group, or use another")
    if kind is Kind.MISSING:
        return InvalidJob(f"{where}: it is not there ({text}): create it, or correct topics=")
    return InvalidJob(f"{where}: Kafka refuses ({error.name()}: {text}): correct the job or the cluster")
