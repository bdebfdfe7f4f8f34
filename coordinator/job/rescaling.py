"""Changes of a running job's parallelism, and how far each of them is. Pure.

    STARTING ─ every new slot is there ─► STOPPING ─ checkpoint m is decided ─► COMMITTING ─ all of m is visible ─►
    MOVING ─ FENCE with the new parallelism is appended, its slots run ─► DONE
        └────────────────────┴──────────────────────────┴─ the job goes on as it was ─► FAILED

m is the checkpoint behind which sources read nothing more (`Trigger.pause`). So the generation that restores it reads
on at the very next row, and no row is read twice. The FENCE record alone says which slots the job has: before it is in
the log the old ones, after it the new ones.

| what happens             | STARTING           | STOPPING             | COMMITTING             | MOVING           |
|--------------------------|--------------------|----------------------|------------------------|------------------|
| a new slot goes away     | waits for another  | -                    | FAILED, restart at m   | waits for it (*) |
| m ends undecided         | -                  | FAILED, sources go on | -                      | -                |
| `timeout_ms` is over     | FAILED             | - (+)                | FAILED, restart at m   | - (*)            |
| the generation ends      | FAILED             | FAILED               | FAILED                 | goes on          |
| the job is to stop       | FAILED             | FAILED               | FAILED                 | goes on          |
| the coordinator dies     | lost (#)           | lost (#)             | lost (#)               | the log decides  |
| the same id is asked for | -                  | -                    | -                      | -                |

(*) As for any generation: `resource_wait_timeout`.
(+) The checkpoint's own timeout ends it.
(#) The successor begins a generation of the old parallelism; who asked asks again under the same id.
"""

import enum
from collections import OrderedDict
from dataclasses import dataclass

from barrier_runtime.coordinator.status.status import RescaleStatus

_KEPT = 50  # requests that are over


class RescaleState(enum.Enum):
    STARTING = "starting"  # waits for the new slots
    STOPPING = "stopping"  # the last checkpoint of the old slots is under way
    COMMITTING = "committing"  # it is decided, and not visible yet
    MOVING = "moving"  # the new slots restore it
    DONE = "done"
    FAILED = "failed"

    @property
    def over(self) -> bool:
        return self in (RescaleState.DONE, RescaleState.FAILED)

    @property
    def pausing(self) -> bool:
        """Sources have stopped, or are about to, in the old slots."""
        return self in (RescaleState.STOPPING, RescaleState.COMMITTING)


@dataclass(frozen=True)
class RescaleRequest:
    id: str  # the same for the same wish, however often it is asked for
    parallelism: int
    timeout_ms: int = 60_000  # for the new slots to come, and again for the sinks to commit


@dataclass
class Rescale:
    """One request and how far it is. Times are wall-clock milliseconds."""

    request: RescaleRequest
    before: int  # the parallelism so far
    asked_ms: int
    state: RescaleState = RescaleState.STARTING
    barrier: int | None = None  # the lowest checkpoint with which sources stop
    paused_ms: int | None = None  # the barrier was triggered
    decided_ms: int | None = None
    moved_ms: int | None = None  # everything was visible, and FENCE was asked for
    ended_ms: int | None = None
    error: str = ""

    @property
    def parallelism(self) -> int:
        return self.request.parallelism

    @property
    def deadline_ms(self) -> int | None:
        if self.state is RescaleState.STARTING:
            return self.asked_ms + self.request.timeout_ms
        if self.state is RescaleState.COMMITTING:
            return (self.decided_ms or 0) + self.request.timeout_ms
        return None

    def pauses(self, checkpoint: int) -> bool:
        """Sources read nothing after this checkpoint."""
        return self.state.pausing and self.barrier is not None and checkpoint >= self.barrier

    @property
    def status(self) -> RescaleStatus:
        done = self.state is RescaleState.DONE and self.paused_ms is not None and self.ended_ms is not None
        return RescaleStatus(
            id=self.request.id,
            before=self.before,
            parallelism=self.parallelism,
            state=self.state.value,
            asked_ms=self.asked_ms,
            ended_ms=self.ended_ms,
            checkpoint=self.barrier,
            paused_ms=self.paused_ms,
            decided_ms=self.decided_ms,
            moved_ms=self.moved_ms,
            pause_ms=(self.ended_ms or 0) - (self.paused_ms or 0) if done else None,
            error=self.error,
        )


class Rescales:
    def __init__(self) -> None:
        self._entries: OrderedDict[str, Rescale] = OrderedDict()
        self._earlier: tuple[RescaleStatus, ...] = ()

    def remember(self, earlier: tuple[RescaleStatus, ...]) -> None:
        """What predecessors did."""
        self._earlier = earlier

    @property
    def open(self) -> Rescale | None:
        """The one that is under way."""
        return next((each for each in self._entries.values() if not each.state.over), None)

    @property
    def before_moving(self) -> Rescale | None:
        """The one that is under way and that the job may still do without."""
        found = self.open
        return None if found is None or found.state is RescaleState.MOVING else found

    @property
    def pausing(self) -> bool:
        found = self.open
        return found is not None and found.state.pausing

    def pauses(self, checkpoint: int) -> bool:
        found = self.open
        return found is not None and found.pauses(checkpoint)

    @property
    def statuses(self) -> tuple[RescaleStatus, ...]:
        """Oldest first; those of predecessors, too."""
        own = tuple(each.status for each in self._entries.values())
        ids = {each.id for each in own}
        return (*(each for each in self._earlier if each.id not in ids), *own)[-_KEPT:]

    def refusal(self, request: RescaleRequest, max_parallelism: int) -> str:
        """Why it cannot be had; "" if it can, or is under way already."""
        known = self._entries.get(request.id)
        if known is not None:
            if known.parallelism == request.parallelism:
                return ""
            return (
                f"rescale {request.id} was asked for with parallelism {known.parallelism}, and now with "
                f"{request.parallelism}: use a new id for another wish"
            )
        if not 1 <= request.parallelism <= max_parallelism:
            return (
                f"parallelism {request.parallelism} is not possible: give 1 to {max_parallelism}, the job's "
                "max_parallelism, which is fixed for its life"
            )
        if self.open is not None:
            return (
                f"the job is being rescaled from {self.open.before} to {self.open.parallelism} slots: wait until that "
                "is done"
            )
        return ""

    def ask(self, request: RescaleRequest, parallelism: int, max_parallelism: int, now_ms: int) -> bool:
        """Whether it is a new wish, not refused, and there is something to do."""
        if request.id in self._entries or self.refusal(request, max_parallelism):
            return False
        entry = self._entries[request.id] = Rescale(request, parallelism, now_ms)
        over = [id for id, each in self._entries.items() if each.state.over]
        for id in over[: -_KEPT or None]:
            del self._entries[id]
        if request.parallelism == parallelism:
            entry.state, entry.ended_ms = RescaleState.DONE, now_ms
            return False
        return True

    # ------------------------------------------------------------ moves

    def stop_with(self, checkpoint: int) -> None:
        entry = self._in(RescaleState.STARTING)
        if entry is not None:
            entry.state, entry.barrier = RescaleState.STOPPING, checkpoint

    def triggered(self, checkpoint: int, now_ms: int) -> None:
        entry = self.open
        if entry is not None and entry.pauses(checkpoint) and entry.paused_ms is None:
            entry.barrier, entry.paused_ms = checkpoint, now_ms

    def completed(self, checkpoint: int, now_ms: int) -> None:
        entry = self._in(RescaleState.STOPPING)
        if entry is not None and entry.barrier is not None and checkpoint >= entry.barrier:
            entry.state, entry.decided_ms = RescaleState.COMMITTING, now_ms

    def move(self, now_ms: int) -> None:
        entry = self._in(RescaleState.COMMITTING)
        if entry is not None:
            entry.state, entry.moved_ms = RescaleState.MOVING, now_ms

    def running(self, now_ms: int) -> bool:
        """A generation runs. Whether that ends a rescale."""
        entry = self._in(RescaleState.MOVING)
        if entry is None:
            return False
        entry.state, entry.ended_ms = RescaleState.DONE, now_ms
        return True

    def fail(self, error: str, now_ms: int) -> None:
        entry = self.open
        if entry is not None:
            entry.state, entry.error, entry.ended_ms = RescaleState.FAILED, error, now_ms

    def _in(self, state: RescaleState) -> Rescale | None:
        entry = self.open
        return entry if entry is not None and entry.state is state else None
