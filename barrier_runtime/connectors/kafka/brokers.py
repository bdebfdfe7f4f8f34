"""Brokers and client settings, shared by sources and sinks."""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from barrier_runtime.data.argument_types import kinds_checked
from barrier_runtime.state.errors import InvalidJob


@kinds_checked
@dataclass(frozen=True)
class KafkaBrokers:
    """Address and settings of a Kafka cluster, for `bootstrap_servers` of `KafkaSource` and `KafkaSink`.

    `config`: settings of librdkafka; `config=` of a source or sink adds to these settings, or replaces them.

    >>> kafka = KafkaBrokers("broker:9092", config={"security.protocol": "SSL"})
    >>> orders = flow.read_kafka("orders", kafka, "orders", group="totals")
    >>> orders.sink("copies", KafkaSink(kafka, "copies"))
    """

    bootstrap_servers: str
    _: KW_ONLY
    config: Mapping[str, Any] = field(default_factory=dict, repr=False)  # may hold secrets


def with_brokers(servers: str | KafkaBrokers, config: Any, where: str) -> tuple[str, Any]:
    if not isinstance(servers, KafkaBrokers):
        return servers, config
    if not servers.config:
        return servers.bootstrap_servers, config
    if callable(config):
        raise InvalidJob(
            f"{where}: its config= is a function, and the KafkaBrokers has config=, too: pass all settings in one place"
        )
    return servers.bootstrap_servers, {**servers.config, **(config or {})}
