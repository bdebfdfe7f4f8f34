"""Keys of a state that a reader selects."""

import json
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import pyarrow as pa

from barrier_runtime.data.keys import KeyCodec, key_column
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.keys.key_codec import encode_key
from barrier_runtime.state.keys.key_groups import key_group
from barrier_runtime.state.snapshots.snapshot import StateDescription
from barrier_runtime.state_tables.arrow_columns import column_of

TIME = pa.timestamp("ms", tz="UTC")
_TIMESTAMP = re.compile(r"timestamp\[(s|ms|us|ns)(?:, tz=([^\]]+))?\]")
# A name may contain any text, so a column ends after the first text that is a key type.
_COLUMN = re.compile(
    r"(.*?): ("
    r"timestamp\[[^\]]*\]|date32\[day\]|date64\[ms\]|bool|u?int\d+|halffloat|float|double|(?:large_)?string|(?:large_)?binary"
    r")(?:, |$)",
    re.DOTALL,
)


class WantedKeys:
    def __init__(self, told: str, wanted: Mapping[str, Any], where: str) -> None:
        self.where = where
        self.fields = key_fields(told)
        self.names = [name for name, _ in self.fields]
        for name in wanted:
            if self.names and name not in self.names:
                raise InvalidJob(f"{where}: its key has no column {name!r}, it has {', '.join(self.names)}")
        kinds = dict(self.fields)
        self._wanted = {name: as_stored(value, kinds.get(name), name, where) for name, value in wanted.items()}

    def groups(self, max_parallelism: int) -> tuple[int, int] | None:
        """Key groups to read; None: all."""
        if not self.names or set(self._wanted) != set(self.names):
            return None
        group = key_group(tuple(self._wanted[name] for name in self.names), max_parallelism)
        return group, group

    @property
    def encoded(self) -> bytes:
        """Prefix of everything stored for the key; empty if a value might be stored as another type."""
        for name, kind in self.fields:
            value = self._wanted[name]
            if kind is None or type(value) not in (str, int):
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
        if not self.names:
            return [f"key_{number}" for number in range(1, fields + 1)]
        more = range(1, fields - len(self.names) + 1)
        return [*self.names, *[self.beside(f"namespace_{number}") for number in more]]

    def beside(self, name: str) -> str:
        """Name for a column of the state, unlike all names of key columns."""
        return free_name(name, self.names)

    def array(self, place: int, values: Any) -> pa.Array:
        known = self.fields[place][1] if place < len(self.fields) else None
        return key_column(values, known) if known is not None else pa.array(values)

    def schema_of_nothing(self, what: StateDescription) -> pa.Schema:
        columns = [(name, kind or pa.string()) for name, kind in self.fields]
        beside = [] if what.row.beside is None else [(what.row.beside.name, what.row.beside.type)]
        value = [("value", column_of(what.type).type)] if what.row.has_value else []
        return pa.schema([*columns, *[(self.beside(name), kind) for name, kind in [*beside, *value]]])


def free_name(name: str, taken: Collection[str]) -> str:
    while name in taken:
        name += "_"
    return name


def key_fields(told: str) -> list[tuple[str, pa.DataType | None]]:
    """Names and types of a key's columns. None: a type without a short name."""
    return [(name, _type(kind)) for name, kind in key_types(told).items()]


_NULL = " is null"


def condition(told: str, types: Mapping[str, str]) -> tuple[str, Any] | None:
    """Parses `column=value` or `column is null`; None for other text. `types`: from `key_types`."""
    column, equals, text = told.partition("=")
    if equals:
        return column, value_of_text(text, types.get(column, ""))
    return (told.removesuffix(_NULL), None) if told.endswith(_NULL) else None


def value_of_text(text: str, kind: str) -> Any:
    """Parses a value of a key's column; bytes are hexadecimal. `kind`: from `key_types`."""
    if kind in ("string", "large_string"):
        return text
    if kind in ("binary", "large_binary"):
        try:
            return bytes.fromhex(text)
        except ValueError as error:
            raise InvalidJob(f"{text!r} is not {kind}: write bytes in hexadecimal, as 0aff") from error
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def key_types(told: str) -> dict[str, str]:
    return dict(_columns(told))


def as_stored(value: Any, kind: pa.DataType | None, name: str, where: str) -> Any:
    """Value in the form of state keys. Raises `InvalidJob` for an unfit value."""
    if kind is None:
        return value
    row = pa.RecordBatch.from_arrays([one_value(value, kind, name, where)], [name])
    return KeyCodec(row.schema, row.schema.names, where).state_keys(row)[0][0]


def one_value(value: Any, kind: pa.DataType, name: str, where: str) -> pa.Array:
    """Column with one row. Raises `InvalidJob` for an unfit value."""
    try:
        if type(value) is int and pa.types.is_integer(kind):
            return pa.array([value], kind)
        return pa.array([value]).cast(kind)
    except (pa.ArrowException, OverflowError) as error:
        raise InvalidJob(
            f"{where}: column {name!r} is {kind}, and {value!r} is not one: {_HOW.get(kind.id, 'give one')}"
        ) from error


def as_told(value: Any, kind: pa.DataType | None) -> Any:
    """Inverse of `as_stored`."""
    return value if kind is None else key_column([value], kind)[0].as_py()


_HOW = {
    pa.date32().id: "write a date as 2026-11-30",
    pa.date64().id: "write a date as 2026-11-30",
    pa.timestamp("us").id: "write a time as 2026-11-30T12:00:00, with a zone, such as Z, where the column has one",
}


def _columns(told: str) -> Iterator[tuple[str, str]]:
    at = 0
    while at < len(told):
        found = _COLUMN.match(told, at)
        if found is None:
            name, _, kind = told[at:].rpartition(": ")
            yield name, kind
            return
        yield found[1], found[2]
        at = found.end()


def _type(told: str) -> pa.DataType | None:
    zoned = _TIMESTAMP.fullmatch(told)
    if zoned is not None:
        return pa.timestamp(zoned[1], zoned[2])
    try:
        return pa.type_for_alias(told)
    except ValueError:
        return None
