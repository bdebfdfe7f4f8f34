"""Columns of values decoded from JSON, where text stands for values that have a type in Python.

| column                     | text                                       | kept as                                  |
|----------------------------|--------------------------------------------|------------------------------------------|
| timestamp, time, duration  | RFC 3339, ISO 8601 (see `stored_times`)    | the number that the column stores        |
| floating                   | `NaN`, `Infinity`, `-Infinity`             | that number                              |

All other values are treated like those of Python's functions: see `into_columns`.
"""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from barrier_runtime.data.values import doors
from barrier_runtime.data.values.into_columns import Doors
from barrier_runtime.data.values.stored_times import UnreadTime, numbers_of_texts, times_of_texts

SPECIAL_FLOATS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
_NONE = type(None)


class _TextTimeDoor(doors.TimeDoor):
    def __init__(self, kind: pa.DataType) -> None:
        super().__init__(kind)
        if not pa.types.is_date(kind):  # dates were decoded already
            self.exact = frozenset({str, _NONE})

    def quick(self, values: Sequence[Any]) -> pa.Array:
        return super().quick(values) if pa.types.is_date(self.kind) else times_of_texts(values, self.kind)

    def kept(self, value: Any) -> Any:
        if not isinstance(value, str):
            return super().kept(value)
        try:
            return numbers_of_texts([value], self.kind)[0]
        except UnreadTime as error:
            raise self.refused(value, error.why, error.remedy) from None


class _SpelledFloatDoor(doors.FloatDoor):
    def kept(self, value: Any) -> Any:
        return super().kept(SPECIAL_FLOATS.get(value, value) if isinstance(value, str) else value)


class _SpelledNarrowFloatDoor(doors.NarrowFloatDoor):
    def careful(self, values: Sequence[Any]) -> pa.Array:
        return super().careful([SPECIAL_FLOATS.get(each, each) if isinstance(each, str) else each for each in values])


_JSON = Doors(
    {
        doors.TimeDoor: _TextTimeDoor,
        doors.FloatDoor: _SpelledFloatDoor,
        doors.NarrowFloatDoor: _SpelledNarrowFloatDoor,
    }
)


def column_of_json(values: Sequence[Any], kind: pa.DataType, column: str = "", nullable: bool = True) -> pa.Array:
    """As `column_of`, of values that were decoded from JSON. Raises `UnkeptValue`.

    >>> column_of_json(["NaN", 1, "-Infinity"], pa.float64()).to_pylist()
    [nan, 1.0, -inf]
    """
    return _JSON.column(values, kind, column, nullable)
