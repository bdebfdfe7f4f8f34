"""Arguments and results of users' own triggers."""

import enum
from dataclasses import dataclass
from typing import Any


class TriggerResult(enum.Flag):
    """Action of a window: emit a result, forget the rows, both (`FIRE | PURGE`), or neither."""

    NOTHING = 0
    FIRE = enum.auto()
    PURGE = enum.auto()


@dataclass
class TriggerWindow:
    """Argument of a trigger's methods.
    `state`: numbers of this key and window, to be changed in place; checkpoints include them."""

    key: Any
    start_ms: int | None
    end_ms: int | None
    rows: int  # of the window since it last forgot its rows, the current row included
    state: dict[str, Any]
