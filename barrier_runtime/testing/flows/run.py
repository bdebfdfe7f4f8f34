"""Run of a user's flow in the simulated world, with one crash at most."""

import contextlib
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, Protocol
from unittest.mock import patch

import pyarrow as pa

from barrier_runtime.coordinator.log.records import Complete, Fence, Finish, decode_record
from barrier_runtime.coordinator.wire.messages import (
    Ack,
    CheckpointComplete,
    CheckpointOptions,
    CommitGlobally,
    Committed,
    Deploy,
    JobSpec,
    RestartOptions,
    Restored,
    Start,
    ToCoordinator,
    ToSlot,
    Trigger,
)
from barrier_runtime.graph.compiler import compile_plan
from barrier_runtime.graph.job_graph import JobGraph
from barrier_runtime.graph.logical import Plan, SourceNode, StepNode
from barrier_runtime.runtime.network.control_link import ControlLink, TcpControlLink
from barrier_runtime.runtime.sinks.operator import SinkOperator
from barrier_runtime.runtime.slot import Slot
from barrier_runtime.state.backend.restore import BACKENDS
from barrier_runtime.testing.crash_points import CrashPoints, Point
from barrier_runtime.testing.flows.given_rows import GivenRows
from barrier_runtime.testing.flows.outputs import CheckedSink, CrashingSink, OutputMemory, OutputSink
from barrier_runtime.testing.simulation.cluster import ClusterOptions, Program, SimCluster, SlotTask, in_one_thread
from barrier_runtime.testing.simulation.loop import WALL_START_NS, OutOfSteps, SimProcess, Simulation
from barrier_runtime.testing.simulation.lsm_kv import LsmBackend


@contextlib.contextmanager
def silent() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in ("barrier_runtime", "coordinator")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


Victim = Literal["process", "program"]  # "program": the driver, the coordinator and all slots

PHASES = {  # in checkpoint order; each text is about the process that acts
    "fence": "the coordinator has begun a generation in the log and told nobody",
    "restore": "a slot is told what to restore",
    "recover": "a sink is about to finish what the restored checkpoint decided",
    "restored": "a slot has restored its state and not said so yet",
    "start": "a slot is told to start",
    "barrier": "a slot hears of a new checkpoint",
    "pre-commit": "a sink is about to make its rows durable",
    "pre-committed": "a sink has made its rows durable, and nothing is decided",
    "upload": "a slot has uploaded a file of its snapshot",
    "ack": "a slot is about to say that it has taken the snapshot",
    "manifest": "the coordinator has written what the checkpoint consists of, and nothing is decided",
    "decision": "the checkpoint is decided in the log, and nobody knows",
    "completed": "a slot hears that the checkpoint is decided",
    "commit": "a sink is about to commit",
    "committed": "a sink has committed, and nobody knows",
    "commit globally": "a slot is told to make the rows of all subtasks visible",
    "told": "a slot is about to say that everything is committed",
    "delete": "the coordinator deletes files of an older checkpoint",
    "finish": "the coordinator has written the end of the job and told nobody",
}


@dataclass(frozen=True)
class CrashPoint:
    """Occurrence number `nth` (from 1) of `phase` in a run."""

    phase: str
    nth: int
    victim: Victim

    def __str__(self) -> str:
        who = "the process" if self.victim == "process" else "the whole program"
        return f"{who} dies in phase {self.phase!r} (time {self.nth}): {PHASES[self.phase]}"


@dataclass(frozen=True)
class FlowScenario:
    """Run of a flow; `again`: a repetition of the run that gave the expected rows."""

    seed: int
    parallelism: int
    crash: CrashPoint | None = None
    again: bool = False

    @property
    def name(self) -> str:
        parts = [str(self.seed), str(self.parallelism)]
        if self.crash is not None:
            parts += [self.crash.phase, str(self.crash.nth), self.crash.victim]
        elif self.again:
            parts.append("again")
        return "/".join(parts)

    def __str__(self) -> str:
        slots = f"seed {self.seed}, {self.parallelism} slot{'s' if self.parallelism > 1 else ''}, "
        if self.crash is not None:
            return slots + str(self.crash)
        return slots + ("no crash, the same run once more" if self.again else "no crash")


def named(name: str) -> FlowScenario:
    """Raises `ValueError` for an unknown name."""
    parts = name.split("/")
    if len(parts) == 2:
        return FlowScenario(int(parts[0]), int(parts[1]))
    if len(parts) == 3 and parts[2] == "again":
        return FlowScenario(int(parts[0]), int(parts[1]), again=True)
    seed, parallelism, phase, nth, victim = parts
    if phase not in PHASES or victim not in ("process", "program"):
        raise ValueError(name)
    return FlowScenario(int(seed), int(parallelism), CrashPoint(phase, int(nth), victim))  # type: ignore[arg-type]


MAX_PARALLELISM = 16  # key groups
_START_NS = WALL_START_NS + 200_000_000  # first row
_LENGTHS_NS = (500_000_000, 1_000_000_000)
# About eight during the input.
_CHECKPOINTS = {"interval_ms": 120, "min_pause_ms": 20, "timeout_ms": 5_000, "retained": 2}
_WITHIN_S = 120.0  # virtual time until the job must have ended
_AFTERWARDS_S = 1.0  # remains of dead programs may still act
_MAX_STEPS = 5_000_000
_CALL_US = (200, 3_000)
_HEARD: dict[type[Any], str] = {
    Deploy: "restore",
    Start: "start",
    Trigger: "barrier",
    CheckpointComplete: "completed",
    CommitGlobally: "commit globally",
}
_SAID: dict[type[Any], str] = {Restored: "restored", Ack: "ack", Committed: "told"}
_RECORDS: dict[type[Any], str] = {Fence: "fence", Complete: "decision", Finish: "finish"}


class Flow(Protocol):
    @property
    def plan(self) -> Plan: ...


@dataclass(frozen=True)
class FlowUnderTest:
    make: Callable[[], Flow]
    inputs: Mapping[str, tuple[pa.RecordBatch, ...]]
    sinks: Mapping[str, Callable[[], CheckedSink]]
    parallelisms: Sequence[int]
    checkpoints: Mapping[str, Any] = field(default_factory=dict)
    cluster: ClusterOptions = field(default_factory=ClusterOptions)


@dataclass
class FlowOutcome:
    """`trouble`: reason for a bad end, after which `rows` are incomplete."""

    rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict)  # visible rows by sink
    points: Counter[str] = field(default_factory=Counter)
    crashed: bool = False
    restored_in_flight: int = 0  # restored inputs with rows in flight
    trouble: str = ""
    virtual_s: float = 0.0
    trace: str = ""


def run_flow(flow: FlowUnderTest, scenario: FlowScenario) -> FlowOutcome:
    """Runs a scenario, reproducibly if the user's functions are deterministic."""
    run = _FlowRun(flow, scenario)
    with (
        run.sim,
        in_one_thread(),
        silent(),
        patch.dict(BACKENDS, lsm=LsmBackend(lambda: run.sim.bits(2) == 0)),
    ):
        return run.played()


class _FlowRun(SimCluster):
    def __init__(self, flow: FlowUnderTest, scenario: FlowScenario) -> None:
        self._flow = flow
        self._scenario = scenario
        self._plan = flow.make().plan
        super().__init__(self._plan.name, Simulation(scenario.seed, max_steps=_MAX_STEPS), flow.cluster)
        crash = scenario.crash
        self._points = CrashPoints(None if crash is None else Point(crash.phase, crash.nth - 1))
        self._outcome = FlowOutcome(points=self._points.reached)
        self._by_name: dict[str, SimProcess] = {}
        drawn = random.Random(f"{scenario.seed} {scenario.parallelism}")
        self._batch_rows = drawn.choice((1, 3, 8, 64))
        self._lengths_ns = {
            name: tuple(drawn.randint(*_LENGTHS_NS) for _ in splits) for name, splits in flow.inputs.items()
        }
        self._memories: dict[str, OutputMemory] = {}
        self._checked: dict[str, CheckedSink] = {name: make() for name, make in flow.sinks.items()}

    def played(self) -> FlowOutcome:
        outcome = self._outcome
        self._start_program(self._scenario.parallelism)
        self._poll()
        try:
            ended = self.sim.run_until(self._over, _WITHIN_S, look_every_s=0.02)
            self.sim.run_for(_AFTERWARDS_S)
        except OutOfSteps as error:
            ended, outcome.trouble = True, str(error)
        if not ended:
            outcome.trouble = f"the job did not end within {_WITHIN_S:g} s of virtual time: {self._state()}"
        if not outcome.trouble and self.sim.problems:
            outcome.trouble = str(self.sim.problems[0])
        for name, memory in self._memories.items():
            outcome.rows[name] = memory.rows()
        for name, sink in self._checked.items():
            outcome.rows[name] = [dict(row) for row in sink.read()]
        outcome.virtual_s = self.sim.now_s
        outcome.trace = self.sim.trace_hash()
        return outcome

    def _over(self) -> bool:
        return bool(self._outcome.trouble) or self._current().outcome == "finished"

    def _failed(self, program: Program, reason: str) -> None:
        self._outcome.trouble = f"the job failed: {reason}"

    def _job(self, number: int, parallelism: int) -> tuple[JobGraph, JobSpec]:
        graph = self._compiled(self._plan, parallelism, None)
        spec = JobSpec(
            job=self.job,
            run_id=f"run-{number}",
            submitter=f"check pid {number}",
            parallelism=parallelism,
            max_parallelism=MAX_PARALLELISM,
            chains=graph.chain_specs(),
            checkpoints=CheckpointOptions(**{**_CHECKPOINTS, **self._flow.checkpoints}),
            slot_timeout_ms=2_000,
            resource_wait_timeout_ms=3_600_000,
            restart=RestartOptions(initial_ms=100, max_ms=1_000),
        )
        return graph, spec

    def _graph(self, program: Program, task: SlotTask) -> JobGraph:
        return self._compiled(self._flow.make().plan, program.spec.parallelism, task.process)

    def _compiled(self, plan: Plan, parallelism: int, process: SimProcess | None) -> JobGraph:
        ours = Plan(plan.name)
        for node in plan.nodes:
            ours.add(self._with_given_rows(node) if isinstance(node, SourceNode) else self._with_sink(node, process))
        return compile_plan(ours, parallelism, MAX_PARALLELISM)

    def _with_given_rows(self, node: SourceNode) -> SourceNode:
        given = GivenRows(
            name=node.name,
            schema=node.source.schema,
            tables=self._flow.inputs[node.name],
            start_ns=_START_NS,
            lengths_ns=self._lengths_ns[node.name],
            batch_rows=self._batch_rows,
            exactly_once=node.source.exactly_once,
        )
        return replace(node, source=given)

    def _with_sink(self, node: StepNode, process: SimProcess | None) -> StepNode:
        if not node.is_sink:
            return node
        assert node.name is not None
        name = node.name
        checked = self._checked.get(name)
        if checked is None:
            memory = self._memories.setdefault(name, OutputMemory())
            checked = CheckedSink(partial(OutputSink, memory), memory.rows)
        make, at = checked.make, self._at
        sample = make()

        def crashing() -> CrashingSink:
            assert process is not None
            return CrashingSink(make(), partial(at, process))

        return replace(
            node,
            make=partial(SinkOperator, make_sink=crashing),
            guarantee=sample.guarantee,
            global_committer=sample.global_committer,
            describe=repr(sample),
        )

    def _born(self, process: SimProcess) -> None:
        self._by_name[process.name] = process

    def _reached(self, phase: str, process: SimProcess) -> None:
        crash = self._scenario.crash
        if not self._points.reach(phase) or crash is None:
            return
        self._outcome.crashed = True
        self.sim.trace("crash point", phase, crash.nth, crash.victim)
        if crash.victim == "program":
            self._strike_program(process)
        else:
            self._strike(process)

    def _strike(self, process: SimProcess) -> None:
        for program in self.programs:
            for task in program.tasks:
                if task.process is process:
                    self._lose_slot(program, task, kill=True)
            if any(coordinator.process is process for coordinator in program.coordinators):
                process.crash()
                self.sim.after(self.sim.between_us(50_000, 300_000), partial(self._supervise, program))

    def _supervise(self, program: Program, _: object) -> None:
        self._restart_coordinator(program)

    def _strike_program(self, process: SimProcess) -> None:
        program = self._current()
        chosen = self._flow.parallelisms
        later = chosen[(chosen.index(program.spec.parallelism) + 1) % len(chosen)]
        self._kill_program(program, leave_zombies=False)
        process.crash()
        self.sim.after(self.sim.between_us(100_000, 500_000), lambda _: self._start_again(later))

    def _at(self, process: SimProcess, phase: str) -> None:
        """Delays a sink's blocking call, which does not continue in a dead process."""
        jobs = self.sim.jobs
        if jobs.current is not None:
            jobs.block(self.sim.between_us(*_CALL_US))
        self._reached(phase, process)
        if jobs.current is not None and not process.alive:
            jobs.block(0)

    def _hears(self, process: SimProcess, slot: Slot, message: ToSlot) -> None:
        phase = _HEARD.get(type(message))
        if phase is not None:
            self._reached(phase, process)
        if isinstance(message, Deploy):
            self._outcome.restored_in_flight += sum(len(each.in_flight) for each in message.operators)
        if process.alive:
            slot.handle(message)

    def _link(self, process: SimProcess, link: TcpControlLink) -> ControlLink:
        return _CrashingLink(link, process, self._reached)

    def requested(self, actor: str, operation: str, key: str) -> None:
        if operation == "delete" and key.startswith(self.paths.data_prefix):
            self._reached("delete", self._by_name[actor])

    def _wrote(self, actor: str, key: str, data: bytes) -> None:
        phase: str | None = None
        if key.startswith(self.paths.log_prefix):
            phase = _RECORDS.get(type(decode_record(key, data)))
        elif self.paths.checkpoint_of(key) is not None:
            phase = "manifest"
        elif key.startswith(self.paths.data_prefix):
            phase = "upload"
        if phase is not None:
            self._reached(phase, self._by_name[actor])


class _CrashingLink:
    def __init__(self, link: TcpControlLink, process: SimProcess, reached: Callable[[str, SimProcess], None]) -> None:
        self._link = link
        self._process = process
        self._reached = reached

    def send(self, message: ToCoordinator) -> None:
        phase = _SAID.get(type(message))
        if phase is not None:
            self._reached(phase, self._process)
        if self._process.alive:
            self._link.send(message)

    @property
    def last_contact(self) -> float:
        return self._link.last_contact
