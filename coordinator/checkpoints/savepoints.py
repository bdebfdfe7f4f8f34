"""Requested savepoints of a job. Pure.

    WAITING ─ a checkpoint triggered after the request completes ─► COVERED ─ all rows are visible ─►
    COPYING ─ copied ─► DONE
        └──────────────────────┴──────────────────────┴─ failed, or the job ended first ─► FAILED

Events by state: docs/design/savepoints.md.
"""

import enum
from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass

from barrier_runtime.coordinator.log.manifest import Manifest
from barrier_runtime.coordinator.log.savepoint import SavepointCopy, savepoint_copy

_KEPT = 50
_MAX_OPEN = 8


class SavepointState(enum.Enum):
    WAITING = "waiting"
    COVERED = "covered"
    COPYING = "copying"
    DONE = "done"
    FAILED = "failed"

    @property
    def over(self) -> bool:
        return self in (SavepointState.DONE, SavepointState.FAILED)


@dataclass(frozen=True)
class SavepointRequest:
    id: str  # the same for a repeated request
    url: str
    stops: bool = False  # the job stops with this savepoint


@dataclass
class SavepointEntry:
    request: SavepointRequest
    asked_ms: int
    first_checkpoint: int  # lowest id that can cover the request
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
    """`sinks`: the operators that commit."""

    def __init__(self, sinks: frozenset[str]) -> None:
        self._sinks = sinks
        self._entries: OrderedDict[str, SavepointEntry] = OrderedDict()
        self._done_before: frozenset[str] = frozenset()

    def remember(self, done: frozenset[str]) -> None:
        """`done`: ids of savepoints that predecessors completed: another copy would replace them."""
        self._done_before = done
        for id in done & self._entries.keys():
            del self._entries[id]

    def of_sinks(self, sinks: frozenset[str]) -> None:
        self._sinks = sinks

    def refusal(self, request: SavepointRequest) -> str:
        """Returns why the request is refused; "" if possible, or already known."""
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
        if request.id in self._entries or request.id in self._done_before or self.refusal(request):
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
        """Returns whether a request waits for a checkpoint, which must be aligned."""
        return bool(self._in(SavepointState.WAITING))

    def wants_checkpoint(self, open_ids: Collection[int]) -> bool:
        """Returns whether a request waits that no pending checkpoint can cover."""
        newest = max(open_ids, default=0)
        return any(each.first_checkpoint > newest for each in self._in(SavepointState.WAITING))

    @property
    def held(self) -> frozenset[int]:
        busy = (*self._in(SavepointState.COVERED), *self._in(SavepointState.COPYING))
        return frozenset(entry.covered_by for entry in busy if entry.covered_by is not None)

    def completed(self, manifest: Manifest) -> None:
        stopping = [entry for entry in self._in(SavepointState.COVERED) if entry.request.stops]
        for entry in (*self._in(SavepointState.WAITING), *stopping):
            if manifest.checkpoint >= entry.first_checkpoint:
                entry.state, entry.manifest = SavepointState.COVERED, manifest

    def generation_ended(self, next_id: int) -> None:
        for entry in self._entries.values():
            again = entry.request.stops and entry.state is not SavepointState.FAILED
            if again or entry.state in (SavepointState.WAITING, SavepointState.COVERED):
                entry.state, entry.manifest, entry.first_checkpoint = SavepointState.WAITING, None, next_id

    def due(self, all_through: Callable[[int], bool]) -> tuple[DueCopy, ...]:
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
        return tuple(self._entries.values())

    def _in(self, state: SavepointState) -> tuple[SavepointEntry, ...]:
        return tuple(entry for entry in self._entries.values() if entry.state is state) if self._entries else ()
