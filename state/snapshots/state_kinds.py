"""Kinds of keyed state: layout of the entries, and columns of the Arrow table.

A new kind needs a row, and a class in `operators/state`.
"""

from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

Layout = Literal["value", "entries", "times", "columns", "copy"]


@dataclass(frozen=True)
class StateKind:
    """`layout`: "times" for times before keys, "copy" for a copy in each subtask. `said`: the kind in
    messages. `beside`: the column between key and value of the Arrow table. `numbered`: entries of a key have positions
    0, 1, 2, …
    """

    name: str
    said: str
    layout: Layout = "value"
    beside: pa.Field | None = None
    numbered: bool = False

    @property
    def has_value(self) -> bool:
        return self.layout not in ("times", "columns")


_ENTRY = pa.field("entry", pa.string())
VALUE = StateKind("value", "a ValueState")
LIST = StateKind("list", "a ListState", "entries", pa.field("position", pa.int64()), numbered=True)
MAP = StateKind("map", "a MapState", "entries", _ENTRY)
REDUCING = StateKind("reducing", "a ReducingState")
AGGREGATING = StateKind("aggregating", "an AggregatingState")
COLUMNS = StateKind("columns", "a state of columns", "columns")
BROADCAST = StateKind("broadcast", "a BroadcastState", "copy", _ENTRY)
TIMERS = StateKind("timers", "timers", "times", pa.field("at", pa.timestamp("ms", "UTC")))

KINDS = {kind.name: kind for kind in (VALUE, LIST, MAP, REDUCING, AGGREGATING, COLUMNS, BROADCAST, TIMERS)}


def kind_of(name: str) -> StateKind:
    """A kind without a row, perhaps of a newer release, is treated as a value."""
    return KINDS.get(name) or StateKind(name, f"a state of kind {name!r}")
