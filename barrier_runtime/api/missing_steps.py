"""What is said when a stream has no method of a name: where the method is, if another kind of stream has it."""

import difflib
from collections.abc import Mapping

from barrier_runtime.state.errors import InvalidJob


class NoSuchStep(InvalidJob, AttributeError):
    """A stream has no such method; another kind of stream may have it."""


_CONNECT = (
    "connect is a function: from barrier_runtime import connect, and connect(orders=orders.key_by(…), "
    "rules=rules.broadcast()).process(…)"
)
AFTER_KEY_BY = {
    "window": "it comes after .key_by(…), which says what belongs together; window_all(…) is for all rows",
    "aggregate": "it comes after .key_by(…), which says what belongs together",
    "process_groups": "it comes after .key_by(…), which says what belongs together",
    **dict.fromkeys(
        ("join", "window_join", "asof_join", "table_join"),
        "it comes after .key_by(…) of both streams; broadcast_join() joins with a small table without one",
    ),
    "connect": _CONNECT,
}
BEFORE_KEY_BY = {
    **dict.fromkeys(
        (
            *("map", "flat_map", "filter", "map_batches", "select", "broadcast_join", "with_watermarks", "union"),
            *("rebalance", "deduplicate", "sink", "key_by", "split", "broadcast"),
        ),
        "it comes before .key_by(…), or after .window(…), .aggregate(…) or .process(…)",
    ),
    "connect": _CONNECT,
}
AFTER_WINDOW = dict.fromkeys(
    (
        *("map", "flat_map", "filter", "map_batches", "select", "broadcast_join", "with_watermarks", "union"),
        *("rebalance", "deduplicate", "sink", "key_by", "split", "broadcast", "lookup", "process", "process_groups"),
        *("window", "window_all", "join", "window_join", "asof_join", "table_join"),
    ),
    "it comes after .aggregate(…), .apply(…) or .top(…), which say what becomes of a window's rows",
)
BEFORE_BROADCAST = {
    **dict.fromkeys(
        (
            *("map", "flat_map", "filter", "map_batches", "select", "broadcast_join", "with_watermarks", "union"),
            *("rebalance", "deduplicate", "sink", "key_by", "split", "process", "window", "aggregate"),
            "process_groups",
        ),
        "a broadcast stream is an input of connect(…, rules=rules.broadcast()): its own steps come before that",
    ),
    "connect": _CONNECT,
}


def no_step(stream: object, name: str, hints: Mapping[str, str]) -> AttributeError:
    kind = type(stream).__name__
    if name in hints:
        return NoSuchStep(f"{kind} has no method {name!r}: {hints[name]}")
    steps = [step for step in dir(type(stream)) if not step.startswith("_")]
    close = [] if name.startswith("_") else difflib.get_close_matches(name, [*steps, *hints], 1)
    meant = "" if not close else f": did you mean {close[0]!r}?"
    told = f"{kind!r} object has no attribute {name!r}{meant}"
    return AttributeError(told, name=name, obj=None)  # without its object Python adds no suggestion of its own
