"""Command line of the simulation: judge many seeds, replay a seed, plant one canary or all of them.

    python tests/simulation/simulate.py --seeds 500            as CI does
    python tests/simulation/simulate.py --seed 17 [--shrink]   replay seed 17 with its last events, or shrink it
    python tests/simulation/simulate.py --canary NAME          show that the simulation finds a planted bug
    python tests/simulation/simulate.py --canaries             plant every bug; exit status 0 only if all are found

Processes share the seeds; a seed has one thread and one virtual time, so sharing changes no result.
"""

import argparse
import contextlib
import gc
import itertools
import multiprocessing
import multiprocessing.pool
import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent
sys.path[:0] = [str(ROOT), str(ROOT.parent.parent)]

import commit_canaries  # noqa: E402, F401
import move_canaries  # noqa: E402, F401
import restore_canaries  # noqa: E402, F401
import text_canaries  # noqa: E402, F401
from canaries import CANARIES  # noqa: E402
from schedule import Schedule, draw, shrink  # noqa: E402
from spares import world_of  # noqa: E402

from barrier_runtime.coordinator.log.records import Complete, Fence, Lead  # noqa: E402

CANARY_SEEDS = 500
_FEW_SEEDS = 60
_SHOWN_EVENTS = 60


@dataclass(frozen=True)
class Verdict:
    """Result of one seed."""

    seed: int
    violations: tuple[tuple[str, str], ...]
    trace_hash: str
    virtual_s: float
    real_s: float
    steps: int
    checkpoints: int
    in_flight: int  # rows in flight in all checkpoints
    generations: int
    takeovers: int  # a new coordinator continued with surviving slots
    actions: int
    near_misses: dict[str, int]
    last_events: str


def judge(schedule: Schedule) -> Verdict:
    """Runs one schedule. An exception of the simulation itself is a violation, too."""
    began = time.perf_counter()
    world = world_of(schedule)
    try:
        world.run()
    except Exception as error:  # of any kind: somebody has to look at the seed
        world.violations.append(("Simulation", f"{type(error).__name__}: {error}\n{traceback.format_exc()}"))
    records = Counter(type(record) for record in world.facts.records)
    return Verdict(
        seed=schedule.seed,
        violations=tuple(world.violations),
        trace_hash=world.sim.trace_hash(),
        virtual_s=world.sim.now_s,
        real_s=time.perf_counter() - began,
        steps=world.sim.steps,
        checkpoints=records[Complete],
        in_flight=sum(len(decision.in_flight) for decision in world.facts.decisions),
        generations=records[Fence],
        takeovers=records[Lead],
        actions=world.actions_done,
        near_misses=dict(world.near_misses),
        last_events=world.sim.last_events(_SHOWN_EVENTS) if world.violations else "",
    )


def judge_seed(seed: int) -> Verdict:
    return judge(draw(seed))


def judge_with_canary(name: str, seed: int) -> Verdict:
    with CANARIES[name].plant():
        return judge(draw(seed))


def replay_command(seed: int, canary: str | None = None) -> str:
    return f"make sim SEED={seed}" + (f" CANARY={canary}" if canary else "")


def main() -> int:
    options = _parsed()
    if options.canaries:
        return _all_canaries(options.jobs)
    if options.seed is not None:
        return max([_one(seed, options.canary, options.shrink) for seed in options.seed])
    if options.canary is not None:
        return _one_canary(options.canary, options.jobs)
    seeds = range(options.first, options.first + options.seeds)
    return _many([seed for seed in seeds if options.story in (None, draw(seed).story)], options.jobs)


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The deterministic simulation of barrier-runtime.")
    parser.add_argument("--seeds", type=int, default=500)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, nargs="+", help="replay these")
    parser.add_argument("--story", help="of the seeds, those that are about this alone: bank, events, …")
    parser.add_argument("--shrink", action="store_true", help="leave out what the failure does not need")
    parser.add_argument("--canary", choices=sorted(CANARIES), metavar="NAME", help="plant this bug; it has to be found")
    parser.add_argument("--canaries", action="store_true")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    return parser.parse_args()


# ---------------------------------------------------------------- one seed


def _one(seed: int, canary: str | None, smaller: bool) -> int:
    with _planted(canary):
        schedule = draw(seed)
        verdict = judge(schedule)
        if verdict.violations and smaller:
            checker = verdict.violations[0][0]
            before = len(schedule.actions)
            schedule = shrink(schedule, lambda each: any(v[0] == checker for v in judge(each).violations))
            verdict = judge(schedule)
            print(f"{len(schedule.actions)} of {before} actions are needed")
    print(f"seed {seed}: {_shape(schedule)}")
    for action in schedule.actions:
        print(f"  {action}")
    print(
        f"{verdict.virtual_s:.1f} virtual seconds in {verdict.real_s:.2f}, {verdict.steps} events, "
        f"{verdict.checkpoints} checkpoints with {verdict.in_flight} rows in flight, "
        f"{verdict.generations} generations, {verdict.takeovers} takeovers; "
        f"trace {verdict.trace_hash}"
    )
    if verdict.violations:
        _tell(verdict, canary)
        return 1
    print("nothing wrong")
    return 0


def _shape(schedule: Schedule) -> str:
    return (
        f"{schedule.graph}, parallelism {schedule.parallelism}, {schedule.splits} splits of {schedule.count} records, "
        f"{'bounded' if schedule.bounded else 'unbounded'}, checkpoints every {schedule.interval_ms} ms "
        f"(timeout {schedule.timeout_ms}, concurrent {schedule.max_concurrent}, "
        f"{_alignment(schedule)}, "
        f"tolerated {schedule.tolerable_failures}, retained {schedule.retained}), "
        f"slot timeout {schedule.slot_timeout_ms} ms"
    )


def _alignment(schedule: Schedule) -> str:
    return f"unaligned after {schedule.aligned_timeout_ms} ms" if schedule.unaligned else "aligned"


def _tell(verdict: Verdict, canary: str | None = None) -> None:
    print(f"\nseed {verdict.seed}: {len(verdict.violations)} violations; the last events:\n{verdict.last_events}\n")
    for checker, what in verdict.violations[:5]:
        print(f"seed {verdict.seed}: {checker}: {what}")
    print(f"replay it with: {replay_command(verdict.seed, canary)}   (SHRINK=1 makes the schedule smaller)", flush=True)


@contextlib.contextmanager
def _planted(canary: str | None) -> Iterator[None]:
    if canary is None:
        yield
    else:
        with CANARIES[canary].plant():
            yield


# ---------------------------------------------------------------- many seeds


def _many(seeds: Sequence[int], jobs: int) -> int:
    began = time.perf_counter()
    totals: Counter[str] = Counter()
    near: Counter[str] = Counter()
    bad: list[Verdict] = []
    with _pool(jobs) as pool:
        for done, verdict in enumerate(pool.imap_unordered(judge_seed, seeds, chunksize=4), start=1):
            totals.update(
                checkpoints=verdict.checkpoints,
                in_flight=verdict.in_flight,
                generations=verdict.generations,
                takeovers=verdict.takeovers,
                actions=verdict.actions,
                virtual_s=int(verdict.virtual_s),
            )
            near.update(verdict.near_misses)
            if verdict.violations:
                bad.append(verdict)
                _tell(verdict)
            if done % 100 == 0:
                print(f"{done} of {len(seeds)} seeds, {time.perf_counter() - began:.0f} s, {len(bad)} bad", flush=True)
    print(
        f"{len(seeds)} seeds in {time.perf_counter() - began:.0f} s: {totals['virtual_s']} virtual seconds, "
        f"{totals['actions']} strikes, {totals['generations']} generations, {totals['takeovers']} takeovers, "
        f"{totals['checkpoints']} checkpoints with {totals['in_flight']} rows in flight, "
        f"{len(bad)} bad seeds{': ' + ', '.join(str(verdict.seed) for verdict in bad[:20]) if bad else ''}"
    )
    print("what was nearly broken, and how often:")
    for what, often in sorted(near.items()):
        print(f"{often:>9,}  {what}")
    return 1 if bad else 0


def _pool(jobs: int) -> multiprocessing.pool.Pool:
    """Returns a pool that replaces its processes regularly: a process keeps all that its simulations abandon."""
    return multiprocessing.get_context("fork").Pool(jobs, _collect_rarely, maxtasksperchild=25)


def _collect_rarely() -> None:
    """Excludes permanent objects from garbage collection: scanning them took a tenth of a seed's time."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


# ---------------------------------------------------------------- canaries

_found = multiprocessing.get_context("fork").Event()  # set in all processes when one has found the canary


def _judge_unless_found(seed: int) -> Verdict | None:
    return None if _found.is_set() else judge_seed(seed)


def _hunt(name: str, jobs: int) -> tuple[int, Verdict] | None:
    """Returns the number of seeds needed to find the planted bug, and the finding seed's verdict.

    For a canary with a story, only seeds of this story are run and counted."""
    story = CANARIES[name].story
    seeds = (seed for seed in itertools.count() if story in (None, draw(seed).story))
    _found.clear()
    with CANARIES[name].plant(), _pool(jobs) as pool:
        judged = pool.imap(_judge_unless_found, itertools.islice(seeds, CANARY_SEEDS))
        for number, verdict in enumerate(judged, start=1):
            if verdict is not None and verdict.violations:
                _found.set()
                pool.close()  # a terminated process would leave its folder behind
                pool.join()
                return number, verdict
    return None


def _one_canary(name: str, jobs: int) -> int:
    """Returns exit status 1 if the simulation finds the bug."""
    print(f"planted: {CANARIES[name].what}")
    found = _hunt(name, jobs)
    if found is None:
        print(f"canary {name}: NOT found in {CANARY_SEEDS} seeds")
        return 0
    _tell(found[1], name)
    print(f"canary {name}: found with {found[0]} seeds")
    return 1


def _all_canaries(jobs: int) -> int:
    missed, needed = [], {}
    for name, canary in CANARIES.items():
        found = _hunt(name, jobs)
        if found is None:
            missed.append(name)
            print(f"{name:34} NOT FOUND in {CANARY_SEEDS} seeds   ({canary.what})", flush=True)
        else:
            number, verdict = found
            needed[name] = number
            checkers = ", ".join(dict.fromkeys(checker for checker, _ in verdict.violations))
            print(f"{name:34} found with {number:3} seeds by {checkers}", flush=True)
    many = sorted((number, name) for name, number in needed.items() if number > _FEW_SEEDS)
    print(
        f"{len(needed)} of {len(CANARIES)} planted bugs found, {len(needed) - len(many)} with up to {_FEW_SEEDS} seeds"
    )
    for number, name in many:
        print(f"{number:>9,} seeds  {name}")
    if missed:
        print(f"not found in {CANARY_SEEDS} seeds: {', '.join(missed)}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
