"""One generation of the dataflow in one slot: its subtasks, channels and snapshots in progress. Thrown away as a whole.

    NEW → restore() → connect() → start() → … → halt()          halt is legal at any point and idempotent

It reports through `ExecutionEvents` and never talks to the coordinator itself. After `halt` it is silent: lanes are
retired, timers ignored, operators closed when their last blocking work has ended.
"""

import asyncio
import gc
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import msgspec

from barrier_runtime.coordinator.log.restore_choice import snapshots_for_slot
from barrier_runtime.coordinator.wire.messages import (
    GLOBAL_COMMITTER,
    CommitGlobally,
    Deploy,
    ManifestRef,
    Peer,
    SubtaskId,
)
from barrier_runtime.data.elements import WATERMARK_MAX, WATERMARK_MIN, Barrier, Batch
from barrier_runtime.graph.job_graph import Chain, Edge, JobGraph
from barrier_runtime.operators.base import Capture, CommitReport, Operator, OperatorContext
from barrier_runtime.operators.metrics import MetricRegistry
from barrier_runtime.operators.user_code import add_position
from barrier_runtime.runtime.alignment.aligner import Aligner
from barrier_runtime.runtime.alignment.tracker import BarrierTracker
from barrier_runtime.runtime.given import snapshots_in
from barrier_runtime.runtime.host.clock import SYSTEM_CLOCK, Clock
from barrier_runtime.runtime.host.workers import SerialLane, WorkerPool
from barrier_runtime.runtime.in_flight.recorder import InFlightData
from barrier_runtime.runtime.in_flight.storage import read_in_flight, write_in_flight
from barrier_runtime.runtime.network.channels import EdgeOutput, InputChannel, LocalOutput, OutputChannel
from barrier_runtime.runtime.network.flow_control import MAX_WINDOW_BYTES
from barrier_runtime.runtime.network.tcp import ChannelId, DataPlane
from barrier_runtime.runtime.scheduler import Scheduler
from barrier_runtime.runtime.snapshots import SnapshotRun
from barrier_runtime.runtime.sources.assignment import never_has_rows
from barrier_runtime.runtime.sources.driver import SourceDriver
from barrier_runtime.runtime.subtask import Subtask
from barrier_runtime.state.backend.keyed_backend import KeyedBackend, open_keyed_backend
from barrier_runtime.state.errors import PERMANENT, BarrierRuntimeError, Unavailable, UserCodeError
from barrier_runtime.state.kv.rocksdb import SlotMemory
from barrier_runtime.state.snapshots.local_copies import LocalCopies
from barrier_runtime.state.snapshots.plan import Thresholds
from barrier_runtime.state.snapshots.snapshot import FileRef, InFlight, OperatorSnapshot, SnapshotTimes
from barrier_runtime.state.snapshots.stored_values import store_values, with_values
from barrier_runtime.state.store.object_store import ObjectStore
from barrier_runtime.state.store.paths import Paths

_OPEN_AGAIN_S = 0.2  # before an operator whose server does not answer is opened again; doubles every time,
_OPEN_AGAIN_MOST_S = 10.0  # up to this
_ADAPT_S = 0.2  # between two looks at how much the channels' windows should hold


class ExecutionEvents(Protocol):
    """What a slot wants to hear. All calls come on the loop."""

    def acknowledged(
        self,
        checkpoint: int,
        subtask: SubtaskId,
        operators: tuple[OperatorSnapshot, ...],
        times: SnapshotTimes,
        ended: bool,
    ) -> None: ...
    def declined(self, checkpoint: int, subtask: SubtaskId, reason: str, unavailable: bool = False) -> None: ...
    def subtask_ended(self, subtask: SubtaskId) -> None: ...
    def waiting(self, operator: str, attempts: int, error: str) -> None: ...
    def failed(self, subtask: SubtaskId | None, operator: str, error: BaseException) -> None: ...
    def committed(self, checkpoint: int, operator: str, subtask: int) -> None: ...
    def commit_failing(self, checkpoint: int, operator: str, subtask: int, attempts: int, error: str) -> None: ...


@dataclass(frozen=True)
class StateSettings:
    """How keyed state is kept in a slot. Bytes."""

    backend: str = "rocksdb"  # or "memory"
    memory_bytes: int = 256 * 1024 * 1024  # RocksDB block cache and write buffers of the whole slot together
    cache_bytes: int = 64 * 1024 * 1024  # decoded values per operator subtask
    transfers_at_once: int = 4  # files of one snapshot on their way to or from the object store
    thresholds: Thresholds = field(
        default_factory=Thresholds
    )  # which files of a snapshot are packed, or travel inside the manifest
    watched: bool = False  # refuse values that were changed in place and not stored


def tidy_memory(dropped: bool) -> None:
    """What start-up allocated is not walked again by every collection. `dropped`: a generation was, and it was frozen
    with the rest: circles of objects, caches and all."""
    if dropped:
        gc.unfreeze()
    gc.collect()
    gc.freeze()


@dataclass
class SlotResources:
    """What outlives a generation inside one slot process."""

    loop: asyncio.AbstractEventLoop
    workers: WorkerPool
    store: ObjectStore
    make_store: Callable[[str], ObjectStore]
    paths: Paths
    slot: int
    uuid: str
    local_dir: Path
    copies: LocalCopies
    memory: SlotMemory
    settings: StateSettings
    new_uuid: Callable[[], str]
    clock: Clock = SYSTEM_CLOCK
    tidy_memory: Callable[[bool], None] = tidy_memory  # called once per deployment; True: another one was dropped
    window_bytes: int = MAX_WINDOW_BYTES  # most that is in flight on one channel
    local_output: type[LocalOutput] = LocalOutput  # of channels that stay inside the slot


class Execution:
    def __init__(
        self,
        graph: JobGraph,
        deploy: Deploy,
        mode: str,
        resources: SlotResources,
        plane: DataPlane,
        metrics: MetricRegistry,
        events: ExecutionEvents,
    ) -> None:
        self.token = deploy.token
        self._graph = graph
        self._deploy = deploy
        self._restored = deploy.operators  # until all operators are open
        self._mode = mode
        self._res = resources
        self._plane = plane
        self._metrics = metrics
        self._events = events
        self._halted = False
        self.closed: asyncio.Future[None] = resources.loop.create_future()  # halted, and every operator let go
        self._wall_ns = resources.clock.wall_ns
        self.scheduler = Scheduler(resources.loop, self._between_passes, self._step_failed, resources.clock)
        self._operators: dict[int, list[tuple[str, Operator]]] = {}
        self._sources: dict[int, tuple[str, SourceDriver]] = {}
        self._inputs: dict[int, list[InputChannel]] = {}
        self._channel_of: dict[tuple[int, int], InputChannel] = {}  # (edge, upstream slot) -> input
        self._replays: dict[int, list[tuple[int, Batch]]] = {}
        self.subtasks: list[Subtask] = []
        self._adapted_s = 0.0
        self._adapting: asyncio.TimerHandle | None = None
        self._timers: dict[SubtaskId, asyncio.TimerHandle] = {}
        self._runs: list[SnapshotRun] = []
        self._to_tell: dict[int, list[Callable[[], None]]] = {}  # checkpoint -> operators that hear of their objects
        self._opening: list[asyncio.Future[None]] = []
        self._opened_now: dict[int, tuple[str, float]] = {}  # by chain: what its thread is in, since when
        self._at: dict[int, str] = {}  # chain -> the operator that is being opened, or was last
        self._stopped: asyncio.Future[None] = resources.loop.create_future()  # by `halt`
        self._lanes: list[SerialLane] = []
        self._unhurried: dict[str, SerialLane] = {}  # by operator or source: the lane that may take for ever
        self._snapshot_lanes: dict[tuple[int, str], SerialLane] = {}
        self._in_flight_lanes: dict[int, SerialLane] = {}  # by chain

    # ------------------------------------------------------------ restore and connect

    async def restore(self) -> None:
        """Open every operator with its restored state, off the loop. Raises what an operator raises, but waits for a
        server that does not answer; how long it may, the coordinator says."""
        self._make_inputs()
        if self._deploy.manifest is not None:
            read = partial(self._read_manifest, self._deploy.manifest)
            self._restored = await self._res.workers.run(read)
        self._opening = [asyncio.ensure_future(self._open_patiently(chain)) for chain in self._graph.chains]
        await asyncio.wait(self._opening)  # when this is cancelled its threads go on: `halt` waits for them
        for opened in self._opening:
            opened.result()
        self._restored = ()
        self._deploy = msgspec.structs.replace(self._deploy, operators=())

    def _read_manifest(self, ref: ManifestRef) -> tuple[OperatorSnapshot, ...]:
        """On a worker thread."""
        found = snapshots_in(self._res.store, self._res.paths, ref, self._deploy.checkpoint)
        sources = {chain.source.name for chain in self._graph.chains if chain.source is not None}
        present = sources | {spec.name for chain in self._graph.chains for spec in chain.operators}
        known = tuple(each for each in found if each.operator in present)
        return snapshots_for_slot(known, self._res.slot, self._graph.parallelism)

    async def _open_patiently(self, chain: Chain) -> None:
        attempts = 0
        while not self._halted:
            try:
                await self._res.workers.run(partial(self._open_chain, chain))
                return
            except Unavailable as error:
                attempts += 1
                if not self._halted:
                    self._events.waiting(self._at[chain.id], attempts, str(error))
            await self._res.workers.run(partial(self._close_chain, chain))
            if not self._halted:
                pause_s = min(_OPEN_AGAIN_MOST_S, _OPEN_AGAIN_S * 2 ** min(attempts - 1, 30))
                await asyncio.wait({self._stopped}, timeout=pause_s)

    def _make_inputs(self) -> None:
        parallelism = self._graph.parallelism
        for chain in self._graph.chains:
            channels: list[InputChannel] = []
            for edge in sorted(self._graph.inputs(chain.id), key=lambda edge: edge.id):
                upstream = [self._res.slot] if edge.partitioning == "forward" else range(parallelism)
                for slot in upstream:
                    channel = InputChannel(len(channels), edge.port, self.scheduler.wake, self._res.window_bytes)
                    channel.empty = self._never_has_rows(edge.source_chain, slot)
                    channels.append(channel)
                    self._channel_of[(edge.id, slot)] = channel
            self._inputs[chain.id] = channels

    def _never_has_rows(self, chain: int, slot: int) -> bool:
        source = self._graph.chains[chain].source
        return source is not None and never_has_rows(source.source, source.splits, slot)

    def _open_chain(self, chain: Chain) -> None:
        """On a worker thread."""
        try:
            self._open_in_turn(chain)
        finally:
            self._opened_now.pop(chain.id, None)

    def _open_in_turn(self, chain: Chain) -> None:
        if self._halted:
            return
        if chain.source is not None:
            driver = SourceDriver()
            self._sources[chain.id] = (chain.source.name, driver)
            self._at[chain.id] = chain.source.name
            self._begins(chain, chain.source.name)
            context = self._context(chain, chain.source.name)
            driver.open(context, chain.source)
            context.opened()
        operators: list[tuple[str, Operator]] = []
        self._operators[chain.id] = operators
        for spec in chain.operators:
            if self._halted:
                return
            operator = spec.make()
            self._at[chain.id] = spec.name
            self._begins(chain, spec.name)
            operators.append((spec.name, operator))
            context = self._context(chain, spec.name)
            operator.open(context)
            context.opened()
        if chain.source is None:
            self._in_flight_lanes[chain.id] = self._new_lane()
            self._begins(chain, f"rows in flight to {chain.operators[0].name}")
            self._replays[chain.id] = read_in_flight(
                self._restored,
                chain.operators[0].name,
                {edge.port: edge for edge in self._graph.inputs(chain.id)},
                self._res.slot,
                self._graph.parallelism,
                self._graph.max_parallelism,
                self._res.store,
            )

    def _close_chain(self, chain: Chain) -> None:
        """What was opened of it, before it is opened again: nothing of that is left, in memory or in its folders."""
        opened: list[tuple[str, Operator | SourceDriver]] = [*self._operators.pop(chain.id, [])]
        if chain.id in self._sources:
            opened.append(self._sources.pop(chain.id))
        for name, each in opened:
            each.close()
            shutil.rmtree(self._directory(name), ignore_errors=True)

    def _directory(self, operator: str) -> Path:
        return self._res.local_dir / f"{self.token}-{operator}-{self._res.slot}"

    def _begins(self, chain: Chain, what: str) -> None:
        self._opened_now[chain.id] = what, self._res.clock.monotonic_s()

    @property
    def opening(self) -> dict[str, float]:
        """What is being opened now, and for how many seconds."""
        now_s = self._res.clock.monotonic_s()
        opened_now = list(self._opened_now.values())  # at once: worker threads change it
        return {name: now_s - since_s for name, since_s in opened_now}

    def take_blocked(self) -> str:
        """The subtask whose step was longest since this was asked last, if that took seconds."""
        longest = self.scheduler.take_longest()
        if longest is None:
            return ""
        seconds, subtask = longest
        return f"{subtask.id} ({self._graph.chains[subtask.id.chain].name}) for {seconds:.1f} s"

    def _context(self, chain: Chain, name: str) -> OperatorContext:
        subtask = self._res.slot
        own = [each for each in self._restored if each.operator == name]
        restored = tuple(with_values(self._res.store, own, self._res.settings.transfers_at_once))
        directory = self._directory(name)
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)

        def open_keyed() -> KeyedBackend:
            settings = self._res.settings
            return open_keyed_backend(
                kind=settings.backend,
                operator=name,
                subtask=subtask,
                parallelism=self._graph.parallelism,
                max_parallelism=self._graph.max_parallelism,
                restored=restored,
                store=self._res.store,
                paths=self._res.paths,
                token=self.token,
                slot_uuid=self._res.uuid,
                directory=directory,
                copies=self._res.copies,
                memory=self._res.memory,
                cache_bytes=settings.cache_bytes,
                new_uuid=self._res.new_uuid,
                transfers_at_once=settings.transfers_at_once,
                thresholds=settings.thresholds,
                watched=settings.watched,
            )

        snapshot_lane = self._snapshot_lanes[(chain.id, name)] = self._new_lane()
        lane = self._unhurried[name] = self._new_lane(unhurried=True)
        return OperatorContext(
            job=self._graph.name,
            token=self.token,
            operator=name,
            subtask=subtask,
            parallelism=self._graph.parallelism,
            max_parallelism=self._graph.max_parallelism,
            restored=restored,
            open_keyed=open_keyed,
            lane=lane,
            snapshot_lane=snapshot_lane,
            metrics=self._metrics.group(name),
            local_dir=directory,
            make_store=self._res.make_store,
            job_store=self._res.store,
            call_later=self._call_later,
            wake=self.scheduler.wake,
            now_s=self._res.clock.monotonic_s,
            new_id=self._res.new_uuid,
            lineage=self._deploy.lineage,
            settled=self._deploy.settled,
            report_commit=partial(self._commit_reported, name),
        )

    def _commit_reported(self, operator: str, report: CommitReport) -> None:
        if self._halted:
            return
        subtask = GLOBAL_COMMITTER if report.globally else self._res.slot
        if report.error is None:
            self._events.committed(report.checkpoint, operator, subtask)
        else:
            self._events.commit_failing(report.checkpoint, operator, subtask, report.attempts, report.error)

    def _new_lane(self, unhurried: bool = False) -> SerialLane:
        lane = self._res.workers.lane(self._broken, unhurried)
        self._lanes.append(lane)
        return lane

    async def connect(self) -> None:
        """Build the subtasks and connect every channel of this slot, both directions."""
        if self._halted:
            return
        slot = self._res.slot
        expected = {
            ChannelId(self.token, edge, upstream, slot): channel
            for (edge, upstream), channel in self._channel_of.items()
            if upstream != slot
        }
        self._plane.expect(self.token, expected, self._channel_broken)
        peers = {peer.slot: peer for peer in self._deploy.peers}
        for chain in self._graph.chains:
            outputs = [await self._connect_edge(edge, peers) for edge in self._graph.outputs(chain.id)]
            inputs = self._inputs[chain.id]
            self.subtasks.append(
                Subtask(
                    SubtaskId(chain.id, slot),
                    self.token,
                    self._operators[chain.id],
                    inputs,
                    outputs,
                    self._aligner(chain),
                    self,
                    self._sources.get(chain.id),
                    self._replays.pop(chain.id, ()),
                )
            )
        await self._plane.all_connected()

    def _aligner(self, chain: Chain) -> Aligner | BarrierTracker:
        inputs = len(self._inputs[chain.id])
        if self._mode != "exactly_once":
            return BarrierTracker(inputs, self.token)
        aligned = [edge.id for edge in self._graph.inputs(chain.id) if edge.partitioning in ("forward", "broadcast")]
        aligned_only = [channel.index for (edge, _), channel in self._channel_of.items() if edge in aligned]
        return Aligner(inputs, self.token, aligned_only)

    async def _connect_edge(self, edge: Edge, peers: dict[int, Peer]) -> EdgeOutput:
        slot = self._res.slot
        targets = [slot] if edge.partitioning == "forward" else range(self._graph.parallelism)
        channels: list[OutputChannel] = []
        for target in targets:
            if target == slot:
                channels.append(self._res.local_output(self._channel_of[(edge.id, slot)], self.scheduler.wake))
            else:
                channel = ChannelId(self.token, edge.id, slot, target)
                channels.append(await self._plane.connect(peers[target], channel, self.scheduler.wake))
        operator = self._last_operator(edge.source_chain)
        return EdgeOutput(edge, channels, slot, self._graph.max_parallelism, operator)

    def _last_operator(self, chain: int) -> str:
        found = self._graph.chains[chain]
        return found.operators[-1].name if found.operators or found.source is None else found.source.name

    def start(self) -> None:
        if not self._halted:
            self.scheduler.start(self.subtasks)
            self._adapted_s = self._res.clock.monotonic_s()
            self._adapting = self._timer(_ADAPT_S, self._adapt_windows)

    def _adapt_windows(self) -> None:
        now_s = self._res.clock.monotonic_s()
        for channel in self._channel_of.values():
            channel.adapt(now_s - self._adapted_s)
        self._adapted_s = now_s
        self._adapting = self._timer(_ADAPT_S, self._adapt_windows)

    # ------------------------------------------------------------ orders of the coordinator

    def trigger(self, barrier: Barrier) -> None:
        self._guarded(lambda subtask: subtask.on_trigger(barrier))

    def complete(self, checkpoint: int) -> None:
        self._tell_stored(checkpoint)
        self._guarded(lambda subtask: subtask.on_complete(checkpoint))

    def _tell_stored(self, completed: int) -> None:
        try:
            for tell in self._to_tell.get(completed, ()):
                tell()
        except Exception as error:
            self._broken(error)
        self._to_tell = {checkpoint: told for checkpoint, told in self._to_tell.items() if checkpoint > completed}

    def commit_globally(self, order: CommitGlobally) -> None:
        read = partial(_committables, self._res.store, self._res.paths, self._res.settings.transfers_at_once, order)
        self._told(order.operator, lambda sink: sink.on_commit_globally(order.checkpoint, read))

    def visible(self, operator: str, checkpoint: int) -> None:
        self._told(operator, lambda sink: sink.on_visible(checkpoint))

    def _told(self, name: str, order: Callable[[Operator], None]) -> None:
        """An order to the one operator of this name."""

        def tell(subtask: Subtask) -> None:
            for own, operator in subtask.operators:
                if own == name:
                    order(operator)

        self._guarded(tell)

    def abort(self, checkpoint: int) -> None:
        self._guarded(lambda subtask: subtask.on_abort(checkpoint))
        for run in self._runs:
            if run.barrier.id == checkpoint:
                run.cancel()
        self._to_tell.pop(checkpoint, None)

    def _guarded(self, order: Callable[[Subtask], None]) -> None:
        for subtask in self.subtasks:
            if self._halted:
                return
            try:
                order(subtask)
            except Exception as error:
                self._step_failed(subtask, error)

    # ------------------------------------------------------------ SubtaskHost

    def now_ms(self) -> float:
        return self._wall_ns() / 1e6

    def now_ns(self) -> int:
        return self._wall_ns()

    def source_ns(self) -> int:
        return self.scheduler.source_time.now_ns()

    def start_timer(self, subtask: Subtask, delay_ms: int, callback: Callable[[], None]) -> None:
        before = self._timers.get(subtask.id)
        if before is not None:
            before.cancel()
        self._timers[subtask.id] = self._timer(delay_ms / 1000, callback)

    def captured(
        self, subtask: Subtask, barrier: Barrier, captures: dict[str, Capture], times: SnapshotTimes, recording: bool
    ) -> None:
        lanes = {name: self._snapshot_lanes[(subtask.id.chain, name)] for name in captures}
        ended = subtask.ended

        def done(run: SnapshotRun, operators: tuple[OperatorSnapshot, ...], times: SnapshotTimes) -> None:
            if not self._halted and not run.cancelled:
                self._to_tell.setdefault(barrier.id, []).extend(run.to_tell())
                self._events.acknowledged(barrier.id, subtask.id, operators, times, ended)

        def failed(run: SnapshotRun, error: BaseException) -> None:
            if self._halted or run.cancelled:
                return
            if isinstance(error, PERMANENT):
                self._fail(subtask.id, getattr(error, "operator", ""), error)
            else:
                away = isinstance(error, Unavailable)
                self._events.declined(barrier.id, subtask.id, f"{type(error).__name__}: {error}", away)

        run = SnapshotRun(
            subtask.id,
            self._graph.parallelism,
            barrier,
            captures,
            lanes,
            times,
            self.now_ms,
            recording,
            self._store_values,
            done,
            failed,
        )
        self._runs.append(run)
        if captures:
            self.scheduler.wake()
        else:  # a chain without operators has nothing to remember
            done(run, (), times)

    def recorded(self, subtask: Subtask, checkpoint: int, in_flight: InFlightData) -> None:
        def write(data: InFlightData, check: Callable[[], None]) -> tuple[InFlight, ...]:
            inline_bytes = self._res.settings.thresholds.inline_bytes
            return write_in_flight(data, self._res.store, self._new_key, inline_bytes, check)

        for run in self._runs_of(subtask, checkpoint):
            run.recorded(in_flight, write, self._in_flight_lanes[subtask.id.chain])

    def _new_key(self) -> str:
        """For an object of a snapshot; never used before or again."""
        return self._res.paths.data_file(self.token, self._res.uuid, self._res.new_uuid())

    def _store_values(
        self, values: Mapping[str, bytes], stored: Mapping[str, FileRef], check: Callable[[], None]
    ) -> tuple[dict[str, bytes], dict[str, FileRef]]:
        """On a worker thread."""
        limit = self._res.settings.thresholds.value_bytes
        return store_values(values, stored, self._res.store, self._new_key, limit, check)

    def _runs_of(self, subtask: Subtask, checkpoint: int) -> list[SnapshotRun]:
        return [run for run in self._runs if (run.subtask, run.barrier.id) == (subtask.id, checkpoint)]

    def snapshot_aborted(self, subtask: Subtask, checkpoint: int, reason: str) -> None:
        for run in self._runs_of(subtask, checkpoint):
            run.cancel()
        self._events.declined(checkpoint, subtask.id, reason)

    def ended(self, subtask: Subtask) -> None:
        self._events.subtask_ended(subtask.id)

    # ------------------------------------------------------------ failures and the end

    def _between_passes(self) -> bool:
        """Barriers that came in, then one slice of one snapshot's frozen state. True when more is left."""
        self._guarded(Subtask.notice)
        if not self._runs:
            return False
        more = any(run.drain_slice() for run in self._runs)
        self._runs = [run for run in self._runs if not run.over]
        return more

    def _step_failed(self, subtask: Subtask | None, error: Exception) -> None:
        if subtask is None:
            self._broken(error)
            return
        operator = getattr(error, "operator", "") or self._graph.chains[subtask.id.chain].name
        if isinstance(error, UserCodeError) and subtask.source is not None:
            add_position(error, subtask.source[1].last_read())
        self._fail(subtask.id, operator, error)

    def _channel_broken(self, channel: ChannelId, reason: str) -> None:
        other = channel.source_slot if channel.target_slot == self._res.slot else channel.target_slot
        self._broken(ConnectionError(f"the data connection with slot {other} (edge {channel.edge}) broke: {reason}"))

    def _broken(self, error: Exception) -> None:
        """What was raised outside of any subtask's step: in a timer, after blocking work, while draining."""
        self._fail(None, getattr(error, "operator", ""), error)

    def _fail(self, subtask: SubtaskId | None, operator: str, error: Exception) -> None:
        """Said before the channels close: what the peers then say of them must not come first."""
        if not self._halted:
            self._events.failed(subtask, operator, error)
            self.halt()

    def _call_later(self, delay_s: float, callback: Callable[[], None]) -> None:
        self._timer(delay_s, callback)

    def _timer(self, delay_s: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        def run() -> None:
            if self._halted:
                return
            try:
                callback()
            except Exception as error:
                self._broken(error)

        return self._res.loop.call_later(delay_s, run)

    def halt(self) -> None:
        """Stop now and be silent. Operators are closed once their blocking work has ended, off the loop."""
        if self._halted:
            return
        self._halted = True
        self._stopped.set_result(None)
        self.scheduler.stop()
        for timer in (self._adapting, *self._timers.values()):
            if timer is not None:  # it would keep this generation in memory
                timer.cancel()
        self._plane.disconnect()
        unhurried = list(self._unhurried.values())
        busy = [lane for lane in self._lanes if lane.busy and lane not in unhurried]
        for lane in self._lanes:
            lane.retire()
        self._close_when_quiet(busy)

    def _close_when_quiet(self, busy: list[SerialLane]) -> None:
        if any(lane.busy for lane in busy) or not all(opening.done() for opening in self._opening):
            self._res.loop.call_later(0.05, self._close_when_quiet, busy)
            return
        for opening in self._opening:
            if not opening.cancelled():
                opening.exception()  # retrieved: whoever waited for it may have been cancelled
        parts: list[tuple[str, Callable[[], None]]] = [
            (name, operator.closing()) for operators in self._operators.values() for name, operator in operators
        ]
        parts += [(name, driver.close) for name, driver in self._sources.values()]
        leaving = _Leaving(self._res, self.closed)
        hanging = [part for part in parts if part[0] in self._unhurried and self._unhurried[part[0]].busy]
        leaving.close(None, [part for part in parts if part not in hanging])
        for name, close in hanging:
            leaving.close(self._unhurried[name], [(name, close)])

    # ------------------------------------------------------------ figures

    @property
    def watermark_ms(self) -> int | None:
        """The lowest watermark of this slot's subtasks that have one."""
        known = [s.watermark for s in self.subtasks if WATERMARK_MIN < s.watermark < WATERMARK_MAX]
        return min(known) if known else None

    @property
    def records(self) -> int:
        """Input records of this slot's share, each counted once however often it was replayed."""
        drivers = list(self._sources.values())  # at once: while restoring, worker threads still add to it
        return sum(driver.records for _, driver in drivers)

    @property
    def halted(self) -> bool:
        return self._halted


class _Leaving:
    """Closes what a dropped generation had open. A commit of it may hang for ever, and a thread with it; from here on
    that holds its sink in memory, but not the generation with its state and its channels."""

    def __init__(self, resources: SlotResources, closed: asyncio.Future[None]) -> None:
        self._res = resources
        self._closed = closed
        self._left = 0

    def close(self, lane: SerialLane | None, parts: list[tuple[str, Callable[[], None]]]) -> None:
        """Once `lane` is quiet."""
        self._left += 1
        self._when_quiet(lane, parts)

    def _when_quiet(self, lane: SerialLane | None, parts: list[tuple[str, Callable[[], None]]]) -> None:
        if lane is not None and lane.busy:
            self._res.loop.call_later(0.05, self._when_quiet, lane, parts)
        else:
            self._res.workers.submit(partial(_close_all, parts), self._done)

    def _done(self, result: Any, error: BaseException | None) -> None:
        self._left -= 1
        if not self._left and not self._closed.done():  # whoever waited may have been cancelled
            self._closed.set_result(None)
        if error is not None:
            self._res.loop.call_exception_handler({"message": "closing a generation failed", "exception": error})


def _close_all(parts: list[tuple[str, Callable[[], None]]]) -> None:
    troubles: list[tuple[str, Exception]] = []
    for name, close in parts:
        try:
            close()
        except Exception as error:
            troubles.append((name, error))
    if troubles:
        name, trouble = troubles[0]
        raise BarrierRuntimeError(f"closing operator {name} failed: {trouble}") from trouble


def _committables(store: ObjectStore, paths: Paths, at_once: int, order: CommitGlobally) -> list[OperatorSnapshot]:
    """On a worker thread: the sink's part of the manifest, large values included."""
    snapshots = order.snapshots
    if order.manifest is not None:
        found = snapshots_in(store, paths, order.manifest, order.checkpoint)
        snapshots = tuple(each for each in found if each.operator == order.operator)
    return with_values(store, snapshots, at_once)
