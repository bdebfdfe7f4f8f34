"""Detection of attributes of a user's object that change while rows are processed.
Such attributes are shared by all keys and lost by restarts, which users rarely intend."""

import warnings
from typing import Any

_SIMPLE = (bool, int, float, str, bytes)
_ABSENT = object()


class WatchedAttributes:
    """Attributes of an object, as they were when it was opened."""

    def __init__(self, target: Any, where: str) -> None:
        self._target = target
        self._where = where
        self._seen = _plain_attributes(target)
        self._warned = False

    def look(self) -> None:
        """Warns once about an attribute that has changed."""
        if self._warned:
            return
        now = _plain_attributes(self._target)
        changed = [name for name, seen in now.items() if self._seen.get(name, _ABSENT) != seen]
        if changed:
            self._warned = True
            warnings.warn(
                f"{self._where}: {changed[0]!r} of {type(self._target).__name__} changed while rows were processed, "
                "and is not state: all keys of a subtask share it, and no checkpoint has it. Make it a ValueState if "
                "it must last",
                stacklevel=3,
            )


def _plain_attributes(target: Any) -> dict[str, Any]:
    """Returns attributes that may be meant as state: numbers and text by value, containers by size."""
    attributes = vars(target).items() if hasattr(target, "__dict__") else ()
    return {
        name: repr(value) if type(value) is float else value if type(value) in _SIMPLE else len(value)
        for name, value in attributes
        if type(value) in (*_SIMPLE, list, dict, set)
    }
