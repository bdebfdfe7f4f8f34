"""Hosts and links of a simulated cluster that fail for long: no cores for a slot, and lost packets between two hosts.

A slot has a separate host. `HostWorld` is the world of `world` with two more faults: a host is away, so that Spark
cannot start the slot before the host is back, and a link loses everything in one or both directions. Clogged bytes
arrive after the link has healed, as TCP sends lost segments again. In `CoresWorld` any slot may have any core, and some
cores are away for a while.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import msgspec
from schedule import Action, Schedule, draw
from world import World

from barrier_runtime.coordinator.log.records import Complete, Fence
from barrier_runtime.coordinator.server.runner import JobRunner
from barrier_runtime.coordinator.wire.messages import JobSpec
from barrier_runtime.graph.job_graph import JobGraph
from barrier_runtime.testing.simulation.cluster import Program, SlotTask

WAITS_MS = 10_000  # `resource_wait_timeout`
DEGRADE_AFTER_MS = 4_000
_COMMITS_OPEN_MS = 1_500  # the target is away for this long before cores are lost


@dataclass(frozen=True)
class HostAway:
    """The host of slot `slot` is away from `at_ms` for `length_ms`."""

    at_ms: int
    slot: int
    length_ms: int


class HostWorld(World):
    def __init__(self, schedule: Schedule, away: tuple[HostAway, ...] = ()) -> None:
        super().__init__(schedule)
        self._away_until_us: dict[int, int] = {}
        for each in away:
            self.sim.at(each.at_ms * 1000, self._host_goes, each)

    def _job(self, number: int, parallelism: int) -> tuple[JobGraph, JobSpec]:
        graph, spec = super()._job(number, parallelism)
        return graph, msgspec.structs.replace(spec, resource_wait_timeout_ms=WAITS_MS)

    def _host_goes(self, away: HostAway) -> None:
        self._away_until_us[away.slot] = self.sim.now_us + away.length_ms * 1000
        for task in self._living(self._current()):
            if task.index == away.slot:
                self._lose_slot(self._current(), task, kill=True)

    def _start_if_none(self, program: Program, index: int, of: str) -> None:
        until_us = self._away_until_us.get(index, 0)
        if self.sim.now_us < until_us:
            self.sim.at(until_us, lambda _: self._start_if_none(program, index, of))
        else:
            super()._start_if_none(program, index, of)


def calm_seeds(count: int, fits: Callable[[Schedule], bool] = lambda schedule: True) -> list[Schedule]:
    """Returns schedules of jobs of several slots that are not faulty by themselves."""
    found: list[Schedule] = []
    seed = 0
    while len(found) < count:
        schedule = draw(seed)
        seed += 1
        ends = schedule.stopped_ms is not None or schedule.drained_ms is not None or schedule.rescaled_every == 0
        plain = not (schedule.conditions_ignored or schedule.twins or schedule.hang or ends or schedule.replaces)
        if plain and schedule.parallelism > 1 and not schedule.rescales and fits(schedule):
            found.append(replace(schedule, actions=()))
    return found


def host_away(schedule: Schedule) -> HostWorld:
    """A job that loses a host early, for six times the wait for a first start."""
    rng = random.Random(f"hosts {schedule.seed}")
    away = HostAway(rng.randrange(1_500, 3_000), rng.randrange(schedule.parallelism), 6 * WAITS_MS)
    return HostWorld(replace(schedule, chaos_ms=7 * WAITS_MS + 5_000), (away,))


@dataclass(frozen=True)
class LostCores:
    """`count` cores and the processes on them are away from `at_ms` for `length_ms`."""

    at_ms: int
    length_ms: int
    count: int


class CoresWorld(World):
    """A job with `at_least=1`. Records the number of slots of each generation, and what was decided without cores."""

    def __init__(self, schedule: Schedule, lost: LostCores, *, target_away: bool, deaths_ms: Sequence[int]) -> None:
        super().__init__(schedule)
        self.lost = lost
        for at_ms in deaths_ms:
            self.sim.at(at_ms * 1000, self._crash_coordinator, Action(at_ms, "crash coordinator", 0, 0, 0))
        if target_away:
            self.sim.at((lost.at_ms - _COMMITS_OPEN_MS) * 1000, self._target_goes)
        self.cores = schedule.parallelism
        self.decided_meanwhile = 0
        self._waiting: list[tuple[Program, int, str]] = []  # tasks that Spark starts when there is a core
        self.sim.at(lost.at_ms * 1000, self._lose_cores)

    @property
    def widths(self) -> list[int]:
        return [record.spec.parallelism for record in self.facts.records if isinstance(record, Fence)]

    def _job(self, number: int, parallelism: int) -> tuple[JobGraph, JobSpec]:
        graph, spec = super()._job(number, parallelism)
        return graph, msgspec.structs.replace(spec, at_least=1, degrade_after_ms=DEGRADE_AFTER_MS)

    def _target_goes(self, _: None) -> None:
        self._sink_trouble_until_us = (self.lost.at_ms + 2 * DEGRADE_AFTER_MS) * 1000

    def _lose_cores(self, _: None) -> None:
        self.cores -= self.lost.count
        program = self._current()
        for task in self.sim.rng.sample(self._living(program), self.lost.count):
            self._lose_slot(program, task, kill=True)
        self.sim.after(self.lost.length_ms * 1000, self._cores_return)

    def _cores_return(self, _: None) -> None:
        self.cores += self.lost.count
        narrow = max(index for index, record in enumerate(self.facts.records) if isinstance(record, Fence))
        self.decided_meanwhile = sum(isinstance(each, Complete) for each in self.facts.records[narrow:])

    def _start_slot(self, program: Program, index: int, of: str = "", *, succeeds: bool = False) -> None:
        place = (program, index, of)
        if self._used < self.cores:
            super()._start_slot(*place, succeeds=succeeds)
        elif not any(each[0] is program and each[1:] == place[1:] for each in self._waiting):
            self._waiting.append(place)

    @property
    def _used(self) -> int:
        return sum(task.process.alive for program in self.programs for task in program.tasks)

    def _look_after(self) -> None:
        super()._look_after()
        while self._waiting and self._used < self.cores:
            super()._start_slot(*self._waiting.pop(0))


def cores_lost(schedule: Schedule, *, target_away: bool = False, coordinators_die: bool = False) -> CoresWorld:
    """A job that loses some cores early, until long after `degrade_after`.

    `target_away`: requests to the target fail from before the loss until after `degrade_after`. `coordinators_die`:
    about when the job goes on with fewer slots, while the job does, and when the cores return.
    """
    rng = random.Random(f"cores {schedule.seed}")
    lost = LostCores(rng.randrange(2_000, 4_000), 16_000, rng.randrange(1, schedule.parallelism))
    steady = replace(schedule, slot_timeout_ms=10_000, chaos_ms=40_000, bounded=False, timeout_ms=600_000)
    narrow_ms, back_ms = lost.at_ms + DEGRADE_AFTER_MS, lost.at_ms + lost.length_ms
    moments = [narrow_ms + rng.randrange(4_000), narrow_ms + 7_000, back_ms + rng.randrange(4_000)]
    return CoresWorld(steady, lost, target_away=target_away, deaths_ms=moments if coordinators_die else ())


_NOTICE_US = 8_000_000  # from the notice to the death of the host


class NoticeWorld(World):
    """The host of slot `leaver` gives notice at `at_ms`, and dies 8 s later."""

    def __init__(self, schedule: Schedule, at_ms: int, leaver: int) -> None:
        super().__init__(schedule)
        self.ended_before_death = False
        self._leaver = leaver
        self.sim.at(at_ms * 1000, self._notice)

    def _notice(self, _: None) -> None:
        self.generations = len(self.restored)
        (task,) = [each for each in self._living(self._current()) if each.index == self._leaver]
        assert task.slot is not None
        task.process.loop.call_soon(task.slot.leave_host)
        self.sim.after(_NOTICE_US, self._host_dies, task)

    def _host_dies(self, task: SlotTask) -> None:
        self.ended_before_death = not task.process.alive
        if task.process.alive:
            self._lose_slot(self._current(), task, kill=True)

    @property
    def restored(self) -> list[bool]:
        """Whether each generation began with the newest decided checkpoint after its sources had stopped."""
        return [record.reason.endswith("left a host") for record in self.facts.records if isinstance(record, Fence)]

    @property
    def replays(self) -> int:
        """Generations since the notice that read rows again."""
        return self.restored[self.generations :].count(False)


def host_leaves(schedule: Schedule) -> NoticeWorld:
    rng = random.Random(f"notice {schedule.seed}")
    quiet = replace(schedule, slot_timeout_ms=10_000, chaos_ms=20_000, bounded=False, timeout_ms=600_000)
    return NoticeWorld(quiet, rng.randrange(3_000, 5_000), rng.randrange(schedule.parallelism))


@dataclass(frozen=True)
class LostLink:
    """Packets between the hosts of slots 0 and 1 are lost from `at_ms` for `length_ms`; `ways`: both, there or back."""

    at_ms: int
    length_ms: int
    ways: str


class LinkWorld(World):
    """Records how long the link was lost when the next generation began, and when rows came after the link healed."""

    def __init__(self, schedule: Schedule, lost: LostLink) -> None:
        super().__init__(schedule)
        self.noticed_ms: int | None = None
        self.lost = lost
        self.conditions: set[str] = set()
        self.sim.at(lost.at_ms * 1000, self._lose)

    def _lose(self, _: None) -> None:
        places = {task.index: task.process.place for task in self._living(self._current())}
        pairs = [(places[0], places[1]), (places[1], places[0])]
        chosen = {"both": pairs, "there": pairs[:1], "back": pairs[1:]}[self.lost.ways]
        for pair in chosen:
            self.sim.network.clog(*pair)
        self.generations = self._fences
        self.sim.after(self.lost.length_ms * 1000, lambda _: [self.sim.network.unclog(*pair) for pair in chosen])

    @property
    def _fences(self) -> int:
        return sum(isinstance(record, Fence) for record in self.facts.records)

    def _look(self, program: Program, runner: JobRunner) -> None:
        super()._look(program, runner)
        if self.sim.now_us >= self.lost.at_ms * 1000:
            self.conditions.add(runner.status().condition)
            if self.noticed_ms is None and self._fences > self.generations:
                self.noticed_ms = self.sim.now_us // 1000 - self.lost.at_ms


class LinkOfMachines(LinkWorld):
    """Slots are processes of machines: no other host takes a slot."""

    @property
    def begun(self) -> int:
        return self._fences - self.generations

    def _job(self, number: int, parallelism: int) -> tuple[JobGraph, JobSpec]:
        graph, spec = super()._job(number, parallelism)
        return graph, msgspec.structs.replace(spec, carrier="processes")


def link_lost(schedule: Schedule, ways: str) -> LinkWorld:
    """A job whose slots 0 and 1 cannot reach each other for 15 s."""
    return LinkWorld(_steady(schedule), LostLink(4_000, 15_000, ways))


def link_of_machines_lost(schedule: Schedule, ways: str) -> LinkOfMachines:
    """The link is lost long enough for a second silence of the whole limit, while the slots connect."""
    return LinkOfMachines(_steady(schedule), LostLink(4_000, 24_000, ways))


def _steady(schedule: Schedule) -> Schedule:
    return replace(schedule, slot_timeout_ms=10_000, chaos_ms=35_000, bounded=False, timeout_ms=600_000)
