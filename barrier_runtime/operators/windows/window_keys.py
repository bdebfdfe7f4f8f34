"""Small numbers for keys, for plain arrays of sums."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from barrier_runtime.state.keys.row_index import IntKeys, Key, TupleKeys, tuple_keys

Ints = npt.NDArray[np.int64]


class WindowKeys:
    """A number belongs to a key as long as one of its entries is held."""

    def __init__(self, width: int, groups_of: Callable[[Sequence[Any]], Ints]) -> None:
        """`width`: fields of a key. `groups_of`: returns each key's group, given a sequence per field."""
        self._keys: IntKeys | TupleKeys = IntKeys(width)
        self._groups_of = groups_of
        self.groups: Ints = np.zeros(0, np.int64)
        self._held: Ints = np.zeros(0, np.int64)

    @property
    def limit(self) -> int:
        return len(self.groups)

    def of_ints(self, keys: Ints) -> Ints:
        if isinstance(self._keys, TupleKeys):
            return self.of_tuples(list(zip(*keys.tolist(), strict=True)))
        numbers, made = self._keys.place(keys)
        self._made(made)
        return numbers

    def of_tuples(self, keys: Sequence[Key]) -> Ints:
        self._keys = tuple_keys(self._keys)
        numbers, made = self._keys.place(keys)
        self._made(made)
        return numbers

    def hold(self, numbers: Ints) -> None:
        self._held[numbers] += 1

    def release(self, numbers: Ints) -> None:
        self._held[numbers] -= 1
        gone = numbers[self._held[numbers] == 0]
        if len(gone):
            self._keys.remove(gone)

    def fields(self, numbers: Ints) -> list[Any]:
        if isinstance(self._keys, IntKeys):
            return list(self._keys.key_batch(numbers))
        return list(zip(*self._keys.key_batch(numbers), strict=True))

    def key(self, number: int) -> Key:
        return self._keys.tuples(np.array([number]))[0]

    @property
    def are_ints(self) -> bool:
        return isinstance(self._keys, IntKeys)

    def _made(self, numbers: Ints) -> None:
        if not len(numbers):
            return
        missing = self._keys.numbers.limit - len(self.groups)
        if missing > 0:
            more = np.zeros(max(missing, len(self.groups)), np.int64)
            self.groups, self._held = np.concatenate((self.groups, more)), np.concatenate((self._held, more))
        self.groups[numbers] = self._groups_of(self.fields(numbers))
        self._held[numbers] = 0
