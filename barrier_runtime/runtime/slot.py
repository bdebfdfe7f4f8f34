"""Slot: a process (locally, an object) that runs a subtask of every chain.

    phase      order                                     move
    idle       Deploy                                    restoring: open operators, connect, then send Restored
    restoring  Start                                     running
    any        CancelGeneration, Deploy (higher token)   drop the generation; local copies serve a later restore
    any        Shutdown                                  leave; `outcome` says how the job ended for this slot

Orders with a lower token are ignored. After each registration the slot repeats all unresolved answers.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import msgspec

from barrier_runtime.coordinator.wire.codec import too_large_ack
from barrier_runtime.coordinator.wire.messages import (
    AbortCheckpoint,
    Ack,
    AskSlot,
    CancelGeneration,
    CheckpointComplete,
    CommitFailing,
    CommitGlobally,
    Committed,
    Decline,
    Deploy,
    EndSources,
    EventTimeReached,
    Heard,
    Heartbeat,
    HeldBack,
    LowestEventTime,
    Prefetch,
    Probe,
    Register,
    Registered,
    Restored,
    Shutdown,
    SlotFacts,
    Start,
    SubtaskEnded,
    SubtaskFailed,
    SubtaskId,
    ToSlot,
    Trigger,
    Visible,
    Waiting,
    sink_key,
)
from barrier_runtime.data.elements import Barrier
from barrier_runtime.graph.job_graph import JobGraph
from barrier_runtime.operators.metrics import MetricRegistry
from barrier_runtime.runtime.error_reports import shortened
from barrier_runtime.runtime.execution import Execution
from barrier_runtime.runtime.host.inspection import Answers, probed
from barrier_runtime.runtime.host.process import process_figures
from barrier_runtime.runtime.network.channels import DataPlane, PeerLost
from barrier_runtime.runtime.network.control_link import ControlLink
from barrier_runtime.runtime.prefetching import Preparing
from barrier_runtime.runtime.resources import SlotResources
from barrier_runtime.state.descriptors import remedy_if_exhausted
from barrier_runtime.state.errors import PERMANENT, Unavailable
from barrier_runtime.state.outside_errors import of_operator
from barrier_runtime.state.snapshots.snapshot import OperatorSnapshot, SnapshotTimes
from barrier_runtime.state.store.probe import read_note

log = logging.getLogger("barrier_runtime.slot")
PEER_LOST = "peer_lost"  # field of a log record that only reports another process's death

_LATENCY_EVERY_HEARTBEATS = 4


@dataclass(frozen=True)
class SlotIdentity:
    slot: int
    uuid: str
    pid: int
    host: str
    task_attempt: int
    data_host: str
    data_port: int
    died: dict[int, str] = field(default_factory=dict)  # workers of this host killed by a signal: pid -> "SIGSEGV"
    program: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    facts: SlotFacts | None = None  # at the start of the process; None: the slot gets no Probe
    succeeds: bool = False  # waits beside the process that has the slot


class Slot:
    def __init__(
        self, graph: JobGraph, mode: str, identity: SlotIdentity, resources: SlotResources, plane: DataPlane
    ) -> None:
        self._graph = graph
        self._mode = mode
        self.identity = identity
        self._res = resources
        self._seat = identity.slot
        self._plane = plane
        self.link: ControlLink | None = None
        self.left: asyncio.Future[Shutdown] = resources.loop.create_future()
        self.token = 0
        self._phase = "idle"
        self._execution: Execution | None = None
        self._deploying: asyncio.Task[None] | None = None
        self._probing: asyncio.Task[None] | None = None
        self._closing: list[asyncio.Future[None]] = []
        self._untrimmed = False
        self._highest_checkpoint = 0
        self._last_completed = 0
        self._committed: dict[str, int] = {}
        self._parallelism = 0
        self._unresolved: dict[tuple[int, SubtaskId], Ack | Decline] = {}
        self._ended: dict[SubtaskId, SubtaskEnded] = {}
        self._drained = False
        self._stops = False
        self._paused = 0  # the checkpoint after which sources read nothing
        self._failure: SubtaskFailed | None = None
        self._told = ""
        self.trouble: BaseException | None = None  # the last error, for a program that runs the slot
        self._restored: Restored | None = None
        self._metrics = MetricRegistry(resources.clock.wall_ns)
        self._preparing = Preparing(resources, lambda: None if self.left.done() else self._say({}))
        self._answers = Answers(resources, self._send)
        self._heartbeat_s, self._heartbeats = 0.0, 0
        self._loop_lag_ms = 0.0
        self._unheard: dict[int, int] = {}  # see `Heartbeat`
        self._notices = 0

    @property
    def at_rest(self) -> bool:
        return self._execution is not None and all(each.at_rest for each in self._execution.subtasks)

    def connected(self) -> None:
        i = self.identity
        self._send(
            Register(
                slot=i.slot,
                uuid=i.uuid,
                pid=i.pid,
                host=i.host,
                task_attempt=i.task_attempt,
                data_host=i.data_host,
                data_port=i.data_port,
                token=self.token,
                phase="paused" if self._paused else self._phase,  # type: ignore[arg-type]
                highest_checkpoint=self._highest_seen(),
                committed=dict(self._committed),
                ended=tuple(self._ended),
                died=i.died,
                drained=self._drained,
                program=i.program,
                versions=i.versions,
                parallelism=self._parallelism,
                facts=i.facts and msgspec.structs.replace(i.facts, clock_ms=self._wall_ms()),
                answers=True,
                succeeds=i.succeeds,
                seat=-1 if self._seat == i.slot else self._seat,
            )
        )

    def leave_host(self) -> None:
        """Asks the coordinator for another process in this place, on another host."""
        self._notices += 1
        self._say({})

    def handle(self, message: ToSlot) -> None:
        """Never raises: if the caller only logged the error, the job would wait for ever."""
        try:
            handler: Callable[[Slot, ToSlot], None] = _HANDLERS[type(message)]
            handler(self, message)
        except Exception as error:
            self.failed(None, "", error)
            if self._execution is not None:
                self._execution.cancel()

    async def closed(self) -> None:
        await asyncio.gather(*self._closing)

    def _send(self, message: object) -> None:
        if self.link is not None:
            self.link.send(message)  # type: ignore[arg-type]

    def _on_registered(self, message: Registered) -> None:
        if message.heartbeat_ms and not self._heartbeat_s:
            self._heartbeat_s = message.heartbeat_ms / 1000
            self._beat(self._res.loop.time())
        if message.token != self.token or self.token == 0:
            return
        self._tell_figures()
        if self._execution is not None:
            self._execution.tell_again()
        if message.last_completed:
            self._on_complete(CheckpointComplete(self.token, message.last_completed))
        if self._restored is not None and self._phase == "restoring":
            self._send(self._restored)
        for unresolved in list(self._unresolved.values()):
            self._send(unresolved)
        for ended in self._ended.values():
            self._send(ended)
        if self._failure is not None:
            self._send(self._failure)

    def _on_probe(self, message: Probe) -> None:
        if self._probing is not None:
            self._probing.cancel()  # the newer probe names the present slots
        self._probing = self._res.loop.create_task(self._probe(message))

    async def _probe(self, message: Probe) -> None:
        store, prefix = self._res.store, self._res.paths.probe_prefix
        own = (peer.slot for peer in message.peers if peer.uuid == self.identity.uuid)
        self._send(await probed(message, next(own, self._seat), lambda: read_note(store, prefix)))

    def _on_ask(self, message: AskSlot) -> None:
        self._answers.to(message, () if self._execution is None else self._execution.subtasks)

    def _on_cancel_generation(self, message: CancelGeneration) -> None:
        if message.token <= self.token:
            return
        self._drop_generation(message.token)
        self._res.copies.keep_only(message.keep_checkpoint)
        self._res.workers.submit(self._res.copies.delete_unwanted, self._on_deleted)

    def _on_deleted(self, result: None, error: BaseException | None) -> None:
        if error is not None:
            log.warning("slot %d could not delete old copies of state: %s", self.identity.slot, error)

    def _on_deploy(self, message: Deploy) -> None:
        if message.token < self.token or (message.token == self.token and self._phase != "idle"):
            return
        self._drop_generation(message.token)
        self._preparing.end()
        seat = self.identity.slot if message.slot < 0 else message.slot
        if seat != self._seat:
            self._seat, self._res, self._committed = seat, replace(self._res, slot=seat), {}
        self._phase, self._drained = "restoring", message.drained
        self._last_completed = message.checkpoint
        self._highest_checkpoint = max(self._highest_checkpoint, message.checkpoint)
        graph = replace(self._graph, parallelism=len(message.peers) or self._graph.parallelism)
        if graph.parallelism != self._parallelism:
            self._parallelism, self._committed = graph.parallelism, {}
        execution = Execution(graph, message, self._mode, self._res, self._plane, self._metrics, self)
        self._execution = execution
        self._deploying = self._res.loop.create_task(self._deploy(execution))

    async def _deploy(self, execution: Execution) -> None:
        try:
            await execution.restore()
            await execution.connect()
        except asyncio.CancelledError:
            execution.cancel()
            raise
        except Exception as error:
            execution.cancel()
            if execution is self._execution:
                self.failed(None, getattr(error, "operator", ""), error)
            return
        if execution is not self._execution or execution.cancelled:
            return
        self._restored = Restored(self.token)
        self._send(self._restored)
        self._res.loop.call_soon(self._trim_memory)

    def _on_prefetch(self, message: Prefetch) -> None:
        self._preparing.order(message, None if self._execution is None else self._execution.later)

    def _on_start(self, message: Start) -> None:
        if message.token == self.token and self._phase == "restoring" and self._execution is not None:
            self._phase, self._unheard = "running", {}  # all slots have connected
            self._preparing.forget()
            self._execution.start()
            if self._drained:
                self._execution.end_sources()
            self._tell_figures()

    def _on_end_sources(self, message: EndSources) -> None:
        if message.token == self.token and self._phase == "running" and self._execution is not None:
            self._drained, self._paused = True, 0
            self._execution.end_sources()

    def _on_trigger(self, message: Trigger) -> None:
        if message.token != self.token or self._phase != "running" or self._execution is None:
            return
        self._highest_checkpoint = max(self._highest_checkpoint, message.checkpoint)
        self._stops = self._stops or message.stop
        self._execution.trigger(
            Barrier(message.checkpoint, message.token, message.triggered_at_ms, message.aligned_timeout_ms),
            pause=message.pause,
            overtakes_timers=message.overtakes_timers,
        )
        if message.pause:
            self._paused = self._paused or message.checkpoint

    def _on_complete(self, message: CheckpointComplete) -> None:
        if message.token != self.token or self._execution is None or message.checkpoint <= self._last_completed:
            return
        self._last_completed = message.checkpoint
        self._resolve(lambda checkpoint: checkpoint <= message.checkpoint)
        self._execution.complete(message.checkpoint)

    def _on_commit_globally(self, message: CommitGlobally) -> None:
        if message.token == self.token and self._execution is not None:
            self._execution.commit_globally(message)

    def _on_visible(self, message: Visible) -> None:
        if message.token == self.token and self._execution is not None:
            self._execution.visible(message.operator, message.checkpoint)

    def _on_lowest_event_time(self, message: LowestEventTime) -> None:
        if message.token == self.token and self._execution is not None:
            self._execution.lowest_event_time(message.watermark_ms)

    def _on_abort(self, message: AbortCheckpoint) -> None:
        if message.token == self.token and self._execution is not None:
            self._resolve(lambda checkpoint: checkpoint == message.checkpoint)
            self._execution.abort(message.checkpoint)
            if message.checkpoint >= self._paused:
                self._paused = 0

    def _on_heard(self, message: Heard) -> None:
        """Does nothing: the link has noted the time."""

    def _on_shutdown(self, message: Shutdown) -> None:
        if not self.left.done():
            self.left.set_result(message)
        self._drop_generation(self.token)

    def _highest_seen(self) -> int:
        """Highest checkpoint of triggers and barriers: a barrier may arrive without its trigger."""
        if self._execution is not None:
            seen = (subtask.highest_seen for subtask in self._execution.subtasks)
            self._highest_checkpoint = max(self._highest_checkpoint, *seen, 0)
        return self._highest_checkpoint

    def _resolve(self, resolved: Callable[[int], bool]) -> None:
        self._unresolved = {key: value for key, value in self._unresolved.items() if not resolved(key[0])}

    def _drop_generation(self, token: int) -> None:
        self._drained = False
        if self._deploying is not None and not self._deploying.done():
            self._deploying.cancel()
        if self._execution is not None:
            self._highest_seen()
            self._execution.cancel()
            self._closing = [closed for closed in self._closing if not closed.done()] + [self._execution.closed]
            self._untrimmed = True
            self._execution.closed.add_done_callback(self._trim_while_idle)
        self._execution = None
        self.token = token
        self._phase = "idle"
        self._unresolved.clear()
        self._ended.clear()
        self._stops = False
        self._paused = 0
        self._failure = None
        self._restored = None

    def _trim_while_idle(self, closed: "asyncio.Future[None]") -> None:
        """Collects garbage while the slot waits, rather than between restore and start."""
        if self._phase == "idle" and self._untrimmed and not self.left.done() and all(c.done() for c in self._closing):
            self._trim_memory()

    def _trim_memory(self) -> None:
        dropped, self._untrimmed = self._untrimmed, False
        self._res.trim_memory(dropped)

    # ------------------------------------------------------------ ExecutionEvents

    def acknowledged(
        self,
        checkpoint: int,
        subtask: SubtaskId,
        operators: tuple[OperatorSnapshot, ...],
        times: SnapshotTimes,
        ended: bool,
    ) -> None:
        reason = too_large_ack(operators)
        if reason:  # such an ack could not be restored either
            self.declined(checkpoint, subtask, reason)
            return
        ack = Ack(self.token, checkpoint, subtask, operators, times, ended)
        self._unresolved[(checkpoint, subtask)] = ack
        if self._stops:
            self._tell_figures()
        self._send(ack)

    def declined(self, checkpoint: int, subtask: SubtaskId, reason: str, unavailable: bool = False) -> None:
        decline = Decline(self.token, checkpoint, subtask, shortened(reason), unavailable)
        self._unresolved[(checkpoint, subtask)] = decline
        self._send(decline)

    def subtask_ended(self, subtask: SubtaskId) -> None:
        self._ended[subtask] = SubtaskEnded(self.token, subtask)
        self._send(self._ended[subtask])

    def committed(self, checkpoint: int, operator: str, subtask: int) -> None:
        key = sink_key(operator, subtask)
        self._committed[key] = max(checkpoint, self._committed.get(key, 0))
        if self._ended or self._stops:
            self._tell_figures()  # the job may end with this commit: report everything
        self._send(Committed(self.token, checkpoint, operator, subtask))

    def commit_failing(self, checkpoint: int, operator: str, subtask: int, attempts: int, error: str) -> None:
        self._send(CommitFailing(self.token, checkpoint, operator, subtask, attempts, shortened(error)))

    def event_time_reached(self, sources: dict[str, HeldBack]) -> None:
        self._send(EventTimeReached(self.token, sources))

    def waiting(self, operator: str, attempts: int, error: str) -> None:
        self._send(Waiting(self.token, operator, attempts, shortened(error)))

    def failed(self, subtask: SubtaskId | None, operator: str, error: BaseException) -> None:
        if subtask is not None or operator:  # otherwise an internal fault, which a new generation may overcome
            error = of_operator(error, operator, subtask)
        self.trouble = error
        permanent, unavailable = isinstance(error, PERMANENT), isinstance(error, Unavailable)
        text = str(error) if permanent else f"{type(error).__name__}: {error}"
        exhausted = remedy_if_exhausted(error)
        if exhausted and exhausted not in text:
            text = f"{text}: {exhausted}"
        if not permanent:  # the job reports permanent errors, without our stack
            stack = None if unavailable or text == self._told else error
            self._told = text
            fields = {"generation": self.token, "operator": operator or None, PEER_LOST: isinstance(error, PeerLost)}
            log.warning(
                "slot %d, generation %d: %s %s",
                self.identity.slot,
                self.token,
                operator,
                text,
                exc_info=stack,
                extra=fields,
            )
        self._failure = SubtaskFailed(self.token, subtask, operator, shortened(text), not permanent, unavailable)
        self._send(self._failure)

    # ------------------------------------------------------------ heartbeat

    def _beat(self, due: float) -> None:
        if self.left.done():
            return
        loop = self._res.loop
        self._loop_lag_ms = max(0.0, (loop.time() - due) * 1000)
        self._heartbeats += 1
        self._unheard = {slot: round(n * self._heartbeat_s * 1000) for slot, n in self._plane.beat().items()}
        if self._heartbeats % _LATENCY_EVERY_HEARTBEATS == 0:
            self._tell_figures()
        else:
            self._say({})
        next_due = loop.time() + self._heartbeat_s
        loop.call_at(next_due, self._beat, next_due)

    def _tell_figures(self) -> None:
        self._say(self._metrics.latencies())

    def _say(self, latency: dict[str, str]) -> None:
        execution = self._execution
        opening = {} if execution is None else execution.opening
        blocked, reading, starved = ("", False, False) if execution is None else execution.take_blocked()
        sources = {} if execution is None else execution.source_progress()
        self._send(
            Heartbeat(
                self.token,
                self._figures(),
                latency,
                self._wall_ms(),
                opening,
                blocked,
                sources,
                self._preparing.done,
                self._unheard,
                reading,
                self._notices,
                starved,
            )
        )

    def _wall_ms(self) -> int:
        return self._res.clock.wall_ns() // 1_000_000

    def _figures(self) -> dict[str, float]:
        figures = self._metrics.counts()
        figures.update(process_figures(self._res.store, self._res.starved_s(), self._loop_lag_ms))
        if self._execution is not None:
            figures.update(self._execution.figures())
        return figures


_HANDLERS: dict[type, Callable[..., None]] = {
    Registered: Slot._on_registered,
    Probe: Slot._on_probe,
    AskSlot: Slot._on_ask,
    CancelGeneration: Slot._on_cancel_generation,
    Deploy: Slot._on_deploy,
    Prefetch: Slot._on_prefetch,
    Start: Slot._on_start,
    Trigger: Slot._on_trigger,
    EndSources: Slot._on_end_sources,
    CheckpointComplete: Slot._on_complete,
    CommitGlobally: Slot._on_commit_globally,
    Visible: Slot._on_visible,
    LowestEventTime: Slot._on_lowest_event_time,
    AbortCheckpoint: Slot._on_abort,
    Heard: Slot._on_heard,
    Shutdown: Slot._on_shutdown,
}
