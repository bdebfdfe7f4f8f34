"""Assignment of splits to a subtask, and names of finished splits in snapshots.

Every split is read exactly once. Design: docs/design/splits-and-discovery.md.
"""

import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import msgspec

from barrier_runtime.connectors.in_turn import is_in_turn
from barrier_runtime.connectors.name_set import RECORD_BYTES, UNKNOWN_SIZE, UNMARKED, NameSet, SortedRun, merged
from barrier_runtime.connectors.source import (
    Choosing,
    DiscoveringSource,
    Discovery,
    GrowingSource,
    MarkingSource,
    Source,
    Split,
    StagedSource,
)
from barrier_runtime.operators.base import Capture, SequentialExecutor
from barrier_runtime.runtime.sources.progress import (
    FINISHED_VALUE,
    PROGRESS_VERSION,
    RUN_VALUE,
    SPLITS_VALUE,
    RestoredSource,
    SourceProgress,
    SplitProgress,
)
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.snapshots.snapshot import FileRef

_SMALL_VALUE = 4_096 // RECORD_BYTES


class FinishedSplits:
    """Names in sorted runs. Snapshots refer to runs that a decided checkpoint stored."""

    def __init__(self, names: NameSet, executor: SequentialExecutor) -> None:
        self._names = names
        self._executor = executor
        self._stored: Mapping[str, FileRef] = {}
        self._merging = False

    def size_of(self, id: str) -> int | None:
        return self._names.size_of(id)

    def add(self, id: str, size: int | None, mark: int) -> None:
        self._names.add(id, size, mark)
        if self._names.freeze():
            self._merge()

    def capture(self, progress: SourceProgress) -> Capture:
        if self._names.freeze(_SMALL_VALUE):
            self._merge()
        added = self._names.added()
        runs = {f"{RUN_VALUE}{run.name}": run for run in self._names.runs}
        finished = len(added) // RECORD_BYTES + sum(map(len, runs.values()))
        progress = msgspec.structs.replace(progress, finished=finished, version=PROGRESS_VERSION)
        values = {name: run.data for name, run in runs.items() if name not in self._stored}
        stored = {name: self._stored[name] for name in runs if name in self._stored}
        if added:
            values[FINISHED_VALUE] = added
        values[SPLITS_VALUE] = msgspec.json.encode(progress)
        return Capture(values, stored=stored, on_stored=self._on_stored)

    def _on_stored(self, objects: Mapping[str, FileRef]) -> None:
        self._stored = objects

    def _merge(self) -> None:
        window = self._names.to_merge()
        if not window or self._merging:
            return
        self._merging = True

        def done(run: SortedRun, error: BaseException | None) -> None:
            self._merging = False
            if error is not None:
                raise error
            self._names.replace(window, run)
            self._merge()

        self._executor.submit(partial(merged, [run.data for run in window]), done)


@dataclass
class Assignment:
    splits: list[Split]
    finished: NameSet
    done_rows: int  # of finished splits
    done_ms: int
    discovery: Discovery | None = None
    at_end: dict[str, SplitProgress] = field(default_factory=dict)  # not in `splits`


def under_known_ids(listed: Sequence[Split], restored: RestoredSource, where: str) -> list[Split]:
    """Restores the former id of each split that the snapshot knows only by that."""
    if not any(split.formerly for split in listed):
        return list(listed)

    def knows(id: str) -> bool:
        return id in restored.splits or id in restored.finished

    found = [
        replace(split, id=split.formerly) if split.formerly and not knows(split.id) and knows(split.formerly) else split
        for split in listed
    ]
    twice = [id for id, count in Counter(split.id for split in found).items() if count > 1]
    if twice:
        raise InvalidJob(
            f"{where}: the checkpoint is of an earlier release and has read a file {twice[0]!r}, and there are "
            "several files of that name in different folders: take away those that are new, or start without "
            "state (restore='none')"
        )
    return found


def assign_listed(
    listed: Sequence[Split],
    restored: RestoredSource,
    subtask: int,
    parallelism: int,
    where: str,
    readers: int | None = None,
) -> Assignment:
    """`readers`: number of subtasks that read; None: all."""
    _check_shares(listed, restored, where)
    mine = {split.id: split for i, split in enumerate(listed) if i % (readers or parallelism) == subtask}
    all_ids = {split.id for split in listed}
    at_end = {}
    for id, reached in restored.splits.items():
        if id not in all_ids and reached.at_end:
            if zlib.crc32(id.encode()) % parallelism == subtask:
                at_end[id] = reached
            continue
        if id not in all_ids:
            raise _lost(id, reached, where)
        if id in restored.own and not restored.complete and id not in mine:
            raise InvalidJob(
                f"{where}: split {id!r} now belongs to another subtask, because the list of "
                "splits changed: restore with the same files, or add files whose names sort last"
            )
    unfinished = [split for split in mine.values() if not has_finished(split, restored.finished, where)]
    return Assignment(unfinished, restored.finished, restored.done_rows, restored.done_ms, at_end=at_end)


def never_has_rows(source: Source, listed: Sequence[Split], subtask: int) -> bool:
    """True if the list is fixed and has no split for this subtask."""
    fixed = not isinstance(source, DiscoveringSource | StagedSource)
    return fixed and subtask >= min(len(listed), readers_of(source, subtask + 1))


def readers_of(source: Source, parallelism: int) -> int:
    return 1 if is_in_turn(source) else parallelism


def has_finished(split: Split, finished: NameSet | FinishedSplits, where: str) -> bool:
    size = finished.size_of(split.id)
    if size is None:
        return False
    if split.size is not None and size not in (UNKNOWN_SIZE, split.size):
        raise InvalidJob(changed_after_it_was_read(where, split.id, size, split.size))
    return True


def compare_finished(
    source: MarkingSource, listed: Sequence[Split], assignment: Assignment, subtask: int, parallelism: int
) -> None:
    """Refuses finished splits with changed content; see `MarkingSource.renewed_marks`."""
    marked = []
    for split in listed[subtask::parallelism]:
        known = assignment.finished.find(split.id)
        if known is not None and known.mark != UNMARKED:
            marked.append((split, known.mark))
    for split, mark in source.renewed_marks(marked):
        assignment.finished.add(split.id, split.size, mark)


def assign_staged(
    listed: Sequence[Split], restored: RestoredSource, subtask: int, parallelism: int, where: str
) -> Assignment:
    """Assigns the checkpoint's splits: listed splits may be of a run that never took over the job."""
    if not restored.any:
        return assign_listed(listed, restored, subtask, parallelism, where)
    _require_complete(restored, where)
    by_id = {split.id: split for split in listed}
    splits = []
    for id, reached in sorted(restored.splits.items()):
        if id not in by_id and not reached.payload:
            raise _lost(id, reached, where)
        splits.append(by_id.get(id) or Split(id, reached.payload))
    return assign_listed(splits, restored, subtask, parallelism, where)


def assign_discovered(
    source: DiscoveringSource,
    listed: Sequence[Split],
    restored: RestoredSource,
    subtask: int,
    parallelism: int,
    where: str,
) -> Assignment:
    _require_complete(restored, where)
    _check_chosen(source, restored, where)

    by_id = {split.id: split for split in listed}
    known: dict[str, Split] = {}
    growing = grows(source)
    for id, reached in restored.splits.items():
        if reached.at_end:
            continue
        if growing and reached.payload:
            known[id] = Split(id, reached.payload)
        elif id in by_id or reached.payload:
            known[id] = by_id.get(id) or Split(id, reached.payload)
        else:
            raise _lost(id, reached, where)
    later = {
        split.id: split for split in listed if split.id not in restored.splits and split.id not in restored.finished
    }
    if not restored.any:
        known, later = later, {}
    seen = restored.finished.copy()
    for split in known.values():
        seen.add(split.id, split.size)
    at_end = {id: reached for id, reached in restored.splits.items() if reached.at_end}
    for id in at_end:
        seen.add(id)
    discovery = source.discovery(seen)
    if discovery is None:
        known.update(later)
    mine = [split for split in known.values() if source.owner(split.id, parallelism) == subtask]
    ended = {id: reached for id, reached in at_end.items() if source.owner(id, parallelism) == subtask}
    return Assignment(mine, restored.finished, restored.done_rows, restored.done_ms, discovery, ended)


def reading_subtasks(
    source: Source, listed: Sequence[Split], restored: RestoredSource, parallelism: int
) -> frozenset[int]:
    """Subtasks with unfinished splits, as far as known at the start; equal in every subtask."""
    if isinstance(source, DiscoveringSource):
        ids = {split.id for split in listed} | restored.splits.keys()
        return frozenset(source.owner(id, parallelism) for id in ids if id not in restored.finished)
    if isinstance(source, StagedSource) and restored.any:
        ended = [False] * len(restored.splits)
    else:
        ended = [split.id in restored.finished for split in listed]
    readers = readers_of(source, parallelism)
    return frozenset(number % readers for number, done in enumerate(ended) if not done)


def check_none_lost(source: Source, listed: Sequence[Split], restored: RestoredSource, where: str) -> None:
    """Raises `InvalidJob` if a split in progress is missing, or a read file changed."""
    if isinstance(source, StagedSource):
        return
    listed = under_known_ids(listed, restored, where)
    _check_chosen(source, restored, where)
    discovers, all_ids = isinstance(source, DiscoveringSource), {split.id for split in listed}
    for id, reached in restored.splits.items():
        if id not in all_ids and not reached.at_end and not (discovers and reached.payload):
            raise _lost(id, reached, where)
    for split in () if discovers else listed:
        has_finished(split, restored.finished, where)
    _check_shares(listed, restored, where)


def _check_chosen(source: Source, restored: RestoredSource, where: str) -> None:
    if not isinstance(source, Choosing):
        return
    for id in restored.splits:
        why = source.not_chosen(id)
        if why:
            raise InvalidJob(f"{where}: {why}")


def _check_shares(listed: Sequence[Split], restored: RestoredSource, where: str) -> None:
    """Refuses new shares in place of finished shares: they hold the same rows again."""
    shares = [split for split in listed if split.of is not None]
    ended = sum(split.id in restored.finished for split in shares)
    begins = any(split.id not in restored.finished and split.id not in restored.splits for split in shares)
    if begins and ended < restored.ended:
        raise InvalidJob(
            f"{where}: it has {shares[0].of} splits now, and {restored.ended - ended} of another number of splits were "
            "read to their end, so rows would be read again: give it as many as before (a fixed splits=, or the same "
            "parallelism), or start without state (restore='none')"
        )


def grows(source: Source) -> bool:
    return isinstance(source, GrowingSource) and source.grows


def _require_complete(restored: RestoredSource, where: str) -> None:
    if restored.any and not restored.complete:
        raise InvalidJob(
            f"{where}: the checkpoint lacks the positions of other subtasks of this source, so that splits "
            "could be read twice: restore another checkpoint"
        )


def changed_after_it_was_read(where: str, id: str, size: int, now: int) -> str:
    return (
        f"{where}: the file {id!r} had {size} bytes when it was read to its end, and has {now} now: "
        "bring the old file back and put new rows into a file of another name, or start without state (restore='none')"
    )


def _lost(id: str, reached: SplitProgress, where: str) -> InvalidJob:
    return InvalidJob(
        f"{where}: split {id!r} was read up to row {reached.rows} but is not there any more: "
        "bring it back (the same file; for generated rows the same parallelism, or a fixed splits=), "
        "or start without state (restore='none')"
    )
