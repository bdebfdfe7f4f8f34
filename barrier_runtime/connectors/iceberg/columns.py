"""Arrow types of columns in an Iceberg table, and checks that an existing table accepts them. Pure."""

from collections.abc import Sequence

import pyarrow as pa

from barrier_runtime.connectors.sink_bases.lake.columns import is_decimal_of_tables, kept_as, refuse_nulls
from barrier_runtime.state.errors import InvalidJob

_PRIMITIVES = (
    (pa.types.is_int8, pa.int32()),
    (pa.types.is_int16, pa.int32()),
    (pa.types.is_int32, pa.int32()),
    (pa.types.is_uint8, pa.int32()),
    (pa.types.is_uint16, pa.int32()),
    (pa.types.is_int64, pa.int64()),
    (pa.types.is_uint32, pa.int64()),
    (pa.types.is_float32, pa.float32()),
    (pa.types.is_float64, pa.float64()),
    (pa.types.is_boolean, pa.bool_()),
    (pa.types.is_string, pa.string()),
    (pa.types.is_large_string, pa.string()),
    (pa.types.is_string_view, pa.string()),
    (pa.types.is_binary, pa.binary()),
    (pa.types.is_large_binary, pa.binary()),
    (pa.types.is_date32, pa.date32()),
    (pa.types.is_time, pa.time64("us")),
)


def stored_schema(schema: pa.Schema, where: str) -> pa.Schema:
    return _converted(
        schema,
        f"{where}: column {{name!r}} is {{kind}}, which Iceberg cannot hold: cast it or leave it out with select()",
    )


def table_schema(schema: pa.Schema, place: str, where: str) -> pa.Schema:
    return _converted(
        schema,
        f"{where}: column {{name!r}} of the table {place} is {{kind}}, which is not supported here: "
        "use a table without this column",
        nanoseconds=True,
    )


def _converted(schema: pa.Schema, refusal: str, nanoseconds: bool = False) -> pa.Schema:
    fields = []
    for field in schema:
        try:
            fields.append(pa.field(field.name, _stored(field.type, nanoseconds)))
        except _Unknown:
            raise InvalidJob(refusal.format(name=field.name, kind=field.type)) from None
    return pa.schema(fields)


class _Unknown(Exception):
    """Type that Iceberg does not have."""


def _stored(arrow: pa.DataType, nanoseconds: bool) -> pa.DataType:
    for fits, stored in _PRIMITIVES:
        if fits(arrow):
            return stored
    if pa.types.is_timestamp(arrow):
        unit = "ns" if nanoseconds and arrow.unit == "ns" else "us"
        return pa.timestamp(unit, None if arrow.tz is None else "UTC")
    if is_decimal_of_tables(arrow) or pa.types.is_fixed_size_binary(arrow) or arrow == pa.uuid():
        return arrow
    if pa.types.is_dictionary(arrow):
        return _stored(arrow.value_type, nanoseconds)
    if pa.types.is_list(arrow) or pa.types.is_large_list(arrow):
        return pa.list_(_stored(arrow.value_type, nanoseconds))
    if pa.types.is_map(arrow):
        return pa.map_(_stored(arrow.key_type, nanoseconds), _stored(arrow.item_type, nanoseconds))
    if pa.types.is_struct(arrow):
        fields = [arrow.field(at) for at in range(arrow.num_fields)]
        return pa.struct([(each.name, _stored(each.type, nanoseconds)) for each in fields])
    raise _Unknown


def check_fits(stored: pa.Schema, table: pa.Schema, where: str, place: str) -> None:
    plain = table_schema(table, place, where)
    for field in stored:
        if field.name not in table.names:
            raise InvalidJob(
                f"{where}: the table {place} has no column {field.name!r} (it has {', '.join(table.names)}): add it to "
                "the table, or select() the columns that it has"
            )
        there = plain.field(field.name).type
        if field.type != there and not _is_uuid(field.type, there):
            raise InvalidJob(
                f"{where}: column {field.name!r} is {field.type}, in the table {place} it is {there}: cast it"
            )
    missing = [field.name for field in table if not field.nullable and field.name not in stored.names]
    if missing:
        raise InvalidJob(f"{where}: the table {place} demands a value in {missing}: give the rows these columns")


def _is_uuid(kind: pa.DataType, there: pa.DataType) -> bool:
    return bool(there == pa.uuid() and kind == pa.binary(16))


def as_stored(batch: pa.RecordBatch, schema: pa.Schema, required: Sequence[pa.Field], where: str) -> pa.RecordBatch:
    columns = [kept_as(column, field, where) for column, field in zip(batch.columns, schema, strict=True)]
    stored = pa.RecordBatch.from_arrays(columns, schema=schema)
    for field in required:
        if field.name in schema.names:
            refuse_nulls(stored.column(field.name), field, where)
    return stored
