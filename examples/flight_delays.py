"""The main job: departure delays per airport, airline and day, and running totals. Exactly once.

barrier-runtime run examples/flight_delays.py:flow --master 'local[4,16]' --checkpoints build/checkpoints
"""

import os
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from barrier_runtime import Dataflow, JsonlSink, ParquetSink, Tumbling, ValueState, count, max_, mean
from examples.flights_data import MAX_OUT_OF_ORDERNESS, load_airlines, prepare

TOTALS = pa.schema(
    {
        "carrier": pa.string(),
        "origin": pa.string(),
        "day": pa.timestamp("ms", "UTC"),
        "flights": pa.int64(),
        "total_flights": pa.int64(),
        "windows": pa.int64(),
    }
)


class CarrierTotals:
    """Flights and windows of a carrier so far."""

    flights = ValueState(int, default=0)
    windows = ValueState(int, default=0)

    def process(self, carrier, window, ctx):
        self.flights.value += window["flights"]
        self.windows.value += 1
        yield {
            "carrier": carrier,
            "origin": window["origin"],
            "day": window["window_start"],
            "flights": window["flights"],
            "total_flights": self.flights.value,
            "windows": self.windows.value,
        }


def build(flights: str | Path, output: str, rows_per_second: float | None = None) -> Dataflow:
    flow = Dataflow("flight-delays")
    daily = (
        flow.read_parquet(
            "flights",
            str(flights),
            event_time="scheduled",
            max_out_of_orderness=MAX_OUT_OF_ORDERNESS,
            pace=rows_per_second,
        )
        .filter(pc.field("dep_time").is_valid())  # cancelled flights never departed
        .broadcast_join("airlines", load_airlines(), on="carrier")
        .key_by("origin", "carrier", "name")
        .window("daily", Tumbling(timedelta(days=1)), event_time="scheduled")
        .aggregate(flights=count(), mean_delay=mean("dep_delay"), max_delay=max_("dep_delay"))
    )
    daily.sink("windows", ParquetSink(f"{output}/windows"))
    daily.key_by("carrier").process("totals", CarrierTotals, schema=TOTALS).sink(
        "running-totals", JsonlSink(f"{output}/totals")
    )
    return flow


def __getattr__(name: str) -> Dataflow:
    """Makes `flow` on first access, for the command line, with everything below build/."""
    if name != "flow":
        raise AttributeError(name)
    return build(prepare(Path("build/data")), os.environ.get("OUTPUT", "build/output"))
