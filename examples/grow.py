"""Counts readings of many meters: a job that grows while it runs.

`make run EXAMPLE=grow` rescales the job, replaces the program by the second version, forks the job from a savepoint and
reads the state as a table.

    first version     per meter: number of readings so far
    second version    … and the highest reading since that version runs
"""

from barrier_runtime import Dataflow, JsonlSink, Stream, count, max_
from examples.grow_data import Readings

FIRST, SECOND = 1, 2


def build(output: str, readings: Readings, version: int = FIRST, name: str = "grow") -> Dataflow:
    """Flow that writes a row per reading to the folder `output`."""
    flow = Dataflow(name)
    counted = _first(flow, readings) if version == FIRST else _second(flow, readings)
    counted.sink("out", JsonlSink(output))
    return flow


def _first(flow: Dataflow, readings: Readings) -> Stream:
    return flow.source("readings", readings).key_by("meter").aggregate("totals", n=count())


def _second(flow: Dataflow, readings: Readings) -> Stream:
    """Adds a column of state, which begins where this version takes over."""
    return flow.source("readings", readings).key_by("meter").aggregate("totals", n=count(), highest=max_("reading"))
