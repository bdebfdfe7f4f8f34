"""Slow commits and slow uploads: which sinks and operators, and since when. Pure: facts and `now` in.

**Commits** are slow if they take longer than checkpoints take to complete:

| a sink                                                       | is remembered | is shown |
|---|---|---|
| has committed every completed checkpoint in time             | no            | no       |
| has a completed checkpoint that has been waiting too long    | from now on   | yes      |
| has committed that checkpoint, and others wait               | yes           | yes      |
| has committed everything, but the last commit came too late  | yes           | no       |
| has made a commit in time, and nothing waits too long        | no            | no       |
| has had nothing to commit for as long as the limit           | no            | no       |

So a sink whose every second commit is late yields a single report; the same holds for uploads. A checkpoint waits too
long after more than `INTERVALS` checkpoint intervals and more than `REPORT_AFTER_MS` since the decision. For decisions
before a restart the wait begins when the job runs again: a restore commits them.

**Uploads** are a subtask's work for a checkpoint off the loop: writing state, and staging rows of a sink. An upload
longer than the interval between checkpoints is slow: checkpoints follow each other more slowly, and rows become visible
later:

| the uploads of a chain for the newest complete checkpoint | are remembered          | are shown |
|---|---|---|
| all in time, as those for the checkpoint before           | no                      | no        |
| an upload exceeded the interval, and `REPORT_AFTER_MS`    | from now on             | yes       |
| all in time, but not for the checkpoint before            | yes                     | no        |
| none is known: the job does not run                       | as before               | no        |
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timezone

import msgspec

INTERVALS = 2
REPORT_AFTER_MS = 1_000  # shorter delays are not reported


class SlowCommit(msgspec.Struct, frozen=True):
    """A sink that commits more slowly than checkpoints complete."""

    sink: str
    checkpoint: int  # the first with a late commit …
    since_ms: int  # … and when decided


@dataclass(frozen=True)
class Uncommitted:
    """The oldest completed checkpoint that some part of a sink has not committed."""

    sink: str
    checkpoint: int
    decided_ms: int


class SlowCommits:
    """Slow commits. Call `look` when a checkpoint completes, a slow sink commits, and at `next_ms`."""

    def __init__(self) -> None:
        self._known: dict[str, SlowCommit] = {}
        self._oldest: dict[str, Uncommitted] = {}  # as of the last `look`
        self._caught_up_ms: dict[str, int] = {}  # known sinks with nothing to commit
        self._ran_ms: int | None = None  # job runs
        self.shown: tuple[SlowCommit, ...] = ()
        self.next_ms: int | None = None  # when time alone may make a sink late

    @property
    def known(self) -> tuple[SlowCommit, ...]:
        """Reports that have not ended, shown or not."""
        return tuple(self._known[sink] for sink in sorted(self._known))

    def look(self, uncommitted: Iterable[Uncommitted], interval_ms: int, now_ms: int, *, running: bool) -> None:
        if not running:
            self._ran_ms, self._oldest, self._caught_up_ms = None, {}, {}
            self.shown, self.next_ms = (), None
            return
        ran_ms = self._ran_ms = now_ms if self._ran_ms is None else self._ran_ms
        late_ms = max(INTERVALS * interval_ms, REPORT_AFTER_MS)
        oldest = {each.sink: each for each in uncommitted}

        def due_ms(waiting: Uncommitted) -> int:
            return max(waiting.decided_ms, ran_ms) + late_ms

        for sink, before in self._oldest.items():
            now = oldest.get(sink)
            if (now is None or now.checkpoint > before.checkpoint) and now_ms <= due_ms(before):
                self._known.pop(sink, None)  # in time
        for sink, waiting in oldest.items():
            if now_ms > due_ms(waiting):
                self._known.setdefault(sink, SlowCommit(sink, waiting.checkpoint, waiting.decided_ms))
        self._caught_up_ms = {sink: self._caught_up_ms.get(sink, now_ms) for sink in self._known if sink not in oldest}
        for sink in [sink for sink, since_ms in self._caught_up_ms.items() if now_ms >= since_ms + late_ms]:
            del self._known[sink], self._caught_up_ms[sink]
        moments = [due_ms(each) + 1 for each in oldest.values()]
        moments += [since_ms + late_ms for since_ms in self._caught_up_ms.values()]
        self.next_ms = min((moment for moment in moments if moment > now_ms), default=None)
        self._oldest = oldest
        self.shown = tuple(self._known[sink] for sink in sorted(self._known.keys() & oldest.keys()))


def slow_sink(slow: SlowCommit) -> str:
    """Returns text for people, which stays the same while the sink is slow."""
    since = datetime.fromtimestamp(slow.since_ms / 1000, timezone.utc)
    return (
        f"sink {slow.sink} commits more slowly than checkpoints complete, since checkpoint {slow.checkpoint} at "
        f"{since:%H:%M:%S} UTC"
    )


class SlowUpload(msgspec.Struct, frozen=True):
    """An operator whose uploads take longer than the interval between checkpoints."""

    operator: str
    slot: int  # slot of the longest upload
    checkpoint: int  # the first with a slow upload …
    since_ms: int  # … and when triggered


@dataclass(frozen=True)
class SubtaskUpload:
    """Upload of a subtask for the newest complete checkpoint. `operator`: with the longest part."""

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
    """Slow uploads. Call `look` whenever a checkpoint completes."""

    def __init__(self) -> None:
        self._known: dict[int, SlowUpload] = {}  # by chain
        self._in_time: set[int] = set()  # known chains in time for the newest checkpoint
        self._judged = 0  # the last judged checkpoint
        self.shown: tuple[SlowUpload, ...] = ()

    @property
    def known(self) -> tuple[SlowUpload, ...]:
        """Reports that have not ended, shown or not."""
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
    found: dict[int, SubtaskUpload] = {}
    for each in uploads:
        if each.chain not in found or each.took_ms > found[each.chain].took_ms:
            found[each.chain] = each
    return found


def slow_upload(slow: SlowUpload) -> str:
    """Returns text for people, which stays the same while uploads are slow."""
    since = datetime.fromtimestamp(slow.since_ms / 1000, timezone.utc)
    return (
        f"uploads of {slow.operator or 'a subtask'} in slot {slow.slot} take longer than the interval between "
        f"checkpoints, since checkpoint {slow.checkpoint} at {since:%H:%M:%S} UTC"
    )
