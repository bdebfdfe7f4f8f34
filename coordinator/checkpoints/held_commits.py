"""Sinks whose global commits are held back for `commit_every`: what is due, and since when. Pure: facts and `now` in.

A table of a lakehouse gets one commit for all checkpoints of that time. The coordinator alone holds back; subtasks
commit their parts with each checkpoint, and manifests list everything that is not visible.

| a sink with `commit_every`                            | its global committer                           |
|---|---|
| a checkpoint completes, `commit_every` is not over    | waits; the checkpoint does not count as behind |
| `commit_every` has passed since a commit was last due | is due, up to the newest completed checkpoint  |
| no commit was due in this process yet                 | is due with the first checkpoint               |
| a stop, drain, savepoint, rescale, replace or the end of input is under way, or too many bytes are pending | is due |
| a new generation of the same process                  | keeps its rhythm                               |
| a commit is due, and is not done                      | counts as one checkpoint behind                |
| … and the next one becomes due, too                   | each checkpoint of that one counts as well     |
| the clock was set back                                | waits for `commit_every` from then on          |

Another process (a start, a takeover) does not know when a commit was last due and begins with a commit of what was
decided. So a job that crashes again and again shows what each run decided when the next one begins, at most one commit
for each start, whose rate the restart's back-off bounds.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

HOLD_BYTES = 1 << 20  # of what sinks list as pending, which is stored with every checkpoint: more is committed at once


@dataclass(frozen=True)
class DueCommit:
    """A commit up to `checkpoint` became due at `since_ms`; `count` checkpoints were held back for it."""

    checkpoint: int
    since_ms: int
    count: int


@dataclass
class _Held:
    every_ms: int
    last_ms: int | None = None  # when a commit was last due
    newest: int = 0  # the newest checkpoint that was due
    count: int = 0  # completed since
    open: deque[DueCommit] = field(default_factory=deque)  # due and not done, oldest first


class HeldCommits:
    """`every_ms`: by sink; those that commit with each checkpoint are left out."""

    def __init__(self, every_ms: Mapping[str, int]) -> None:
        self._sinks = {sink: _Held(each) for sink, each in every_ms.items() if each > 0}

    def __contains__(self, sink: str) -> bool:
        return sink in self._sinks

    def completed(self) -> None:
        """One more checkpoint is complete."""
        for held in self._sinks.values():
            held.count += 1

    def look(self, sink: str, completed: int, through: int, now_ms: int, *, at_once: bool) -> None:
        """Decide whether `sink`, which has committed `through`, is due. `completed`: the newest completed
        checkpoint."""
        held = self._sinks[sink]
        if held.last_ms is not None and held.last_ms > now_ms:
            held.last_ms = now_ms
        if completed <= max(held.newest, through):
            return
        if at_once or held.last_ms is None or now_ms - held.last_ms >= held.every_ms:
            held.open.append(DueCommit(completed, now_ms, held.count))
            held.newest, held.last_ms, held.count = completed, now_ms, 0

    def next_ms(self, completed: int, through: Mapping[str, int]) -> int | None:
        """When time alone makes a commit due."""
        moments = [
            (held.last_ms or 0) + held.every_ms
            for sink, held in self._sinks.items()
            if completed > max(held.newest, through[sink])
        ]
        return min(moments, default=None)

    def committed(self, sink: str, through: int) -> None:
        due = self._sinks[sink].open
        while due and due[0].checkpoint <= through:
            due.popleft()

    def oldest_due(self, sink: str) -> DueCommit | None:
        """The commit that has been due for longest and is not done."""
        due = self._sinks[sink].open
        return due[0] if due else None

    @property
    def behind(self) -> int:
        """How many checkpoints count as not visible in time, of the sink that has most."""
        counts = (1 + sum(each.count for each in list(held.open)[1:]) for held in self._sinks.values() if held.open)
        return max(counts, default=0)
