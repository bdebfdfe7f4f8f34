"""Decides when segments are merged.

When the deltas have as many entries as the base, all become a new base: besides merges of deltas, a changed row is
written at most twice. Many deltas of the same level are merged, so a restore reads some dozens of files at most.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

BOTTOM = 1_000_000  # level of a base and of chunks of a base
_MANY = 24


@dataclass(frozen=True)
class Size:
    entries: int
    level: int


def merge_from(sizes: Sequence[Size]) -> int | None:
    """Index in a state's segments, oldest first, from which all are merged; None: no merge."""
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
