"""One generation of the dataflow in one slot: its subtasks, channels and snapshots in progress. Thrown away as a whole.

    NEW → restore() → connect() → start() → … → halt()          halt is legal at any point and idempotent

It reports through `ExecutionEvents` and never talks to the coordinator itself. After `halt` it is silent: lanes are
retired, timers ignored, operators closed when their last blocking work has ended.
"""

import asyncio
import gc
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from barrier_runtime.alignment import Aligner
from barrier_runtime.barrier_tracker import BarrierTracker
from barrier_runtime.elements import WATERMARK_MAX, WATERMARK_MIN, Barrier, Batch
from barrier_runtime.graph import Chain, Edge, JobGraph
from barrier_runtime.operators.base import Capture, Operator, OperatorContext
from barrier_runtime.operators.user_code import add_position
from barrier_runtime.slot.channels import EdgeOutput, InputChannel, LocalOutput, OutputChannel
from barrier_runtime.slot.clock import SYSTEM_CLOCK, Clock
from barrier_runtime.slot.data_plane import ChannelId, DataPlane
from barrier_runtime.slot.in_flight import read_in_flight, write_in_flight
from barrier_runtime.slot.latency_book import LatencyBook
from barrier_runtime.slot.recording import InFlightData
from barrier_runtime.slot.scheduler import Scheduler
from barrier_runtime.slot.snapshots import SnapshotRun
from barrier_runtime.slot.subtask import Subtask
from barrier_runtime.slot.window import MAX_WINDOW_BYTES
from barrier_runtime.slot.workers import SerialLane, WorkerPool
from barrier_runtime.sources.source_operator import SourceDriver
from coordinator.messages import GLOBAL_COMMITTER, Deploy, Peer, SubtaskId
from state.errors import PERMANENT, BarrierRuntimeError, UserCodeError
from state.keyed_backend import KeyedBackend, open_keyed_backend
from state.local_copies import LocalCopies
from state.object_store import ObjectStore
from state.paths import Paths
from state.rocksdb_kv import SlotMemory
from state.snapshot import InFlight, OperatorSnapshot, SnapshotTimes
from state.snapshot_plan import Thresholds

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
    def declined(self, checkpoint: int, subtask: SubtaskId, reason: str) -> None: ...
    def subtask_ended(self, subtask: SubtaskId) -> None: ...
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


class Execution:
    def __init__(
        self,
        graph: JobGraph,
        deploy: Deploy,
        mode: str,
        resources: SlotResources,
        plane: DataPlane,
        latency: LatencyBook,
        counters: dict[str, float],
        events: ExecutionEvents,
    ) -> None:
        self.token = deploy.token
        self._graph = graph
        self._deploy = deploy
        self._mode = mode
        self._res = resources
        self._plane = plane
        self._latency = latency
        self.counters = counters
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
        self._opening: list[asyncio.Future[None]] = []
        self._lanes: list[SerialLane] = []
        self._snapshot_lanes: dict[tuple[int, str], SerialLane] = {}
        self._in_flight_lanes: dict[int, SerialLane] = {}  # by chain

    # ------------------------------------------------------------ restore and connect

    async def restore(self) -> None:
        """Open every operator with its restored state, off the loop. Raises what an operator raises."""
        self._make_inputs()
        run = self._res.workers.run
        self._opening = [asyncio.ensure_future(run(partial(self._open_chain, chain))) for chain in self._graph.chains]
        await asyncio.wait(self._opening)  # when this is cancelled its threads go on: `halt` waits for them
        for opened in self._opening:
            opened.result()

    def _make_inputs(self) -> None:
        parallelism = self._graph.parallelism
        for chain in self._graph.chains:
            channels: list[InputChannel] = []
            for edge in sorted(self._graph.inputs(chain.id), key=lambda edge: edge.id):
                upstream = [self._res.slot] if edge.partitioning == "forward" else range(parallelism)
                for slot in upstream:
                    channel = InputChannel(len(channels), edge.port, self.scheduler.wake, self._res.window_bytes)
                    channels.append(channel)
                    self._channel_of[(edge.id, slot)] = channel
            self._inputs[chain.id] = channels

    def _open_chain(self, chain: Chain) -> None:
        """On a worker thread."""
        if self._halted:
            return
        if chain.source is not None:
            driver = SourceDriver()
            self._sources[chain.id] = (chain.source.name, driver)
            driver.open(self._context(chain, chain.source.name), chain.source)
        operators: list[tuple[str, Operator]] = []
        self._operators[chain.id] = operators
        for spec in chain.operators:
            if self._halted:
                return
            operator = spec.make()
            operators.append((spec.name, operator))
            operator.open(self._context(chain, spec.name))
        if chain.source is None:
            self._in_flight_lanes[chain.id] = self._new_lane()
            self._replays[chain.id] = read_in_flight(
                self._deploy.operators,
                chain.operators[0].name,
                {edge.port: edge for edge in self._graph.inputs(chain.id)},
                self._res.slot,
                self._graph.parallelism,
                self._graph.max_parallelism,
                self._res.store,
            )

    def _context(self, chain: Chain, name: str) -> OperatorContext:
        subtask = self._res.slot
        restored = tuple(s for s in self._deploy.operators if s.operator == name)
        directory = self._res.local_dir / f"{self.token}-{name}-{subtask}"
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
            )

        snapshot_lane = self._snapshot_lanes[(chain.id, name)] = self._new_lane()
        return OperatorContext(
            job=self._graph.name,
            token=self.token,
            operator=name,
            subtask=subtask,
            parallelism=self._graph.parallelism,
            max_parallelism=self._graph.max_parallelism,
            restored=restored,
            open_keyed=open_keyed,
            lane=self._new_lane(),
            snapshot_lane=snapshot_lane,
            report=_Reporter(self, name),
            local_dir=directory,
            make_store=self._res.make_store,
            job_store=self._res.store,
            call_later=self._call_later,
            wake=self.scheduler.wake,
            now_s=self._res.clock.monotonic_s,
            new_id=self._res.new_uuid,
            lineage=self._deploy.lineage,
        )

    def _new_lane(self) -> SerialLane:
        lane = self._res.workers.lane(self._broken)
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
                channels.append(LocalOutput(self._channel_of[(edge.id, slot)], self.scheduler.wake))
            else:
                channel = ChannelId(self.token, edge.id, slot, target)
                channels.append(await self._plane.connect(peers[target], channel, self.scheduler.wake))
        return EdgeOutput(edge, channels, slot, self._graph.max_parallelism)

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
        self._guarded(lambda subtask: subtask.on_complete(checkpoint))

    def commit_globally(self, operator: str, checkpoint: int, snapshots: tuple[OperatorSnapshot, ...]) -> None:
        self._told(operator, lambda sink: sink.on_commit_globally(checkpoint, snapshots))

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
                self._events.acknowledged(barrier.id, subtask.id, operators, times, ended)

        def failed(run: SnapshotRun, error: BaseException) -> None:
            if self._halted or run.cancelled:
                return
            if isinstance(error, PERMANENT):
                self._fail(subtask.id, getattr(error, "operator", ""), error)
            else:
                self._events.declined(barrier.id, subtask.id, f"{type(error).__name__}: {error}")

        run = SnapshotRun(
            subtask.id, self._graph.parallelism, barrier, captures, lanes, times, self.now_ms, recording, done, failed
        )
        self._runs.append(run)
        if captures:
            self.scheduler.wake()
        else:  # a chain without operators has nothing to remember
            done(run, (), times)

    def recorded(self, subtask: Subtask, checkpoint: int, in_flight: InFlightData) -> None:
        res = self._res

        def write(data: InFlightData, check: Callable[[], None]) -> tuple[InFlight, ...]:
            new_key = lambda: res.paths.data_file(self.token, res.uuid, res.new_uuid())  # noqa: E731
            return write_in_flight(data, res.store, new_key, res.settings.thresholds.inline_bytes, check)

        for run in self._runs_of(subtask, checkpoint):
            run.recorded(in_flight, write, self._in_flight_lanes[subtask.id.chain])

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
        self.scheduler.stop()
        for timer in (self._adapting, *self._timers.values()):
            if timer is not None:  # it would keep this generation in memory
                timer.cancel()
        self._plane.disconnect()
        busy = [lane for lane in self._lanes if lane.busy]
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
        self._res.workers.submit(self._close_operators, self._closed)

    def _close_operators(self) -> None:
        troubles: list[tuple[str, Exception]] = []
        for operators in self._operators.values():
            for name, operator in operators:
                try:
                    operator.close()
                except Exception as error:
                    troubles.append((name, error))
        for name, driver in self._sources.values():
            try:
                driver.close()
            except Exception as error:
                troubles.append((name, error))
        if troubles:
            name, trouble = troubles[0]
            raise BarrierRuntimeError(f"closing operator {name} failed: {trouble}") from trouble

    def _closed(self, result: Any, error: BaseException | None) -> None:
        self.closed.set_result(None)
        if error is not None:
            self._res.loop.call_exception_handler({"message": "closing a generation failed", "exception": error})

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


class _Reporter:
    """`Reporter` of one operator."""

    def __init__(self, execution: Execution, operator: str) -> None:
        self._execution = execution
        self._operator = operator

    def committed(self, checkpoint: int) -> None:
        execution = self._execution
        if not execution.halted:
            execution._events.committed(checkpoint, self._operator, execution._res.slot)

    def commit_failing(self, checkpoint: int, attempts: int, error: str) -> None:
        execution = self._execution
        if not execution.halted:
            execution._events.commit_failing(checkpoint, self._operator, execution._res.slot, attempts, error)

    def committed_globally(self, checkpoint: int) -> None:
        execution = self._execution
        if not execution.halted:
            execution._events.committed(checkpoint, self._operator, GLOBAL_COMMITTER)

    def global_commit_failing(self, checkpoint: int, attempts: int, error: str) -> None:
        execution = self._execution
        if not execution.halted:
            execution._events.commit_failing(checkpoint, self._operator, GLOBAL_COMMITTER, attempts, error)

    def count(self, metric: str, amount: float = 1.0) -> None:
        key = f"{self._operator}.{metric}"
        counters = self._execution.counters
        counters[key] = counters.get(key, 0.0) + amount

    def processed_latency(self, emit_ns: int, rows: int) -> None:
        execution = self._execution
        execution._latency.record(f"{self._operator}:processed", execution._wall_ns() - emit_ns, rows)

    def visible_latency(self, emit_ns: int, rows: int) -> None:
        execution = self._execution
        execution._latency.record(f"{self._operator}:visible", execution._wall_ns() - emit_ns, rows)
