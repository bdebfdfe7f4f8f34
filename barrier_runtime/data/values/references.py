"""Counts of references to rows: a row that a user's function dropped needs no copy. Rows returned twice."""

import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from sys import getsizeof
from typing import Any

from barrier_runtime.state.errors import InvalidJob

references = sys.getrefcount
"""Number of references to a row. Only this module depends on the interpreter's counting."""


def _references_of_a_local() -> int:
    """Newer interpreters do not count the argument."""
    assigned: dict[str, Any] = {}
    counts = [references(assigned)]
    made: Iterator[dict[str, Any]] = ({} for _ in range(1))
    for each in made:
        counts.append(references(each))
    return min(counts)  # too low a number only causes copies


ALONE = _references_of_a_local()
HELD_ONCE = ALONE + 1  # one local variable and one other holder


def _references_of_an_argument() -> int:
    """Counts for an argument that the caller does not keep; 0 (never equal) if unknown."""

    def seen(name: str, row: dict[str, Any]) -> int:
        return references(row)

    kept: dict[str, Any] = {}
    alone = seen("", {})
    return alone if alone < seen("", kept) else 0


ALONE_ARGUMENT = _references_of_an_argument()


# Detects a dict that is several rows of a list returned by a function.
#
#     kept, rows = {}, []
#     for name in names:
#         kept["name"] = name
#         rows.append(kept)  # all rows are the last name
#
# `[row] * 3` is allowed: the list's size in memory shows that the list did not grow.


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
