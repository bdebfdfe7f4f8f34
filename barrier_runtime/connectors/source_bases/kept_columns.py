"""Check of the columns of a changing table: a lost or incompatible column ends the job."""

import pyarrow as pa
import pyarrow.types as types

from barrier_runtime.state.errors import InvalidJob


def check_kept(now: pa.Schema, wanted: pa.Schema, table: str, where: str) -> None:
    """Raises `InvalidJob` for a column of `wanted` that was lost or whose type is of another kind.

    Widened types pass: the cast keeps or refuses each value.
    """
    for field in wanted:
        if field.name not in now.names:
            raise InvalidJob(
                f"{where}: {table} has lost column {field.name!r}: start the program again, which looks at its columns"
            )
        kind = now.field(field.name).type
        if not _is_kept(kind, field.type):
            raise InvalidJob(
                f"{where}: column {field.name!r} of {table} was {field.type} when the program started and is {kind} "
                "now: start the program again, which looks at its columns"
            )


def _is_kept(kind: pa.DataType, wanted: pa.DataType) -> bool:
    if kind == wanted:
        return True
    if types.is_dictionary(kind):
        return _is_kept(kind.value_type, wanted)
    if types.is_nested(kind) or types.is_nested(wanted):
        return _is_kept_inside(kind, wanted)
    kinds = (types.is_integer, types.is_decimal, types.is_timestamp, types.is_time, _is_text, _is_binary)
    if types.is_timestamp(kind) and types.is_timestamp(wanted) and (kind.tz is None) != (wanted.tz is None):
        return False
    if types.is_float32(kind) and types.is_float64(wanted):
        return True
    return any(is_of(kind) and is_of(wanted) for is_of in kinds)


def _is_kept_inside(kind: pa.DataType, wanted: pa.DataType) -> bool:
    if types.is_map(kind) and types.is_map(wanted):
        return _is_kept(kind.key_type, wanted.key_type) and _is_kept(kind.item_type, wanted.item_type)
    lists = (types.is_list, types.is_large_list, types.is_fixed_size_list)
    if any(is_of(kind) for is_of in lists) and any(is_of(wanted) for is_of in lists):
        return _is_kept(kind.value_type, wanted.value_type)
    if not types.is_struct(kind) or not types.is_struct(wanted):
        return False
    there = {kind.field(at).name: kind.field(at).type for at in range(kind.num_fields)}
    fields = [wanted.field(at) for at in range(wanted.num_fields)]
    return all(field.name in there and _is_kept(there[field.name], field.type) for field in fields)


def _is_text(kind: pa.DataType) -> bool:
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _is_binary(kind: pa.DataType) -> bool:
    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind))
