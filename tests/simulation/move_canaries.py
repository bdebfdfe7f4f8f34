"""Planted bugs in user actions on a running job: savepoint, rescale, replace."""

import dataclasses
import re
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import msgspec
from canaries import _replaced, canary
from planting import planted

from barrier_runtime.coordinator.checkpoints import savepoints as savepoint_states
from barrier_runtime.coordinator.job.phases import start as phase_start
from barrier_runtime.coordinator.log import restore_choice
from barrier_runtime.coordinator.log import savepoint as savepoint_record
from barrier_runtime.coordinator.log.decision_log import complete_of
from barrier_runtime.coordinator.log.manifest import encode_manifest
from barrier_runtime.runtime import slot as slot_module
from barrier_runtime.runtime.sinks.operator import SinkOperator
from barrier_runtime.state.backend import keyed_backend
from barrier_runtime.state.snapshots import plan as snapshot_plans
from barrier_runtime.state.versioned import sha256_hex


@canary("savepoint-is-a-restore-point", "a job that is started again goes on from its last savepoint", "bank")
def _savepoint_is_a_restore_point() -> Iterator[None]:
    taken: set[str] = set()

    def make_copied(original: Any) -> Any:
        def copied(self: Any, id: str, *rest: Any) -> None:
            entry = self._entries.get(id)
            if entry is not None and entry.manifest is not None:
                taken.add(sha256_hex(encode_manifest(entry.manifest)))
            original(self, id, *rest)

        return copied

    def make_start(original: Any) -> Any:
        def start_run(spec: Any, view: Any) -> Any:
            choice = original(spec, view)
            older = next((entry for entry in view.completes[1:] if complete_of(entry).sha256 in taken), None)
            return choice if older is None else restore_choice.RestoreFrom(older, choice.lineage)

        return start_run

    with (
        _replaced(savepoint_states.Savepoints, "copied", make_copied),
        patch.object(phase_start, "start_run", make_start(phase_start.start_run)),
    ):
        yield


@canary("savepoint-shares-files", "a savepoint names files of the checkpoint that it was taken of", "bank")
def _savepoint_shares_files() -> Iterator[None]:
    def make(original: Any) -> Any:
        def copy(manifest: Any, *rest: Any, **more: Any) -> Any:
            made = original(manifest, *rest, **more)
            keys = {to: key for key, to in made.objects.items()}
            shared = tuple(savepoint_record.with_keys(each, keys) for each in made.savepoint.taken.operators)
            taken = msgspec.structs.replace(made.savepoint.taken, operators=shared)
            return savepoint_record.SavepointCopy({}, msgspec.structs.replace(made.savepoint, taken=taken))

        return copy

    with (
        _replaced(savepoint_states, "savepoint_copy", make),
        patch.object(savepoint_record, "_OBJECT", re.compile(".*")),
    ):
        yield


@canary("key-group-has-two-owners", "behind a rescale a subtask keeps the key group behind its own, too", "bank")
def _key_group_has_two_owners() -> Iterator[None]:
    """Disables the check of restored key groups, too: the check would find the bug at the next start."""

    def make(original: Any) -> Any:
        def plan(operator: str, subtask: int, parallelism: int, max_parallelism: int, restored: Any) -> Any:
            made = original(operator, subtask, parallelism, max_parallelism, restored)
            others = {each.parallelism for each in restored if each.operator == operator} - {parallelism}
            if not others or made.key_group_last + 1 >= max_parallelism or not made.parts:
                return made
            return dataclasses.replace(made, key_group_last=made.key_group_last + 1)

        return plan

    with (
        _replaced(keyed_backend, "plan_restore", make),
        patch.object(snapshot_plans, "_check_cover", lambda *_: None),
    ):
        yield


@canary("old-owner-reads-on", "sources of the old slots read, and forward, rows behind the barrier of a move", "bank")
def _old_owner_reads_on() -> Iterator[None]:
    with planted("barrier_runtime/runtime/subtask.py", "            self._paused = barrier.id\n", "            pass\n"):
        yield


@canary("leaving-slot-commits-late", "slots that are to leave say that they have committed before they do")
def _leaving_slot_commits_late() -> Iterator[None]:
    """Needs jobs of all kinds: a global committer does not rely on the subtasks' reports."""

    def make(original: Any) -> Any:
        def on_complete(self: Any, message: Any) -> None:
            original(self, message)
            if not self._paused or self._execution is None or message.token != self.token:
                return
            for subtask in self._execution.subtasks:
                for name, operator in subtask.chain.operators:
                    if isinstance(operator, SinkOperator):
                        self.committed(message.checkpoint, name, subtask.id.index)

        return on_complete

    handlers = slot_module._HANDLERS
    kind = next(kind for kind, handler in handlers.items() if handler is slot_module.Slot._on_complete)
    with patch.dict(handlers, {kind: make(handlers[kind])}):
        yield


@canary(
    "stop-is-forgotten", "a coordinator that takes over does not stop the job with the savepoint that the log names"
)
def _stop_is_forgotten() -> Iterator[None]:
    with planted("coordinator/job/phases/start.py", "        job.resume_logged_stop(now_ms)\n", ""):
        yield


@canary("stop-begins-before-it-is-logged", "sources end, and the last checkpoint is taken, before the log says why")
def _stop_begins_before_it_is_logged() -> Iterator[None]:
    """Omits the stop from records, too, so every successor forgets the stop."""
    builder = "coordinator/log/record_builder.py"
    with (
        planted("coordinator/job/phases/stopping.py", "    if not job.stop_is_logged:\n", "    if False:\n"),
        planted(builder, "stop, base = self._stop(), ", "stop, base = None, "),
    ):
        yield


@canary("drained-slot-reads-on", "slots that are started again behind the last checkpoint of a drain read on")
def _drained_slot_reads_on() -> Iterator[None]:
    ends = "            if self._drained:\n                self._execution.end_sources()\n"
    with planted("barrier_runtime/runtime/slot.py", ends, ""):
        yield


@canary("drained-slot-is-told-once", "a slot that lost its connection while the job was drained is not told again")
def _drained_slot_is_told_once() -> Iterator[None]:
    told = "        if job.generation.drained:\n            job.outbox.send(slot, EndSources(job.led.token))\n"
    with planted("coordinator/job/phases/running.py", told, ""):
        yield


@canary("drain-ends-early", "a drained job ends with a checkpoint that is taken before its windows have fired")
def _drain_ends_early() -> Iterator[None]:
    phases = "coordinator/job/phases"
    asks, marks = (
        "job.generation.final is None and job.all_ended:\n            pending",
        "checkpoint.final = job.all_ended",
    )
    early = "job.generation.final is None and (job.all_ended or job.generation.drained):\n            pending"
    with (
        planted(f"{phases}/running.py", asks, early),
        planted(f"{phases}/checkpointing.py", marks, f"{marks} or job.generation.drained"),
    ):
        yield


@canary("broken-slot-is-taken", "new slots that cannot import their program count as ones that are there")
def _broken_slot_is_taken() -> Iterator[None]:
    phase, slots = "coordinator/job/phases/moving.py", "coordinator/job/slot.py"
    found = 'next((slot.register.broken for slot in _needed(job, rescale) if slot.register.broken), "")'
    fetched = "newest.checkpoint if slot.register.broken else slot.prefetched"
    with (
        planted(phase, found, '""'),
        planted(phase, "min(slot.prefetched for", f"min({fetched} for"),
        planted(slots, "not self.register.broken and ", ""),
    ):
        yield


@canary(
    "unfit-program-is-taken", "whether a program fits the state of the job is not asked before it has the job", "bank"
)
def _unfit_program_is_taken() -> Iterator[None]:
    with planted("coordinator/job/phases/moving.py", "        return str(error)\n", '        return ""\n'):
        yield


@canary("asked-for-slot-is-sent-away", "new slots have no place while the job restores, and are not started again")
def _asked_for_slot_is_sent_away() -> Iterator[None]:
    admits = "            self._job.admit("
    only_then = '            if self.phase == "running":\n                self._job.admit('
    with planted("coordinator/job/protocol.py", admits, only_then):
        yield
