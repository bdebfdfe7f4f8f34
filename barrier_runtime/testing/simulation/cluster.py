"""Job on a simulated cluster: programs, coordinators, slots, and restarts.

Only Spark, the embedded coordinator's supervisor, and the driver are simulated. Subclasses add faults and judges.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, cast
from unittest.mock import patch

import msgspec

from barrier_runtime.connectors.files.sink import commit_log, commit_reader
from barrier_runtime.coordinator import savepoint_files
from barrier_runtime.coordinator.job.status_view import leaving_slots, spares_status
from barrier_runtime.coordinator.log.lease import Holder
from barrier_runtime.coordinator.option_types import SlotOptions
from barrier_runtime.coordinator.server.control import ControlServer
from barrier_runtime.coordinator.server.jobs import JobDirectory
from barrier_runtime.coordinator.server.leases import Leases
from barrier_runtime.coordinator.server.runner import JobRunner
from barrier_runtime.coordinator.status.health import number_for_driver
from barrier_runtime.coordinator.wire.handshake import job_secret
from barrier_runtime.coordinator.wire.messages import JobSpec, Shutdown, SlotClaims, ToSlot
from barrier_runtime.graph.job_graph import JobGraph
from barrier_runtime.runtime.host import process
from barrier_runtime.runtime.network.control_link import ControlLink, TcpControlLink
from barrier_runtime.runtime.network.flow_control import MAX_WINDOW_BYTES
from barrier_runtime.runtime.network.tcp import TcpDataPlane
from barrier_runtime.runtime.resources import SlotResources
from barrier_runtime.runtime.slot import Slot, SlotIdentity
from barrier_runtime.state.errors import BarrierRuntimeError, InvalidJob
from barrier_runtime.state.kv.rocksdb import SlotMemory
from barrier_runtime.state.snapshots.local_copies import LocalCopies
from barrier_runtime.state.snapshots.plan import Thresholds
from barrier_runtime.state.store.memory import MemoryStore
from barrier_runtime.state.store.object_store import ObjectStore, PutOutcome
from barrier_runtime.state.store.paths import Paths
from barrier_runtime.state.store.probe import probe_conditional_put
from barrier_runtime.testing.simulation.loop import WALL_START_NS, SimProcess, Simulation
from barrier_runtime.testing.simulation.network import SimListening
from barrier_runtime.testing.simulation.store import SimStore, StoreFaults

PORT = 7000
RESPAWN_US = (200_000, 800_000)
_WATCHDOG_S = 30.0  # for which a killed program's slot may continue as a zombie
POLL_US = 500_000
_KEY = b"k" * 32
_MEMORY_BYTES = 8 << 20


class WatchedStore(MemoryStore):
    def __init__(
        self,
        name: str,
        now_ms: Callable[[], int],
        wrote: Callable[[str, str, bytes], None],
        dropped: Callable[[str, str], None],
    ) -> None:
        super().__init__(name, now_ms)
        self.actor = ""
        self._wrote = wrote
        self._dropped = dropped

    def _set(self, key: str, data: bytes) -> None:
        super()._set(key, data)
        self._wrote(self.actor, key, data)

    def _drop(self, key: str) -> None:
        if key in self._objects:
            self._dropped(self.actor, key)
        super()._drop(key)

    def peek(self, key: str) -> bytes | None:
        found = self._objects.get(key)
        return None if found is None else found.data


@dataclass
class SlotTask:
    index: int
    attempt: int
    process: SimProcess
    program: str = ""
    slot: Slot | None = None
    given_up: bool = False
    dismissed: bool = False  # the job had no place
    succeeds: bool = False


@dataclass
class Program:
    number: int
    spec: JobSpec
    graph: JobGraph
    listening: list[SimListening]
    tasks: list[SlotTask] = field(default_factory=list)
    coordinators: list["SimCoordinator"] = field(default_factory=list)
    attempts: int = 0
    others: dict[str, JobGraph] = field(default_factory=dict)
    standbys: str = ""
    successors: set[tuple[int, int]] = field(default_factory=set)  # task attempt and time of notices
    outcome: str = ""
    reason: str = ""

    @property
    def active(self) -> bool:
        return not self.outcome


@dataclass
class SimCoordinator:
    process: SimProcess
    listening: SimListening
    directory: JobDirectory | None = None
    refused: str = ""


@dataclass(frozen=True)
class ClusterOptions:
    """`turn_us`: added to each turn of a slot's loop. `unreached`: rate at which Spark fails to kill. `mark`,
    `first_name`: keep the names of two clusters apart.
    """

    standby: bool = False  # two daemons with leases; otherwise one coordinator
    turn_us: int = 0
    window_bytes: int = MAX_WINDOW_BYTES
    unreached: float = 0.0
    latency_target_s: float = 0.001
    mark: str = ""
    first_name: int = 0
    max_drift_ms: int | None = None
    no_cores: float = 0.0  # rate of missing cores for a standby slot
    begins_us: int = 300
    inline_bytes: int = 300


class SimCluster:
    def __init__(self, job: str, sim: Simulation, options: ClusterOptions) -> None:
        self.job = job
        self.sim = sim
        self.options = options
        self.programs: list[Program] = []
        self.paths = Paths(job)
        self.store_faults, self.target_faults = StoreFaults(), StoreFaults()
        self.store = WatchedStore(f"{options.mark}checkpoints", self.now_ms, self._wrote, self._dropped)
        self.target: MemoryStore = MemoryStore("target", self.now_ms)
        self._last_ended: Program
        self._names = options.first_name
        self._processes: set[str] = set()
        self._stopping: Literal["", "checkpoint", "drain"] = ""

    def world_ns(self) -> int:
        return WALL_START_NS + self.sim.now_us * 1000

    def now_ms(self) -> int:
        return self.world_ns() // 1_000_000

    def _job(self, number: int, parallelism: int) -> tuple[JobGraph, JobSpec]:
        raise NotImplementedError

    def _graph(self, program: Program, task: SlotTask) -> JobGraph:
        return program.others.get(task.program, program.graph)

    def _link(self, process: SimProcess, link: TcpControlLink) -> ControlLink:
        return link

    def _hears(self, process: SimProcess, slot: Slot, message: ToSlot) -> None:
        slot.handle(message)

    def _refused(self, program: Program, coordinator: SimCoordinator, error: InvalidJob) -> bool:
        """False: the driver tries again."""
        self._ended(program, "failed", str(error))
        return True

    def _told(self, runner: JobRunner) -> None:
        """Runs after a coordinator reports the job's end."""

    def _failed(self, program: Program, reason: str) -> None:
        pass

    def _stop(self, runner: JobRunner) -> None:
        if self._stopping:
            runner.stop(self._stopping)

    def _look_after(self) -> None:
        pass

    def _look(self, program: Program, runner: JobRunner) -> None:
        """Runs at each poll for a program with a leader."""

    def _born(self, process: SimProcess) -> None:
        pass

    def requested(self, actor: str, operation: str, key: str) -> None:
        """Runs before `actor` calls the job's store."""

    def answered(self, actor: str, operation: str, key: str, data: bytes, outcome: PutOutcome) -> None:
        """Runs after `actor` has the outcome of `put_if_absent`."""

    def got(self, actor: str, key: str, there: bool | None) -> None:
        """Runs after `actor` has the answer of `get`. `there`: whether the object exists; None: an error."""

    def _wrote(self, actor: str, key: str, data: bytes) -> None:
        pass

    def _dropped(self, actor: str, key: str) -> None:
        pass

    def _open_target(self, process: SimProcess, url: str) -> ObjectStore:
        return SimStore(self.sim, process, self.target, self.target_faults)

    def _current(self) -> Program:
        return next((program for program in reversed(self.programs) if program.active), self._last_ended)

    def _start_program(self, parallelism: int) -> None:
        number = len(self.programs) + 1
        graph, spec = self._job(number, parallelism)
        places = self._addresses(number)[: 2 if self.options.standby else 1]
        program = Program(number, spec, graph, [self.sim.network.listen(place, PORT, place=place) for place in places])
        self.programs.append(program)
        self._last_ended = program
        for listening in program.listening if self.options.standby else program.listening[:1]:
            self._start_coordinator(program, listening)
        for index in range(parallelism):
            self._start_slot(program, index)

    def _start_again(self, parallelism: int) -> None:
        if self._current().outcome not in ("finished", "cancelled"):
            self._start_program(parallelism)

    def _addresses(self, number: int) -> tuple[str, str]:
        return f"{self.options.mark}driver-{number}", f"{self.options.mark}standby-{number}"

    def _kill_program(self, program: Program, *, leave_zombies: bool) -> None:
        """`leave_zombies`: some slots survive for a while."""
        program.outcome = program.outcome or "killed"
        for coordinator in program.coordinators:
            coordinator.process.crash()
        for task in program.tasks:
            if leave_zombies and task.process.alive and self.sim.chance(0.4):
                stalled_s = self.sim.rng.choice((1.0, 5.0, 20.0))
                task.process.stall(stalled_s)
                self.sim.after(int((stalled_s + _WATCHDOG_S) * 1e6), SimProcess.leave, task.process)
            else:
                task.process.crash()
        for listening in program.listening:
            self.sim.network.stop_listening(listening)

    def _ended(self, program: Program, outcome: str, reason: str) -> None:
        if program.active:
            self.sim.trace("ended", program.number, outcome)
            program.outcome, program.reason = outcome, reason
            if outcome != "fenced" or self._last_ended is program:
                self._last_ended = program
            if outcome == "failed":
                self._failed(program, reason)

    def _poll(self, _: object = None) -> None:
        self.sim.after(POLL_US, self._poll)
        self._look_after()
        for program in self.programs:
            runner = self._runner(program) if program.active else None
            if runner is None:
                continue
            self._look(program, runner)
            for kill in runner.status().kill:
                for task in program.tasks:
                    if (task.index, task.attempt) == (kill.slot, kill.task_attempt) and not task.given_up:
                        self._lose_slot(program, task, kill=not self.sim.chance(self.options.unreached))
            self._start_what_is_wanted(program, runner)
            if self._stopping:
                self._on(program, runner, partial(self._stop, runner))

    def _start_what_is_wanted(self, program: Program, runner: JobRunner) -> None:
        """Starts requested standby slots, if there are cores, and slots dismissed by mistake."""
        wanted = runner.standbys
        if wanted is not None and wanted.request != program.standbys:
            program.standbys = wanted.request
            for index in range(wanted.first, wanted.last + 1):
                spare = runner.spec.spare_slots and self._runs(program, index, wanted.program)
                if not spare and not self.sim.chance(self.options.no_cores):
                    self._start_slot(program, index, wanted.program)
        for each in leaving_slots(runner.facts):
            if each.state == "asked" and (each.task_attempt, each.since_ms) not in program.successors:
                program.successors.add((each.task_attempt, each.since_ms))
                self._start_slot(program, number_for_driver(each), runner.spec.program, succeeds=True)
        if runner.lead_position is not None:
            spares = spares_status(runner.facts, self.now_ms())
            for index in (*range(runner.spec.parallelism), *spares.gone):
                of = runner.spec.program
                own = [task for task in program.tasks if (task.index, task.program) == (index, of)]
                living = [task for task in own if task.succeeds and task.process.alive]
                if not own or (own[-1].dismissed and not living):
                    self._start_slot(program, index, of)

    def _start_coordinator(self, program: Program, listening: SimListening) -> None:
        process = self._process("coordinator", listening.place)
        coordinator = SimCoordinator(process, listening)
        program.coordinators.append(coordinator)
        process.spawn(self._coordinate(program, coordinator))

    async def _coordinate(self, program: Program, coordinator: SimCoordinator) -> None:
        process, listening = coordinator.process, coordinator.listening
        store = SimStore(self.sim, process, self.store, self.store_faults, self)
        address = f"{listening.address[0]}:{listening.address[1]}"
        directory = JobDirectory(
            store,
            daemon_key=_KEY,
            leader=process.name,
            host=process.place,
            probe=partial(probe_conditional_put, store, "_probe", writers=1, new_id=self.sim.new_id),
            leases=Leases(store, Holder(address, address, f"http://{address}", 2_000))
            if self.options.standby
            else None,
            clock=process.steady_ms,
            sleep=process.sleep,
        )
        coordinator.directory = directory
        await ControlServer(directory, listening).start()  # type: ignore[arg-type]
        if listening is program.listening[0] or not self.options.standby:
            await self._submit(program, coordinator, directory)
        told: JobRunner | None = None
        while program.active:
            runner = directory.run(self.job, program.spec.run_id)
            if runner is not None and runner is not told and runner.outcome is not None:
                told = runner
                self._told(runner)
                if runner.outcome.outcome != "replaced":
                    self._ended(program, runner.outcome.outcome, runner.outcome.reason)
                elif not self.options.standby:
                    process.loop.call_soon(self._coordinator_leaves, program, coordinator)
                    return
            await asyncio.sleep(0.1)

    async def _submit(self, program: Program, coordinator: SimCoordinator, directory: JobDirectory) -> None:
        while program.active:
            try:
                await directory.submit(program.spec)
                return
            except InvalidJob as error:
                if self._refused(program, coordinator, error):
                    return
            except BarrierRuntimeError:
                await asyncio.sleep(0.2)

    def _coordinator_leaves(self, program: Program, coordinator: SimCoordinator) -> None:
        coordinator.process.leave()
        self.sim.after(300_000, lambda _: self._restart_coordinator(program))

    def _runner(self, program: Program) -> JobRunner | None:
        found: JobRunner | None = None
        for coordinator in program.coordinators:
            if coordinator.process.running and coordinator.directory is not None:
                runner = coordinator.directory.run(self.job, program.spec.run_id)
                if runner is not None and runner.outcome is None:
                    position = runner.lead_position or 0
                    if found is None or position >= (found.lead_position or 0):
                        found = runner
        return found

    def _restart_coordinator(self, program: Program) -> None:
        for listening in program.listening if self.options.standby else program.listening[:1]:
            served = any(each.process.alive for each in program.coordinators if each.listening is listening)
            if program.active and not served:
                self._start_coordinator(program, listening)

    def _on(self, program: Program, runner: JobRunner, call: Callable[[], Any]) -> None:
        for coordinator in program.coordinators:
            if coordinator.directory is not None and coordinator.directory.run(self.job, program.spec.run_id) is runner:
                coordinator.process.loop.call_soon(call)

    def _state(self) -> str:
        program = self._current()
        runner = self._runner(program)
        phase = "no coordinator" if runner is None else f"{runner.phase} ({runner.status().reason})"
        slots = ", ".join(f"{task.process!r}" for task in program.tasks if task.process.alive)
        return f"program {program.number} {program.outcome or 'active'}, {phase}; {slots}"

    def _start_slot(self, program: Program, index: int, of: str = "", *, succeeds: bool = False) -> None:
        if not program.active:
            return
        program.attempts += 1
        process = self._process(f"slot-{index}", None)
        process.turn_us = self.options.turn_us
        task = SlotTask(index, program.attempts, process, of, succeeds=succeeds)
        program.tasks.append(task)
        process.spawn(self._run_slot(program, task))

    async def _run_slot(self, program: Program, task: SlotTask) -> None:
        process = task.process
        uuid = self.sim.new_id()
        directory = self.sim.directory / process.name
        secret = job_secret(_KEY, self.job, program.spec.run_id)
        plane = TcpDataPlane(secret, self.job, program.spec.run_id, process.place)
        host, port = await plane.listen()
        resources = SlotResources(
            loop=process.loop,
            workers=process.workers(begins_us=self.options.begins_us),
            store=SimStore(self.sim, process, self.store, self.store_faults, self),
            make_store=partial(self._open_target, process),
            paths=self.paths,
            slot=task.index,
            uuid=uuid,
            local_dir=directory,
            copies=LocalCopies(process.wait),
            memory=SlotMemory(_MEMORY_BYTES),
            options=SlotOptions(
                mode=program.spec.checkpoints.mode,
                state_backend=cast(Any, "lsm"),
                state_cache_mb=1,
                latency_target=self.options.latency_target_s,
                max_drift=None if self.options.max_drift_ms is None else self.options.max_drift_ms / 1000,
            ),
            thresholds=Thresholds(inline_bytes=self.options.inline_bytes, pack_bytes=250, value_bytes=120),
            transfers_at_once=1,
            new_uuid=self.sim.new_id,
            clock=process,
            trim_memory=lambda again: None,
            window_bytes=self.options.window_bytes,
        )
        identity = SlotIdentity(
            task.index,
            uuid,
            process.pid,
            process.place,
            task.attempt,
            host,
            port,
            program=task.program,
            succeeds=task.succeeds,
        )
        slot = Slot(self._graph(program, task), program.spec.checkpoints.mode, identity, resources, plane)
        task.slot = slot
        link = TcpControlLink(
            tuple((place, PORT) for place in self._addresses(program.number)),
            secret,
            self.job,
            program.spec.run_id,
            msgspec.msgpack.encode(SlotClaims(task.index, uuid)),
            slot.connected,
            partial(self._hears, process, slot),
            now_s=process.monotonic_s,
        )
        slot.link = self._link(process, link)
        linking = process.loop.create_task(link.run())
        shutdown: Shutdown = await slot.left
        link.close()
        linking.cancel()
        plane.close()
        self.sim.trace("left", process.name, shutdown.outcome)
        process.loop.call_soon(self._slot_left, program, task, shutdown)

    def _slot_left(self, program: Program, task: SlotTask, shutdown: Shutdown) -> None:
        task.process.leave()
        task.dismissed = shutdown.outcome == "left"
        if shutdown.outcome == "replaced" and not task.given_up:
            self._respawn(program, task)
        elif shutdown.outcome == "failed":
            self.sim.after(2_000_000, lambda _: self._failed_by_task(program, shutdown.reason))

    def _failed_by_task(self, program: Program, reason: str) -> None:
        if program.active:
            self._ended(program, "failed", reason)
            self._kill_program(program, leave_zombies=False)

    def _lose_slot(self, program: Program, task: SlotTask, *, kill: bool) -> None:
        """Restarts a task that Spark considers lost. `kill=False`: the old process lives on."""
        if kill:
            task.process.crash()
        self._respawn(program, task)

    def _respawn(self, program: Program, task: SlotTask) -> None:
        if task.given_up:
            return
        task.given_up = True
        self.sim.after(
            self.sim.between_us(*RESPAWN_US), lambda _: self._start_if_none(program, task.index, task.program)
        )

    def _start_if_none(self, program: Program, index: int, of: str) -> None:
        if not self._runs(program, index, of):
            self._start_slot(program, index, of)

    def _runs(self, program: Program, index: int, of: str) -> bool:
        own = [task for task in program.tasks if (task.index, task.program) == (index, of)]
        return any(task.process.alive and not task.given_up for task in own)

    def _process(self, kind: str, place: str | None) -> SimProcess:
        self._names += 1
        process = SimProcess(self.sim, f"{kind}-{self._names}", place)
        self._processes.add(process.name)
        self._born(process)
        return process


@contextlib.contextmanager
def in_one_thread() -> Iterator[None]:
    """Makes requests sequential, because jobs share a thread, and the memory constant."""
    with (
        patch.object(commit_log, "READS_AT_ONCE", 1),
        patch.object(commit_reader, "READS_AT_ONCE", 1),
        patch.object(savepoint_files, "COPIES_AT_ONCE", 1),
        patch.object(process, "_rss_bytes", lambda: 1 << 26),
    ):
        yield
