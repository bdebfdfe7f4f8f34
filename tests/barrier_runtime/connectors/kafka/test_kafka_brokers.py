"""`KafkaBrokers`: brokers and client settings for all sources and sinks of a flow."""

from typing import Any

import pytest

from barrier_runtime import Dataflow, KafkaBrokers, KafkaSink, KafkaSource
from barrier_runtime.connectors.kafka.source.source import KafkaTopics
from barrier_runtime.state.errors import InvalidJob

SSL = {"security.protocol": "SSL", "client.id": "flow"}


def read(servers: Any, config: Any = None) -> KafkaTopics:
    return KafkaSource(servers, "orders", group="g", config=config).named("orders")


def test_a_source_has_the_brokers_and_settings_of_its_cluster() -> None:
    of_cluster = read(KafkaBrokers("b:9092", config=SSL), {"client.id": "own"})
    by_hand = read("b:9092", {**SSL, "client.id": "own"})
    assert of_cluster._client.servers == by_hand._client.servers == "b:9092"
    assert of_cluster._client.settings() == by_hand._client.settings()
    assert read(KafkaBrokers("b:9092"))._client.settings() == read("b:9092")._client.settings()


def test_a_sink_has_the_brokers_and_settings_of_its_cluster() -> None:
    of_cluster = KafkaSink(KafkaBrokers("b:9092", config=SSL), "t", config={"client.id": "own"})
    assert of_cluster.settings() == KafkaSink("b:9092", "t", config={**SSL, "client.id": "own"}).settings()
    assert repr(of_cluster) == "KafkaSink('b:9092', 't', exactly_once)"


def test_a_function_of_settings_is_called_for_a_cluster_without_settings_alone() -> None:
    assert read(KafkaBrokers("b:9092"), dict)._client.servers == "b:9092"
    with pytest.raises(InvalidJob, match="source 'orders': its config= is a function, and the KafkaBrokers has"):
        read(KafkaBrokers("b:9092", config=SSL), dict)


def test_settings_of_a_cluster_are_not_shown() -> None:
    assert "SSL" not in repr(KafkaBrokers("b:9092", config=SSL))
    flow = Dataflow("hidden")
    flow.read_kafka("orders", KafkaBrokers("b:9092", config=SSL), "orders", group="g")
    assert "SSL" not in repr(flow.plan.nodes[0])
