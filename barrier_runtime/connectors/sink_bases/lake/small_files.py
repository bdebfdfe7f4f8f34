"""Which small files of several checkpoints become one at the commit of a table that has `commit_every`."""

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

TARGET_BYTES = 32 << 20  # a file is at least so large where there are rows for it; those of half the size stay

T = TypeVar("T")


def groups(
    files: Iterable[T], size: Callable[[T], int], kind: Callable[[T], Hashable], target: int = TARGET_BYTES
) -> list[list[T]]:
    """`files`, each in one group, in their order within a group. Those of one group become one file; they are of one
    `kind`, and the last of them fills it up."""
    found: list[list[T]] = []
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
        open_groups[kind(file)] = ([], 0) if filled >= target else (group, filled)
    return found
