"""What a Kafka sink must know of its topic before it takes a row: does it exist, how large may a row be, how long may a
transaction last, and how long does the broker remember the marker.

Checked when the sink opens: after the decision it would be too late to refuse anything.
"""

import contextlib
from collections.abc import Mapping
from typing import Any

import msgspec

from barrier_runtime.sinks import kafka_client
from barrier_runtime.sinks.kafka_client import KafkaCluster, library
from state.errors import UNREADABLE, Corrupt, InvalidJob, Unavailable

_LIBRARY_MESSAGE_BYTES = 1_000_000  # the client's own limit, where the topic's cannot be read
_LIBRARY_TRANSACTION_MS = 60_000
_REFRESH_S = 12 * 3_600
_FEW_BYTES = 200  # of a row's size are left to the protocol


class KafkaLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Kept in the job's store, so that a subtask that starts while the brokers are away can go on staging."""

    version: int
    message_max_bytes: int  # of one row, and of a batch of rows
    transaction_timeout_ms: int
    refresh_marker_s: int  # the marker is written again when it is older

    @property
    def row_max_bytes(self) -> int:
        return self.message_max_bytes - _FEW_BYTES


def encode_limits(limits: KafkaLimits) -> bytes:
    return msgspec.json.encode(limits)


def decode_limits(data: bytes, key: str) -> KafkaLimits:
    try:
        limits = msgspec.json.decode(data, type=KafkaLimits)
    except UNREADABLE as error:
        raise Corrupt(f"{key} is not readable ({error}): restore it from a backup") from error
    if limits.version != 1:
        raise InvalidJob(f"{key} has version {limits.version}: restore with the release that wrote it")
    return limits


def read_limits(cluster: KafkaCluster, topic: str, config: Mapping[str, Any]) -> KafkaLimits:
    """Ask the brokers. Raises `InvalidJob` when topic or settings cannot be, `Unavailable` when nobody answers."""
    admin = cluster.admin()
    known = _metadata(cluster, admin, topic)
    if known.topics[topic].error is not None:
        raise InvalidJob(
            f"{cluster.where}: topic {topic!r} cannot be written: {known.topics[topic].error.str()}: create it, "
            "correct its name, or give the sink's user the right to write it"
        )
    of_topic = _settings(admin, "TOPIC", topic)
    of_broker = _settings(admin, "BROKER", str(min(known.brokers)))
    return KafkaLimits(
        1,
        _message_bytes(cluster, topic, config, of_topic),
        _transaction_ms(cluster, config, of_broker),
        min(_REFRESH_S, int(of_broker.get("offsets.retention.minutes", 4 * _REFRESH_S)) * 60 // 4),
    )


def _metadata(cluster: KafkaCluster, admin: Any, topic: str) -> Any:
    try:
        with cluster.trouble("reach"):
            return admin.list_topics(topic, timeout=kafka_client.ANSWER_S)
    except Unavailable:
        admin.poll(0)  # lets the client say what it heard from the broker, such as a refused password
        with cluster.trouble("reach"):
            return admin.list_topics(topic, timeout=1.0)


def _settings(admin: Any, kind: str, name: str) -> dict[str, str]:
    """Empty when this user may not read them."""
    resources = library().admin.ConfigResource
    asked = resources(getattr(resources.Type, kind), name)
    with contextlib.suppress(library().KafkaException):
        found = admin.describe_configs([asked], request_timeout=kafka_client.ANSWER_S)[asked].result()
        return {setting: entry.value for setting, entry in found.items() if entry.value is not None}
    return {}


def _message_bytes(cluster: KafkaCluster, topic: str, config: Mapping[str, Any], of_topic: dict[str, str]) -> int:
    of_the_topic = int(of_topic.get("max.message.bytes", _LIBRARY_MESSAGE_BYTES))
    wanted = int(config.get("message.max.bytes", of_the_topic))
    if wanted > of_the_topic:
        raise InvalidJob(
            f"{cluster.where}: config message.max.bytes={wanted} is above what topic {topic!r} takes "
            f"(max.message.bytes={of_the_topic}): lower the one or raise the other"
        )
    return wanted


def _transaction_ms(cluster: KafkaCluster, config: Mapping[str, Any], of_broker: dict[str, str]) -> int:
    longest = int(of_broker.get("transaction.max.timeout.ms", _LIBRARY_TRANSACTION_MS))
    wanted = int(config.get("transaction.timeout.ms", min(longest, _LIBRARY_TRANSACTION_MS)))
    if wanted > longest:
        raise InvalidJob(
            f"{cluster.where}: config transaction.timeout.ms={wanted} is above what the brokers allow "
            f"(transaction.max.timeout.ms={longest}): lower it, or leave it out"
        )
    return wanted
