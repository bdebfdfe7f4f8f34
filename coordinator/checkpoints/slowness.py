"""Slow commits and slow uploads. Pure.

A *commit* is late if a checkpoint waits for more than `INTERVALS` checkpoint intervals and `REPORT_AFTER_MS`, since the
decision or since the job runs again. A late sink is remembered until a commit in time, or until the sink has had
nothing to commit for that long.

An *upload* (a subtask's work off the loop) is slow if longer than the checkpoint interval and `REPORT_AFTER_MS`. A slow
chain is remembered until two checkpoints in a row were in time, and shown unless the newest was.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timezone

import msgspec

INTERVALS = 2
REPORT_AFTER_MS = 1_000


class SlowCommit(msgspec.Struct, frozen=True):
    sink: str
    checkpoint: int  # first late commit
    since_ms: int  # decision of that checkpoint


@dataclass(frozen=True)
class Uncommitted:
    """Oldest completed checkpoint that a part of a sink has not committed."""

    sink: str
    checkpoint: int
    decided_ms: int


class SlowCommits:
    """Call `look` when a checkpoint completes, a slow sink commits, and at `next_ms`."""

    def __init__(self) -> None:
        self._known: dict[str, SlowCommit] = {}
        self._oldest: dict[str, Uncommitted] = {}
        self._caught_up_ms: dict[str, int] = {}  # known sinks with nothing to commit
        self._ran_ms: int | None = None
        self.shown: tuple[SlowCommit, ...] = ()
        self.next_ms: int | None = None  # when time alone may make a sink late

    @property
    def known(self) -> tuple[SlowCommit, ...]:
        """Reports that have not ended, shown or not."""
        return tuple(self._known[sink] for sink in sorted(self._known))

    @property
    def any(self) -> bool:
        return bool(self._known)

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
    """Constant while the sink is slow."""
    since = datetime.fromtimestamp(slow.since_ms / 1000, timezone.utc)
    return (
        f"sink {slow.sink} commits more slowly than checkpoints complete, since checkpoint {slow.checkpoint} at "
        f"{since:%H:%M:%S} UTC"
    )


class SlowUpload(msgspec.Struct, frozen=True):
    operator: str
    slot: int  # of the longest upload
    checkpoint: int  # first slow upload
    since_ms: int  # trigger of that checkpoint


@dataclass(frozen=True)
class SubtaskUpload:
    """`operator`: with the longest part."""

    chain: int
    slot: int
    operator: str
    took_ms: float


@dataclass(frozen=True)
class CheckpointUploads:
    """`uploads`: of the subtasks that acknowledged last."""

    checkpoint: int
    triggered_ms: int
    uploads: tuple[SubtaskUpload, ...]


class SlowUploads:
    """Call `look` whenever a checkpoint completes."""

    def __init__(self) -> None:
        self._known: dict[int, SlowUpload] = {}  # by chain
        self._in_time: set[int] = set()  # for the newest checkpoint
        self._judged = 0
        self.shown: tuple[SlowUpload, ...] = ()

    @property
    def known(self) -> tuple[SlowUpload, ...]:
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
    since = datetime.fromtimestamp(slow.since_ms / 1000, timezone.utc)
    return (
        f"uploads of {slow.operator or 'a subtask'} in slot {slow.slot} take longer than the interval between "
        f"checkpoints, since checkpoint {slow.checkpoint} at {since:%H:%M:%S} UTC"
    )
