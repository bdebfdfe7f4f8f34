"""What a trigger of the user's own is asked about, and what it answers."""

import enum
from dataclasses import dataclass
from typing import Any


class TriggerResult(enum.Flag):
    """What a window does: emit a result, forget its rows, both (`FIRE | PURGE`), or neither."""

    NOTHING = 0
    FIRE = enum.auto()
    PURGE = enum.auto()


@dataclass
class TriggerWindow:
    """The window that a trigger is asked about. `state`: numbers of this key and window, to be changed in place; they
    are in checkpoints."""

    key: Any
    start_ms: int | None  # None of a `Global`
    end_ms: int | None
    rows: int  # in the window, with the row at hand, since it last forgot its rows
    state: dict[str, Any]
