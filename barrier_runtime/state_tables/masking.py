"""Hides values of secret columns in output for people. Pure."""

from collections.abc import Collection, Mapping
from typing import Any

MASKED = "***"


def masked(value: Any, columns: Collection[str]) -> Any:
    """Copy of `value` (plain data) with values under the names `columns` hidden at every depth."""
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
