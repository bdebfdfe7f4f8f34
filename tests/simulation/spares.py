"""Jobs with spare slots. Spares and slots die before, while and after a spare takes a slot, beside all other faults."""

import random
from collections.abc import Sequence
from dataclasses import replace

import msgspec
from schedule import Action, Schedule
from world import World

from barrier_runtime.coordinator.log.records import Fence
from barrier_runtime.coordinator.server.runner import JobRunner
from barrier_runtime.coordinator.wire.messages import Deploy, JobSpec, ToSlot
from barrier_runtime.graph.job_graph import JobGraph
from barrier_runtime.runtime.slot import Slot
from barrier_runtime.testing.simulation.cluster import Program, SlotTask
from barrier_runtime.testing.simulation.loop import SimProcess

_STRIKES = ("", "spare", "coordinator", "both")  # who dies when a spare is deployed
_SHARE = 0.12  # of the seeds


class SparesWorld(World):
    """A job with `spares`. `losses_ms`: times at which a process of the job dies."""

    def __init__(self, schedule: Schedule, spares: int, losses_ms: Sequence[int] = ()) -> None:
        self._spares = spares
        self._random = random.Random(f"spares {schedule.seed}")
        self.taken = 0  # deployments of processes under other numbers than those of their starts
        super().__init__(schedule)
        for at_ms in losses_ms:
            self.sim.at(at_ms * 1000, self._loss)

    def _job(self, number: int, parallelism: int) -> tuple[JobGraph, JobSpec]:
        graph, spec = super()._job(number, parallelism)
        return graph, msgspec.structs.replace(spec, spare_slots=self._spares)

    def _loss(self, _: None) -> None:
        program = self._current()
        living = self._living(program)
        for task in self._random.sample(living, min(len(living), self._random.choice((1, 1, 2)))):
            self._lose_slot(program, task, kill=self._random.random() < 0.8)

    def _hears_now(self, process: SimProcess, slot: Slot, message: ToSlot) -> None:
        if isinstance(message, Deploy) and message.slot >= 0:
            self._note("a spare took the place of a slot")
            self.taken += 1
            self._strike(process)
        super()._hears_now(process, slot, message)

    def _strike(self, process: SimProcess) -> None:
        who = "" if self._calm else self._random.choice(_STRIKES)
        if who in ("coordinator", "both"):
            self._crash_coordinator(Action(0, "crash coordinator", 0, 0, 0))
        if who in ("spare", "both"):
            self.sim.after(self._random.choice((1_000, 100_000, 1_000_000)), self._spare_dies, process)

    def _spare_dies(self, process: SimProcess) -> None:
        for program in self.programs:
            for task in program.tasks:
                if task.process is process and process.alive:
                    self._lose_slot(program, task, kill=True)


def spares_of(schedule: Schedule) -> int:
    """Number of spares of a seed's job; 0 for most seeds, and for jobs that must not lose more slots."""
    rng = random.Random(f"has spares {schedule.seed}")
    alone = not (schedule.conditions_ignored or schedule.twins or schedule.hang)
    return rng.randrange(1, 3) if alone and rng.random() < _SHARE else 0


def world_of(schedule: Schedule) -> World:
    spares = spares_of(schedule)
    return SparesWorld(schedule, spares) if spares else World(schedule)


def spares_taken(schedule: Schedule) -> SparesWorld:
    """A job of two spares that loses a process every two seconds, and no other faults."""
    steady = replace(schedule, chaos_ms=20_000, bounded=False, timeout_ms=600_000)
    return SparesWorld(steady, 2, range(3_000, 18_000, 2_000))


_NOTICE_US = 8_000_000  # from the notice to the death of the host


class LeavingSpareWorld(SparesWorld):
    """A spare takes a slot; later the spare's host gives notice, and dies 8 s after that."""

    def __init__(self, schedule: Schedule) -> None:
        super().__init__(schedule, 1)
        self.ended_before_death = False
        self.generations = 0
        self._lost = self._noticed = False
        self._leaver: SlotTask | None = None

    def _look(self, program: Program, runner: JobRunner) -> None:
        super()._look(program, runner)
        status = runner.status()
        ready = status.phase == "running" and status.spares.ready > 0 and status.checkpoints.completed > 0
        if ready and not self._lost:
            self._lost = True
            self._loss_of_first(program)
        elif ready and self._leaver is not None and not self._noticed:
            self._noticed = True
            self._notice(program, self._leaver)

    def _strike(self, process: SimProcess) -> None:
        program = self._current()
        self._leaver = next(task for task in program.tasks if task.process is process)

    def _loss_of_first(self, program: Program) -> None:
        (task,) = [each for each in self._living(program) if each.index == 0]
        self._lose_slot(program, task, kill=True)

    def _notice(self, program: Program, leaver: SlotTask) -> None:
        self.generations = len(self._moves)
        assert leaver.slot is not None
        leaver.process.loop.call_soon(leaver.slot.leave_host)
        self.sim.after(_NOTICE_US, self._host_dies, (program, leaver))

    def _host_dies(self, host: tuple[Program, SlotTask]) -> None:
        program, task = host
        self.ended_before_death = not task.process.alive
        if task.process.alive:
            self._lose_slot(program, task, kill=True)

    @property
    def _moves(self) -> list[bool]:
        return [record.reason.endswith("left a host") for record in self.facts.records if isinstance(record, Fence)]

    @property
    def replays(self) -> int:
        """Generations since the notice that read rows again."""
        return self._moves[self.generations :].count(False)


def spare_leaves(schedule: Schedule) -> LeavingSpareWorld:
    return LeavingSpareWorld(
        replace(schedule, slot_timeout_ms=10_000, chaos_ms=30_000, bounded=False, timeout_ms=600_000)
    )


class FormerSpareDiesWorld(LeavingSpareWorld):
    """A spare takes a slot; later the process and the coordinator die together, and the history is lost.

    The process starts again under the spare's number, and the spare has the number of the slot.
    """

    struck = False

    def _notice(self, program: Program, leaver: SlotTask) -> None:
        self.struck = True
        self._lose_slot(program, leaver, kill=True)
        self._crash_coordinator(Action(0, "crash coordinator", 0, 0, 0))
        self.store.delete([self.paths.history])


def former_spare_dies(schedule: Schedule) -> FormerSpareDiesWorld:
    steady = replace(schedule, slot_timeout_ms=10_000, chaos_ms=30_000, bounded=False, timeout_ms=600_000)
    return FormerSpareDiesWorld(steady)


_LATE_S = 6.0  # less than `slot_timeout_ms`


class ForgetfulWorld(SparesWorld):
    """Slot 0 and the coordinator die together, the history is lost, and the other slots connect late.

    No spare is needed: a spare that is taken has the number of a living slot.
    """

    def __init__(self, schedule: Schedule) -> None:
        super().__init__(schedule, 1)
        self.struck = False

    def _look(self, program: Program, runner: JobRunner) -> None:
        super()._look(program, runner)
        status = runner.status()
        ready = status.phase == "running" and status.spares.ready > 0 and status.checkpoints.completed > 0
        if ready and not self.struck:
            self.struck = True
            self._all_but_the_spare(program)

    def _all_but_the_spare(self, program: Program) -> None:
        for task in self._living(program):
            if task.index == 0:
                self._lose_slot(program, task, kill=True)
            elif task.index < self.schedule.parallelism:
                task.process.stall(_LATE_S)
        self._crash_coordinator(Action(0, "crash coordinator", 0, 0, 0))
        self.store.delete([self.paths.history])

    def _strike(self, process: SimProcess) -> None:
        """Nothing else dies."""


def history_lost(schedule: Schedule) -> ForgetfulWorld:
    return ForgetfulWorld(replace(schedule, slot_timeout_ms=10_000, chaos_ms=20_000, bounded=False, timeout_ms=600_000))
