"""Option `commit_every=`: a sink commits a period's checkpoints together, with joined files."""

import datetime
import math
from collections.abc import Callable, Hashable, Iterable
from numbers import Real
from typing import TypeVar

from barrier_runtime.state.errors import InvalidJob

TARGET_BYTES = 32 << 20  # size of joined files; files of half the size stay

T = TypeVar("T")


_DAY_MS = 24 * 60 * 60 * 1000


def commit_every_ms(commit_every: datetime.timedelta | float, who: str) -> int:
    seconds = commit_every.total_seconds() if isinstance(commit_every, datetime.timedelta) else commit_every
    if isinstance(seconds, Real) and not isinstance(seconds, bool) and math.isfinite(seconds):
        ms = round(float(seconds) * 1000)
        if 0 <= ms <= _DAY_MS and (ms or not seconds):
            return ms
    raise InvalidJob(
        f"{who}: commit_every={commit_every!r}: give a timedelta or seconds, from 0 (a commit for each checkpoint) to "
        "a day, as in commit_every=timedelta(seconds=30)"
    )


def described(commit_every_ms: int) -> str:
    return f", a commit every {commit_every_ms / 1000:g} s" if commit_every_ms else ""


def groups(
    files: Iterable[T], size: Callable[[T], int], kind: Callable[[T], Hashable], target: int = TARGET_BYTES
) -> list[list[T]]:
    """Groups `files`, in order, of a single `kind` each; a group becomes a file.

    A group ends with the file that reaches the target size. A small rest joins the previous group.
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
