"""Uploads that take longer than the interval between checkpoints: whose, and since when. Pure: facts and `now` in.

An upload is what a subtask does for a checkpoint off its loop: it writes state, and a sink stages its rows. Checkpoints
then follow each other more slowly than they should, and rows become visible later.

| the uploads of a chain for the newest complete checkpoint | are remembered          | are shown |
|---|---|---|
| all in time, as those for the checkpoint before           | no                      | no        |
| one took longer than the interval, and `REPORT_AFTER_MS`  | from now on             | yes       |
| all in time, but not for the checkpoint before            | yes                     | no        |
| none is known: the job does not run                       | as before               | no        |

So an upload that is slow for each second checkpoint is one trouble, and one line in the log.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timezone

import msgspec

from barrier_runtime.coordinator.checkpoints.slow_commits import REPORT_AFTER_MS


class SlowUpload(msgspec.Struct, frozen=True):
    """An operator whose uploads take longer than the interval between checkpoints."""

    operator: str
    slot: int  # whose upload took longest
    checkpoint: int  # the first whose upload was slow …
    since_ms: int  # … and when it was triggered


@dataclass(frozen=True)
class SubtaskUpload:
    """What one subtask uploaded for the newest complete checkpoint. `operator`: whose part took longest."""

    chain: int
    slot: int
    operator: str
    took_ms: float


@dataclass(frozen=True)
class CheckpointUploads:
    """The newest complete checkpoint, with uploads of the subtasks that acknowledged last."""

    checkpoint: int
    triggered_ms: int
    uploads: tuple[SubtaskUpload, ...]


class SlowUploads:
    """Give it the facts whenever a checkpoint completes."""

    def __init__(self) -> None:
        self._known: dict[int, SlowUpload] = {}  # by chain
        self._in_time: set[int] = set()  # those that are known, but were in time for the newest checkpoint
        self._judged = 0  # checkpoint
        self.shown: tuple[SlowUpload, ...] = ()

    @property
    def known(self) -> tuple[SlowUpload, ...]:
        """Troubles that have not ended, shown or not."""
        return tuple(self._known[chain] for chain in sorted(self._known))

    def look(self, newest: CheckpointUploads | None, interval_ms: int, *, running: bool) -> None:
        if running and newest is not None and newest.checkpoint != self._judged:
            self._judged = newest.checkpoint
            self._judge(newest, max(interval_ms, REPORT_AFTER_MS))
        judged = running and newest is not None
        shown = sorted(self._known.keys() - self._in_time) if judged else ()
        self.shown = tuple(self._known[chain] for chain in shown)

    def _judge(self, newest: CheckpointUploads, slow_ms: int) -> None:
        slow = _longest(each for each in newest.uploads if each.took_ms > slow_ms)
        for chain, upload in slow.items():
            begun = SlowUpload(upload.operator, upload.slot, newest.checkpoint, newest.triggered_ms)
            self._known.setdefault(chain, begun)
        for chain in self._in_time - slow.keys():
            del self._known[chain]
        self._in_time = self._known.keys() - slow.keys()


def _longest(uploads: Iterable[SubtaskUpload]) -> dict[int, SubtaskUpload]:
    """Of each chain."""
    found: dict[int, SubtaskUpload] = {}
    for each in uploads:
        if each.chain not in found or each.took_ms > found[each.chain].took_ms:
            found[each.chain] = each
    return found


def slow_upload(slow: SlowUpload) -> str:
    """For people; the same for as long as the trouble lasts."""
    since = datetime.fromtimestamp(slow.since_ms / 1000, timezone.utc)
    return (
        f"uploads of {slow.operator or 'a subtask'} in slot {slow.slot} take longer than the interval between "
        f"checkpoints, since checkpoint {slow.checkpoint} at {since:%H:%M:%S} UTC"
    )
