"""Delta types of columns, and checks that a table accepts the rows of a sink. Pure."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa

from barrier_runtime.connectors.sink_bases.lake.columns import is_decimal_of_tables, required
from barrier_runtime.state.errors import InvalidJob

_VECTORS = "delta.enableDeletionVectors"
_NOT_REPLACED = {
    "delta.appendOnly": "so no row may be replaced",
    _VECTORS: "which delta-rs does not keep when it replaces rows",
}


DeltaType: TypeAlias = str | dict[str, Any]  # as in the log: "long", or {"type": "array", …}
_PRIMITIVES: tuple[tuple[Any, DeltaType, pa.DataType], ...] = (
    (pa.types.is_int8, "byte", pa.int8()),
    (pa.types.is_int16, "short", pa.int16()),
    (pa.types.is_int32, "integer", pa.int32()),
    (pa.types.is_int64, "long", pa.int64()),
    (pa.types.is_float32, "float", pa.float32()),
    (pa.types.is_float64, "double", pa.float64()),
    (pa.types.is_boolean, "boolean", pa.bool_()),
    (pa.types.is_string, "string", pa.string()),
    (pa.types.is_large_string, "string", pa.string()),
    (pa.types.is_string_view, "string", pa.string()),
    (pa.types.is_binary, "binary", pa.binary()),
    (pa.types.is_large_binary, "binary", pa.binary()),
    (pa.types.is_fixed_size_binary, "binary", pa.binary()),
    (pa.types.is_date32, "date", pa.date32()),
)
_PARTITION_TYPES = ("byte", "short", "integer", "long", "boolean", "string", "date")


def delta_fields(schema: pa.Schema, where: str) -> dict[str, DeltaType]:
    lower = [name.lower() for name in schema.names]
    for name in schema.names:
        if lower.count(name.lower()) > 1:
            raise InvalidJob(f"{where}: column {name!r} is there twice for Delta, which ignores case: rename one")
    return {field.name: _typed(field.type, where, field.name)[0] for field in schema}


def stored_schema(schema: pa.Schema, where: str) -> pa.Schema:
    return pa.schema([pa.field(field.name, _typed(field.type, where, field.name)[1]) for field in schema])


def _typed(arrow: pa.DataType, where: str, column: str) -> tuple[DeltaType, pa.DataType]:
    for fits, delta, stored in _PRIMITIVES:
        if fits(arrow):
            return delta, stored
    if pa.types.is_timestamp(arrow):
        zone = "UTC" if arrow.tz is not None else None
        return "timestamp" if zone else "timestamp_ntz", pa.timestamp("us", zone)
    if is_decimal_of_tables(arrow):
        return f"decimal({arrow.precision},{arrow.scale})", arrow
    if pa.types.is_dictionary(arrow):
        return _typed(arrow.value_type, where, column)
    if pa.types.is_list(arrow) or pa.types.is_large_list(arrow):
        delta, stored = _typed(arrow.value_type, where, column)
        return {"type": "array", "elementType": delta, "containsNull": True}, pa.list_(pa.field("element", stored))
    if pa.types.is_map(arrow):
        key, stored_key = _typed(arrow.key_type, where, column)
        value, stored_value = _typed(arrow.item_type, where, column)
        both = {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
        return both, pa.map_(stored_key, stored_value)
    if pa.types.is_struct(arrow):
        inner = {arrow.field(at).name: _typed(arrow.field(at).type, where, column) for at in range(arrow.num_fields)}
        fields = [_field(name, delta) for name, (delta, _) in inner.items()]
        return {"type": "struct", "fields": fields}, pa.struct([(name, stored) for name, (_, stored) in inner.items()])
    raise InvalidJob(
        f"{where}: column {column!r} is {arrow}, which Delta Lake cannot hold: cast it or leave it out with select()"
    )


def check_partition_columns(fields: Mapping[str, DeltaType], partition_by: Sequence[str], where: str) -> None:
    for name in partition_by:
        if name not in fields:
            raise InvalidJob(
                f"{where}: partition_by names {name!r}, but the rows have the columns {', '.join(fields)}: correct it"
            )
        if fields[name] not in _PARTITION_TYPES:
            raise InvalidJob(
                f"{where}: cannot partition by {name!r} of type {fields[name]}: use a column of text, whole numbers, "
                "booleans or dates"
            )
    if len(partition_by) == len(fields):
        raise InvalidJob(f"{where}: partition_by names every column, so the files would have none: leave one out")


def check_fits(fields: Mapping[str, DeltaType], table: Sequence[Mapping[str, Any]], where: str, place: str) -> None:
    there = {field["name"]: field for field in table}
    for name, delta in fields.items():
        if name not in there:
            raise InvalidJob(
                f"{where}: the table {place} has no column {name!r} (it has {', '.join(there)}): add it to the table, "
                "or select() the columns that it has"
            )
        if _plain(there[name]["type"]) != _plain(delta):
            raise InvalidJob(
                f"{where}: column {name!r} is {_text(delta)}, in the table {place} it is {_text(there[name]['type'])}: "
                "cast it"
            )
    missing = [name for name, field in there.items() if name not in fields and not field.get("nullable", True)]
    if missing:
        raise InvalidJob(f"{where}: the table {place} demands a value in {missing}: give the rows these columns")


def schema_string(fields: Mapping[str, DeltaType]) -> str:
    text = msgspec.json.encode({"type": "struct", "fields": [_field(name, delta) for name, delta in fields.items()]})
    return text.decode()


def has_zoneless_times(fields: Mapping[str, DeltaType]) -> bool:
    return "timestamp_ntz" in schema_string(fields)


def _field(name: str, delta: DeltaType) -> dict[str, Any]:
    return {"name": name, "type": delta, "nullable": True, "metadata": {}}


def _nullability(name: str, delta: DeltaType, nullable: bool) -> pa.Field:
    """Nested as in the table, with booleans instead of other types."""
    kind: pa.DataType = pa.bool_()
    if not isinstance(delta, str) and delta["type"] == "struct":
        inner = delta["fields"]
        kind = pa.struct([_nullability(each["name"], each["type"], each.get("nullable", True)) for each in inner])
    elif not isinstance(delta, str) and delta["type"] == "array":
        kind = pa.list_(_nullability("element", delta["elementType"], delta.get("containsNull", True)))
    elif not isinstance(delta, str):
        value = _nullability("value", delta["valueType"], delta.get("valueContainsNull", True))
        kind = pa.list_(pa.struct([pa.field("key", pa.bool_()), value]))
    return pa.field(name, kind, nullable)


def _plain(delta: DeltaType) -> Any:
    if isinstance(delta, str):
        return delta.replace(" ", "")
    if delta["type"] == "struct":
        return [(field["name"], _plain(field["type"])) for field in delta["fields"]]
    return {key: _plain(delta[key]) for key in ("type", "elementType", "keyType", "valueType") if key in delta}


def _text(delta: DeltaType) -> str:
    return delta if isinstance(delta, str) else msgspec.json.encode(delta).decode()


@dataclass(frozen=True)
class DeltaTableFacts:
    url: str
    partition_by: tuple[str, ...]
    fields: Sequence[Mapping[str, Any]]
    _settings: Mapping[str, str]
    _features: Collection[str] = ()

    def check_replacing(self, where: str) -> None:
        for setting, why in _NOT_REPLACED.items():
            if self._settings.get(setting, "false").lower() == "true":
                raise InvalidJob(f"{where}: the table {self.url} has {setting}=true, {why}: unset it, or use DeltaSink")

    def check_compacted(self, where: str) -> None:
        if "deletionVectors" in self._features or self._settings.get(_VECTORS, "false").lower() == "true":
            raise InvalidJob(
                f"{where}: the table {self.url} has deletion vectors, which compact= does not apply: leave compact= "
                "out and have the table compacted by OPTIMIZE, or drop the feature deletionVectors"
            )

    @property
    def required(self) -> tuple[pa.Field, ...]:
        return required(_nullability(each["name"], each["type"], each.get("nullable", True)) for each in self.fields)

    def check(self, fields: Mapping[str, DeltaType], partition_by: Sequence[str], where: str) -> None:
        check_fits(fields, self.fields, where, self.url)
        if tuple(partition_by) != self.partition_by:
            raise InvalidJob(
                f"{where}: partition_by is {list(partition_by)}, the table {self.url} is partitioned by "
                f"{list(self.partition_by)}: leave partition_by out, or write to another table"
            )
