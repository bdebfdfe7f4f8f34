"""Random streams x schedules x crash points, each compared with an oracle: windows with rows sorted by hand, joins with
DuckDB, as-of joins with pandas, `emit="latest"` with sums by hand.

    python -m tests.oracle.run --seeds 1000

A seed draws the windows or the join, the streams, the sizes of batches, the mode of checkpoints, the numbers of slots,
and the place where a process or the whole program dies; then the flow runs in virtual time on production's classes
(`barrier_runtime/testing/flows`). At the end no entry of state may be left.
"""

import argparse
import multiprocessing
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from barrier_runtime.data.elements import WATERMARK_MAX
from barrier_runtime.operators.aggregation import partials
from barrier_runtime.operators.aggregation.partials import Combiner
from barrier_runtime.operators.joins.base import JoinOperator
from barrier_runtime.operators.keyed.operator import KeyedLife
from barrier_runtime.testing.flows.run import PHASES, CrashPoint, FlowScenario, FlowUnderTest, run_flow
from barrier_runtime.testing.simulation.cluster import ClusterOptions
from tests.oracle.joins import Joined, draw_joins
from tests.oracle.latest import Latest, draw_latest
from tests.oracle.windows import Windows, draw_windows

MODES: dict[str, dict[str, Any]] = {
    "aligned": {},
    "unaligned": {"unaligned": True},
    "at least once": {"mode": "at_least_once"},
}

_LATEST = 12  # every twelfth seed draws `emit="latest"`


@dataclass(frozen=True)
class Seed:
    number: int
    case: Windows | Joined | Latest
    mode: str
    scenario: FlowScenario
    parallelisms: tuple[int, ...]

    @property
    def kind(self) -> str:
        return f"{self.case.kind} {self.case.how} join" if isinstance(self.case, Joined) else self.case.kind


@dataclass(frozen=True)
class Verdict:
    seed: int
    kind: str
    mode: str
    crashed: bool
    rows: int
    late: int
    wrong: str


def draw(number: int) -> Seed:
    rng = random.Random(f"oracle {number}")
    mode = rng.choice(tuple(MODES))
    case: Windows | Joined | Latest = (
        draw_joins(rng) if rng.random() < 0.5 else draw_windows(rng, mode != "unaligned" and rng.random() < 0.5)
    )
    if number % _LATEST == _LATEST - 1:
        case = draw_latest(rng)
    parallelisms = tuple(rng.sample((1, 2, 3, 4), 3))
    crash = None
    if rng.random() < 0.85:
        crash = CrashPoint(rng.choice(tuple(PHASES)), rng.randint(1, 5), rng.choice(("process", "program", "program")))
    return Seed(number, case, mode, FlowScenario(number, parallelisms[0], crash), parallelisms)


def judge(number: int) -> Verdict:
    seed = draw(number)
    inputs = {name: stream.batches() for name, stream in seed.case.inputs.items()}
    cluster = ClusterOptions(latency_target_s=seed.case.latency_target_s) if isinstance(seed.case, Latest) else None
    flow = FlowUnderTest(seed.case.flow, inputs, {}, seed.parallelisms, MODES[seed.mode], cluster or ClusterOptions())
    left: list[str] = []
    with _watched(left), _combined(number):
        outcome = run_flow(flow, seed.scenario)
    wrong = outcome.trouble
    exact = seed.mode != "at least once" or not outcome.crashed
    wrong = wrong or seed.case.wrong(outcome.rows, exact) or ", ".join(left)
    late = sum(len(rows) for name, rows in outcome.rows.items() if name.startswith("late"))
    given = sum(len(stream.rows) for stream in seed.case.inputs.values())
    return Verdict(number, seed.kind, seed.mode, outcome.crashed, given, late, wrong)


@contextmanager
def _combined(number: int) -> Iterator[None]:
    """Forces the combiner on or off, or leaves the choice, of small batches too."""
    with (
        patch.object(Combiner, "mode", ("on", "off", "chosen")[number // _LATEST % 3]),
        patch.object(partials, "FEWEST", 2),
    ):
        yield


@contextmanager
def _watched(left: list[str]) -> Iterator[None]:
    """Operators that report their remaining state when they close after the end of their input."""
    close = KeyedLife.close

    def told(operator: Any) -> None:
        if operator._opened and operator._watermark_ms == WATERMARK_MAX:
            held: Any = (
                operator.held
                if isinstance(operator, JoinOperator)
                else (operator._table.entries if hasattr(operator, "_table") else 0,)
            )
            if any(held):
                left.append(f"{operator.where} has {held} entries left at its end")
        close(operator)

    with patch.object(KeyedLife, "close", told):
        yield


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=multiprocessing.cpu_count())
    options = parser.parse_args()
    began, seen, bad = time.monotonic(), [], []
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        seeds = range(options.first, options.first + options.seeds)
        for verdict in pool.imap_unordered(judge, seeds, chunksize=4):
            seen.append(verdict)
            if verdict.wrong:
                bad.append(verdict.seed)
                print(f"seed {verdict.seed} ({verdict.kind}, {verdict.mode}): {verdict.wrong}", flush=True)
    by_kind = Counter((verdict.kind, verdict.mode) for verdict in seen)
    for kind in sorted({kind for kind, _ in by_kind}):
        print(f"{kind:22} " + ", ".join(f"{by_kind[kind, mode]} {mode}" for mode in MODES))
    print(
        f"{len(seen)} seeds in {time.monotonic() - began:.0f} s: {sum(v.crashed for v in seen)} with a crash, "
        f"{sum(v.rows for v in seen)} rows, {sum(v.late for v in seen)} late, {len(bad)} wrong"
    )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
