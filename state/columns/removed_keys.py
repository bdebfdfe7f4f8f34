"""Keys of a columnar table that were removed, and whose removal is not frozen yet.

Windows that are over are removed a million at a time, and no row comes for them any more: their keys wait as arrays,
and the index, which asks for each key, is made of them only when a key comes that may be one of them.
"""

from collections.abc import Callable, Sequence

from barrier_runtime.state.keys.row_index import IntKeys, Ints, Key, TupleKeys, tuple_keys


class RemovedKeys:
    """`index`: an empty one, as the table's."""

    def __init__(self, index: IntKeys | TupleKeys) -> None:
        self._index = index
        self._waiting: list[Ints] = []  # none of the keys that come has a last field as low as the highest of theirs
        self._many = 0  # of those that wait
        self._highest = 0

    def __len__(self) -> int:
        """A key that was removed twice may count twice."""
        return len(self._index) + self._many

    def add(self, keys: Ints | Sequence[Key]) -> None:
        self.index.place(keys)  # type: ignore[arg-type]

    def add_by_last(self, keys: Ints) -> None:
        """Of a table to which keys come in the order of their last fields, nearly. At least one."""
        highest = int(keys[-1].max())
        self._highest = max(self._highest, highest) if self._waiting else highest
        self._waiting.append(keys)
        self._many += keys.shape[1]

    def may_have(self, lowest_last: Callable[[], int]) -> bool:
        """Whether it may have a key with that last field, or a higher one."""
        return len(self._index) > 0 or (bool(self._waiting) and lowest_last() <= self._highest)

    @property
    def index(self) -> IntKeys | TupleKeys:
        """Of all of them, once each."""
        for keys in self._waiting:
            self._index.place(keys)  # type: ignore[arg-type]
        self._waiting, self._many = [], 0
        return self._index

    def with_tuples(self) -> "RemovedKeys":
        """The same, with an index of tuples."""
        return RemovedKeys(tuple_keys(self.index))
