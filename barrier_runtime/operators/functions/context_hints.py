"""Hints for a missing attribute of `ctx`: the right place, or a similar name.
Added when the error is reported (`user_code.said`), because a `__getattr__` would slow down every attribute of `ctx`.
"""

import difflib
from collections.abc import Sequence

from barrier_runtime.operators.user_code import Hinting

KEYED = frozenset({"key", "state", "timers", "wall_timers"})  # absent in functions without key
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
    """Base of each `ctx`. `__slots__` are all of its attributes."""

    __slots__ = ()

    def said_instead(self, name: str) -> str:
        return no_attribute(name, self.__slots__)


def no_attribute(name: str, known: Sequence[str]) -> str:
    """Returns the message for a missing attribute. `known`: the public attributes."""
    meant = difflib.get_close_matches(name, known, 1)
    hint = _HINTS.get(name) or (f"is ctx.{meant[0]} meant?" if meant else f"it has {', '.join(sorted(known))}")
    return f"ctx has no {name!r}: {hint}"
