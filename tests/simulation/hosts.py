"""Hosts and links of a simulated cluster that fail for long: no cores for a slot, and lost packets between two hosts.

A slot has a host of its own. `HostWorld` is the world of `world` with two more faults: a host is away, so that Spark
cannot start the slot before the host is back, and a link loses everything in one or both directions. Clogged bytes
arrive after the link has healed, as TCP sends lost segments again.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

import msgspec
from schedule import Schedule, draw
from world import World

from barrier_runtime.coordinator.log.records import Fence
from barrier_runtime.coordinator.server.runner import JobRunner
from barrier_runtime.coordinator.wire.messages import JobSpec
from barrier_runtime.graph.job_graph import JobGraph
from barrier_runtime.testing.simulation.cluster import Program

WAITS_MS = 10_000  # `resource_wait_timeout`


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


def link_lost(schedule: Schedule, ways: str) -> LinkWorld:
    """A job whose slots 0 and 1 cannot reach each other for 15 s."""
    steady = replace(schedule, slot_timeout_ms=10_000, chaos_ms=25_000, bounded=False, timeout_ms=600_000)
    return LinkWorld(steady, LostLink(4_000, 15_000, ways))
