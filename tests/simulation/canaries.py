"""Planted bugs: each canary breaks one rule of the protocol in the production code.

A simulation that never fails proves nothing, so every rule that was once broken, here or elsewhere, has a canary: a
patch that brings the bug back, and that the simulation has to find. `make sim-canaries` plants the canaries in turn.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from barrier_runtime.connectors.files.sink import commit_log
from barrier_runtime.connectors.files.sink import sink as files
from barrier_runtime.coordinator.checkpoints import checkpoint as pending_checkpoints
from barrier_runtime.coordinator.checkpoints import commits, retention
from barrier_runtime.coordinator.job.effects import WriteManifest
from barrier_runtime.coordinator.job.events import ManifestWritten
from barrier_runtime.coordinator.job.phases import retaining
from barrier_runtime.coordinator.job.phases import running as phase_running
from barrier_runtime.coordinator.job.phases.phase import FinishJob
from barrier_runtime.coordinator.log import decision_log, restore_choice
from barrier_runtime.coordinator.server import store_effects
from barrier_runtime.data.elements import Barrier
from barrier_runtime.operators.lookups import operator as lookups
from barrier_runtime.runtime import aligner as alignment
from barrier_runtime.runtime import operator_chain
from barrier_runtime.runtime import slot as slot_module
from barrier_runtime.runtime import subtask as subtask_module
from barrier_runtime.runtime.in_flight import InFlightWriter
from barrier_runtime.runtime.network import channels
from barrier_runtime.runtime.sinks import driver as sink_driver
from barrier_runtime.state.backend import backend_snapshots
from barrier_runtime.state.columns import segment_set as segment_log
from barrier_runtime.state.snapshots import plan as snapshot_plan
from barrier_runtime.state.store.object_store import PutOutcome


@dataclass(frozen=True)
class Canary:
    name: str
    what: str  # the broken rule
    plant: Callable[[], contextlib.AbstractContextManager[None]]
    story: str | None = None  # only seeds of this story can find the bug


CANARIES: dict[str, Canary] = {}


def canary(
    name: str, what: str, story: str | None = None
) -> Callable[[Callable[[], Iterator[None]]], Callable[[], Iterator[None]]]:
    def register(plant: Callable[[], Iterator[None]]) -> Callable[[], Iterator[None]]:
        CANARIES[name] = Canary(name, what, contextlib.contextmanager(plant), story)
        return plant

    return register


def _replaced(owner: Any, name: str, make: Callable[[Any], Any]) -> Any:
    return patch.object(owner, name, make(getattr(owner, name)))


@canary("commit-before-decide", "a sink commits when its snapshot is done, before the decision")
def _commit_before_decide() -> Iterator[None]:
    def make(original: Any) -> Any:
        def acknowledged(self: Any, checkpoint: int, *rest: Any) -> None:
            original(self, checkpoint, *rest)
            if self._execution is not None:
                self._execution.complete(checkpoint)

        return acknowledged

    with _replaced(slot_module.Slot, "acknowledged", make):
        yield


@canary("skip-alignment-of-one-channel", "one channel is read on while the others align")
def _skip_alignment() -> Iterator[None]:
    def make(original: Any) -> Any:
        def on_barrier(self: Any, channel: int, barrier: Any, now_ms: float) -> Any:
            effects = original(self, channel, barrier, now_ms)
            return [e for e in effects if not (isinstance(e, alignment.Block) and e.channel == 0)]

        return on_barrier

    with _replaced(alignment.Aligner, "on_barrier", make):
        yield


@canary("ack-of-an-old-token", "acks of an older generation count, and checkpoint ids begin again with each generation")
def _old_acks() -> Iterator[None]:
    def make_dispatch(original: Any) -> Any:
        def on_message(self: Any, event: Any, now_ms: int) -> Any:
            message = event.message
            if type(message).__name__ == "Ack" and self._job.leads:
                slot = self._job.slots.by_link(event.link)
                if slot is not None:
                    return self._phase.on_message(self._job, slot, message, now_ms)
            return original(self, event, now_ms)

        return on_message

    def make_send(original: Any) -> Any:
        def drop_generation(self: Any, token: int) -> None:
            unresolved = dict(self._unresolved)
            original(self, token)
            for ack in unresolved.values():  # a late answer of the dropped generation
                self._send(ack)

        return drop_generation

    def make_pending(original: Any) -> Any:
        def init(self: Any, options: Any, expected: Any, token: int, first_id: int, now_ms: int) -> None:
            original(self, options, expected, token, max(1, first_id - 2), now_ms)

        return init

    from barrier_runtime.coordinator.job.protocol import JobProtocol

    with (
        _replaced(JobProtocol, "_on_message", make_dispatch),
        _replaced(slot_module.Slot, "_drop_generation", make_send),
        _replaced(pending_checkpoints.PendingCheckpoints, "__init__", make_pending),
    ):
        yield


@canary("sst-name-reused", "an SST is taken for uploaded because one of its name was, before a restore")
def _sst_name_reused() -> Iterator[None]:
    remembered: dict[Any, Any] = {}

    def make_init(original: Any) -> Any:
        def init(self: Any, shard: Any, *rest: Any) -> None:
            original(self, shard, *rest)
            self._confirmed = dict(remembered.get((shard.operator, shard.subtask), {}))

        return init

    def make_write(original: Any) -> Any:
        def write(self: Any, checkpoint: int) -> Any:
            snapshot = original(self, checkpoint)
            known = remembered.setdefault((self._shard.operator, self._shard.subtask), {})
            known.update({ref.name: ref for ref in snapshot.files if ref.name.endswith(".sst")})
            return snapshot

        return write

    def confirmed(file: Any, known: Any) -> bool:
        return file.name.endswith(".sst") and file.name in known

    with (
        _replaced(backend_snapshots.BackendSnapshots, "__init__", make_init),
        _replaced(backend_snapshots.BackendSnapshots, "write", make_write),
        patch.object(snapshot_plan, "_is_confirmed", confirmed),
    ):
        yield


@canary("delete-by-sweep-of-the-living", "the sweep takes what the living generation is uploading for an orphan")
def _sweep_of_the_living() -> Iterator[None]:
    def make(original: Any) -> Any:
        def sweep(self: Any, paths: Any, objects: Any, token: int, wall_ms: int, under_way: Any = None) -> Any:
            return original(self, paths, objects, token + 1_000, wall_ms, None, 0)

        return sweep

    with _replaced(retention.Retention, "sweep", make), patch.object(retaining, "SWEEP_EVERY_MS", 0):
        yield


@canary("delete-of-shared-files", "dropping a checkpoint deletes files that a newer one still needs")
def _delete_shared() -> Iterator[None]:
    def completed(self: Any, kept: Any, open_ids: Any, highest: int, held: Any = ()) -> Any:
        self.kept.append(kept)
        dropped = []
        while len(self.kept) > self.retained:
            dropped.append(self.kept.pop(0))
        return retention.SweepPlan(
            tuple(each.manifest_key for each in dropped), tuple(sorted(set().union(*(each.files for each in dropped))))
        )

    with patch.object(retention.Retention, "completed", completed):
        yield


@canary("own-record-taken-as-foreign", "412 on a repeated put is taken for somebody else's record")
def _own_as_foreign() -> Iterator[None]:
    def make(original: Any) -> Any:
        def on_read_back(self: Any, position: int, name: str, data: bytes | None) -> Any:
            step = original(self, position, name, data)
            if isinstance(step, decision_log.Appended):
                return decision_log.Foreign(step.entry)
            return step

        return on_read_back

    with _replaced(decision_log.DecisionLog, "on_read_back", make):
        yield


@canary("unknown-taken-as-landed", "a put without an answer is believed to have landed")
def _unknown_as_landed() -> Iterator[None]:
    def make(original: Any) -> Any:
        def on_put(self: Any, position: int, outcome: PutOutcome) -> Any:
            return original(self, position, PutOutcome.CREATED if outcome is PutOutcome.UNKNOWN else outcome)

        return on_put

    with _replaced(decision_log.DecisionLog, "on_put", make):
        yield


@canary("unknown-does-not-block", "while a put is undecided, deleting goes on")
def _unknown_does_not_block() -> Iterator[None]:
    from barrier_runtime.coordinator.job.facts import Job

    def make(original: Any) -> Any:
        def delete(self: Any, keys: tuple[str, ...]) -> None:
            flight, self.log._in_flight = self.log._in_flight, None
            original(self, keys)
            self.log._in_flight = flight

        return delete

    def put_record(self: Any, key: str, data: bytes) -> PutOutcome:
        """Stores the record without marking its key as undecided, so deletes are not refused."""
        outcome: PutOutcome = self._store.put_if_absent(key, data)
        return outcome

    with _replaced(Job, "delete", make), patch.object(store_effects.StoreEffects, "_put_record", put_record):
        yield


@canary("fenced-goes-on", "who finds a foreign record at its place tries the next one")
def _fenced_goes_on() -> Iterator[None]:
    import msgspec

    from barrier_runtime.coordinator.log.records import Fence, decode_record, encode_record
    from barrier_runtime.state.versioned import sha256_hex

    def make(original: Any) -> Any:
        def on_read_back(self: Any, position: int, name: str, data: bytes | None) -> Any:
            flight = self._in_flight
            if flight is None or data is None or isinstance(flight.record, Fence):
                return original(self, position, name, data)
            if decode_record(name, data).put_id == flight.record.put_id:
                return original(self, position, name, data)
            record = msgspec.structs.replace(flight.record, parent_sha256=sha256_hex(data))
            moved = encode_record(record)
            self._in_flight = decision_log._InFlight(position + 1, record, moved)
            return decision_log.Repeat(position + 1, moved)

        return on_read_back

    with _replaced(decision_log.DecisionLog, "on_read_back", make):
        yield


@canary("final-checkpoint-not-awaited", "the job is finished as soon as all input has been read")
def _final_not_awaited() -> Iterator[None]:
    def make(original: Any) -> Any:
        def end_if_done(job: Any) -> Any:
            if job.all_ended:
                return FinishJob()
            return original(job)

        return end_if_done

    with _replaced(phase_running, "end_if_done", make):
        yield


@canary("pending-set-cut", "a snapshot lists only the transaction that its own barrier closed")
def _pending_set_cut() -> Iterator[None]:
    original = sink_driver.SinkDriver.pending.fget
    assert original is not None

    def pending(self: Any) -> Any:
        return tuple(t for t in original(self) if t.checkpoint == self._last_barrier)

    with patch.object(sink_driver.SinkDriver, "pending", property(pending)):
        yield


@canary("lot-committed-in-part", "of several transactions that are committed at once only the oldest is")
def _lot_committed_in_part() -> Iterator[None]:
    def make(original: Any) -> Any:
        def start(self: Any, count: int) -> Any:
            return [
                sink_driver.CommitTogether(effect.checkpoint, effect.committables[:1])
                if isinstance(effect, sink_driver.CommitTogether)
                else effect
                for effect in original(self, count)
            ]

        return start

    with _replaced(sink_driver.SinkDriver, "_start", make):
        yield


@canary("manifest-not-awaited", "the decision is put before the manifest is there")
def _manifest_not_awaited() -> Iterator[None]:
    under_way: set[Any] = set()

    def make(original: Any) -> Any:
        async def answer(self: Any, effect: Any) -> Any:
            if isinstance(effect, WriteManifest):
                writing = asyncio.get_running_loop().create_task(original(self, effect))
                under_way.add(writing)
                writing.add_done_callback(under_way.discard)
                return ManifestWritten(effect.key)
            return await original(self, effect)

        return answer

    with _replaced(store_effects.StoreEffects, "_answer", make):
        yield


@canary("position-after-the-barrier", "a source's snapshot holds the position after the next batch")
def _position_after_barrier() -> Iterator[None]:
    def make(original: Any) -> Any:
        def capture(self: Any, snapshot: Any) -> None:
            if self.source is not None and not self.ended:
                self.chain.control(snapshot.barrier)
                self._step_source(self.source[1])
                outputs, self.chain.outputs = self.chain.outputs, []
                original(self, snapshot)
                self.chain.outputs = outputs
                return
            original(self, snapshot)

        return capture

    with _replaced(subtask_module.Subtask, "_capture", make):
        yield


@canary(
    "dropped-checkpoint-restored", "a checkpoint that the log has dropped is restored from the manifest in its record"
)
def _dropped_restored() -> Iterator[None]:
    def make(original: Any) -> Any:
        def start_run(spec: Any, view: Any) -> Any:
            choice = original(spec, view)
            dropped = [entry for entry in view.completes if entry.position not in (view.kept or ())]
            return restore_choice.RestoreFrom(dropped[0], choice.lineage) if dropped else choice

        return start_run

    from barrier_runtime.coordinator.job.phases import start as phase_start

    with patch.object(phase_start, "start_run", make(phase_start.start_run)):
        yield


@canary("older-checkpoint-restored", "a new generation starts from the checkpoint before the last one")
def _older_restored() -> Iterator[None]:
    def make(original: Any) -> Any:
        def start_run(spec: Any, view: Any) -> Any:
            choice = original(spec, view)
            if len(view.completes) > 1:
                return restore_choice.RestoreFrom(view.completes[1], choice.lineage)
            return choice

        return start_run

    from barrier_runtime.coordinator.job.phases import start as phase_start

    with patch.object(phase_start, "start_run", make(phase_start.start_run)):
        yield


@canary("sweep-before-recovery", "a sink drops its predecessors' staged files before it commits what was decided")
def _sweep_before_recovery() -> Iterator[None]:
    def make(original: Any) -> Any:
        def recover(self: Any, decided: Any) -> None:
            original(self, ())
            original(self, decided)

        return recover

    with _replaced(files.FileSink, "recover", make):
        yield


@canary("commit-repeated-as-new", "a repeated global commit is not recognised")
def _commit_repeated() -> Iterator[None]:
    def make(original: Any) -> Any:
        def append(self: Any, *arguments: Any) -> None:
            self._named = set()
            original(self, *arguments)

        return append

    def make_look(original: Any) -> Any:
        def look(self: Any, *lowest: Any) -> None:
            original(self, *lowest)
            self._named = set()

        return look

    with _replaced(commit_log.CommitLog, "append", make), _replaced(commit_log.CommitLog, "_look", make_look):
        yield


@canary("whole-before-its-parts", "the global committer does not wait for every subtask")
def _whole_before_parts() -> Iterator[None]:
    def make(original: Any) -> Any:
        def due_globally(self: Any) -> Any:
            parallelism, self._parallelism = self._parallelism, 1
            try:
                return original(self)
            finally:
                self._parallelism = parallelism

        return due_globally

    with _replaced(commits.CommitTracker, "due_globally", make):
        yield


@canary("parts-forgotten-too-early", "a part is no longer listed once it is committed, before the whole is visible")
def _parts_forgotten() -> Iterator[None]:
    def make(original: Any) -> Any:
        def init(self: Any, *arguments: Any, **keywords: Any) -> None:
            original(self, *arguments, **{**keywords, "part_of_whole": False})

        return init

    with _replaced(sink_driver.SinkDriver, "__init__", make):
        yield


@canary("state-frozen-too-late", "records after the barrier reach the snapshot", "topic")
def _frozen_too_late() -> Iterator[None]:
    from barrier_runtime.state.values import table as state_table

    def make(original: Any) -> Any:
        def take(self: Any, max_entries: int) -> Any:
            self._frozen.update(self._dirty)  # includes entries written in the meantime
            return original(self, max_entries)

        return take

    with _replaced(state_table.StateTable, "take", make):
        yield


@canary("source-skips-after-restore", "a restored reader begins one record too far")
def _source_skips() -> Iterator[None]:
    import workload

    def make(original: Any) -> Any:
        def seek(self: Any, position: bytes) -> None:
            original(self, position)
            self._next += 1

        return seek

    with _replaced(workload._Reader, "seek", make):
        yield


@canary("store-not-probed", "a store that ignores conditions is accepted")
def _store_not_probed() -> Iterator[None]:
    from barrier_runtime.coordinator.server.jobs import JobDirectory

    async def proven(self: Any) -> None:
        """Accepts the store without a probe."""

    with patch.object(JobDirectory, "_proven", proven):
        yield


@canary("failed-commit-dropped", "a commit that fails is taken for done")
def _failed_commit_dropped() -> Iterator[None]:
    def make(original: Any) -> Any:
        def settled(self: Any, checkpoint: int, error: BaseException | None) -> None:
            original(self, checkpoint, None)

        return settled

    from barrier_runtime.runtime.sinks.operator import SinkOperator

    with _replaced(SinkOperator, "_settled", make):
        yield


@canary("in-flight-channel-forgotten", "what is in flight on one channel is left out of the snapshot")
def _in_flight_channel_forgotten() -> Iterator[None]:
    def make(original: Any) -> Any:
        def begin(self: Any, checkpoint: int, left: Any, channels: Any, others: Any) -> None:
            original(self, checkpoint, left, tuple(channels)[1:], others)

        return begin

    with _replaced(InFlightWriter, "begin", make):
        yield


@canary("recorded-at-the-snapshot-only", "rows that come between the snapshot and their channel's barrier are left out")
def _recorded_at_the_snapshot_only() -> Iterator[None]:
    def make(original: Any) -> Any:
        def record(self: Any, checkpoint: int) -> Any:
            recorded = original(self, checkpoint)
            self.stop_recording()
            return recorded

        return record

    with _replaced(channels.InputChannel, "record", make):
        yield


@canary("replayed-after-new-rows", "rows in flight in the restored checkpoint are processed after new ones")
def _replayed_after_new_rows() -> Iterator[None]:
    def make(original: Any) -> Any:
        def step(self: Any) -> Any:
            replay = self._replay
            if not replay or self.rows_in or self.source is not None:
                return original(self)
            self.take_announcements()
            self._replay = deque()
            worked = original(self)
            self._replay = replay
            return worked

        return step

    with _replaced(subtask_module.Subtask, "step", make):
        yield


@canary("delta-without-its-base", "a snapshot links only the newest of a state's segments")
def _delta_without_its_base() -> Iterator[None]:
    def make(original: Any) -> Any:
        def link(self: Any, directory: Any) -> None:
            live = self._live
            self._live = {state: files[-1:] for state, files in live.items()}
            original(self, directory)
            self._live = live

        return link

    with _replaced(segment_log.SegmentLog, "link", make):
        yield


@canary("segments-of-one-checkpoint-later", "what a freeze copied of columns is written with the next checkpoint")
def _segments_late() -> Iterator[None]:
    def make(original: Any) -> Any:
        def write(self: Any, frozen: Any) -> None:
            late = getattr(self, "late", [])
            self.late = list(frozen)
            original(self, late)

        return write

    with _replaced(segment_log.SegmentLog, "write", make):
        yield


@canary("ack-before-upload", "a snapshot is acknowledged while its objects are on their way to the store")
def _ack_before_upload() -> Iterator[None]:
    from barrier_runtime.testing.simulation.jobs import Pool

    class Hasty:
        def __init__(self, store: Any) -> None:
            self._store = store

        def put(self, key: str, data: bytes) -> None:
            process = self._store._process

            def slowly() -> None:
                process.simulation.jobs.block(300_000)
                self._store.put(key, data)

            Pool(process, 1).submit(slowly, lambda *_: None, lambda: True)

    def make(original: Any) -> Any:
        def upload(store: Any, *arguments: Any) -> Any:
            return original(Hasty(store), *arguments)

        return upload

    with _replaced(backend_snapshots, "upload", make):
        yield


@canary("late-lot-written", "Redis writes a lot whose number is below that of the last one", "upserts")
def _late_lot_written() -> Iterator[None]:
    from redis_server import RedisServer

    with patch.object(RedisServer, "came_late", lambda self, last, lot: False):
        yield


@canary("fence-of-redis-not-checked", "Redis writes rows of whoever asks", "upserts")
def _fence_of_redis_not_checked() -> Iterator[None]:
    from redis_server import RedisServer

    with patch.object(RedisServer, "is_held", lambda self, fence, log, token: True):
        yield


@canary("gathered-rows-behind-the-barrier", "rows wait for others beyond a step, and are forgotten at a barrier")
def _gathered_rows_behind() -> Iterator[None]:
    def make_control(original: Any) -> Any:
        def control(self: Any, element: Any) -> None:
            if not isinstance(element, Barrier):
                original(self, element)
                return
            for channel in self._channels:
                channel.send(element)

        return control

    def make_gather(original: Any) -> Any:
        def gather(self: Any, on: bool) -> None:
            if on:
                original(self, on)

        return gather

    with (
        _replaced(channels.ResultPartition, "control", make_control),
        _replaced(operator_chain.OperatorChain, "gather", make_gather),
    ):
        yield


def _tampered_sides(emit: Callable[[Any, Any, Any], None], at_barrier: Callable[[Any, Any, Any], None]) -> Any:
    """Patches side outputs. Both functions get the partition, the element, and a function that sends an element."""

    def make_emit(original: Any) -> Any:
        def emitting(self: Any, batch: Any) -> None:
            if self.tag:
                emit(self, batch, lambda each: original(self, each))
            else:
                original(self, batch)

        return emitting

    sent = channels.ResultPartition.emit

    def make_control(original: Any) -> Any:
        def control(self: Any, element: Any) -> None:
            if self.tag and isinstance(element, Barrier):
                at_barrier(self, element, lambda each: (original if each is element else sent)(self, each))
            else:
                held = vars(self).pop("held", None)
                if held is not None:
                    sent(self, held)
                original(self, element)

        return control

    stack = contextlib.ExitStack()
    stack.enter_context(_replaced(channels.ResultPartition, "emit", make_emit))
    stack.enter_context(_replaced(channels.ResultPartition, "control", make_control))
    return stack


@canary("side-rows-behind-the-barrier", "the last rows of a side output before a barrier are sent behind it", "sides")
def _side_rows_behind() -> Iterator[None]:
    def emit(partition: Any, batch: Any, send: Callable[[Any], None]) -> None:
        held = vars(partition).get("held")
        partition.held = batch
        if held is not None:
            send(held)

    def at_barrier(partition: Any, barrier: Any, send: Callable[[Any], None]) -> None:
        held = vars(partition).pop("held", None)
        send(barrier)
        if held is not None:
            send(held)

    with _tampered_sides(emit, at_barrier):
        yield


@canary("side-rows-on-both-sides", "the last rows of a side output before a barrier are sent again behind it", "sides")
def _side_rows_on_both_sides() -> Iterator[None]:
    def emit(partition: Any, batch: Any, send: Callable[[Any], None]) -> None:
        partition.last = batch
        send(batch)

    def at_barrier(partition: Any, barrier: Any, send: Callable[[Any], None]) -> None:
        send(barrier)
        last = vars(partition).pop("last", None)
        if last is not None:
            send(last)

    with _tampered_sides(emit, at_barrier):
        yield


@canary("late-reply-gives-rows-again", "rows whose request was repeated are given by the late reply, too", "lookups")
def _late_reply_gives_rows_again() -> Iterator[None]:
    def make(original: Any) -> Any:
        def emitting(self: Any, *arguments: Any) -> None:
            original(self, *arguments)
            late = self._book.counts.late
            if late > vars(self).get("seen", 0):
                self.seen = late
                original(self, *arguments)

        return emitting

    with _replaced(lookups.LookupOperator, "_emit_rows", make):
        yield
