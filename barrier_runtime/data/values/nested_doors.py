"""Values of lists, structs, maps and dictionaries; the door of each level's type converts that level."""

from collections.abc import Callable, Mapping, Sequence, Set
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa

from barrier_runtime.data.values.doors import Door, is_null


class NestedDoor(Door):
    """Values with inner values. `door_of`: the door of an inner type."""

    def __init__(self, kind: pa.DataType, door_of: Callable[[pa.DataType], Door]) -> None:
        super().__init__(kind)
        self._door_of = door_of

    def inner(self, values: Sequence[Any], kind: pa.DataType) -> pa.Array:
        return self._door_of(kind).array(values)


class ListDoor(NestedDoor):
    """Lists of variable or fixed length."""

    def array(self, values: Sequence[Any]) -> pa.Array:
        kind = self.kind
        rows = values
        if not {list}.issuperset(map(type, values)):
            rows = [None if is_null(value) else self._elements(value) for value in values]
        fixed = kind.list_size if pa.types.is_fixed_size_list(kind) else None
        nothing = [None] * (fixed or 0)
        inner = [each for row in rows for each in (nothing if row is None else row)]
        if not kind.value_field.nullable:
            for row in rows:
                if row is not None and any(map(is_null, row)):
                    raise self.refused(row, "its elements are declared not nullable")
        child = self.inner(inner, kind.value_type)
        if fixed is not None:
            for value, row in zip(values, rows, strict=True):
                if row is not None and len(row) != fixed:
                    raise self.refused(value, f"it has {len(row)} elements")
            mask = pa.array([row is None for row in rows], pa.bool_())
            return pa.FixedSizeListArray.from_arrays(child, type=kind, mask=mask)
        offsets = _offsets([None if row is None else len(row) for row in rows], pa.types.is_large_list(kind))
        make = pa.LargeListArray if pa.types.is_large_list(kind) else pa.ListArray
        return make.from_arrays(offsets, child, type=kind)

    def _elements(self, value: Any) -> Any:
        if type(value) is list:
            return value
        if isinstance(value, str | bytes | bytearray | memoryview) or not isinstance(
            value, Sequence | Set | np.ndarray | pa.Array
        ):
            raise self.refused(value, remedy="give a list")
        return list(value)


class StructDoor(NestedDoor):
    """Dicts of the fields of a struct. `closed`: other keys are refused."""

    closed = True

    def __init__(self, kind: pa.DataType, door_of: Callable[[pa.DataType], Door]) -> None:
        super().__init__(kind, door_of)
        self._fields = [kind.field(at) for at in range(kind.num_fields)]
        self._names = [field.name for field in self._fields]
        self._known = frozenset(self._names)

    def array(self, values: Sequence[Any]) -> pa.Array:
        rows, absent = values, False
        if not {dict}.issuperset(map(type, values)):
            rows = [None if is_null(value) else self._row(value) for value in values]
            absent = None in rows
        present = [row for row in rows if row is not None] if absent else rows
        for row in present if self.closed else ():
            if not row.keys() <= self._known:
                unknown = next(name for name in row if name not in self._known)
                raise self.refused(
                    row, f"its type has no key {unknown!r}", f"declare {unknown!r} in schema=, or leave the key out"
                )
        children = [self._child(field, rows, present) for field in self._fields]
        mask = pa.array([row is None for row in rows], pa.bool_()) if absent else None
        return pa.StructArray.from_arrays(children, fields=self._fields, mask=mask)

    def _child(self, field: pa.Field, rows: Sequence[Any], present: Sequence[Any]) -> pa.Array:
        name = field.name
        if not field.nullable:
            for row in present:
                if is_null(row.get(name)):
                    raise self.refused(row, f"its {name!r} is declared not nullable")
        try:
            values = list(map(itemgetter(name), rows))
        except (KeyError, TypeError):
            values = [None if row is None else row.get(name) for row in rows]
        return self.inner(values, field.type)

    def _row(self, value: Any) -> Mapping[str, Any]:
        if isinstance(value, Mapping):
            return value
        names = getattr(value, "_fields", self._names)  # of a named tuple
        if isinstance(value, tuple) and len(value) == len(names):
            return dict(zip(names, value, strict=True))
        if isinstance(value, list) and all(isinstance(pair, tuple) and len(pair) == 2 for pair in value):
            row = dict(value)
            if len(row) == len(value):
                return row
        raise self.refused(value, remedy="give a dict")


class OpenStructDoor(StructDoor):
    """Records of another system: fields that the struct lacks are omitted, as columns of schemas are."""

    closed = False


class MapDoor(NestedDoor):
    """Dicts with any keys, or lists of pairs."""

    def array(self, values: Sequence[Any]) -> pa.Array:
        rows = [None if is_null(value) else self._pairs(value) for value in values]
        pairs = [pair for row in rows if row is not None for pair in row]
        keys = [key for key, _ in pairs]
        items = [item for _, item in pairs]
        if any(map(is_null, keys)):
            raise self.refused(dict(pairs), "a key is None")
        if not self.kind.item_field.nullable and any(map(is_null, items)):
            raise self.refused(dict(pairs), "its values are declared not nullable")
        stored = self.inner(keys, self.kind.key_type)
        lengths = [None if row is None else len(row) for row in rows]
        self._check_once(values, lengths, stored)
        return pa.MapArray.from_arrays(
            _offsets(lengths, False), stored, self.inner(items, self.kind.item_type), type=self.kind
        )

    def _pairs(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return value.items()
        if isinstance(value, list | tuple) and all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in value):
            return value
        raise self.refused(value, remedy="give a dict")

    def _check_once(self, values: Sequence[Any], lengths: Sequence[int | None], keys: pa.Array) -> None:
        codes, at = keys.dictionary_encode().indices.to_pylist(), 0
        for value, length in zip(values, lengths, strict=True):
            if length is not None:
                if len(set(codes[at : at + length])) < length:
                    raise self.refused(value, "a key is in it twice")
                at += length


class DictionaryDoor(NestedDoor):
    """Values of a dictionary's type, encoded."""

    def array(self, values: Sequence[Any]) -> pa.Array:
        encoded = self.inner(values, self.kind.value_type).dictionary_encode()
        return encoded if encoded.type.equals(self.kind) else encoded.cast(self.kind)


def _offsets(lengths: Sequence[int | None], large: bool) -> pa.Array:
    """Beginning of each list (null for a null list), and the end of the last."""
    offsets: list[int | None] = []
    end = 0
    for length in lengths:
        offsets.append(None if length is None else end)
        end += length or 0
    return pa.array([*offsets, end], pa.int64() if large else pa.int32())
