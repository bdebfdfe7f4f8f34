"""Decides when segments are merged.

Deltas accumulate after a base. When the deltas have as many entries as the base, all become a new base; a changed row
is therefore written at most twice, besides the merges below. When many deltas with the same number of merges exist,
they become one delta, so that a restore reads some dozens of files at most.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

BOTTOM = 1_000_000  # level of a base, and of its chunks
_MANY = 24


@dataclass(frozen=True)
class Size:
    entries: int
    level: int


def merge_from(sizes: Sequence[Size]) -> int | None:
    """Index in a state's segments, oldest first, from which all are merged into one; None: no merge."""
    below = list(itertools.takewhile(lambda size: size.level == BOTTOM, sizes))
    above = sizes[len(below) :]
    if not above:
        return None
    if sum(size.entries for size in above) >= sum(size.entries for size in below):
        return 0
    start, level = len(sizes), 0
    while True:
        alike = sum(1 for _ in itertools.takewhile(lambda size: size.level == level, reversed(sizes[:start])))  # noqa: B023
        if alike + (start < len(sizes)) < _MANY:
            return start if start < len(sizes) else None
        start, level = start - alike, level + 1
