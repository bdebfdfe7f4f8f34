"""When segments are merged: the decision alone. Pure.

Deltas gather behind a base. When they hold as many entries as the base, all become a new base; so a row that changed is
written twice at most besides the merges below. When many have gathered that were merged equally often, these become
one, so that a restore never reads more than some dozens of files.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

BOTTOM = 1_000_000  # the level of a base, and of what was cut from it
_MANY = 24


@dataclass(frozen=True)
class Size:
    entries: int
    level: int


def merge_from(sizes: Sequence[Size]) -> int | None:
    """From which of a state's segments on, oldest first, all should become one; None: they stay."""
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
