"""Counts of near misses in a run: a protection of the product refused an action that might have broken a rule.

A run without near misses of a rule proves nothing about this rule."""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

from barrier_runtime.connectors.files.sink.commit_log import CommitLog
from barrier_runtime.connectors.files.sink.commit_reader import StoredRecords
from barrier_runtime.coordinator.checkpoints.checkpoint import AckEffect, PendingCheckpoints
from barrier_runtime.coordinator.checkpoints.retention import Retention, RetentionVerdict
from barrier_runtime.coordinator.job.facts import Job
from barrier_runtime.coordinator.job.protocol import JobProtocol
from barrier_runtime.coordinator.job.rescaling import Rescales
from barrier_runtime.coordinator.server import store_effects
from barrier_runtime.coordinator.wire.messages import Ack
from barrier_runtime.operators.functions.process import ProcessOperator
from barrier_runtime.operators.joins.base import JoinOperator
from barrier_runtime.operators.joins.stored_runs import RunsOnDisk
from barrier_runtime.operators.keyed.progress import Floors
from barrier_runtime.operators.keyed.timers import Timers
from barrier_runtime.operators.windows.operator import WindowOperator
from barrier_runtime.runtime import in_flight
from barrier_runtime.runtime.aligner import Aligner
from barrier_runtime.state.columns.column_table import ColumnTable
from barrier_runtime.state.errors import Fenced
from barrier_runtime.state.snapshots.local_copies import LocalCopies
from barrier_runtime.state.values.timed_table import Timed

Note = Callable[[str], None]


@contextlib.contextmanager
def counted(counter: Counter[str]) -> Iterator[None]:

    def note(what: str) -> None:
        counter[what] += 1

    with contextlib.ExitStack() as stack:
        for owner, name, make in _PROBES:
            stack.enter_context(patch.object(owner, name, make(getattr(owner, name), note)))
        yield


def _permit(original: Any, note: Note) -> Any:
    def check_permit(*arguments: Any) -> None:
        try:
            original(*arguments)
        except Fenced:
            note("a delete refused by its permit")
            raise

    return check_permit


def _compacted(original: Any, note: Note) -> Any:
    def compact_log(*arguments: Any) -> Any:
        left = original(*arguments)
        note("the log was compacted")
        return left

    return compact_log


def _compacted_away(original: Any, note: Note) -> Any:
    def is_behind(*arguments: Any) -> Any:
        found = original(*arguments)
        if found is not None:
            note("a put at a position that was compacted away")
        return found

    return is_behind


def _ack(original: Any, note: Note) -> Any:
    def ack(self: Any, ack: Any, now_ms: int) -> Any:
        result = original(self, ack, now_ms)
        if result.effect in (AckEffect.LATE, AckEffect.DUPLICATE):
            note("a late or repeated ack ignored")
        return result

    return ack


def _message(original: Any, note: Note) -> Any:
    def on_message(self: Any, event: Any, now_ms: int) -> Any:
        if isinstance(event.message, Ack) and event.message.token != self._job.log.token:
            note("an ack of another generation ignored")
        return original(self, event, now_ms)

    return on_message


def _highest(original: Any, note: Note) -> Any:
    def highest_checkpoint(self: Any) -> int:
        highest: int = original(self)
        pending = self.generation.pending
        if highest > max(self.log.checkpoint_floor, 0 if pending is None else pending.next_id - 1):
            note("a checkpoint id that slots had seen not used again")
        return highest

    return highest_checkpoint


def _completed(original: Any, note: Note) -> Any:
    def completed(self: Any, kept: Any, open_ids: Any, *rest: Any) -> Any:
        plan = original(self, kept, open_ids, *rest)
        if any(dropped.waits_for for dropped in self._dropped):
            note("a dropped checkpoint's files kept for one under way")
        return plan

    return completed


def _classify(original: Any, note: Note) -> Any:
    def classify(self: Any, *arguments: Any) -> Any:
        waiting = {key for dropped in self._dropped for key in dropped.kept.files}
        for found, verdict in original(self, *arguments):
            if verdict is RetentionVerdict.NEEDED and found.key in waiting:
                note("an object of a dropped checkpoint spared by the sweep")
            elif verdict in (RetentionVerdict.NEWEST_GENERATION, RetentionVerdict.YOUNG, RetentionVerdict.ORPHAN):
                note(f"the sweep met an object: {verdict.value}")
            yield found, verdict

    return classify


def _begin_generation(original: Any, note: Note) -> Any:
    def begin_generation(self: Any, landed: Any, restored: Any) -> None:
        if self.generation.ended:
            note("subtasks that had ended read again")
        original(self, landed, restored)

    return begin_generation


def _moved(original: Any, note: Note) -> Any:
    def move(self: Any, now_ms: int) -> None:
        found = self.open
        replaces = found is not None and found.request.replaces
        note("a running job moved to another " + ("program" if replaces else "number of slots"))
        original(self, now_ms)

    return move


def _not_moved(original: Any, note: Note) -> Any:
    def fail(self: Any, error: str, now_ms: int) -> None:
        found = self.open
        if found is not None:
            note(f"a {found.status.kind} failed while {found.state.value}")
        original(self, error, now_ms)

    return fail


def _find(original: Any, note: Note) -> Any:
    def find(self: Any, operator: str, subtask: int, files: Any) -> Any:
        found = original(self, operator, subtask, files)
        alike = {(ref.name, ref.size) for ref in files}
        same = [each for each in self._copies.values() if (each.operator, each.subtask) == (operator, subtask)]
        if any(copy is not found and {each[:2] for each in copy.content} == alike for copy in same):
            note("a local copy of other bytes under the same names not taken")
        note("restored from a local copy" if found is not None else "restored from the store")
        return found

    return find


def _in_a_gap(original: Any, note: Note) -> Any:
    def goes_on(self: Any, sequence: int) -> bool:
        found: bool = original(self, sequence)
        if found:
            note("a commit log went on behind a record that was read or put")
        return found

    return goes_on


def _append(original: Any, note: Note) -> Any:
    def append(self: Any, checkpoint: int, token: int, files: Any, origin_of: Any) -> None:
        original(self, checkpoint, token, files, origin_of)
        if any(of > checkpoint for of in self._named.values()):
            note("a commit log is ahead of who commits")

    return append


def _read_in_flight(original: Any, note: Note) -> Any:
    def decoded(store: Any, ref: Any) -> Any:
        batches = original(store, ref)
        if len(batches) > 1:
            note("rows in flight processed in several chunks")
        note("rows in flight restored")
        return batches

    return decoded


def _late(original: Any, note: Note) -> Any:
    def give_late(self: Any, batch: Any, late: Any, emit: Any) -> None:
        note("a late row dropped")
        original(self, batch, late, emit)

    return give_late


def _late_of_join(original: Any, note: Note) -> Any:
    def give_late(self: Any, batch: Any, late: Any, port: int, emit: Any) -> None:
        note(f"a late row of a join's {('left', 'right')[port]} side")
        original(self, batch, late, port, emit)

    return give_late


def _floors(original: Any, note: Note) -> Any:
    def floors(self: Any, *arguments: Any) -> None:
        note("rescaled with key groups ahead of the others")
        original(self, *arguments)

    return floors


def _timer_deleted(original: Any, note: Note) -> Any:
    def delete(self: Any, timestamp_ms: int) -> None:
        note("a timer deleted before its time")
        original(self, timestamp_ms)

    return delete


def _trimmed(original: Any, note: Note) -> Any:
    def drop(self: Any, cut_ms: int) -> None:
        note("timers left to the store")
        original(self, cut_ms)

    return drop


def _held_late(original: Any, note: Note) -> Any:
    def hold(self: Any, until_ms: int) -> None:
        note("far timers held before they were in the store")
        original(self, until_ms)

    return hold


def _between_slices(original: Any, note: Note) -> Any:
    def snapshot(self: Any, checkpoint: int) -> Any:
        if self.going_to_ms is not None:
            note("a snapshot between two slices of timers")
        return original(self, checkpoint)

    return snapshot


def _overtaken(original: Any, note: Note) -> Any:
    def overtake(self: Any, barrier: Any, now_ms: float) -> Any:
        effects = original(self, barrier, now_ms)
        if effects:
            note("a barrier overtook rows that waited for timers")
        return effects

    return overtake


def _judged(original: Any, note: Note) -> Any:
    def judge(self: Any, stamped: Any, now_ms: int) -> Any:
        live, ms = original(self, stamped, now_ms)
        if not live:
            note("state that is over not given")
        return live, ms

    return judge


def _swept(original: Any, note: Note) -> Any:
    def sweep(self: Any, most: int) -> Any:
        looked_at, deleted = original(self, most)
        if deleted:
            note("state that is over swept")
        return looked_at, deleted

    return sweep


def _evicted(original: Any, note: Note) -> Any:
    def make_room(self: Any) -> None:
        before = self.entries
        original(self)
        if self.entries < before:
            note("entries left memory")

    return make_room


def _came_back(original: Any, note: Note) -> Any:
    def row_ids(self: Any, *arguments: Any) -> Any:
        before = self.loaded
        found = original(self, *arguments)
        if self.loaded > before:
            note("entries came back into memory")
        return found

    return row_ids


def _run_left(original: Any, note: Note) -> Any:
    def move(self: Any, run: Any) -> None:
        note("rows of a join left memory")
        original(self, run)

    return move


_PROBES: tuple[tuple[Any, str, Callable[[Any, Note], Any]], ...] = (
    (store_effects, "check_permit", _permit),
    (store_effects, "compact_log", _compacted),
    (store_effects, "is_behind", _compacted_away),
    (PendingCheckpoints, "ack", _ack),
    (JobProtocol, "_on_message", _message),
    (Job, "highest_checkpoint", _highest),
    (Retention, "completed", _completed),
    (Retention, "classify", _classify),
    (Job, "begin_generation", _begin_generation),
    (LocalCopies, "find", _find),
    (Rescales, "move", _moved),
    (Rescales, "fail", _not_moved),
    (CommitLog, "append", _append),
    (StoredRecords, "goes_on", _in_a_gap),
    (in_flight, "_decoded", _read_in_flight),
    (WindowOperator, "give_late", _late),
    (JoinOperator, "_give_late", _late_of_join),
    (Timers, "delete", _timer_deleted),
    (Timers, "_drop_from", _trimmed),
    (Timers, "_hold_outside", _held_late),
    (Aligner, "overtake", _overtaken),
    (ProcessOperator, "snapshot", _between_slices),
    (Floors, "__init__", _floors),
    (RunsOnDisk, "_move", _run_left),
    (ColumnTable, "_make_room", _evicted),
    (ColumnTable, "_placed", _came_back),
    (ColumnTable, "_load_chunk", _came_back),
    (Timed, "_judge", _judged),
    (Timed, "sweep", _swept),
)
