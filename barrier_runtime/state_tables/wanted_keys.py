"""The keys of a state that somebody asks for: their columns, where they are, and which of them are meant."""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.keys.key_codec import encode_key
from barrier_runtime.state.keys.key_groups import key_group
from barrier_runtime.state.snapshots.snapshot import StateDescription
from barrier_runtime.state_tables.columns_of_values import column_of

TIME = pa.timestamp("ms", tz="UTC")


class WantedKeys:
    """The key's columns, and which keys are wanted."""

    def __init__(self, told: str, wanted: Mapping[str, Any], where: str) -> None:
        self.where = where
        self.fields = key_fields(told)
        self.names = [name for name, _ in self.fields]
        for name in wanted:
            if self.names and name not in self.names:
                raise InvalidJob(f"{where}: its key has no column {name!r}, it has {', '.join(self.names)}")
        self._wanted = dict(wanted)

    def groups(self, max_parallelism: int) -> tuple[int, int] | None:
        """The key groups to be read; None: all."""
        if not self.names or set(self._wanted) != set(self.names):
            return None
        group = key_group(tuple(self._wanted[name] for name in self.names), max_parallelism)
        return group, group

    @property
    def encoded(self) -> bytes:
        """How what is stored of the whole key begins; empty where a value might be stored as one of another type."""
        for name, kind in self.fields:
            value = self._wanted[name]
            is_text = kind is not None and pa.types.is_string(kind) and type(value) is str
            if not is_text and not (kind is not None and pa.types.is_integer(kind) and type(value) is int):
                return b""
        return encode_key(tuple(self._wanted[name] for name in self.names))

    def wants(self, key: tuple[Any, ...]) -> bool:
        return all(key[self.place(name)] == value for name, value in self._wanted.items())

    @property
    def wants_all(self) -> bool:
        return not self._wanted

    def place(self, name: str) -> int:
        return self.names.index(name) if self.names else int(name.removeprefix("key_")) - 1

    def named(self, fields: int) -> list[str]:
        """Names for so many fields of a key."""
        if not self.names:
            return [f"key_{number}" for number in range(1, fields + 1)]
        beside = range(1, fields - len(self.names) + 1)
        return [*self.names, *[f"namespace_{number}" for number in beside]]

    def array(self, place: int, values: list[Any]) -> pa.Array:
        known = self.fields[place][1] if place < len(self.fields) else None
        return pa.array(values, known) if known is not None else pa.array(values)

    def schema_of_nothing(self, what: StateDescription) -> pa.Schema:
        columns = [(name, kind or pa.string()) for name, kind in self.fields]
        if what.kind == "timers":
            return pa.schema([*columns, ("at", TIME)])
        between = {"list": [("position", pa.int64())], "map": [("entry", pa.string())]}.get(what.kind, [])
        value = [] if what.kind == "columns" else [("value", column_of(what.type).type)]
        return pa.schema([*columns, *between, *value])


def key_fields(told: str) -> list[tuple[str, pa.DataType | None]]:
    """Names and types of a key's columns, from what a snapshot tells of them; None: a type that has no short name."""
    return [_field(each) for each in told.split(", ")] if told else []


def _field(told: str) -> tuple[str, pa.DataType | None]:
    name, _, kind = told.rpartition(": ")
    try:
        return name, pa.type_for_alias(kind)
    except ValueError:  # timestamps and others: what its values are is asked then
        return name, None
