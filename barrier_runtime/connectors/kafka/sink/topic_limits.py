"""Limits of a Kafka topic, read when the sink opens: rows cannot be refused after the decision."""

import logging
import re
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from barrier_runtime.connectors.kafka.clients import answered
from barrier_runtime.connectors.kafka.errors import CURABLE, kind_of
from barrier_runtime.connectors.kafka.sink import client as kafka_client
from barrier_runtime.connectors.kafka.sink.client import KafkaCluster, library
from barrier_runtime.state.errors import InvalidJob, Unavailable
from barrier_runtime.state.versioned import Format, VersionedDecoder

LIMITS_VERSION = 2  # version 1 lacks keys and times
_LIBRARY_MESSAGE_BYTES = 1_000_000  # the client's own limit, if the topic's limit cannot be read
_LIBRARY_TRANSACTION_MS = 60_000
_REFRESH_S = 12 * 3_600
_AGAIN_S = 0.5
_WAIT_S = 2.0
_FEW_BYTES = 200  # of a row's size, reserved for the protocol
_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_NO_LIMIT = 2**63 - 1
_BEFORE = ("message.timestamp.before.max.ms", "message.timestamp.difference.max.ms")  # the latter until Kafka 4
_AFTER = ("message.timestamp.after.max.ms", "message.timestamp.difference.max.ms")
_NOT_ALLOWED = ("TOPIC_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED")
_log = logging.getLogger("barrier_runtime.kafka")


class KafkaLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits of a topic; the job's store keeps them for starts without brokers."""

    version: int
    message_max_bytes: int  # of a row, and of a batch of rows
    transaction_timeout_ms: int
    refresh_marker_s: int  # age at which the marker is rewritten
    keyed: bool = False  # compacted: refuses rows without a key
    oldest_ms: int | None = None  # age of a row's own time above which the topic refuses it; None: never
    newest_ms: int | None = None  # likewise for times in the future

    @property
    def row_max_bytes(self) -> int:
        return self.message_max_bytes - _FEW_BYTES


_FORMAT = Format("{}", LIMITS_VERSION, damaged="restore it from a backup")
_LIMITS = VersionedDecoder(_FORMAT, msgspec.json.Decoder(KafkaLimits))


def encode_limits(limits: KafkaLimits) -> bytes:
    return msgspec.json.encode(limits)


def decode_limits(data: bytes, key: str) -> KafkaLimits | None:
    limits = _LIMITS.decode(data, key)
    return limits if limits.version == LIMITS_VERSION else None


def read_limits(cluster: KafkaCluster, topic: str, config: Mapping[str, Any]) -> KafkaLimits:
    """Raises `InvalidJob` for impossible settings and lasting refusals, else `Unavailable`."""
    while True:
        try:
            return _limits(cluster, cluster.admin(), topic, config)
        except Unavailable:
            if not cluster.refused:
                raise
            time.sleep(_AGAIN_S)


def _limits(cluster: KafkaCluster, admin: Any, topic: str, config: Mapping[str, Any]) -> KafkaLimits:
    known = _metadata(cluster, admin, topic)
    error = known.topics[topic].error
    if error is not None and kind_of(error) not in CURABLE:
        raise InvalidJob(
            f"{cluster.where}: topic {topic!r} cannot be written: {error.str()}: create it, "
            "correct its name, or give the sink's user the right to write it"
        )
    if error is not None or not known.brokers:  # no broker: all are cut off from Kafka's controller
        raise Unavailable(
            f"{cluster.where}: no broker of Kafka at {cluster.bootstrap_servers} serves topic {topic!r} now: it is "
            "tried again; are the brokers up, and do they reach their controller?"
        )
    of_topic = _settings(cluster, admin, "TOPIC", topic)
    of_broker = _settings(cluster, admin, "BROKER", str(min(known.brokers)))
    own_times = of_topic.get("message.timestamp.type") != "LogAppendTime"
    return KafkaLimits(
        LIMITS_VERSION,
        _message_bytes(cluster, topic, config, of_topic),
        _transaction_ms(cluster, config, of_broker),
        min(_REFRESH_S, int(of_broker.get("offsets.retention.minutes", 4 * _REFRESH_S)) * 60 // 4),
        "compact" in of_topic.get("cleanup.policy", ""),
        _least(of_topic, _BEFORE) if own_times else None,
        _least(of_topic, _AFTER) if own_times else None,
    )


def limits_of_chosen(cluster: KafkaCluster, topic: str, own: KafkaLimits) -> KafkaLimits:
    """Raises `InvalidJob` if the topic takes smaller rows than `own`: one producer writes to all topics."""
    if not _NAME.fullmatch(topic) or topic in (".", ".."):
        raise InvalidJob(
            f"{cluster.where}: {topic[:300]!r} is not the name of a topic: use letters, digits, '.', '_' and '-', at "
            "most "
            "249"
        )
    limits = read_limits(cluster, topic, {"transaction.timeout.ms": own.transaction_timeout_ms})
    if limits.message_max_bytes < own.message_max_bytes:
        raise InvalidJob(
            f"{cluster.where}: topic {topic!r} takes rows of {limits.message_max_bytes} bytes, the sink's own topic of "
            f"{own.message_max_bytes}: raise max.message.bytes of {topic!r}, or give the sink the smaller size by "
            f"config={{'message.max.bytes': {limits.message_max_bytes}}}"
        )
    return limits


def check_waiting(limits: KafkaLimits, where: str, topic: str, timestamp: str | None) -> None:
    if timestamp is not None and limits.oldest_ms is not None:
        raise InvalidJob(
            f"{where}: topic {topic!r} refuses rows whose time is more than {limits.oldest_ms} ms ago "
            f"({' or '.join(_BEFORE)}), and rows that are decided may wait longer than that for the brokers: remove "
            f"the limit from the topic, or leave out timestamp={timestamp!r} (a header can hold the time)"
        )


def _least(of_topic: dict[str, str], names: tuple[str, ...]) -> int | None:
    least = min((int(of_topic[name]) for name in names if name in of_topic), default=_NO_LIMIT)
    return None if least == _NO_LIMIT else least


def _metadata(cluster: KafkaCluster, admin: Any, topic: str) -> Any:
    """Reads with short waits: only a poll reports a refused password."""
    deadline = time.monotonic() + kafka_client.ANSWER_S
    while True:
        try:
            with cluster.trouble("reach"):
                return admin.list_topics(topic, timeout=min(_WAIT_S, kafka_client.ANSWER_S))
        except Unavailable:
            admin.poll(0)
            if time.monotonic() >= deadline:
                with cluster.trouble("reach"):
                    return admin.list_topics(topic, timeout=_AGAIN_S)


def _settings(cluster: KafkaCluster, admin: Any, kind: str, name: str) -> dict[str, str]:
    resources = library().admin.ConfigResource
    asked = resources(getattr(resources.Type, kind), name)
    try:
        answer = admin.describe_configs([asked], request_timeout=kafka_client.ANSWER_S)[asked]
        found = answered(answer, kafka_client.ANSWER_S, library())
    except library().KafkaException as error:
        if error.args[0].name() not in _NOT_ALLOWED:
            raise cluster.meaning(error, f"read the settings of {kind.lower()} {name!r} of") from error
        _log.warning(
            "%s: this user may not read the settings of %s %r: rows that they do not allow are refused by the brokers "
            "only, after the decision. Give it the right DescribeConfigs",
            *(cluster.where, kind.lower(), name),
        )
        return {}
    return {setting: entry.value for setting, entry in found.items() if entry.value is not None}


def _message_bytes(cluster: KafkaCluster, topic: str, config: Mapping[str, Any], of_topic: dict[str, str]) -> int:
    names = ("max.message.bytes", "segment.bytes")  # a batch must fit into a segment
    of_the_topic = min((int(of_topic[name]) for name in names if name in of_topic), default=_LIBRARY_MESSAGE_BYTES)
    wanted = int(config.get("message.max.bytes", of_the_topic))
    if wanted > of_the_topic:
        raise InvalidJob(
            f"{cluster.where}: config message.max.bytes={wanted} is above what topic {topic!r} takes "
            f"({' and '.join(names)} allow {of_the_topic}): lower the one or raise the other"
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
