"""Values of columns that nobody should see, on their way to people. Pure."""

from collections.abc import Collection, Mapping
from typing import Any

MASKED = "***"


def masked(value: Any, columns: Collection[str]) -> Any:
    """`value` (plain data) with the values under the names `columns` hidden, however deep they lie."""
    if not columns:
        return value
    if isinstance(value, Mapping):
        return {
            name: MASKED if name in columns and inner is not None else masked(inner, columns)
            for name, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [masked(each, columns) for each in value]
    return value
