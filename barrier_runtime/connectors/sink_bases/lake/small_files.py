"""Selection of small files of several checkpoints to be joined at a commit with `commit_every`."""

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

TARGET_BYTES = 32 << 20  # least size of a file if there are enough rows; files of half the size stay

T = TypeVar("T")


def groups(
    files: Iterable[T], size: Callable[[T], int], kind: Callable[[T], Hashable], target: int = TARGET_BYTES
) -> list[list[T]]:
    """Returns `files` in groups, each group in order; the files of a group become a single file.

    A group has files of a single `kind` and ends with the file that reaches the target size. A small rest joins the
    previous group.
    """
    found: list[list[T]] = []
    full: dict[Hashable, list[T]] = {}  # the last full group of each kind
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
