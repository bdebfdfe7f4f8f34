"""Flights from Kafka, counted per airport, airline and day, into a PostgreSQL table. Exactly once.

barrier-runtime run examples/kafka_to_postgres.py:flow --master 'local[4,16]' --checkpoints build/checkpoints
"""

import os
from datetime import timedelta

import pyarrow.compute as pc

from barrier_runtime import Dataflow, PostgresSink, Tumbling, count, max_, mean
from examples.flights_data import FLIGHT, MAX_OUT_OF_ORDERNESS, load_airlines

TABLE = """
CREATE TABLE daily_departures (origin text, carrier text, name text, window_start timestamptz, window_end timestamptz,
                               flights bigint, mean_delay double precision, max_delay bigint)
"""


def build(bootstrap: str, database: str) -> Dataflow:
    """Topic `flights` (JSON) to the table `daily_departures`; both exist."""
    flow = Dataflow("kafka-to-postgres")
    flights = flow.read_kafka(
        "flights",
        bootstrap,
        "flights",
        group="kafka-to-postgres",
        value="json",
        schema=FLIGHT,
        event_time="scheduled",
        max_out_of_orderness=MAX_OUT_OF_ORDERNESS,
    )
    departed = flights.filter(pc.field("dep_time").is_valid()).broadcast_join("airlines", load_airlines(), on="carrier")
    daily = departed.key_by("origin", "carrier", "name").window(
        "daily", Tumbling(timedelta(days=1)), event_time="scheduled"
    )
    counted = daily.aggregate(flights=count(), mean_delay=mean("dep_delay"), max_delay=max_("dep_delay"))
    counted.sink("departures", PostgresSink(database, "daily_departures"))
    return flow


def __getattr__(name: str) -> Dataflow:
    """Makes `flow` on first access, for the command line."""
    if name != "flow":
        raise AttributeError(name)
    return build(os.environ["KAFKA"], os.environ["POSTGRES"])
