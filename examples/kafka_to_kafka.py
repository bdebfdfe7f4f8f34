"""Departed flights from a Kafka topic to another topic, with counts per airline. Exactly once.

KAFKA=localhost:9092 barrier-runtime run examples/kafka_to_kafka.py:flow --master 'local[4,16]' --checkpoints build/c
"""

import os

import pyarrow.compute as pc

from barrier_runtime import Dataflow, KafkaSink, count, max_
from examples.flights_data import FLIGHT


def build(bootstrap: str) -> Dataflow:
    """Topic `flights` (JSON) to topic `departures` (JSON, by airline); both exist."""
    flow = Dataflow("kafka-to-kafka")
    flights = flow.read_kafka(
        "flights",
        bootstrap,
        "flights",
        group="kafka-to-kafka",
        key=None,
        value="json",
        schema=FLIGHT,
        metadata=["partition", "offset"],
    )
    departed = flights.filter(pc.field("dep_time").is_valid())  # cancelled flights never departed
    counted = departed.key_by("carrier").aggregate("so-far", departures=count(), worst_delay=max_("dep_delay"))
    counted.sink("departures", KafkaSink(bootstrap, "departures", key="carrier"))
    return flow


def __getattr__(name: str) -> Dataflow:
    """Makes `flow` on first access, for the command line."""
    if name != "flow":
        raise AttributeError(name)
    return build(os.environ.get("KAFKA", "localhost:9092"))
