"""A generation of the dataflow in a slot.

    NEW → restore() → connect() → start() → … → cancel()          cancel is legal at any point and idempotent

| part                          | owns                                        |
|-------------------------------|---------------------------------------------|
| `opening.OpenChains`          | operators and sources                       |
| `context.OperatorContexts`    | executors, folders and keyed state          |
| `network.wiring.Wiring`       | channels                                    |
| `subtask.Subtask`             | rows, event time and barriers of a chain    |
| `scheduler.Scheduler`         | the order of the subtasks' turns            |
| `checkpointing.Checkpointing` | snapshots, from the captured state to the ack |
| `opening.Closing`             | closing of operators and sources            |
"""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial

import msgspec

from barrier_runtime.connectors.source import PassingOver
from barrier_runtime.coordinator.metric_table import (
    BACKLOG_ROWS,
    BACKPRESSURED_S,
    BLOCKED_S,
    BUSY_S,
    FILES_PASSED_OVER,
    HELD_S,
    RECORDS,
    ROWS_IN,
    ROWS_OUT,
    WAITING_SPLITS,
    WATERMARK_MS,
    WORK_S,
)
from barrier_runtime.coordinator.wire.messages import CommitGlobally, Deploy, HeldBack, SubtaskId
from barrier_runtime.data.elements import WATERMARK_MAX, WATERMARK_MIN, Barrier
from barrier_runtime.graph.job_graph import JobGraph
from barrier_runtime.operators.base import Capture, Operator, SplitPosition
from barrier_runtime.operators.metrics import MetricRegistry
from barrier_runtime.operators.user_code import add_position, add_replay
from barrier_runtime.runtime.aligner import Aligner
from barrier_runtime.runtime.barrier_tracker import BarrierTracker
from barrier_runtime.runtime.checkpointing import Checkpointing, CommitReporter, ExecutionEvents
from barrier_runtime.runtime.context import GenerationExecutors, OperatorContexts
from barrier_runtime.runtime.error_reports import NO_KEY, replay_command
from barrier_runtime.runtime.host.clock import GenerationTimers
from barrier_runtime.runtime.host.workers import WorkerExecutor
from barrier_runtime.runtime.in_flight import InFlightData
from barrier_runtime.runtime.load import LoadSince
from barrier_runtime.runtime.network.channels import DataPlane, PeerLost, Route
from barrier_runtime.runtime.network.wiring import Wiring, connect_followers
from barrier_runtime.runtime.opening import POLL_S, Closing, OpenChains
from barrier_runtime.runtime.prefetching import committables, restored_in
from barrier_runtime.runtime.resources import SlotResources
from barrier_runtime.runtime.scheduler import Scheduler
from barrier_runtime.runtime.sources.progress_reports import LOOK_S, EventTimeTelling, held_back
from barrier_runtime.runtime.subtask import Subtask
from barrier_runtime.state.errors import UserCodeError
from barrier_runtime.state.snapshots.snapshot import SnapshotTimes

_PAUSED_SLICES = 8  # of captured state at once while sources pause: few rows wait
_ADAPT_S = 0.2


class Execution:
    """Reports nothing after `cancel`."""

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
        self._mode = mode
        self._res = resources
        self._events = events
        self._completed = deploy.checkpoint or 0
        self._cancelled = False
        self.later = GenerationTimers(self._timer, resources.clock.monotonic_s, resources.memory.hold_compactions)
        self.closed: asyncio.Future[None] = resources.loop.create_future()
        self.now_ns = resources.clock.wall_ns
        self.scheduler = Scheduler(
            resources.loop,
            self._between_passes,
            self._step_failed,
            resources.clock,
            resources.options.latency_target,
        )
        self.source_ns = self.scheduler.source_time.now_ns
        wake, slot = self.scheduler.wake, resources.slot
        by_input, from_thread = self.scheduler.wake_by_input, self._wake_from_thread
        commits = CommitReporter(slot, events, lambda: self._cancelled)
        self._executors = executors = GenerationExecutors(resources.workers, self._broken)
        contexts = OperatorContexts(
            graph, mode, deploy, resources, executors, metrics, commits.report, self.later, wake, from_thread, self
        )
        self._chains = OpenChains(graph, resources, contexts, executors, events.waiting)
        self._wiring = Wiring(
            graph, deploy.token, slot, plane, wake, resources.window_bytes, resources.local_output, by_input
        )
        self._checkpointing = Checkpointing(
            deploy.token, graph.parallelism, resources, executors, events, self._fail, self.now_ms, wake
        )
        self.subtasks: list[Subtask] = []
        self._adapted_s = 0.0
        self._adapting: asyncio.TimerHandle | None = None
        self._loads: dict[SubtaskId, LoadSince] = {}
        self._timers: dict[SubtaskId, asyncio.TimerHandle] = {}
        self._telling = EventTimeTelling()
        self._told_of: asyncio.TimerHandle | None = None

    async def restore(self) -> None:
        """The coordinator limits the wait for a server."""
        self._wiring.make_inputs()
        deploy, restored = self._deploy, self._deploy.operators
        if deploy.manifest is not None:
            res, manifest = self._res, deploy.manifest
            read = partial(restored_in, res.store, res.paths, manifest, deploy.checkpoint, self._graph, res.slot)
            restored = await self._res.workers.run(read)
        await self._chains.open(restored)
        self._deploy = msgspec.structs.replace(deploy, operators=())

    async def connect(self) -> None:
        if self._cancelled:
            return
        self._wiring.expect(self._connection_broken)
        await self._wiring.connect(self._deploy.peers)
        for chain in self._graph.chains:
            self.subtasks.append(
                Subtask(
                    SubtaskId(chain.id, self._res.slot),
                    self.token,
                    self._chains.operators[chain.id],
                    self._wiring.inputs[chain.id],
                    self._wiring.outputs(chain),
                    self._aligner(chain.id),
                    self,
                    self._chains.sources.get(chain.id),
                    self._chains.take_in_flight(chain.id),
                )
            )
            self.subtasks[-1].gather_for(self._res.options.latency_target)
        connect_followers(self.subtasks)
        await self._wiring.all_connected()

    def _aligner(self, chain: int) -> Aligner | BarrierTracker:
        inputs = len(self._wiring.inputs[chain])
        if self._mode != "exactly_once":
            return BarrierTracker(inputs, self.token)
        return Aligner(inputs, self.token, self._wiring.aligned_only(chain))

    def start(self) -> None:
        if not self._cancelled:
            self.scheduler.start(self.subtasks)
            self._adapted_s = now_s = self._res.clock.monotonic_s()
            starved_s = self._res.starved_s()
            for subtask in self.subtasks:
                self._loads.setdefault(subtask.id, LoadSince(now_s, starved_s))
            self._adapting = self._timer(_ADAPT_S, self._adapt_windows)
            self._align_event_time()

    def _align_event_time(self) -> None:
        max_drift_s = self._res.options.max_drift
        sources = [subtask.source[1] for subtask in self.subtasks if subtask.source is not None]
        if max_drift_s is not None and any(driver.has_event_time for driver in sources):
            for driver in sources:
                driver.wait_for_slower(max(1, round(max_drift_s * 1000)))
            self._tell_event_time()

    def _tell_event_time(self) -> None:
        sources = self.source_progress()
        if self._telling.due(sources, self._res.clock.monotonic_s()):
            self._events.event_time_reached(sources)
        self._told_of = self._timer(LOOK_S, self._tell_event_time)

    def _adapt_windows(self) -> None:
        now_s = self._res.clock.monotonic_s()
        self._wiring.adapt_windows(now_s - self._adapted_s)
        self._adapted_s = now_s
        self._adapting = self._timer(_ADAPT_S, self._adapt_windows)

    # ------------------------------------------------------------ orders of the coordinator

    def trigger(self, barrier: Barrier, *, pause: bool = False, overtakes_timers: bool = False) -> None:
        if pause:
            self.later.pause(barrier.id)
        self._guarded(lambda subtask: subtask.on_trigger(barrier, pause, overtakes_timers))

    def end_sources(self) -> None:
        for subtask in self.subtasks:
            subtask.end_source()
        self.scheduler.wake()

    def complete(self, checkpoint: int) -> None:
        self._completed = max(self._completed, checkpoint)
        try:
            self._checkpointing.tell_stored(checkpoint)
        except Exception as error:
            self._broken(error)
        self._guarded(lambda subtask: subtask.on_complete(checkpoint))

    def commit_globally(self, order: CommitGlobally) -> None:
        res = self._res
        read = partial(committables, res.store, res.paths, res.transfers_at_once, order)
        self._told(order.operator, lambda sink: sink.on_commit_globally(order.checkpoint, read))

    def visible(self, operator: str, checkpoint: int) -> None:
        self._told(operator, lambda sink: sink.on_visible(checkpoint))

    def _told(self, name: str, order: Callable[[Operator], None]) -> None:
        def tell(subtask: Subtask) -> None:
            for own, operator in subtask.chain.operators:
                if own == name:
                    order(operator)

        self._guarded(tell)

    def lowest_event_time(self, watermark_ms: int) -> None:
        self._telling.answered(watermark_ms)
        for subtask in self.subtasks:
            if subtask.source is not None:
                subtask.source[1].lowest_in_job(watermark_ms)
        self.scheduler.wake()

    def tell_again(self) -> None:
        """Reports source progress again, to a new coordinator."""
        self._telling.forget()

    def abort(self, checkpoint: int) -> None:
        self._guarded(lambda subtask: subtask.on_abort(checkpoint))
        self._checkpointing.abort(checkpoint)
        self.later.aborted(checkpoint)
        self.scheduler.wake()  # sources paused by this checkpoint continue

    def _guarded(self, order: Callable[[Subtask], None]) -> None:
        for subtask in self.subtasks:
            if self._cancelled:
                return
            try:
                order(subtask)
            except Exception as error:
                self._step_failed(subtask, error)

    def _between_passes(self) -> bool:
        """Returns whether more is left."""
        for subtask in self.subtasks:
            if subtask.announcements:
                self._guarded(Subtask.take_announcements)
                break
        if not self._checkpointing.runs:
            return False
        return self._checkpointing.drain_slice(_PAUSED_SLICES if self.later.sources_stand else 1)

    # ------------------------------------------------------------ SubtaskHost

    def now_ms(self) -> float:
        return self.now_ns() / 1e6

    def starved_ns(self) -> int:
        return int(self._res.starved_s() * 1e9)

    def start_timer(self, subtask: Subtask, delay_ms: int, callback: Callable[[], None]) -> None:
        before = self._timers.get(subtask.id)
        if before is not None:
            before.cancel()
        self._timers[subtask.id] = self._timer(delay_ms / 1000, callback)

    def captured(
        self, subtask: Subtask, barrier: Barrier, captures: dict[str, Capture], times: SnapshotTimes, recording: bool
    ) -> None:
        now_s, starved_s = self._res.clock.monotonic_s(), self._res.starved_s()
        steps = self.scheduler.long_steps
        load = self._loads.setdefault(subtask.id, LoadSince(now_s, starved_s))
        times = load.add_to(times, subtask.chain.load, subtask.rows_in, starved_s, steps, now_s)
        self._checkpointing.begin(subtask, barrier, captures, times, recording)

    def recorded(self, subtask: Subtask, checkpoint: int, in_flight: InFlightData) -> None:
        self._checkpointing.recorded(subtask.id, checkpoint, in_flight)

    def snapshot_aborted(self, subtask: Subtask, checkpoint: int, reason: str) -> None:
        self._checkpointing.decline(subtask.id, checkpoint, reason)

    def ended(self, subtask: Subtask) -> None:
        self._events.subtask_ended(subtask.id)

    # ------------------------------------------------------------ failures and the end

    def _step_failed(self, subtask: Subtask | None, error: Exception) -> None:
        if subtask is None:
            self._broken(error)
            return
        operator = getattr(error, "operator", "") or self._graph.chains[subtask.id.chain].name
        if isinstance(error, UserCodeError):
            add_position(error, self.source_position(subtask.id.chain))
        if isinstance(error, UserCodeError) and error.raised_in:
            add_replay(error, self.replay_command(subtask.id.chain, error.raised_in, *error.key))
        self._fail(subtask.id, operator, error)

    def replay_command(self, chain: int, operator: str, key: object = NO_KEY) -> str:
        columns = next((edge.keys for edge in self._graph.inputs(chain) if edge.partitioning == "hash"), ())
        source = self._chains.sources.get(chain)
        rows = None if source is None else source[1].last_rows()
        return replay_command(self._graph.replay, self._completed, operator, columns, key, rows)

    def source_position(self, chain: int) -> str:
        source = self._chains.sources.get(chain)
        return "" if source is None else source[1].last_read()

    def written(self, chain: int) -> Mapping[str, SplitPosition]:
        return self._chains.written(chain)

    def _connection_broken(self, route: Route, reason: str) -> None:
        other = route.source_slot if route.target_slot == self._res.slot else route.target_slot
        self._broken(PeerLost(f"the data connection with slot {other} broke: {reason}"))

    def _broken(self, error: Exception) -> None:
        self._fail(None, getattr(error, "operator", ""), error)

    def _fail(self, subtask: SubtaskId | None, operator: str, error: Exception) -> None:
        """Reports the failure before channels close, so peers report theirs later."""
        if not self._cancelled:
            self._events.failed(subtask, operator, error)
            self.cancel()

    def _wake_from_thread(self) -> None:
        loop = self._res.loop
        try:
            loop.call_soon_threadsafe(self.scheduler.wake)
        except RuntimeError:
            if not loop.is_closed():
                raise

    def _timer(self, delay_s: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        def run() -> None:
            if self._cancelled:
                return
            try:
                callback()
            except Exception as error:
                self._broken(error)

        return self._res.loop.call_later(delay_s, run)

    def cancel(self) -> None:
        """Operators are closed off the loop after their blocking work."""
        if self._cancelled:
            return
        self._cancelled = True
        self.later.end()
        self._chains.cancel()
        self._checkpointing.cancel()
        self.scheduler.stop()
        for timer in (self._adapting, self._told_of, *self._timers.values()):
            if timer is not None:  # a pending timer would keep this generation in memory
                timer.cancel()
        self._wiring.disconnect()
        self._close_when_quiet(self._executors.retire())

    def _close_when_quiet(self, busy: list[WorkerExecutor]) -> None:
        if any(executor.busy for executor in busy) or not self._chains.quiet:
            self._res.loop.call_later(POLL_S, self._close_when_quiet, busy)
            return
        parts = self._chains.to_close()
        hanging = [(executor, part) for part in parts if (executor := self._executors.hanging(part[0])) is not None]
        hung = [part for _, part in hanging]
        closing = Closing(self._res, self.closed)
        closing.close(None, [part for part in parts if part not in hung])
        for executor, part in hanging:
            closing.close(executor, [part])

    # ------------------------------------------------------------ figures

    @property
    def opening(self) -> dict[str, float]:
        return self._chains.being_opened

    def take_blocked(self) -> tuple[str, bool, bool]:
        """Subtask and duration, `LongestStep.reading` and `.starved`."""
        longest = self.scheduler.take_longest(self._res.starved_s())
        if longest is None:
            return "", False, False
        id = longest.subtask.id
        text = f"{id} ({self._graph.chains[id.chain].name}) for {longest.seconds:.1f} s"
        if longest.starved:
            text += f" ({longest.starved_s:.1f} s without a core)"
        return text, longest.reading, longest.starved

    def figures(self) -> dict[str, float]:
        figures = {
            RECORDS.name: float(self._chains.records),
            **self._chains.skipped,
            BUSY_S.name: self.scheduler.busy_s,
            BACKPRESSURED_S.name: self.scheduler.backpressured_s,
        }
        subtasks = [each for each in self.subtasks if not (each.said_idle or each.chain.inputs_idle)] or self.subtasks
        known = [ms for each in subtasks if WATERMARK_MIN < (ms := each.chain.watermark) < WATERMARK_MAX]
        if known:
            figures[WATERMARK_MS.name] = float(min(known))
        if self._res.options.max_drift is not None:
            waiting = (each.source[1].waiting_splits for each in self.subtasks if each.source)
            figures[WAITING_SPLITS.name] = float(sum(waiting))
        for subtask in self.subtasks:
            chain, load = self._graph.chains[subtask.id.chain], subtask.chain.load
            name = chain.source.name if chain.source is not None else chain.operators[0].name
            figures[ROWS_IN.key(name)] = float(subtask.rows_in)
            figures[ROWS_OUT.key(name)] = float(sum(output.rows for output in subtask.chain.outputs))
            figures[WORK_S.key(name)] = round(load.busy_s, 4)
            figures[BLOCKED_S.key(name)] = round(load.blocked_s, 4)
            figures[HELD_S.key(name)] = round(load.held_s, 4)
            if subtask.source is not None and (backlog := subtask.source[1].backlog()) is not None:
                figures[BACKLOG_ROWS.key(name)] = float(backlog)
            source = None if chain.source is None or subtask.id.index else chain.source.source
            passed_over = source.passed_over if isinstance(source, PassingOver) else None  # listed once, in the driver
            # a user's attribute of that name may be anything
            if isinstance(passed_over, int) and not isinstance(passed_over, bool):
                figures[FILES_PASSED_OVER.key(name)] = float(passed_over)
        return figures

    def source_progress(self) -> dict[str, HeldBack]:
        return {
            name: held_back(driver)
            for subtask in self.subtasks
            if subtask.source is not None and not subtask.ended
            for name, driver in (subtask.source,)
            if driver.has_event_time
        }

    @property
    def cancelled(self) -> bool:
        return self._cancelled
