"""A small number for each key that a join holds rows of, shared by both sides, so that rows are told apart by numpy.

A number belongs to its key as long as rows of it are held, also rows that are dead but not swept yet; then it is free.
"""

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from barrier_runtime.data.grouping import group_rows
from barrier_runtime.data.keys import KeyCodec
from barrier_runtime.state.keys.distinct_ints import distinct_ints
from barrier_runtime.state.keys.row_index import IntKeys, TupleKeys, tuple_keys

Ints: TypeAlias = npt.NDArray[np.int64]


class KeyNumbers:
    def __init__(self, fields: int) -> None:
        self._keys: IntKeys | TupleKeys = IntKeys(fields)
        self._rows = np.zeros(1_024, np.int64)  # that are held, by number

    def __len__(self) -> int:
        return len(self._keys)

    def hold(self, codec: KeyCodec, keys: list[pa.Array]) -> Ints:
        """The number of each row's key, given what `codec` made of its key columns, none of them null. The rows are
        held from now on."""
        ints = codec.int64(keys)
        if ints is not None and isinstance(self._keys, IntKeys):
            numbers = self._placed(np.array(ints, np.int64))
        else:
            self._keys = tuple_keys(self._keys)
            groups = group_rows(keys)
            numbers = self._placed(groups.keys)[groups.of_row]
        np.add.at(self._rows, numbers, 1)
        return numbers

    def release(self, numbers: Ints) -> None:
        """The rows of these numbers, once each, are held no more."""
        np.subtract.at(self._rows, numbers, 1)
        free = numbers[self._rows[numbers] == 0]
        if len(free):
            self._keys.remove(distinct_ints(free))

    def _placed(self, keys: Any) -> Ints:
        numbers, made = self._keys.place(keys)
        if len(made) and self._keys.numbers.limit > len(self._rows):
            extended = np.zeros(max(self._keys.numbers.limit, 2 * len(self._rows)), np.int64)
            extended[: len(self._rows)] = self._rows
            self._rows = extended
        return numbers
