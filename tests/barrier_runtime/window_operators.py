"""Window operators as tests make them, of their four values: assigner, trigger, clock, and content."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from barrier_runtime.operators.aggregation.own import AnyAggregate
from barrier_runtime.operators.outputs.side_outputs import OnError
from barrier_runtime.operators.retry import Retry
from barrier_runtime.operators.windows.assigners import WindowAssigner
from barrier_runtime.operators.windows.clocks import EventTime, WallTime
from barrier_runtime.operators.windows.contents import Aggregates
from barrier_runtime.operators.windows.operator import WindowOperator
from barrier_runtime.operators.windows.triggers import WindowTrigger
from barrier_runtime.operators.windows.whole.apply import Applied
from barrier_runtime.operators.windows.whole.top import Top


def aggregating(
    name: str,
    keys: Sequence[str],
    window: WindowAssigner,
    event_time: str | None,
    aggregates: Mapping[str, AnyAggregate],
    schema: pa.Schema | None = None,
    late: bool = False,
    lateness_ms: int = 0,
    early: WindowTrigger | None = None,
    wall: bool = False,
    in_slices: bool = False,
) -> WindowOperator:
    """`wall`: uses the wall clock. `in_slices`: windows share slices; otherwise each entry is a window."""
    clock, content = WallTime() if wall else EventTime(event_time), Aggregates(aggregates, in_slices)
    return WindowOperator(name, keys, window, clock, content, schema, late, lateness_ms, early)


def slicing(*arguments: Any, **options: Any) -> WindowOperator:
    """Windows that share slices, if they can."""
    return aggregating(*arguments, **options, in_slices=True)


def applying(
    name: str,
    keys: Sequence[str],
    window: WindowAssigner,
    event_time: str | None,
    function: Callable[[Any, Any, Any], Any],
    schema: pa.Schema,
    output: pa.Schema,
    late: bool = False,
    batches: bool = False,
    on_error: OnError | Retry = "fail",
    wall: bool = False,
) -> WindowOperator:
    clock, content = WallTime() if wall else EventTime(event_time), Applied(function, output, batches, on_error)
    return WindowOperator(name, keys, window, clock, content, schema, late)


def topping(
    name: str,
    keys: Sequence[str],
    window: WindowAssigner,
    event_time: str | None,
    n: int,
    by: str,
    largest: bool,
    schema: pa.Schema,
    late: bool = False,
    wall: bool = False,
) -> WindowOperator:
    clock = WallTime() if wall else EventTime(event_time)
    return WindowOperator(name, keys, window, clock, Top(n, by, largest), schema, late)
