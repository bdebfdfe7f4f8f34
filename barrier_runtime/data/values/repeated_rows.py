"""Detects a dict that is several rows of a list returned by a function.

    kept, rows = {}, []
    for name in names:
        kept["name"] = name
        rows.append(kept)  # all rows are the last name

`[row] * 3` is allowed: the list's size in memory shows that the list did not grow.
"""

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from sys import getsizeof
from typing import Any

from barrier_runtime.state.errors import InvalidJob


def repeated(rows: Sequence[Any], row_class: type | None = None) -> list[Any]:
    if len(rows) == len(set(map(id, rows))):
        return []
    counts = Counter(map(id, rows))
    return list(
        {
            id(row): row for row in rows if counts[id(row)] > 1 and (isinstance(row, Mapping) or type(row) is row_class)
        }.values()
    )


def times_in(rows: Sequence[Any], row: Any) -> int:
    return sum(each is row for each in rows)


def refuse_repeated(rows: Sequence[Any] | Mapping[Any, Any], row: Any, where: str) -> None:
    """Raises for `row`, which occurs several times.
    A list of the minimum size may have grown until it was full: then only warns.
    """
    times, made = 2, "dict"
    if isinstance(rows, Sequence):
        times, made = times_in(rows, row), "list"
    said = (
        f"{where}: the {made} that was returned has the same row {times} times, so these rows are equal, even if "
        "the row was changed in between: make a dict for each row, as in dict(row), or yield the rows"
    )
    if type(rows) is list and getsizeof(rows) == getsizeof([None] * len(rows)):
        if getsizeof(rows) == getsizeof([None for _ in rows]):
            warnings.warn(said, stacklevel=2)
        return
    raise InvalidJob(said)
