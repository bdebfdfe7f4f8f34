"""How far every sink has made its transactions visible, and what its global committer is to be told next.

A sink subtask commits its own part when a checkpoint is complete. A sink with a *global committer* shows nothing by
that: once all of its subtasks have committed up to checkpoint n, slot 0 is told to make all of it visible at once, with
the committables of n's manifest; once that is done everybody is told, and only then do the subtasks forget them.

    checkpoint n complete → every subtask Committed(n) → CommitGlobally(n) to slot 0 → Committed(n, global) → Visible(n)

A job is finished only when all are through (I10). All of it follows from the log, the manifest and what slots say, so a
successor finds its place again by itself.
"""

from dataclasses import dataclass

from coordinator.messages import GLOBAL_COMMITTER, CommitFailing, Committed, JobSpec, sink_key
from state.snapshot import OperatorSnapshot

_DECIDED_KEPT = 16  # of the newest: sinks that lag further behind are told of one of these when they come so far


@dataclass(frozen=True)
class FailingCommit:
    sink: str
    checkpoint: int
    attempts: int
    error: str


@dataclass(frozen=True)
class GlobalCommit:
    """Due: sink `sink` up to `checkpoint`. `snapshots` is None when its manifest has to be read first."""

    sink: str
    checkpoint: int
    snapshots: tuple[OperatorSnapshot, ...] | None


class CommitTracker:
    def __init__(self, spec: JobSpec) -> None:
        self._parallelism = spec.parallelism
        self._global_sinks = tuple(sink for chain in spec.chains for sink in chain.global_sinks)
        members = [
            (sink, subtask) for chain in spec.chains for sink in chain.sinks for subtask in range(spec.parallelism)
        ]
        members += [(sink, GLOBAL_COMMITTER) for sink in self._global_sinks]
        self._through = {sink_key(sink, subtask): 0 for sink, subtask in members}
        self._failing: dict[str, FailingCommit] = {}
        self._decided: dict[
            int, tuple[OperatorSnapshot, ...]
        ] = {}  # checkpoint -> what its manifest says of global sinks

    def committed(self, message: Committed) -> None:
        self._advance(sink_key(message.operator, message.subtask), message.checkpoint)

    def reconcile(self, slot: int, committed: dict[str, int]) -> None:
        """What a slot says of its own sinks on (re)connection."""
        own = (slot, GLOBAL_COMMITTER) if slot == 0 else (slot,)
        for sink, checkpoint in committed.items():
            if sink.endswith(tuple(sink_key("", subtask) for subtask in own)):
                self._advance(sink, checkpoint)

    def failing(self, message: CommitFailing) -> None:
        sink = sink_key(message.operator, message.subtask)
        if sink in self._through and message.checkpoint > self._through[sink]:
            self._failing[sink] = FailingCommit(sink, message.checkpoint, message.attempts, message.error)

    def all_through(self, checkpoint: int) -> bool:
        return all(through >= checkpoint for through in self._through.values())

    def behind(self, checkpoint: int) -> tuple[str, ...]:
        """Sink subtasks (and global committers) that have not yet made `checkpoint` visible."""
        return tuple(sorted(sink for sink, through in self._through.items() if through < checkpoint))

    @property
    def through(self) -> dict[str, int]:
        return dict(self._through)

    @property
    def troubles(self) -> tuple[FailingCommit, ...]:
        return tuple(self._failing[sink] for sink in sorted(self._failing))

    # ------------------------------------------------------------ global committers

    def decided(self, checkpoint: int, operators: tuple[OperatorSnapshot, ...]) -> None:
        """`checkpoint` is complete with this manifest: keep what global committers will need of it."""
        if self._global_sinks:
            self._decided[checkpoint] = tuple(each for each in operators if each.operator in self._global_sinks)
            for old in sorted(self._decided)[:-_DECIDED_KEPT]:
                del self._decided[old]

    def due_globally(self) -> tuple[GlobalCommit, ...]:
        """What every subtask has committed and the global committer has not, per sink."""
        due = []
        for sink in self._global_sinks:
            reached = min(self._through[sink_key(sink, subtask)] for subtask in range(self._parallelism))
            if reached > self._through[sink_key(sink, GLOBAL_COMMITTER)]:
                known = self._decided.get(reached)
                snapshots = None if known is None else tuple(each for each in known if each.operator == sink)
                due.append(GlobalCommit(sink, reached, snapshots))
        return tuple(due)

    def visible(self) -> tuple[tuple[str, int], ...]:
        """(sink, checkpoint): all up to this checkpoint is visible, of sinks with a global committer."""
        through = ((sink, self._through[sink_key(sink, GLOBAL_COMMITTER)]) for sink in self._global_sinks)
        return tuple((sink, checkpoint) for sink, checkpoint in through if checkpoint)

    def _advance(self, sink: str, checkpoint: int) -> None:
        if sink in self._through and checkpoint > self._through[sink]:
            self._through[sink] = checkpoint
            trouble = self._failing.get(sink)
            if trouble is not None and trouble.checkpoint <= checkpoint:
                del self._failing[sink]
