"""What results say of their window, beside the keys and the aggregates."""

from collections.abc import Mapping, Sequence

import pyarrow as pa

from barrier_runtime.operators.aggregation.own import AnyAggregate
from barrier_runtime.operators.aggregation.plan import plan_aggregates

UPDATE = "update"  # output column of windows that may fire again
EARLY = "early"  # output column of windows with early results: whether this is one
RETRACTED = "retracted"  # output column of sessions that are told more than once: what was told is no session any more
FIRINGS = "firings"  # column of state, of windows that may be emitted more than once: how often they were
TIME = pa.timestamp("ms", "UTC")
SPAN = (pa.field("window_start", TIME), pa.field("window_end", TIME))


def window_schema(
    schema: pa.Schema,
    keys: Sequence[str],
    aggregates: Mapping[str, AnyAggregate],
    where: str,
    beside: Sequence[pa.Field] = SPAN,
) -> pa.Schema:
    """Keys, what results say of their window (`beside`, see `told_of_windows`), then the aggregates."""
    return pa.schema(
        [
            *[pa.field(key, schema.field(key).type) for key in keys],
            *beside,
            *plan_aggregates(aggregates, schema, where).fields(),
        ]
    )


def told_of_windows(
    bounded: bool = True, updates: bool = False, early: bool = False, retracted: bool = False
) -> tuple[pa.Field, ...]:
    """Columns between keys and aggregates: `window_start`, `window_end` (exclusive; timestamps in ms, UTC) of windows
    that have them, `update` if windows may fire again, `early` if they do so before they are over, `retracted` if
    what was told of them may be taken back."""
    return (
        *(SPAN if bounded else ()),
        *([pa.field(UPDATE, pa.int64())] if updates or early else []),
        *([pa.field(EARLY, pa.bool_())] if early else []),
        *([pa.field(RETRACTED, pa.bool_())] if retracted else []),
    )
