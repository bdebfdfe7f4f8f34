"""Which splits a subtask reads when it starts, from what is listed and what a snapshot knows. Never one of them twice,
never one left out.

A fixed list is dealt out in turn; of a source that stages its rows the list in the snapshot counts. A source that
discovers says itself whose a split is, and its snapshot may know splits that nobody lists.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from barrier_runtime.elements import WATERMARK_MIN
from barrier_runtime.sources.base import DiscoveringSource, Discovery, Split
from barrier_runtime.sources.source_progress import RestoredSource, SplitProgress
from state.errors import InvalidJob


@dataclass
class Assignment:
    """A subtask's part of a source at its start."""

    splits: list[Split]  # to be read, or read to their end
    gone: dict[str, SplitProgress] = field(default_factory=dict)  # finished, and no longer listed
    done: list[str] = field(default_factory=list)  # discovered and finished
    done_rows: int = 0
    done_ms: int = WATERMARK_MIN
    discovery: Discovery | None = None


def assign_listed(
    listed: Sequence[Split], restored: RestoredSource, subtask: int, parallelism: int, where: str
) -> Assignment:
    """Split i of the list belongs to subtask i % parallelism."""

    def takes_on(id: str) -> bool:
        """Who remembers a finished split that nobody lists."""
        return zlib.crc32(id.encode()) % parallelism == subtask

    mine = [split for i, split in enumerate(listed) if i % parallelism == subtask]
    ids, all_ids = {split.id for split in mine}, {split.id for split in listed}
    gone: dict[str, SplitProgress] = {}
    for id, reached in restored.splits.items():
        if id in all_ids:
            if id in restored.own and not restored.complete and id not in ids:
                raise InvalidJob(
                    f"{where}: split {id!r} now belongs to another subtask, because the list of "
                    "splits changed: restore with the same files, or add files whose names sort last"
                )
        elif not reached.finished:
            raise _lost(id, reached, where)
        elif id in restored.own or (restored.complete and takes_on(id)):
            gone[id] = reached
    done = [id for id in restored.done if takes_on(id)]
    return Assignment(mine, gone, done, restored.done_rows, restored.done_ms)


def assign_staged(
    listed: Sequence[Split], restored: RestoredSource, subtask: int, parallelism: int, where: str
) -> Assignment:
    """A checkpoint knows all splits of the rows that it has positions in; what is listed may have been staged anew
    since, by a run that never became the job's."""
    if not restored.any:
        return assign_listed(listed, restored, subtask, parallelism, where)
    _require_complete(restored, where)
    by_id = {split.id: split for split in listed}
    splits = []
    for id, reached in sorted(restored.splits.items()):
        if id not in by_id and not reached.finished and not reached.payload:
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
    """A split belongs to `source.owner`. Begins the discovery of more, if the source does that."""
    _require_complete(restored, where)

    def own(id: str) -> bool:
        return source.owner(id, parallelism) == subtask

    by_id = {split.id: split for split in listed}
    known: dict[str, Split] = {}
    done = set(restored.done)
    done_rows, done_ms = restored.done_rows, restored.done_ms
    for id, reached in restored.splits.items():
        if reached.finished:
            done.add(id)
            if own(id):
                done_rows += reached.rows
                done_ms = max(done_ms, reached.greatest_ms)
        elif id in by_id or reached.payload:
            known[id] = by_id.get(id) or Split(id, reached.payload)
        else:
            raise _lost(id, reached, where)
    later = {id: split for id, split in by_id.items() if id not in known and id not in done}
    if not restored.any:
        known, later = later, {}
    discovery = source.discovery({*known, *done})
    if discovery is None:
        known.update(later)
    mine = [split for split in known.values() if own(split.id)]
    return Assignment(mine, {}, sorted(id for id in done if own(id)), done_rows, done_ms, discovery)


def _require_complete(restored: RestoredSource, where: str) -> None:
    if restored.any and not restored.complete:
        raise InvalidJob(
            f"{where}: the checkpoint lacks the positions of other subtasks of this source, so that splits "
            "could be read twice: restore another checkpoint"
        )


def _lost(id: str, reached: SplitProgress, where: str) -> InvalidJob:
    return InvalidJob(
        f"{where}: split {id!r} was read up to row {reached.rows} but is not there any more: "
        "bring it back (the same file; for generated rows the same parallelism, or a fixed splits=), "
        "or start without state (restore='none')"
    )
