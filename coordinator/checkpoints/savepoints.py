"""The savepoints that a job was asked for, and how far each of them is. Pure.

    WAITING ─ a checkpoint that was triggered after the request completes ─► COVERED ─ all its rows are visible ─►
    COPYING ─ copied ─► DONE
        └──────────────────────┴──────────────────────┴─ failed, or the job ended first ─► FAILED

| what happens                 | WAITING                | COVERED               | COPYING      |
|------------------------------|------------------------|-----------------------|--------------|
| a checkpoint completes       | COVERED by it          | - (***)               | -            |
| a generation ends            | waits for the next one | WAITING again         | goes on (*)  |
| the coordinator dies         | lost (+) (**)          | lost (+) (**)         | lost (+) (**)|
| the same id is asked for     | -                      | -                     | -            |
| the job ends                 | FAILED                 | FAILED                | FAILED       |

(+) Who asked asks again under the same id; what was copied before has no savepoint.json.
(*) But one that the job stops with is WAITING again, even when it was DONE: the next generation reads on from that
checkpoint until it is stopped, and the savepoint has to be what it was stopped with.
(**) But one that the job stops with is in the log: its successor has it, WAITING (`job/phases/stopping`).
(***) Where sinks take longer than a checkpoint's interval to make rows visible, the newest checkpoint is never visible
when the next one completes. One that the job stops with is covered by the newer one.

Of a savepoint in COVERED or COPYING the checkpoint is held: retention lets it go later (`held`). A copy that is still
made by a process that does not lead any more may lose its files to the successor's retention; then it fails, and there
is no savepoint.json.
"""

import enum
from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass

from barrier_runtime.coordinator.log.manifest import Manifest
from barrier_runtime.coordinator.log.savepoint import SavepointCopy, savepoint_copy

_KEPT = 50  # requests that are over
_MAX_OPEN = 8


class SavepointState(enum.Enum):
    WAITING = "waiting"  # for a checkpoint
    COVERED = "covered"  # by a checkpoint that is not visible yet
    COPYING = "copying"
    DONE = "done"
    FAILED = "failed"

    @property
    def over(self) -> bool:
        return self in (SavepointState.DONE, SavepointState.FAILED)


@dataclass(frozen=True)
class SavepointRequest:
    id: str  # the same for the same wish, however often it is asked for
    url: str  # of its folder
    stops: bool = False  # the job stops with it


@dataclass
class SavepointEntry:
    """One request and how far it is. Times are wall-clock milliseconds."""

    request: SavepointRequest
    asked_ms: int
    first_checkpoint: int  # the lowest id that counts
    state: SavepointState = SavepointState.WAITING
    manifest: Manifest | None = None
    ended_ms: int | None = None
    bytes: int = 0
    error: str = ""

    @property
    def covered_by(self) -> int | None:
        return None if self.manifest is None else self.manifest.checkpoint


@dataclass(frozen=True)
class DueCopy:
    url: str
    copy: SavepointCopy


class Savepoints:
    """`sinks`: the operators of the job that commit."""

    def __init__(self, sinks: frozenset[str]) -> None:
        self._sinks = sinks
        self._entries: OrderedDict[str, SavepointEntry] = OrderedDict()

    def of_sinks(self, sinks: frozenset[str]) -> None:
        """The job has another program from now on. What is copied already was of the one before."""
        self._sinks = sinks

    def refusal(self, request: SavepointRequest) -> str:
        """Why it cannot be had; "" if it can, or is under way already."""
        known = self._entries.get(request.id)
        if known is not None and known.request.url != request.url:
            return (
                f"savepoint {request.id} was asked for at {known.request.url}, and now at {request.url}: use a new id "
                "for another savepoint"
            )
        if known is None and len(self.open) >= _MAX_OPEN:
            return f"{_MAX_OPEN} savepoints are under way: wait until one is done"
        return ""

    def ask(self, request: SavepointRequest, first_checkpoint: int, now_ms: int) -> bool:
        """Whether it is a new wish, and not refused."""
        if request.id in self._entries or self.refusal(request):
            return False
        self._entries[request.id] = SavepointEntry(request, now_ms, first_checkpoint)
        over = [id for id, entry in self._entries.items() if entry.state.over]
        for id in over[: -_KEPT or None]:
            del self._entries[id]
        return True

    @property
    def open(self) -> tuple[SavepointRequest, ...]:
        return tuple(entry.request for entry in self._entries.values() if not entry.state.over)

    def entry(self, id: str) -> SavepointEntry | None:
        return self._entries.get(id)

    def state(self, id: str) -> SavepointState | None:
        entry = self._entries.get(id)
        return None if entry is None else entry.state

    def error(self, id: str) -> str:
        return self._entries[id].error

    @property
    def waiting(self) -> bool:
        """For a checkpoint. One that is taken for it is aligned, so that whoever restores it may change anything."""
        return bool(self._in(SavepointState.WAITING))

    def wants_checkpoint(self, open_ids: Collection[int]) -> bool:
        """One waits, and none of the checkpoints that are under way would do."""
        newest = max(open_ids, default=0)
        return any(each.first_checkpoint > newest for each in self._in(SavepointState.WAITING))

    @property
    def held(self) -> frozenset[int]:
        """Checkpoints whose files are still to be copied."""
        busy = (*self._in(SavepointState.COVERED), *self._in(SavepointState.COPYING))
        return frozenset(entry.covered_by for entry in busy if entry.covered_by is not None)

    def completed(self, manifest: Manifest) -> None:
        stopping = [entry for entry in self._in(SavepointState.COVERED) if entry.request.stops]
        for entry in (*self._in(SavepointState.WAITING), *stopping):
            if manifest.checkpoint >= entry.first_checkpoint:
                entry.state, entry.manifest = SavepointState.COVERED, manifest

    def generation_ended(self, next_id: int) -> None:
        """What is not copied yet waits for a checkpoint of the next generation."""
        for entry in self._entries.values():
            again = entry.request.stops and entry.state is not SavepointState.FAILED
            if again or entry.state in (SavepointState.WAITING, SavepointState.COVERED):
                entry.state, entry.manifest, entry.first_checkpoint = SavepointState.WAITING, None, next_id

    def due(self, all_through: Callable[[int], bool]) -> tuple[DueCopy, ...]:
        """What is to be copied now: all rows of its checkpoint are visible. Each is given once."""
        copies = []
        for entry in self._in(SavepointState.COVERED):
            assert entry.manifest is not None
            if all_through(entry.manifest.checkpoint):
                entry.state = SavepointState.COPYING
                request = entry.request
                copy = savepoint_copy(entry.manifest, self._sinks, request.id, final=request.stops)
                copies.append(DueCopy(request.url, copy))
        return tuple(copies)

    def copied(self, id: str, checkpoint: int, size: int, now_ms: int) -> None:
        entry = self._entries.get(id)
        if entry is not None and entry.state is SavepointState.COPYING and entry.covered_by == checkpoint:
            entry.state, entry.bytes, entry.ended_ms = SavepointState.DONE, size, now_ms

    def not_copied(self, id: str, checkpoint: int, error: str, now_ms: int) -> None:
        entry = self._entries.get(id)
        if entry is not None and entry.state is SavepointState.COPYING and entry.covered_by == checkpoint:
            self._fail(entry, error, now_ms)

    def _fail(self, entry: SavepointEntry, error: str, now_ms: int) -> None:
        entry.state, entry.error, entry.ended_ms = SavepointState.FAILED, error, now_ms

    def job_ended(self, outcome: str, now_ms: int) -> None:
        for entry in self._entries.values():
            if not entry.state.over:
                self._fail(entry, f"the job ended before it was copied: {outcome}", now_ms)

    @property
    def entries(self) -> tuple[SavepointEntry, ...]:
        """Oldest first; to look at."""
        return tuple(self._entries.values())

    def _in(self, state: SavepointState) -> tuple[SavepointEntry, ...]:
        return tuple(entry for entry in self._entries.values() if entry.state is state)
