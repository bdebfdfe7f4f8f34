"""Groups the rows of a batch by key, hash based."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from barrier_runtime.state.keys.row_index import mixed_ints

_TINY = 300  # rows up to which a dict is faster
_FEW = 64  # numbers below which Python is faster than numpy
_ROOM = 1 << 62  # upper bound of values that are shifted by group


@dataclass(frozen=True, slots=True)
class Groups:
    of_row: npt.NDArray[np.int64]
    keys: list[tuple[Any, ...]]  # by group number, in order of first appearance


def group_rows(columns: list[pa.Array]) -> Groups:
    """Groups rows by the values of `columns` (types as in `KeyCodec.arrays`); nulls are equal."""
    rows = len(columns[0])
    if rows <= _TINY:
        numbers: dict[tuple[Any, ...], int] = {}
        tuples = zip(*[column.to_pylist() for column in columns], strict=True)
        of_row = np.fromiter((numbers.setdefault(key, len(numbers)) for key in tuples), np.int64, rows)
        return Groups(of_row, list(numbers))
    encoded = [_encode(column) for column in columns]
    several = [each for each in encoded if len(each.dictionary) > 1]
    if len(several) < 2:  # a constant column does not distinguish groups
        apart = several[0] if several else encoded[0]
        groups, of_row = len(apart.dictionary), _codes(apart)
        fields: list[Iterable[Any]] = [
            each.dictionary.to_pylist() if each is apart else itertools.repeat(each.dictionary[0].as_py(), groups)
            for each in encoded
        ]
        return Groups(of_row, list(zip(*fields, strict=True)))
    together = _encoded_together(several)
    of_row = _codes(together)
    taken = pa.array(first_rows(of_row, len(together.dictionary)))
    return Groups(of_row, list(zip(*[column.take(taken).to_pylist() for column in columns], strict=True)))


def number_rows(columns: Sequence[pa.Array]) -> tuple[npt.NDArray[np.int64], int]:
    """Group number of each row, and the number of groups; nulls are equal."""
    encoded = list(map(_encode, columns))
    together = _encoded_together([each for each in encoded if len(each.dictionary) > 1] or encoded[:1])
    return _codes(together), len(together.dictionary)


def last_of_groups(columns: Sequence[pa.Array]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Last row of each row's group by `columns`, and the last rows of all groups.

    Nulls are equal. Each row is written to the place of the hash; the last write stays. Rows that find another group
    there have a second place, and are then numbered by Arrow.
    """
    fields = _ints(columns)
    every = np.arange(len(columns[0]))
    if not fields:
        return np.full(len(every), len(every) - 1), every[-1:]
    bits = len(every).bit_length()
    mixed, rest = mixed_ints(fields), np.uint64(64 - bits)
    places = np.empty(1 << bits, np.int64)
    last_of = _last_at((mixed >> rest).view(np.int64), every, places)
    wrong = _others(fields, last_of, fields)
    if len(wrong):
        second = (mixed.take(wrong) << np.uint64(bits)) >> rest
        last_of[wrong] = found = _last_at(second.view(np.int64), wrong, places)
        wrong = wrong.take(_others(fields, found, [field.take(wrong) for field in fields]))
    if len(wrong):
        of_row, groups = number_rows([pa.array(field.take(wrong)) for field in fields])
        last_of[wrong] = wrong[last_rows(of_row, groups)].take(of_row)
    return last_of, (last_of == every).nonzero()[0]


def _last_at(
    home: npt.NDArray[np.int64], rows: npt.NDArray[np.int64], places: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    places[home] = rows
    return places.take(home)


def _others(
    fields: Sequence[npt.NDArray[np.int64]], found: npt.NDArray[np.int64], own: Sequence[npt.NDArray[np.int64]]
) -> npt.NDArray[np.int64]:
    differ = fields[0].take(found) != own[0]
    for field, of_row in zip(fields[1:], own[1:], strict=True):
        differ |= field.take(found) != of_row
    others: npt.NDArray[np.int64] = differ.nonzero()[0]
    return others


def _ints(columns: Sequence[pa.Array]) -> list[npt.NDArray[np.int64]]:
    """Integers, equal for equal values, of each column with several values."""
    fields = []
    for column in columns:
        plain = plain_ints(column)
        if plain is not None:
            fields.append(plain)
            continue
        encoded = _encode(column)
        if len(encoded.dictionary) > 1:
            fields.append(_codes(encoded))
    return fields


def plain_ints(column: pa.Array) -> npt.NDArray[np.int64] | None:
    """None: the column has nulls, or other values."""
    if pa.types.is_timestamp(column.type):
        column = column.view(pa.int64())
    if not pa.types.is_integer(column.type) or column.null_count:
        return None
    ints: npt.NDArray[np.int64] = column.to_numpy().astype(np.int64, copy=False)
    return ints


def first_rows(of_row: npt.NDArray[np.int64], groups: int) -> npt.NDArray[np.int64]:
    found = np.empty(groups, np.int64)
    found[of_row[::-1]] = np.arange(len(of_row) - 1, -1, -1)  # of equal indices the last write stays
    return found


def last_rows(of_row: npt.NDArray[np.int64], groups: int) -> npt.NDArray[np.int64]:
    found = np.empty(groups, np.int64)
    found[of_row] = np.arange(len(of_row))
    return found


def _encoded_together(columns: Sequence[pa.DictionaryArray]) -> pa.DictionaryArray:
    together = columns[0]
    for more in columns[1:]:
        together = _encode(pa.array(_codes(together) * len(more.dictionary) + _codes(more)))
    return together


def _encode(column: pa.Array) -> pa.DictionaryArray:
    first = column[0]
    if not column.null_count and first == column[-1] and pc.all(pc.equal(column, first)).as_py():
        return pa.DictionaryArray.from_arrays(np.zeros(len(column), np.int32), column.slice(0, 1))
    return column.dictionary_encode(null_encoding="encode")


def _codes(encoded: pa.DictionaryArray) -> npt.NDArray[np.int64]:
    return encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)  # type: ignore[no-any-return]


def extremes(numbers: npt.NDArray[np.int64]) -> tuple[int, int]:
    if len(numbers) <= _FEW:
        few = numbers.tolist()
        return min(few), max(few)
    return int(numbers.min()), int(numbers.max())


def greatest_magnitude(values: npt.NDArray[Any]) -> int:
    lowest, highest = extremes(values) if len(values) else (0, 0)
    return max(highest, -lowest)


def stable_order(slots: npt.NDArray[Any]) -> npt.NDArray[np.intp]:
    """`argsort(slots, kind="stable")` for numbers in [0, 2**32): numpy sorts 16-bit numbers by radix."""
    if len(slots) < 1_024:
        return np.argsort(slots, kind="stable")
    order = np.argsort(slots.astype(np.uint16), kind="stable")
    high = slots >> 16
    if not high.any():
        return order
    return order[np.argsort(high.astype(np.uint16)[order], kind="stable")]


def order_of_ints(columns: Sequence[npt.NDArray[np.int64]]) -> npt.NDArray[np.intp]:
    order = np.arange(len(columns[0]))
    for column in reversed(columns):
        if not len(column):
            break
        lowest, highest = int(column.min()), int(column.max())
        if lowest == highest:
            continue
        values = column[order]
        if highest - lowest < 1 << 32:
            order = order[stable_order(values - lowest)]
        else:
            order = order[np.argsort(values, kind="stable")]
    return order


def running_most(values: npt.NDArray[np.int64], groups: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Greatest value so far in each item's group. `groups`: group numbers, ascending from 0."""
    least = int(values.min())
    span = int(values.max()) - least + 1
    if span * (int(groups[-1]) + 1) >= _ROOM:
        distinct, ranks = np.unique(values, return_inverse=True)
        return distinct[running_most(ranks, groups)]
    shift = groups * span - least
    most: npt.NDArray[np.int64] = np.maximum.accumulate(values + shift) - shift
    return most
