"""Which small files of several checkpoints become one at the commit of a table that has `commit_every`."""

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

TARGET_BYTES = 32 << 20  # a file is at least so large where there are rows for it; those of half the size stay

T = TypeVar("T")


def groups(
    files: Iterable[T], size: Callable[[T], int], kind: Callable[[T], Hashable], target: int = TARGET_BYTES
) -> list[list[T]]:
    """`files`, each in one group, in their order within a group. Those of one group become one file; they are of one
    `kind`, and the last of them fills it up; a small rest goes with the group before it."""
    found: list[list[T]] = []
    full: dict[Hashable, list[T]] = {}  # the last one of each kind
    open_groups: dict[Hashable, tuple[list[T], int]] = {}
    for file in files:
        if size(file) >= target // 2:
            found.append([file])
            continue
        group, filled = open_groups.get(kind(file)) or ([], 0)
        if not group:
            found.append(group)
        group.append(file)
        filled += size(file)
        if filled >= target:
            full[kind(file)] = group
        open_groups[kind(file)] = ([], 0) if filled >= target else (group, filled)
    for each, (rest, filled) in open_groups.items():
        if rest and each in full and filled < target // 2:
            full[each] += rest
            rest.clear()
    return [group for group in found if group]
