"""How far every sink subtask has made its transactions visible. A job is finished only when all are (I10)."""

from dataclasses import dataclass

from coordinator.messages import CommitFailing, Committed, JobSpec


@dataclass(frozen=True)
class FailingCommit:
    sink: str
    checkpoint: int
    attempts: int
    error: str


class CommitTracker:
    def __init__(self, spec: JobSpec) -> None:
        self._through = {
            f"{sink}/{subtask}": 0
            for chain in spec.chains
            for sink in chain.sinks
            for subtask in range(spec.parallelism)
        }
        self._failing: dict[str, FailingCommit] = {}

    def committed(self, message: Committed) -> None:
        self._advance(f"{message.operator}/{message.subtask}", message.checkpoint)

    def reconcile(self, slot: int, committed: dict[str, int]) -> None:
        """What a slot says of its own sinks on (re)connection."""
        for sink, checkpoint in committed.items():
            if sink.endswith(f"/{slot}"):
                self._advance(sink, checkpoint)

    def failing(self, message: CommitFailing) -> None:
        sink = f"{message.operator}/{message.subtask}"
        if sink in self._through and message.checkpoint > self._through[sink]:
            self._failing[sink] = FailingCommit(sink, message.checkpoint, message.attempts, message.error)

    def all_through(self, checkpoint: int) -> bool:
        return all(through >= checkpoint for through in self._through.values())

    def behind(self, checkpoint: int) -> tuple[str, ...]:
        """Sink subtasks that have not yet made `checkpoint` visible."""
        return tuple(sorted(sink for sink, through in self._through.items() if through < checkpoint))

    @property
    def through(self) -> dict[str, int]:
        return dict(self._through)

    @property
    def troubles(self) -> tuple[FailingCommit, ...]:
        return tuple(self._failing[sink] for sink in sorted(self._failing))

    def _advance(self, sink: str, checkpoint: int) -> None:
        if sink in self._through and checkpoint > self._through[sink]:
            self._through[sink] = checkpoint
            trouble = self._failing.get(sink)
            if trouble is not None and trouble.checkpoint <= checkpoint:
                del self._failing[sink]
