"""Flights from a RabbitMQ queue with repeated messages into a Delta table without repeats. Exactly once.

barrier-runtime run examples/rabbitmq_to_delta.py:flow --master 'local[4,16]' --checkpoints build/checkpoints
"""

import os
from datetime import timedelta

import pyarrow.compute as pc

from barrier_runtime import Dataflow, DeltaSink
from examples.flights_data import FLIGHT, MAX_OUT_OF_ORDERNESS

REMEMBERED = timedelta(days=60)  # of the flights' time: a replay sends a month of flights in seconds


def build(broker: str, table: str) -> Dataflow:
    """The durable queue `flights` (JSON, each with a message id) to the Delta table at a folder or URL."""
    flow = Dataflow("rabbitmq-to-delta")
    flights = flow.read_rabbitmq(
        "flights",
        broker,
        "flights",
        deduplicate=REMEMBERED,
        value="json",
        schema=FLIGHT,
        metadata=["message_id"],
        event_time="scheduled",
        max_out_of_orderness=MAX_OUT_OF_ORDERNESS,
    )
    departed = flights.filter(pc.field("dep_time").is_valid())
    departed.sink("departures", DeltaSink(table, partition_by="origin"))
    return flow


def __getattr__(name: str) -> Dataflow:
    """Makes `flow` on first access, for the command line."""
    if name != "flow":
        raise AttributeError(name)
    return build(os.environ["RABBITMQ"], os.environ["TABLE"])
