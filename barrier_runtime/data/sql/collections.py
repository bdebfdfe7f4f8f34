"""Functions of arrays, maps, structs and JSON, as expressions of their arguments.

A position outside an array ends the job, as in Spark's ANSI mode; `get` and `try_element_at` give null.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from barrier_runtime.data.schemas import meant
from barrier_runtime.data.sql.arguments import Argument, Made, Unfit, beside_each_other, is_number, one_type
from barrier_runtime.data.sql.json_values import as_json, at_path, path_of, read_as, type_of_schema
from barrier_runtime.data.sql.kernels import call, column, kernel, value_kernel
from barrier_runtime.data.sql.texts import text_of
from barrier_runtime.data.values.json_columns import is_list


def _array(argument: Argument) -> Argument:
    if pa.types.is_list(argument.type):
        return argument
    if not is_list(argument.type):
        raise Unfit(f"it takes an array, and this is {argument.type}")
    kind = pa.list_(argument.type.value_type)
    return Argument(argument.made.cast(kind), kind, False, None)


def _map(argument: Argument) -> Argument:
    if not pa.types.is_map(argument.type):
        raise Unfit(f"it takes a map, and this is {argument.type}")
    return argument


def element(collection: Argument, key: Argument, first: int, missing: str) -> Made:
    """Element of an array at a position, or value of a map for a key.

    `first`: position of the first element, 0 or 1; with 1, negative positions count from the end. `missing`: "fail" or
    "null", for a position outside the array; a missing key gives null.
    """
    if pa.types.is_map(collection.type):
        kind = collection.type
        return call("map_value", kind.item_type, collection, _as(key, kind.key_type))
    if not pa.types.is_integer(key.type):
        raise Unfit(f"the position in an array is a whole number, and this is {key.type}")
    array = _array(collection)
    place = Argument(key.made.cast(pa.int64()), pa.int64(), key.is_constant, key.value)
    return call(f"element_{first}_{missing}", array.type.value_type, array, place)


def field_of(value: Argument, name: str) -> Made:
    names = [field.name for field in value.type.fields] if pa.types.is_struct(value.type) else []
    found = [each for each in names if each == name] or [each for each in names if each.lower() == name.lower()]
    if len(found) != 1:
        raise Unfit(f"there is no field {name!r} of {value.type}{meant(name, names)}")
    return pc.struct_field(value.made, [names.index(found[0])])


def _as(value: Argument, kind: pa.DataType) -> Argument:
    if value.type == kind:
        return value
    if is_number(kind) != is_number(value.type):
        raise Unfit(f"{value.type} and {kind} do not go together: CAST one")
    return Argument(value.made.cast(kind), kind, False, None)


def _element_kernel(first: int, missing: str) -> None:
    def each(kind: pa.DataType, arrays: pa.Array, places: pa.Array) -> pa.Array:
        lengths = pc.list_value_length(arrays).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        known = pc.and_(arrays.is_valid(), places.is_valid()).to_numpy(zero_copy_only=False)
        wanted = places.fill_null(first).to_numpy(zero_copy_only=False)
        if first and (known & (wanted == 0)).any():
            raise pa.ArrowInvalid("positions are numbered from 1 on, or from the end, where the last is -1")
        at = np.where(wanted < 0, lengths + wanted, wanted - first) if first else wanted
        outside = (at < 0) | (at >= lengths)
        if missing == "fail" and (known & outside).any():
            row = int(np.flatnonzero(known & outside)[0])
            raise pa.ArrowInvalid(f"an array of {lengths[row]} elements has no position {wanted[row]}")
        begins = arrays.offsets.to_numpy()[:-1]
        taken: pa.Array = arrays.values.take(pa.array(begins + at, mask=~known | outside))
        return taken

    kernel(f"element_{first}_{missing}")(each)


for _first in (0, 1):
    for _missing in ("fail", "null"):
        _element_kernel(_first, _missing)


@kernel("map_value")
def _map_value(kind: pa.DataType, maps: pa.Array, keys: pa.Array) -> pa.Array:
    offsets = maps.offsets.to_numpy()
    rows = np.repeat(np.arange(len(maps)), np.diff(offsets))
    entries = np.arange(offsets[0], offsets[-1])
    same = pc.equal(maps.keys.slice(offsets[0], len(entries)), keys.take(pa.array(rows)))
    hits = np.flatnonzero(same.fill_null(False).to_numpy(zero_copy_only=False))[::-1]
    found = np.full(len(maps), -1, np.int64)
    found[rows[hits]] = entries[hits]
    missing = (found < 0) | maps.is_null().to_numpy(zero_copy_only=False)
    taken: pa.Array = maps.items.take(pa.array(found, mask=missing))
    return taken


def size(collection: Argument) -> Made:
    if not pa.types.is_map(collection.type):
        return pc.list_value_length(_array(collection).made)
    return call("map_size", pa.int32(), collection)


@kernel("map_size")
def _map_size(kind: pa.DataType, maps: pa.Array) -> pa.Array:
    return pa.array(np.diff(maps.offsets.to_numpy()), pa.int32(), mask=maps.is_null().to_numpy(zero_copy_only=False))


@kernel("map_keys")
def _map_keys(kind: pa.DataType, maps: pa.Array) -> pa.Array:
    return column([None if each is None else [key for key, _ in each] for each in maps.to_pylist()], kind)


@kernel("map_values")
def _map_values(kind: pa.DataType, maps: pa.Array) -> pa.Array:
    return column([None if each is None else [value for _, value in each] for each in maps.to_pylist()], kind)


def _alike(arguments: tuple[Argument, ...]) -> list[Argument]:
    known = [each for each in arguments if not pa.types.is_null(each.type)]
    if not known:
        return list(arguments)
    kinds = {each.type for each in known}
    if len(kinds) > 1 and not all(is_number(kind) for kind in kinds):
        raise Unfit(f"elements are {' and '.join(sorted(map(str, kinds)))}: CAST what has another type")
    kind = one_type(known) if len(kinds) > 1 else known[0].type
    made = beside_each_other(known)
    typed = iter([Argument(each.cast(kind), kind, False, None) for each in made])
    nothing = Argument(pc.scalar(pa.scalar(None, kind)), kind, True, None)
    return [nothing if pa.types.is_null(each.type) else next(typed) for each in arguments]


def array(*elements: Argument) -> Made:
    values = _alike(elements)
    kind = values[0].type if values else pa.null()
    if not values:
        return pc.scalar(pa.scalar([], pa.list_(kind)))
    return call("array", pa.list_(kind), *values)


@kernel("array")
def _array_of(kind: pa.DataType, *columns: pa.Array) -> pa.Array:
    rows, width = len(columns[0]), len(columns)
    order = np.arange(rows * width).reshape(width, rows).T.reshape(-1)
    values = pa.concat_arrays(columns).take(pa.array(order))
    return pa.ListArray.from_arrays(pa.array(np.arange(rows + 1, dtype=np.int32) * width), values, type=kind)


def map_of(*keys_and_values: Argument) -> Made:
    if not keys_and_values or len(keys_and_values) % 2:
        raise Unfit("a map has a value for each key")
    keys, values = _alike(keys_and_values[::2]), _alike(keys_and_values[1::2])
    return call("map", pa.map_(keys[0].type, values[0].type), *keys, *values)


@kernel("map")
def _map_made(kind: pa.DataType, *columns: pa.Array) -> pa.Array:
    keys, values = columns[: len(columns) // 2], columns[len(columns) // 2 :]
    named = zip(*(each.to_pylist() for each in keys), strict=True)
    held = zip(*(each.to_pylist() for each in values), strict=True)
    made = [list(zip(*pair, strict=True)) for pair in zip(named, held, strict=True)]
    for pairs in made:
        if len({key for key, _ in pairs} - {None}) < len(pairs):
            raise pa.ArrowInvalid("a key of a map is null, or there twice")
    return column(made, kind)


def _of_array(name: str, result: Callable[[pa.DataType], pa.DataType]) -> Callable[..., Made]:
    def made(array: Argument, *more: Argument) -> Made:
        given = _array(array)
        return call(name, result(given.type), given, *more)

    return made


def _with_element(name: str, result: Callable[[pa.DataType], pa.DataType]) -> Callable[..., Made]:
    def made(array: Argument, value: Argument) -> Made:
        given = _array(array)
        return call(name, result(given.type), given, _as(value, given.type.value_type))

    return made


_NAN = float("nan")


def _alike_nans(values: list[Any]) -> list[Any]:
    """Makes all NaN the same object, which `in` and `index` find."""
    return [_NAN if each != each else each for each in values]


def _contains(values: list[Any], sought: Any) -> bool | None:
    *known, wanted = _alike_nans([*values, sought])
    return True if wanted in known else None if None in known else False


def _position(values: list[Any], sought: Any) -> int:
    *known, wanted = _alike_nans([*values, sought])
    return known.index(wanted) + 1 if wanted in known else 0


def _joined(values: list[str | None], separator: str, *nulls: str) -> str:
    return separator.join(
        nulls[0] if each is None and nulls else each or "" for each in values if each or nulls or each == ""
    )


def _order(value: Any) -> Any:
    """NaN is the greatest number."""
    return (value != value, 0 if value != value else value)


def _extreme(which: Callable[..., Any]) -> Callable[[list[Any]], Any]:
    return lambda values: which((each for each in values if each is not None), key=_order, default=None)


def _sorted(values: list[Any], ascending: bool = True) -> list[Any]:
    nulls = [None] * values.count(None)
    ordered = sorted((each for each in values if each is not None), key=_order, reverse=not ascending)
    return [*nulls, *ordered] if ascending else [*ordered, *nulls]


def _distinct(values: list[Any]) -> list[Any]:
    found: list[Any] = []
    for each in _alike_nans(values):
        if each not in found:
            found.append(each)
    return found


def _slice(values: list[Any], start: int, length: int) -> list[Any]:
    if not start or length < 0:
        raise pa.ArrowInvalid("slice() begins at a position from 1 on, or from the end, and its length is not negative")
    begin = start - 1 if start > 0 else len(values) + start
    return values[begin : begin + length] if begin >= 0 else []


value_kernel("array_contains", _contains)
value_kernel("array_position", _position)
value_kernel("array_join", _joined)
value_kernel("array_max", _extreme(max))
value_kernel("array_min", _extreme(min))
value_kernel("sort_array", _sorted)
value_kernel("array_distinct", _distinct)
value_kernel("slice", _slice)
value_kernel("flatten", lambda arrays: None if None in arrays else [each for array in arrays for each in array])
value_kernel("array_reverse", lambda values: values[::-1])
value_kernel("map_contains_key", lambda pairs, sought: any(key == sought for key, _ in pairs))


def _join_array(array: Argument, separator: Argument, *nulls: Argument) -> Made:
    given = _array(array)
    if not pa.types.is_string(given.type.value_type):
        raise Unfit(f"it joins texts, and this is {given.type}")
    return call("array_join", pa.string(), given, separator, *nulls)


def _flatten(arrays: Argument) -> Made:
    given = _array(arrays)
    if not pa.types.is_list(given.type.value_type):
        raise Unfit(f"it takes an array of arrays, and this is {given.type}")
    return call("flatten", given.type.value_type, given)


def _contains_key(maps: Argument, key: Argument) -> Made:
    return call("map_contains_key", pa.bool_(), _map(maps), _as(key, maps.type.key_type))


def _get_json_object(text: Argument, path: Argument) -> Made:
    path_of(str(path.constant("the path")))
    return call("get_json_object", pa.string(), Argument(text_of(text), pa.string(), False, None), path)


def from_json(text: Argument, schema: Argument) -> Made:
    return call("from_json", type_of_schema(str(schema.constant("the schema"))), text)


@kernel("get_json_object")
def _at_path(kind: pa.DataType, texts: pa.Array, paths: pa.Array) -> pa.Array:
    pairs = zip(texts.to_pylist(), paths.to_pylist(), strict=True)
    return column([None if None in pair else at_path(*pair) for pair in pairs], kind)


@kernel("from_json")
def _from_json(kind: pa.DataType, texts: pa.Array) -> pa.Array:
    read = read_as(kind)
    return column([None if text is None else read(text) for text in texts.to_pylist()], kind)


@kernel("to_json")
def _to_json(kind: pa.DataType, values: pa.Array) -> pa.Array:
    return column([None if each is None else as_json(each, values.type) for each in values.to_pylist()], kind)


def _json_of(value: Argument) -> Made:
    if not pa.types.is_nested(value.type):
        raise Unfit(f"it takes a struct, a map or an array, and this is {value.type}: use struct(…)")
    return call("to_json", pa.string(), value)


def _value_type(kind: pa.DataType) -> pa.DataType:
    return kind.value_type


def _itself(kind: pa.DataType) -> pa.DataType:
    return kind


# as in `named.NAMED`
COLLECTIONS: dict[str, tuple[int, int | None, Callable[..., Made]]] = {
    "array": (0, None, array),
    "array_contains": (2, 2, _with_element("array_contains", lambda _: pa.bool_())),
    "array_distinct": (1, 1, _of_array("array_distinct", _itself)),
    "array_join": (2, 3, _join_array),
    "array_max": (1, 1, _of_array("array_max", _value_type)),
    "array_min": (1, 1, _of_array("array_min", _value_type)),
    "array_position": (2, 2, _with_element("array_position", lambda _: pa.int64())),
    "array_size": (1, 1, size),
    "cardinality": (1, 1, size),
    "flatten": (1, 1, _flatten),
    "from_json": (2, 2, from_json),
    "get": (2, 2, lambda array, at: element(_array(array), at, 0, "null")),
    "get_json_object": (2, 2, _get_json_object),
    "element_at": (2, 2, lambda array, at: element(array, at, 1, "fail")),
    "map": (2, None, map_of),
    "map_contains_key": (2, 2, _contains_key),
    "map_keys": (1, 1, lambda maps: call("map_keys", pa.list_(_map(maps).type.key_type), maps)),
    "map_values": (1, 1, lambda maps: call("map_values", pa.list_(_map(maps).type.item_type), maps)),
    "size": (1, 1, size),
    "slice": (3, 3, _of_array("slice", _itself)),
    "sort_array": (1, 2, _of_array("sort_array", _itself)),
    "to_json": (1, 1, _json_of),
    "try_element_at": (2, 2, lambda array, at: element(array, at, 1, "null")),
}
