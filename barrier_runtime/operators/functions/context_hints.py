"""Hints for a function that asks its `ctx` for an attribute that it does not have: where that is, or a similar name.

The code that reports the error adds them (`user_code.said`), because a `ctx` with a `__getattr__` would be slower at
each attribute that it has.
"""

import difflib
from collections.abc import Sequence

from barrier_runtime.operators.user_code import Hinting

KEYED = frozenset({"key", "state", "timers", "wall_timers"})  # of a function without key none is there
_TIMERS = "timers of event time are ctx.timers: register(ms) and delete(ms)"
_WALL_TIMERS = "timers by the wall clock are ctx.wall_timers: after(timedelta(seconds=5)), register(ms) and delete(ms)"
_OUTPUT = "yield the row (or return it) for the main output; ctx.emit(name, row) is for side outputs"
_HINTS = {
    **dict.fromkeys(
        ("register_timer", "register_event_time_timer", "delete_timer", "delete_event_time_timer"), _TIMERS
    ),
    **dict.fromkeys(("timer_service", "set_timer", "registerTimer", "deleteTimer", "timer"), _TIMERS),
    **dict.fromkeys(("register_processing_time_timer", "delete_processing_time_timer", "after"), _WALL_TIMERS),
    **dict.fromkeys(("output", "collect", "out", "send"), _OUTPUT),
    **dict.fromkeys(("side_output", "side"), "ctx.emit(name, row) gives a row to a side output"),
    **dict.fromkeys(("current_key", "get_current_key"), "the key is ctx.key"),
    **dict.fromkeys(("current_watermark", "get_watermark"), "event time is ctx.watermark"),
    **dict.fromkeys(("get_state", "getValueState"), "states are attributes of the class, or ctx.state.<name>"),
    **dict.fromkeys(
        ("counter", "gauge", "histogram"),
        "metrics are ctx.metrics: counter(name).inc(), gauge(name).set(value) and histogram(name).record(value)",
    ),
}


class Context(Hinting):
    """Base of each `ctx`. Its `__slots__` are all that it has."""

    __slots__ = ()

    def said_instead(self, name: str) -> str:
        return no_attribute(name, self.__slots__)


def no_attribute(name: str, known: Sequence[str]) -> str:
    """`known`: the public attributes that there are."""
    meant = difflib.get_close_matches(name, known, 1)
    hint = _HINTS.get(name) or (f"is ctx.{meant[0]} meant?" if meant else f"it has {', '.join(sorted(known))}")
    return f"ctx has no {name!r}: {hint}"
