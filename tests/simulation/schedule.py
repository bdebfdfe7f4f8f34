"""The schedule of a simulated run: kind of job and faults, drawn from the seed before the run.

A schedule is plain data: a list of actions with times and parameters. A failing schedule can be printed, replayed, and
made smaller by leaving actions out (`shrink`). An action names its victim by a number modulo the existing victims.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from events import COUNTED, EVENT_GRAPHS, EXPIRING, WALL_TIMERS, WALL_WINDOWS, EventTimes
from hanging import Hang
from joins import JOIN_KINDS, JOINED, Joined
from open_checkpoints import STRIKES
from workload import GRAPHS, RULED, SIDE_GRAPHS

from barrier_runtime.runtime.network.flow_control import MAX_WINDOW_BYTES
from barrier_runtime.testing.simulation.loop import WALL_START_NS

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
AIMED: dict[str, int] = {  # strikes that wait for a certain moment, so that rare cases are reached -> weight
    "take over": 3,
    "take over from who deletes": 4,
    "deaf slot": 3,
    "committer outlives its program": 3,
    "rescale behind": 2,
}
OF_QUEUES = ("crash with rows in flight",)  # strikes only for jobs whose barriers overtake rows
OF_UPLOADS = ("uploads are slow",)  # only for jobs whose checkpoints may take longer than two uploads

STRIKES_OF_DRAINS = (  # when …
    "told",  # … a slot hears that its sources end
    "decided",  # … the last checkpoint is decided
    "asked",  # … the user requests the drain
    "checkpointing",  # … a checkpoint is under way
)

_HOW = ("inner", "left", "left", "right", "full", "full", "semi", "anti")  # of interval joins
_TRANSFERS = 80  # of a source; the cost of a run is mostly rows
_EVENTS = 100
_TURNS_OF_A_CHECKPOINT = 200  # turns of a slot's loop before a checkpoint may expire
_CHECKPOINTS = 50  # of a run before the calm; more only if the faults need the time
_SHORTEST_MS = 3_000
START_NS = WALL_START_NS + 500_000_000  # when the first record is due


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
    """A run: shape and options of the job, and its faults."""

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
    standby: bool  # two daemons with leases from the start; otherwise further coordinators only by accident
    aggregated: bool  # keyed state is in columns and segments, not in rows
    collected: bool  # state in rows is in lists and maps, not in single values
    unaligned: bool
    aligned_timeout_ms: int | None
    turn_ms: int  # additional time of each turn of a slot's loop: rows wait in queues and sockets
    window_bytes: int  # of a channel
    conditions_ignored: bool  # the store ignores conditions: the job must be refused
    burst_ms: int = 1  # records arrive together at multiples of this time
    batch_rows: int = 8  # at most, of one poll
    elements_per_step: int = 16  # per turn of a subtask: few elements leave rows in queues, which barriers overtake
    rounds: int = 4  # at most, per pass over the subtasks of a slot; virtual time stands still in a pass, so a slow
    # machine, on which a round takes the time of a pass, has to be drawn
    chunk_rows: int = 0  # rows in flight per turn, with small frames; 0: as in production
    encoded_rows: int | None = None  # rows encoded before the barrier; None: as in production
    clocks_jump: bool = False  # wall clocks of processes are set now and then
    target: str = (
        "files"  # of the bank's sink "out": files, topic (Kafka), tokens, upserts (Redis), staged (PostgreSQL)
    )
    stable: bool = False  # rows of the bank are stored before the upserts, which get them after the decision
    latest: bool = False  # of the bank's rows only the last one of each account goes to the upserts
    latency_ms: int = 1  # rows wait so long for others
    combiner: Literal["on", "off", "chosen"] = "chosen"  # of the sending subtasks
    queue: bool = False  # the bank's transfers are messages of RabbitMQ
    twins: bool = False  # two jobs of the same name, with checkpoints of their own, write into the same target
    rolls: bool = False  # files of the sink "out" grow over checkpoints
    hang: Hang | None = None  # of a source or sink
    events: EventTimes | None = None  # a job in event time; None: the bank
    joined: Joined | None = None  # the job in event time joins two streams
    lookups: tuple[bool, bool, int, int] | None = None  # of the bank's legs: see `lookups.Owners`
    begins_us: int = 300  # longest delay of blocking work; a late begin puts replies between a snapshot and its upload
    held: int | None = None  # entries in memory per table of columns; None: as in production
    shares_files: bool = False  # many checkpoints share a file of state, and no slow commit delays checkpoints
    at_barriers: bool = False  # rules become valid after barriers
    rescaled_every: int = 5  # starts of the program per start at another parallelism
    savepoints: tuple[int, ...] = ()  # times of requests, ms
    rescales: tuple[tuple[int, int], ...] = ()  # (ms, parallelism) of requests to rescale the running job
    replaces: tuple[tuple[int, str], ...] = ()  # (ms, fault of the new program) of requests to replace
    drained_ms: int | None = None  # time of the drain; the job may be started again afterwards
    drain_struck: tuple[str, ...] = ()  # of STRIKES_OF_DRAINS
    stopped_ms: int | None = None  # time of a stop, amid all faults
    last_savepoint: bool = False  # the stop takes a savepoint
    sweeps: tuple[int, int] | None = None  # ms between sweeps, and minimum age of an orphan; None: as in production
    actions: tuple[Action, ...] = field(default=())

    @property
    def story(self) -> str:
        if any(action.kind == "hears in steps" for action in self.actions):
            return "open"
        if self.events is not None:
            return "events" if self.joined is None else "joins"
        if self.queue:
            return "queue"
        if self.twins or self.hang is not None:
            return "twins" if self.twins else "hanging"
        if self.graph in SIDE_GRAPHS:
            return "sides"
        if self.graph == RULED:
            return "rules"
        if self.lookups is not None:
            return "lookups"
        if self.stable or self.latest:
            return "stable" if self.stable else "latest"
        return "bank" if self.target == "files" else self.target

    def without(self, left_out: Sequence[int]) -> "Schedule":
        gone = set(left_out)
        return replace(self, actions=tuple(each for at, each in enumerate(self.actions) if at not in gone))


def draw(seed: int) -> Schedule:
    """Draws the schedule of a seed. Each part has its own generator, so a new part changes no other part."""
    schedule = _bounded(_timely(_draw_open_checkpoints(_draw_corners(_draw_kind(seed)))))
    parts = (
        _draw_savepoints,
        _draw_rescales,
        _draw_replaces,
        _draw_draining,
        _draw_stop,
        _draw_drift,
        _draw_memory,
        _draw_overtaken,
        _draw_encoding,
        _draw_slow_uploads,
        _draw_moved_files,
        _draw_wall_clocks,
    )
    for drawn in parts:
        schedule = drawn(schedule)
    return schedule


def _draw_memory(schedule: Schedule) -> Schedule:
    """In some jobs most entries of tables of columns do not fit in memory."""
    rng = random.Random(f"memory {schedule.seed}")
    if rng.random() > 0.4:
        return schedule
    return replace(schedule, held=rng.choice((0, 1, 2, 5)))


def _draw_overtaken(schedule: Schedule) -> Schedule:
    """In half of the bank's jobs with overtaking barriers, batches of several rows wait everywhere.

    Slots crash just when a checkpoint holds such batches: the next generation cuts the batches into chunks."""
    rng = random.Random(f"overtaken {schedule.seed}")
    if schedule.story != "bank" or not schedule.unaligned or schedule.conditions_ignored or rng.random() > 0.5:
        return schedule
    strikes = [
        Action(rng.randrange(300, schedule.chaos_ms), OF_QUEUES[0], rng.randrange(1_000), 50, rng.randrange(1_000))
        for _ in range(rng.randint(2, 4))
    ]
    return _timely(
        replace(
            schedule,
            burst_ms=rng.choice((300, 800)),
            batch_rows=7,
            elements_per_step=1,
            rounds=1,
            chunk_rows=rng.choice((1, 2, 3)),
            aligned_timeout_ms=0,
            turn_ms=rng.choice((10, 20)),
            window_bytes=MAX_WINDOW_BYTES,
            actions=tuple(sorted([*schedule.actions, *strikes], key=lambda action: action.at_ms)),
        )
    )


def _draw_encoding(schedule: Schedule) -> Schedule:
    """Some of the bank's jobs encode rows of files on arrival, from a few rows on."""
    rng = random.Random(f"encoding {schedule.seed}")
    if schedule.story not in ("bank", "twins") or schedule.rolls or rng.random() > 0.4:
        return schedule
    return replace(schedule, encoded_rows=rng.choice((1, 2, 3)))


def _draw_slow_uploads(schedule: Schedule) -> Schedule:
    """In some of the bank's jobs staging takes longer than the checkpoint interval, and checkpoints complete."""
    rng = random.Random(f"slow uploads {schedule.seed}")
    ends = schedule.timeout_ms < 10_000 or schedule.conditions_ignored
    if schedule.story != "bank" or schedule.rolls or ends or rng.random() > 0.4:
        return schedule
    times = sorted(rng.randrange(100, schedule.chaos_ms // 2) for _ in range(rng.randint(1, 3)))
    strikes = [Action(at_ms, OF_UPLOADS[0], 0, rng.choice((1_500, 2_500)), 0) for at_ms in times]
    actions = tuple(sorted([*schedule.actions, *strikes], key=lambda action: action.at_ms))
    return replace(schedule, slot_timeout_ms=max(3_000, schedule.slot_timeout_ms), actions=actions)


def _draw_moved_files(schedule: Schedule) -> Schedule:
    """Some of the bank's jobs with growing files are rescaled several times.

    Rows of open files move, and newer rows of their keys may go to another subtask."""
    rng = random.Random(f"moved files {schedule.seed}")
    if schedule.story != "bank" or not schedule.rolls or schedule.conditions_ignored or rng.random() > 0.4:
        return schedule
    restarts = [
        Action(rng.randrange(800, schedule.chaos_ms), "restart program", 0, 50, 2 * rng.randrange(1, 10))
        for _ in range(rng.randint(2, 4))
    ]
    return replace(
        schedule,
        rescaled_every=2,
        interval_ms=min(200, schedule.interval_ms),
        timeout_ms=max(10_000, schedule.timeout_ms),
        actions=tuple(sorted([*schedule.actions, *restarts], key=lambda action: action.at_ms)),
    )


def _draw_wall_clocks(schedule: Schedule) -> Schedule:
    """Rescales most jobs with windows by the wall clock, with different clocks on their hosts."""
    rng = random.Random(f"wall clocks {schedule.seed}")
    if schedule.graph != WALL_WINDOWS or schedule.events is None or rng.random() > 0.7:
        return schedule
    restarts = [
        Action(rng.randrange(800, schedule.chaos_ms), "restart program", 0, 50, 2 * rng.randrange(10))
        for _ in range(rng.randint(2, 4))
    ]
    return replace(
        schedule,
        clocks_jump=True,
        events=replace(schedule.events, clocks_jump=True),
        rescaled_every=2,
        interval_ms=min(200, schedule.interval_ms),
        timeout_ms=max(10_000, schedule.timeout_ms),
        actions=tuple(sorted([*schedule.actions, *restarts], key=lambda action: action.at_ms)),
    )


def _draw_drift(schedule: Schedule) -> Schedule:
    """In some jobs in event time splits wait for a slower split, which pauses from the start or later."""
    rng, events = random.Random(f"drift {schedule.seed}"), schedule.events
    if events is None or events.splits < 2 or not events.bounded or rng.random() > 0.4:
        return schedule
    pausing = rng.choice((None, 0, events.count // 3))
    drift_ms = events.period_ms * rng.choice((1, 4))
    waiting = replace(events, idle_ms=None, pause_at=pausing, max_drift_ms=drift_ms)
    return replace(schedule, events=waiting)


def _draw_draining(schedule: Schedule) -> Schedule:
    """Drains some unbounded jobs: all rows read so far must be visible and windows must fire, despite faults.

    Most jobs are struck during the drain; some drains take a savepoint."""
    rng = random.Random(f"draining {schedule.seed}")
    ends = schedule.bounded or schedule.queue or schedule.twins or schedule.hang is not None
    if schedule.conditions_ignored or ends or rng.random() > 0.5:
        return schedule
    drained_ms = rng.randrange(schedule.chaos_ms // 2, schedule.chaos_ms)
    struck = tuple(moment for moment in STRIKES_OF_DRAINS if rng.random() < 0.5)
    return replace(schedule, drained_ms=drained_ms, drain_struck=struck, last_savepoint=rng.random() < 0.6)


def _draw_stop(schedule: Schedule) -> Schedule:
    """Stops half of the unbounded jobs with a savepoint, some of them amid faults."""
    rng = random.Random(f"stop {schedule.seed}")
    ends = schedule.bounded or schedule.drained_ms is not None or schedule.twins or schedule.hang is not None
    if schedule.queue or schedule.conditions_ignored or ends or rng.random() > 0.5:
        return schedule
    early = rng.randrange(schedule.chaos_ms // 2, schedule.chaos_ms) if rng.random() < 0.5 else None
    return replace(schedule, stopped_ms=early, last_savepoint=True)


def _draw_savepoints(schedule: Schedule) -> Schedule:
    rng = random.Random(f"savepoints {schedule.seed}")
    if schedule.events is not None or schedule.queue or schedule.conditions_ignored or rng.random() > 0.35:
        return schedule
    moments = tuple(sorted(rng.randrange(schedule.chaos_ms) for _ in range(rng.randint(1, 4))))
    return replace(schedule, savepoints=moments)


def _draw_rescales(schedule: Schedule) -> Schedule:
    rng = random.Random(f"rescales {schedule.seed}")
    if schedule.conditions_ignored or rng.random() > 0.35:
        return schedule
    moments = sorted(rng.randrange(schedule.chaos_ms) for _ in range(rng.randint(1, 5)))
    return replace(schedule, rescales=tuple((at_ms, rng.randint(1, 5)) for at_ms in moments))


def _draw_replaces(schedule: Schedule) -> Schedule:
    """Replaces the program of every third job, with or without rescales."""
    rng = random.Random(f"replaces {schedule.seed}")
    if schedule.conditions_ignored or rng.random() > 0.35:
        return schedule
    moments = sorted(rng.randrange(schedule.chaos_ms) for _ in range(rng.randint(1, 5)))
    kinds = ("well",) * 6 + ("unwell",) * 2 + ("broken", "unfit")
    return replace(schedule, replaces=tuple((at_ms, rng.choice(kinds)) for at_ms in moments))


def _timely(schedule: Schedule) -> Schedule:
    """Gives aligned checkpoints enough time for the rows and timers before their barriers, however slow loops are.

    Otherwise every generation would end like the previous generation, without progress."""
    events = schedule.events
    turns = _TURNS_OF_A_CHECKPOINT + (0 if events is None else events.count * events.decoys)
    return replace(schedule, timeout_ms=max(schedule.timeout_ms, turns * schedule.turn_ms))


def _bounded(schedule: Schedule) -> Schedule:
    """Shortens runs with many checkpoints and puts all faults into the shorter time.

    Checkpoints are half of the cost of a run, and the hundredth checkpoint finds no more than the fortieth."""
    chaos_ms = min(schedule.chaos_ms, max(_SHORTEST_MS, _CHECKPOINTS * schedule.interval_ms))
    if chaos_ms == schedule.chaos_ms:
        return schedule
    shorter = chaos_ms / schedule.chaos_ms
    actions = tuple(replace(each, at_ms=int(each.at_ms * shorter)) for each in schedule.actions)
    return replace(schedule, chaos_ms=chaos_ms, actions=actions)


def _draw_kind(seed: int) -> Schedule:
    schedule = _draw_bank(seed)
    if schedule.unaligned:
        schedule = _draw_queues(schedule)
    if random.Random(f"clocks {seed}").random() < 0.2:
        schedule = replace(schedule, clocks_jump=True)
    pieces = random.Random(f"pieces {seed}")
    schedule = replace(schedule, chunk_rows=pieces.choice((1, 2, 3)) if pieces.random() < 0.4 else 0)
    kind = random.Random(f"kind {seed}").random()
    if kind < 0.3:
        return _draw_joins(_draw_events(schedule))
    if kind > 0.93:
        graph = random.Random(f"queue {seed}").choice(("one-shuffle", "two-shuffles"))
        queued = replace(schedule, queue=True, bounded=False, graph=graph, splits=1)
        return replace(_draw_target(queued, "queue"), target="files")
    for target, upto in _TARGETS.items():
        if kind < upto:
            drawn = _draw_target(schedule, target)
            if target == "upserts":
                return _draw_latest(_draw_stable(_draw_troubled(replace(drawn, graph="one-shuffle", splits=1))))
            return _draw_troubled(drawn) if target == "staged" else drawn
    if kind < _TWINS:
        return _draw_twins(schedule)
    return _draw_hang(schedule) if kind < _HANGING else _draw_lookups(_draw_sides(schedule))


def _draw_bank(seed: int) -> Schedule:
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
        collected=random.Random(f"collections {seed}").random() < 0.5,
        rolls=random.Random(f"rolling files {seed}").random() < 0.35,
        unaligned=unaligned,
        aligned_timeout_ms=alignment.choice((0, 0, 0, 5, 50)),
        turn_ms=alignment.choice((0, 2, 5, 10)) if unaligned else 0,
        rounds=random.Random(f"rounds {seed}").choice((1, 4)),
        window_bytes=alignment.choice((300, 2_000, MAX_WINDOW_BYTES)) if unaligned else MAX_WINDOW_BYTES,
        conditions_ignored=rng.random() < 0.01,
        actions=_actions(rng, chaos_ms),
    )


_TARGETS = {"topic": 0.42, "tokens": 0.5, "upserts": 0.56, "staged": 0.63}
_TWINS, _HANGING = 0.67, 0.71


def _draw_target(schedule: Schedule, target: str) -> Schedule:
    """Makes the target unreachable more often: commits fall behind, and a successor finds many pending commits."""
    rng = random.Random(f"target {schedule.seed}")
    troubles = tuple(
        Action(
            rng.randrange(300, schedule.chaos_ms),
            "store faults" if target == "tokens" and rng.random() < 0.6 else "sink faults",
            0,
            rng.choice((1_000, 3_000, 8_000)),
            rng.randrange(2),
        )
        for _ in range(rng.randint(0, 3))
    )
    actions = tuple(sorted([*schedule.actions, *troubles], key=lambda action: action.at_ms))
    return replace(schedule, target=target, actions=actions)


def _draw_troubled(schedule: Schedule) -> Schedule:
    """Strikes processes while the server is unreachable: requests of zombies and successors arrive together."""
    rng = random.Random(f"troubled {schedule.seed}")
    actions = list(schedule.actions)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(300, schedule.chaos_ms)
        actions.append(Action(at, "sink faults", 0, rng.choice((3_000, 8_000)), rng.randrange(2)))
        if rng.random() < 0.6:
            kind = rng.choice(("restart program", "crash slot", "replace slot twice", "stall slot"))
            actions.append(Action(at + rng.randrange(200, 3_000), kind, rng.randrange(9), 3_000, 2 * rng.randrange(9)))
    return replace(schedule, actions=tuple(sorted(actions, key=lambda action: action.at_ms)))


def _draw_stable(schedule: Schedule) -> Schedule:
    """Some jobs with upserts store their rows first, and are restarted at another parallelism."""
    rng = random.Random(f"stable {schedule.seed}")
    if rng.random() > 0.5:
        return schedule
    restarts = [
        Action(rng.randrange(500, schedule.chaos_ms), "restart program", 0, 50, 2 * rng.randrange(1, 10))
        for _ in range(rng.randint(1, 4))
    ]
    actions = tuple(sorted([*schedule.actions, *restarts], key=lambda action: action.at_ms))
    interval_ms = max(200, schedule.interval_ms)  # so that rows wait
    return replace(schedule, stable=True, rescaled_every=2, interval_ms=interval_ms, actions=actions)


_MODES: tuple[Literal["on", "off", "chosen"], ...] = ("on", "off", "chosen")  # of combiners


def _draw_latest(schedule: Schedule) -> Schedule:
    """Some other jobs with upserts write only the last row of each account, which often waits for later rows."""
    rng = random.Random(f"latest {schedule.seed}")
    if schedule.stable or rng.random() > 0.6:
        return schedule
    latency_ms = rng.choice((1, 30, 200, 500))
    return replace(
        schedule, latest=True, latency_ms=latency_ms, combiner=rng.choice(_MODES), aggregated=True, collected=False
    )


def _draw_sides(schedule: Schedule) -> Schedule:
    """Some jobs of the bank have side outputs.

    Rows of side outputs in flight look like other rows in flight, so they go by key only in jobs without such rows."""
    rng = random.Random(f"sides {schedule.seed}")
    if rng.random() > 0.45:
        return _draw_rules(schedule)
    graph = rng.choice(SIDE_GRAPHS[:2] if schedule.unaligned else SIDE_GRAPHS)
    return replace(schedule, graph=graph, aggregated=False)


def _draw_rules(schedule: Schedule) -> Schedule:
    """Some jobs have rules that every subtask copies; most of these restart at another parallelism."""
    rng = random.Random(f"rules {schedule.seed}")
    if rng.random() > 0.3:
        return schedule
    every = rng.choice((2, 5))
    restarts = [
        Action(rng.randrange(500, schedule.chaos_ms), "restart program", 0, 50, every * rng.randrange(10))
        for _ in range(rng.randint(0, 3))
    ]
    actions = tuple(sorted([*schedule.actions, *restarts], key=lambda action: action.at_ms))
    at_barriers = random.Random(f"barriers {schedule.seed}").random() < 0.5
    drawn = replace(schedule, graph=RULED, aggregated=False, rescaled_every=every, actions=actions)
    return replace(drawn, at_barriers=at_barriers)


def _draw_lookups(schedule: Schedule) -> Schedule:
    """Looks legs up before counting. A stopped job would leave some legs in flight, so the source ends."""
    rng = random.Random(f"lookups {schedule.seed}")
    if schedule.graph in (*SIDE_GRAPHS, RULED) or not schedule.bounded or rng.random() > 0.4:
        return schedule
    lookups = rng.random() < 0.5, rng.random() < 0.3, rng.choice((1, 4, 20)), rng.choice((2, 40, 250))
    begins_us = random.Random(f"late uploads {schedule.seed}").choice((300, 60_000, 200_000))
    return replace(schedule, lookups=lookups, begins_us=begins_us)


def _draw_twins(schedule: Schedule) -> Schedule:
    """Restarts each twin while decided rows of the other are not yet visible. Each job has half the rows."""
    rng = random.Random(f"twins {schedule.seed}")
    restarts = [
        Action(rng.randrange(500, schedule.chaos_ms), rng.choice(("restart program", "crash slot")), 0, 50, variant)
        for variant in range(rng.randint(2, 5))
    ]
    drawn = _draw_target(schedule, "files")
    actions = tuple(sorted([*drawn.actions, *restarts], key=lambda action: action.at_ms))
    return replace(
        drawn,
        twins=True,
        parallelism=min(3, schedule.parallelism),
        count=max(4, schedule.count // 2),
        conditions_ignored=False,
        actions=actions,
    )


def _draw_hang(schedule: Schedule) -> Schedule:
    """A source or sink hangs from the start or when it is opened again, mostly longer than anything else takes."""
    rng = random.Random(f"hang {schedule.seed}")
    from_ms = rng.choice((0, 0, rng.randrange(schedule.chaos_ms)))
    until_ms = from_ms + rng.choice((8_000, 20_000, 40_000, 90_000))
    actions = schedule.actions
    if from_ms:
        opened = [Action(from_ms + 100, rng.choice(("crash slot", "restart program")), rng.randrange(9), 50, 1)]
        actions = tuple(sorted([*actions, *opened], key=lambda action: action.at_ms))
    hang = Hang(rng.choice(("a", "out")), from_ms, until_ms)
    return replace(schedule, hang=hang, conditions_ignored=False, actions=actions)


def _draw_queues(schedule: Schedule) -> Schedule:
    """Rows arrive faster than slots process them, for a while: barriers overtake rows."""
    rng = random.Random(f"queues {schedule.seed}")
    burst_ms = rng.choice((1, 300, 300, 800))
    return replace(
        schedule,
        burst_ms=burst_ms,
        batch_rows=8 if burst_ms == 1 else rng.choice((1, 2, 7)),
        elements_per_step=16 if burst_ms == 1 else 1,
        rounds=schedule.rounds if burst_ms == 1 else 1,
        turn_ms=schedule.turn_ms if burst_ms == 1 else rng.choice((2, 10, 20)),
    )


def _draw_events(schedule: Schedule) -> Schedule:
    rng = random.Random(f"events {schedule.seed}")
    splits = rng.choice((1, 2, 2, 3))
    period_ms = schedule.period_ms
    count = max(8, min(_EVENTS // splits, schedule.count))
    pauses = rng.random() < 0.4 and (splits > 1 or schedule.bounded)
    bound_ms = period_ms * rng.choice((0, 1, 3))
    times = EventTimes(
        splits=splits,
        count=count,
        start_ms=START_NS // 1_000_000,
        period_ms=period_ms,
        bounded=schedule.bounded,
        window_ms=period_ms * rng.choice((2, 3, 5, 8)),
        bound_ms=bound_ms,
        disorder_ms=bound_ms + period_ms * rng.choice((0, 0, 3, 8)),
        idle_ms=rng.choice((600, 1_500)) if pauses else rng.choice((None, None, 1_500)),
        pause_at=rng.randrange(count) if pauses else None,
        pause_ms=rng.choice((1_000, 3_000)),
        gap_ms=period_ms * rng.choice((2, 4, 12)),
        within_ms=rng.choice((None, period_ms * 4, period_ms * 16)),
        text_keys=rng.random() < 0.3,
        burst_ms=min(300, schedule.burst_ms),
        batch_rows=schedule.batch_rows,
        slide_ms=period_ms if random.Random(f"slide {schedule.seed}").random() < 0.3 else None,
        lateness_ms=period_ms * random.Random(f"lateness {schedule.seed}").choice((0, 0, 0, 2, 6)),
        window_gap_ms=min(400, period_ms * random.Random(f"gap {schedule.seed}").choice((1, 2, 4))),
        gap_lateness_ms=period_ms * random.Random(f"gap lateness {schedule.seed}").choice((0, 0, 2, 8)),
        gap_early_rows=random.Random(f"gap early {schedule.seed}").choice((0, 0, 1, 3)),
        clocks_jump=schedule.clocks_jump,
        gaps_of_wall_clock=random.Random(f"gaps of wall clock {schedule.seed}").random() < 0.4,
        decoys=random.Random(f"decoys {schedule.seed}").choice((0, 0, 60)),
        twice=random.Random(f"twice {schedule.seed}").random() < 0.3,
    )
    rescaled_every = rng.choice((2, 5))
    expires = random.Random(f"expiring {schedule.seed}").random() < 0.6
    actions = schedule.actions
    if rng.random() < 0.5:
        rescalings = [
            Action(rng.randrange(500, schedule.chaos_ms), "restart program", 0, 50, rescaled_every * rng.randrange(10))
            for _ in range(rng.randint(1, 4))
        ]
        actions = tuple(sorted([*actions, *rescalings], key=lambda action: action.at_ms))
    graph = rng.choice(EVENT_GRAPHS)
    if random.Random(f"gaps {schedule.seed}").random() < 0.25:
        graph = "gaps"
    elif graph == "sessions" and expires:
        graph = EXPIRING
    elif graph == "windows" and random.Random(f"lists {schedule.seed}").random() < 0.3:
        graph, times = EXPIRING, _out_of_order(times)
    elif graph == "windows" and random.Random(f"wall timers {schedule.seed}").random() < 0.5:
        graph = WALL_TIMERS
    elif graph == "windows" and random.Random(f"wall windows {schedule.seed}").random() < 0.5:
        graph = WALL_WINDOWS
    elif graph == "unique" and random.Random(f"counted {schedule.seed}").random() < 0.5:
        graph = COUNTED
    return replace(
        schedule,
        graph=graph,
        splits=splits,
        count=count,
        events=times,
        combiner=random.Random(f"combiner {schedule.seed}").choice(_MODES),
        rescaled_every=rescaled_every,
        actions=actions,
    )


def _out_of_order(times: EventTimes) -> EventTimes:
    """Several events of a key arrive within a TTL, and not in the order of their times."""
    ttl_ms = times.period_ms * 12
    return replace(times, gap_ms=ttl_ms, bound_ms=times.period_ms, disorder_ms=ttl_ms // 2)


def _draw_joins(schedule: Schedule) -> Schedule:
    """Some jobs join two streams, with half of the splits per side; these jobs are rescaled more often."""
    assert schedule.events is not None
    rng = random.Random(f"joins {schedule.seed}")
    if rng.random() > 0.35:
        return schedule
    period_ms, splits = schedule.period_ms, rng.choice((2, 2, 4))
    count = max(8, min(_EVENTS // splits, schedule.count))
    pause_at = schedule.events.pause_at
    if pause_at is not None:
        pause_at %= count
    kind = rng.choice(JOIN_KINDS)
    lower_ms = period_ms * rng.choice((-4, -2, 0, 0, 1))
    joined = Joined(
        kind,
        rng.choice(("left", "left", "inner") if kind in ("as-of", "table") else _HOW),
        lower_ms,
        lower_ms + period_ms * rng.choice((0, 2, 5)),
        rng.choice((None, 0, period_ms * 2, period_ms * 6)),
        rng.random() < 0.6,
    )
    events = replace(schedule.events, splits=splits, count=count, pause_at=pause_at)
    restarts = [
        Action(rng.randrange(500, schedule.chaos_ms), "restart program", 0, 50, 2 * rng.randrange(10))
        for _ in range(rng.randint(0, 2))
    ]
    actions = tuple(sorted([*schedule.actions, *restarts], key=lambda action: action.at_ms))
    return replace(
        schedule,
        graph=JOINED,
        splits=splits,
        count=count,
        events=events,
        joined=joined,
        rescaled_every=2,
        actions=actions,
    )


def _draw_corners(schedule: Schedule) -> Schedule:
    """Adds aimed strikes to the other actions, with options under which they matter."""
    rng = random.Random(f"corners {schedule.seed}")
    if rng.random() < 0.3:
        schedule = replace(schedule, sweeps=(rng.choice((300, 2_000)), rng.choice((0, 1_000))))
        if rng.random() < 0.6:
            schedule = _overlapping(schedule)
    if rng.random() < 0.5:
        return schedule
    weights = {**AIMED, "rescale behind": 12 if schedule.events is not None and schedule.unaligned else 1}
    kinds = rng.choices(list(weights), list(weights.values()), k=rng.choice((1, 1, 2, 3)))
    if "deaf slot" in kinds:
        schedule = _overlapping(schedule)
    if "rescale behind" in kinds and schedule.events is not None and schedule.unaligned:
        schedule = _rescaled_behind(schedule)
    lives_ms = 500 + schedule.count * schedule.period_ms if schedule.bounded else schedule.chaos_ms
    aimed = [
        Action(
            rng.randrange(800, max(1_000, min(lives_ms, schedule.chaos_ms))),
            kind,
            rng.randrange(1_000),
            rng.choice((300, 1_000, 3_000, 6_000)),
            rng.randrange(1_000),
        )
        for kind in kinds
    ]
    actions = tuple(sorted([*schedule.actions, *aimed], key=lambda action: action.at_ms))
    return replace(schedule, actions=actions)


def _draw_open_checkpoints(schedule: Schedule) -> Schedule:
    """In some jobs checkpoints stay open while others are dropped, and a sweep follows each checkpoint."""
    rng = random.Random(f"open checkpoints {schedule.seed}")
    if (
        schedule.unaligned
        or schedule.conditions_ignored
        or rng.random() > (0.15 if schedule.story in ("events", "joins", "bank") else 0.3)
    ):
        return schedule
    sweeps, timeout_ms = rng.choice((schedule.sweeps, (50, 0))), max(2_000, schedule.timeout_ms)
    schedule = replace(_overlapping(schedule), max_concurrent=6, sweeps=sweeps, timeout_ms=timeout_ms)
    kinds = rng.choices(STRIKES, k=rng.randint(1, 3))
    if schedule.events is not None or schedule.queue or schedule.twins or schedule.hang is not None:
        kinds = [STRIKES[0]]
    elif "hears in steps" in kinds:
        splits = 1 if schedule.target == "upserts" else rng.randint(1, 2)
        schedule = replace(_with_an_ended_source(_bounded(schedule), splits, rng.randint(2, 4)), max_concurrent=12)
        if random.Random(f"shared files {schedule.seed}").random() < 0.7:
            schedule = replace(schedule, aggregated=False, shares_files=True)  # segments are merged too soon
    added = [
        Action(rng.randrange(600, 1_500), kind, rng.randrange(1_000), rng.choice((1_000, 3_000)), 0) for kind in kinds
    ]
    actions = tuple(sorted([*schedule.actions, *added], key=lambda action: action.at_ms))
    return replace(schedule, actions=actions)


def _with_an_ended_source(schedule: Schedule, splits: int, parallelism: int) -> Schedule:
    """Leaves a slot without split, without other faults in the first seconds: barriers reach it only by channels."""
    later = tuple(action for action in schedule.actions if action.at_ms > 1_700)
    return replace(
        schedule,
        bounded=True,
        parallelism=max(parallelism, splits + 1),
        splits=splits,
        count=60,
        period_ms=40,  # so that state changes between any two checkpoints
        slot_timeout_ms=max(3_000, schedule.slot_timeout_ms),
        actions=later,
    )


def _rescaled_behind(schedule: Schedule) -> Schedule:
    """Some key groups of a subtask are ahead of others, and rows arrive that are late only for those ahead."""
    assert schedule.events is not None
    rng = random.Random(f"behind {schedule.seed}")
    period_ms, count = 50, _EVENTS
    events = replace(
        schedule.events,
        splits=2,  # half of the slots have no source and delay no other slot when they fall behind
        period_ms=period_ms,
        count=count,
        bounded=False,
        window_ms=period_ms * 2,
        slide_ms=None,
        bound_ms=0,
        disorder_ms=period_ms * rng.choice((8, 16)),
        pause_at=None,
        batch_rows=1,
        burst_ms=1,
    )
    graph = rng.choice(("windows", "windows", "windows-and-sessions", "unique"))
    return replace(
        schedule,
        graph=graph if schedule.joined is None else JOINED,
        parallelism=max(4, schedule.parallelism),
        splits=2,
        count=count,
        period_ms=period_ms,
        bounded=False,
        elements_per_step=1,
        rounds=1,
        aligned_timeout_ms=0,
        interval_ms=min(200, schedule.interval_ms),
        timeout_ms=max(10_000, schedule.timeout_ms),
        slot_timeout_ms=10_000,
        events=events,
    )


def _overlapping(schedule: Schedule) -> Schedule:
    """Checkpoints overlap and only the newest is kept: open checkpoints may need files of dropped ones."""
    if schedule.unaligned:  # unaligned checkpoints never overlap
        return schedule
    return replace(schedule, max_concurrent=3, retained=1, interval_ms=50, min_pause_ms=0, turn_ms=5)


def _actions(rng: random.Random, chaos_ms: int) -> tuple[Action, ...]:
    """Draws calm and stormy runs; strikes come alone and in bursts."""
    kinds, weights = list(ACTIONS), list(ACTIONS.values())
    if rng.random() < 0.4:  # a run with few kinds of faults covers each kind better
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
    """Returns the schedule without the actions that its failure does not need (delta debugging, halves first)."""
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
