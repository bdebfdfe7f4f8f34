"""Runs seeds: one to replay it, many to look for trouble, one canary or all of them. `python -m run` is what make calls."""

import argparse
import multiprocessing
import os
import sys
import time
from dataclasses import dataclass

from schedule import Schedule, draw, shrink
from world import World


@dataclass(frozen=True)
class Verdict:
    seed: int
    violations: tuple[tuple[str, str], ...]
    trace_hash: str
    virtual_s: float
    records: int
    checkpoints: int
    generations: int
    last_events: str
    crash: str = ""


def judge(schedule: Schedule) -> Verdict:
    """One run. What goes wrong in the simulation itself is a violation, too."""
    world = World(schedule)
    try:
        world.run()
    except Exception as error:
        import traceback

        world.violations.append(("Simulation", f"{type(error).__name__}: {error}\n{traceback.format_exc()}"))
        world.sim.close()
    from coordinator.log_records import Complete, Fence

    return Verdict(
        schedule.seed,
        tuple(world.violations),
        world.sim.trace_hash(),
        world.sim.now_s,
        len(world.facts.records),
        sum(isinstance(record, Complete) for record in world.facts.records),
        sum(isinstance(record, Fence) for record in world.facts.records),
        world.sim.last_events(60) if world.violations else "",
    )


if __name__ == "__main__":
    for seed in range(int(sys.argv[1]), int(sys.argv[2])):
        began = time.perf_counter()
        verdict = judge(draw(seed))
        print(seed, verdict.trace_hash[:8], f"{time.perf_counter()-began:.2f}s", f"virtual {verdict.virtual_s:.1f}", verdict.records, verdict.checkpoints, verdict.generations, verdict.violations[:2])
        if verdict.violations and len(sys.argv) > 3:
            print(verdict.last_events)
