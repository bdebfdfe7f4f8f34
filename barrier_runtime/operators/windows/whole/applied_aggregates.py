"""A user's function of each window's aggregates."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from barrier_runtime.data.row_class import is_instance
from barrier_runtime.data.rows import Row
from barrier_runtime.operators.windows.whole.apply import TimeWindow, milliseconds_of


class OfAggregates:
    """Function for `flat_map` over results of windows: calls `function(key, window, values)`."""

    def __init__(self, function: Callable[[Any, TimeWindow, dict[str, Any]], Any], keys: tuple[str, ...]) -> None:
        """`keys`: names of the key columns; () if all rows are one key."""
        self.__name__ = self.__qualname__ = getattr(function, "__name__", type(function).__name__)
        self._function = function
        self._keys = keys

    def __call__(self, row: Row) -> Iterable[Any]:
        values = dict(row)
        keys = tuple(values.pop(key) for key in self._keys)
        span = [milliseconds_of(values.pop(name, None)) for name in ("window_start", "window_end")]
        result = self._function(keys if len(keys) > 1 else keys[0] if keys else None, TimeWindow(*span), values)
        if result is None:
            return ()
        if isinstance(result, Mapping):
            return (dict(result),)
        return (result,) if is_instance(result) else result
