"""Counts of references to rows: a row that a user's function dropped needs no copy."""

import sys
from collections.abc import Iterator
from typing import Any

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
