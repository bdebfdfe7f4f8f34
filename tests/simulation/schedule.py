"""What goes wrong in one simulated run, and in what kind of job: drawn from the seed before anything runs.

A schedule is plain data: a list of actions with times and parameters. So a failing one can be printed, replayed, and
made smaller by leaving actions out (`shrink`). An action names its victim by number; the world takes it modulo what is
there.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from workload import GRAPHS

from barrier_runtime.slot.window import MAX_WINDOW_BYTES

ACTIONS: dict[str, int] = {  # kind -> weight
    "crash slot": 10,
    "crash two slots": 3,
    "stall slot": 8,
    "crash coordinator": 8,
    "stall coordinator": 6,
    "second coordinator": 4,
    "restart program": 4,
    "second program": 2,
    "replace slot twice": 4,
    "cut connection": 8,
    "half-open connection": 4,
    "clog": 6,
    "unclog": 3,
    "store faults": 10,
    "store outage": 4,
    "sink faults": 8,
    "trigger": 4,
    "crash everything": 2,
}


_TRANSFERS = 80  # of one source: what a run costs is mostly rows


@dataclass(frozen=True)
class Action:
    at_ms: int
    kind: str
    victim: int
    length_ms: int
    variant: int

    def __str__(self) -> str:
        return f"{self.at_ms:>6} ms  {self.kind} (victim {self.victim}, {self.length_ms} ms, variant {self.variant})"


@dataclass(frozen=True)
class Schedule:
    """One run: the job's shape, its options, and what happens to it."""

    seed: int
    parallelism: int
    graph: str
    bounded: bool
    splits: int
    count: int
    period_ms: int
    interval_ms: int
    min_pause_ms: int
    timeout_ms: int
    max_concurrent: int
    tolerable_failures: int
    retained: int
    slot_timeout_ms: int
    chaos_ms: int
    rough_network: bool
    standby: bool  # two daemons with leases from the start; else one coordinator, and others by accident
    aggregated: bool  # keyed state in columns and segments, not in rows
    unaligned: bool
    aligned_timeout_ms: int | None
    turn_ms: int  # that each turn of a slot's loop takes on top: rows wait in its queues and sockets
    window_bytes: int  # of a channel
    conditions_ignored: bool  # the store is one that ignores conditions: the job must be refused
    actions: tuple[Action, ...] = field(default=())

    def without(self, left_out: Sequence[int]) -> "Schedule":
        gone = set(left_out)
        return replace(self, actions=tuple(each for at, each in enumerate(self.actions) if at not in gone))


def draw(seed: int) -> Schedule:
    rng = random.Random(f"schedule {seed}")
    alignment = random.Random(f"alignment {seed}")
    unaligned = alignment.random() < 0.4
    chaos_ms = rng.choice((4_000, 8_000, 8_000, 15_000))
    period_ms = rng.choice((50, 100, 200))
    bounded = rng.random() < 0.7
    graph = rng.choice(GRAPHS)
    parallelism = rng.choice((1, 2, 2, 2, 3, 3, 4, 5))
    splits = rng.randint(1, parallelism + 1)
    return Schedule(
        seed=seed,
        parallelism=parallelism,
        graph=graph,
        bounded=bounded,
        splits=splits,
        count=max(4, min(_TRANSFERS // splits, int(chaos_ms * rng.choice((0.3, 0.8, 1.2)) / period_ms))),
        period_ms=period_ms,
        interval_ms=rng.choice((100, 200, 400, 800)),
        min_pause_ms=rng.choice((0, 0, 0, 100)),
        timeout_ms=rng.choice((500, 2_000, 10_000, 600_000)),
        max_concurrent=rng.choice((1, 1, 2, 3)),
        tolerable_failures=rng.choice((0, 0, 2, 1_000)),
        retained=rng.choice((1, 1, 2, 3)),
        slot_timeout_ms=rng.choice((1_000, 3_000, 10_000)),
        chaos_ms=chaos_ms,
        rough_network=rng.random() < 0.3,
        standby=rng.random() < 0.35,
        aggregated=random.Random(f"state {seed}").random() < 0.5,
        unaligned=unaligned,
        aligned_timeout_ms=alignment.choice((0, 0, 0, 5, 50)),
        turn_ms=alignment.choice((0, 2, 5, 10)) if unaligned else 0,
        window_bytes=alignment.choice((300, 2_000, MAX_WINDOW_BYTES)) if unaligned else MAX_WINDOW_BYTES,
        conditions_ignored=rng.random() < 0.01,
        actions=_actions(rng, chaos_ms),
    )


def _actions(rng: random.Random, chaos_ms: int) -> tuple[Action, ...]:
    """Some runs are calm, some are stormy; strikes come alone and in bursts."""
    kinds, weights = list(ACTIONS), list(ACTIONS.values())
    if rng.random() < 0.4:  # a run with few kinds of trouble reaches further into each
        kinds = rng.sample(kinds, rng.randint(1, 4))
        weights = [ACTIONS[kind] for kind in kinds]
    times: list[int] = []
    for _ in range(rng.choice((0, 2, 4, 6, 10, 16))):
        at = rng.randrange(200, chaos_ms)
        times.append(at)
        if rng.random() < 0.3:
            times += [at + rng.randrange(0, 300) for _ in range(rng.randint(1, 3))]
    return tuple(
        Action(
            at,
            rng.choices(kinds, weights)[0],
            rng.randrange(1_000),
            rng.choice((50, 300, 1_000, 3_000, 10_000, 60_000)),
            rng.randrange(1_000),
        )
        for at in sorted(times)
    )


def shrink(schedule: Schedule, fails: Callable[[Schedule], bool]) -> Schedule:
    """The schedule with every action left out that is not needed for it to fail (delta debugging, halves first)."""
    size = max(1, len(schedule.actions) // 2)
    while schedule.actions:
        smaller = False
        start = 0
        while start < len(schedule.actions):
            candidate = schedule.without(range(start, start + size))
            if fails(candidate):
                schedule, smaller = candidate, True
            else:
                start += size
        if size == 1 and not smaller:
            return schedule
        size = max(1, size // 2)
    return schedule
