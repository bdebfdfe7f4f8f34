"""Joined files: `commit_every=`, and compaction of files that a sink has written into a table.

Design: docs/design/compaction.md.
"""

import datetime
import logging
import math
import re
import threading
import time
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import ThreadPoolExecutor
from numbers import Real
from typing import Generic, Protocol, TypeVar

from barrier_runtime.state.errors import BarrierRuntimeError, InvalidJob

log = logging.getLogger("barrier_runtime.sinks")

LEAST_FILES = 16  # small files of a group below the target, and new files between two looks
MOST_GROUPS = 8  # of a commit
_MOST_WAITING = 1024  # files between two looks that find nothing
_SHARE = 10  # pause after a turn, in lengths of that turn
_UNITS = {"MB": 10**6, "GB": 10**9}
_SMALLEST, _LARGEST = 10**6, 4 * 10**9
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([MG]B)\s*")

T = TypeVar("T")
P = TypeVar("P")
W = TypeVar("W")


def compact_bytes(compact: str | int | None, who: str) -> int | None:
    """Target size in bytes; None: off. Raises `InvalidJob`."""
    if compact is None:
        return None
    size: float | None = None
    if isinstance(compact, str):
        match = _SIZE.fullmatch(compact)
        size = float(match[1]) * _UNITS[match[2]] if match else None
    elif isinstance(compact, Real) and not isinstance(compact, bool):
        size = float(compact)
    if size is None or not _SMALLEST <= size <= _LARGEST:
        raise InvalidJob(
            f"{who}: compact={compact!r}: give the size that files are to have, from 1 MB to 4 GB, as in "
            'compact="128 MB" (or bytes), or None: no compaction'
        )
    return int(size)


def compacted(compact: int | None) -> str:
    return f", compacted to {compact / 10**6:g} MB" if compact else ""


def to_compact(
    files: Iterable[T], size: Callable[[T], int], kind: Callable[[T], Hashable], target: int
) -> list[list[T]]:
    """Groups of small files of equal `kind`; each group becomes a file."""
    small: dict[Hashable, list[T]] = {}
    for file in files:
        if size(file) < target // 2:
            small.setdefault(kind(file), []).append(file)
    found: list[list[T]] = []
    for some in small.values():
        group: list[T] = []
        filled = 0
        for file in sorted(some, key=lambda each: size(each).bit_length() // 3):
            group.append(file)
            filled += size(file)
            if filled >= target:
                found.append(group)
                group, filled = [], 0
        while group and 2 * size(largest := max(group, key=size)) > filled:
            group.remove(largest)
            filled -= size(largest)
        if len(group) >= LEAST_FILES:
            found.append(group)
    return found


class Pace:
    """Decides when to look at the table, by added files and the length of the last turn. Pure."""

    def __init__(self) -> None:
        self._waiting = 0
        self._enough = LEAST_FILES
        self._not_before = float("-inf")

    def added(self, files: int, now: float) -> bool:
        self._waiting += files
        return self._waiting >= self._enough and now >= self._not_before

    def ended(self, began: float, now: float, compacted: int) -> None:
        self._waiting = 0
        self._enough = LEAST_FILES if compacted else min(2 * self._enough, _MOST_WAITING)
        self._not_before = now + _SHARE * (now - began)


class CompactedTable(Protocol[P, W]):
    def look(self) -> P | None: ...

    def write(self, plan: P, stop: Callable[[], bool]) -> W | None:
        """New files, in no version of the table. None: given up, and the new files are deleted."""
        ...

    def commit(self, plan: P, written: W) -> int:
        """Replaces the chosen files by the new files; returns the number of replaced files.

        0: given up, and the new files are deleted. Raises `Unavailable` if the result is unknown.
        """
        ...


def compact_once(table: CompactedTable[P, W], stop: Callable[[], bool] = lambda: False) -> int:
    plan = table.look()
    if plan is None or stop():
        return 0
    written = table.write(plan, stop)
    return 0 if written is None else table.commit(plan, written)


class Compactor(Generic[P, W]):
    """Runs turns on a separate thread."""

    def __init__(self, table: CompactedTable[P, W], where: str) -> None:
        self._table = table
        self._where = where
        self._pace = Pace()
        self._lock = threading.Lock()
        self._thread: ThreadPoolExecutor | None = None
        self._working = False
        self._closed = threading.Event()

    def added(self, files: int) -> None:
        with self._lock:
            due = self._pace.added(files, time.monotonic())
            if due and not self._working and not self._closed.is_set():
                self._working = True
                self._thread = self._thread or ThreadPoolExecutor(1, thread_name_prefix="compaction")
                self._thread.submit(self._turn)

    def close(self) -> None:
        """Stops a running turn before the next file, without waiting."""
        with self._lock:
            self._closed.set()
            if self._thread is not None:
                self._thread.shutdown(wait=False)

    def _turn(self) -> None:
        began, compacted = time.monotonic(), 0
        try:
            compacted = compact_once(self._table, self._closed.is_set)
        except (BarrierRuntimeError, OSError) as error:
            log.warning("%s: small files are not compacted now, and later again: %s", self._where, error)
        except Exception:
            log.exception("%s: small files are not compacted now, and later again", self._where)
        finally:
            if compacted:
                log.info("%s: %d small files were compacted", self._where, compacted)
            with self._lock:
                self._pace.ended(began, time.monotonic(), compacted)
                self._working = False


TARGET_BYTES = 32 << 20  # size of joined files; files of half the size stay


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
