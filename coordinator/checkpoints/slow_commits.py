"""Sinks that commit more slowly than checkpoints complete: which, and since when. Pure: facts and `now` in.

| a sink                                                      | is remembered | is shown |
|---|---|---|
| has committed every completed checkpoint in time            | no            | no       |
| has a completed checkpoint that has been waiting too long   | from now on   | yes      |
| has committed that, and others wait                         | yes           | yes      |
| has committed everything, but its last commit came too late | yes           | no       |
| has made a commit in time, and nothing waits too long       | no            | no       |
| has had nothing to commit for as long as is too long        | no            | no       |

So a sink that is late with each second commit is one trouble, and one line in the log, not as many as it has commits.
A checkpoint waits too long when it was decided more than `INTERVALS` checkpoint intervals ago, and more than
`REPORT_AFTER_MS`. What was decided before the job ran again counts from then: a restore commits it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timezone

import msgspec

INTERVALS = 2
REPORT_AFTER_MS = 1_000  # what heals within this time is not worth a word


class SlowCommit(msgspec.Struct, frozen=True):
    """A sink that commits more slowly than checkpoints complete."""

    sink: str  # name of the operator
    checkpoint: int  # the first whose commit was late …
    since_ms: int  # … and when it was decided


@dataclass(frozen=True)
class Uncommitted:
    """The oldest completed checkpoint that some part of a sink has not committed."""

    sink: str
    checkpoint: int
    decided_ms: int


class SlowCommits:
    """Give it the facts whenever a checkpoint completes, whenever a slow sink commits, and at `next_ms`."""

    def __init__(self) -> None:
        self._known: dict[str, SlowCommit] = {}
        self._oldest: dict[str, Uncommitted] = {}  # as of the last look
        self._caught_up_ms: dict[str, int] = {}  # those that are known and have nothing to commit: since when
        self._ran_ms: int | None = None  # since when the job runs
        self.shown: tuple[SlowCommit, ...] = ()
        self.next_ms: int | None = None  # when time alone may make a sink late

    @property
    def known(self) -> tuple[SlowCommit, ...]:
        """Troubles that have not ended, shown or not."""
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
                self._known.pop(sink, None)  # the commit came in time
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
    """For people; the same for as long as the trouble lasts."""
    since = datetime.fromtimestamp(slow.since_ms / 1000, timezone.utc)
    return (
        f"sink {slow.sink} commits more slowly than checkpoints complete, since checkpoint {slow.checkpoint} at "
        f"{since:%H:%M:%S} UTC"
    )
