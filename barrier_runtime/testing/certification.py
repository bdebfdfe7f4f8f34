"""`certify` crashes a sink at every point and compares the visible rows (docs/writing-a-sink.md)."""

import inspect
import random
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from barrier_runtime.connectors.sink import TwoPhaseCommitSink
from barrier_runtime.data.argument_types import arguments_checked
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.store.memory import MemoryStore
from barrier_runtime.state.store.object_store import ObjectStore
from barrier_runtime.state.store.open import open_store
from barrier_runtime.state.texts import counted
from barrier_runtime.testing.crash_points import own_files
from barrier_runtime.testing.environment import Environment, Target
from barrier_runtime.testing.judge import Broken, Promise, Rule
from barrier_runtime.testing.scenarios import (
    INSIDE,
    MOST_ROUNDS,
    PLANS,
    Scenario,
    by_name,
    crashes,
    inside_call,
    single_scenarios,
    stalls,
    straight,
    walk,
)

SCHEMA = pa.schema([("id", pa.int64()), ("key", pa.string()), ("value", pa.int64())])


Reader: TypeAlias = Callable[[], Iterable[Mapping[str, Any]]] | Callable[[int], Iterable[Mapping[str, Any]]]


def make_row(number: int) -> dict[str, Any]:
    return {"id": number, "key": f"key-{number % 2}", "value": number * 10}


@dataclass(frozen=True)
class Certificate:
    """Result of a certification that found no broken rule."""

    sink: str
    guarantee: str
    scenarios: int
    crashes: int  # of generations
    observations: int  # calls of the reader
    seconds: float

    def __str__(self) -> str:
        return (
            f"{self.sink}: {self.guarantee} held in {counted(self.scenarios, 'scenario')} with "
            f"{counted(self.crashes, 'crash', 'crashes')}, "
            f"{counted(self.observations, 'observation')}, {self.seconds:.1f} s"
        )


class NotCertified(AssertionError):
    """Broken rule; `certify(..., only=scenario)` runs the scenario alone."""

    def __init__(self, sink: str, scenario: str, broken: Broken, steps: list[str]) -> None:
        self.scenario = scenario
        self.rule: Rule = broken.rule
        self.seen = broken.seen
        self.expected = broken.expected
        self.steps = steps
        lines = [
            f"{sink} is not certified: {broken.rule}: {broken.what}",
            f"  scenario: {scenario!r} (run it alone: certify(..., only={scenario!r}))",
            f"  seen:     {list(broken.seen)}",
            f"  expected: {list(broken.expected)}",
            "  steps:",
            *(f"    {step}" for step in steps),
        ]
        super().__init__("\n".join(lines))


@arguments_checked
def certify(
    make_sink: Callable[[], TwoPhaseCommitSink],
    read: Reader,
    *,
    make_row: Callable[[int], dict[str, Any]] = make_row,
    schema: pa.Schema = SCHEMA,
    id_column: str = "id",
    key_column: str = "key",
    scenarios: int | None = 200,
    inside: int | None = 0,
    seeds: Iterable[int] | int = 20,
    quick: bool = False,
    parallelism: int = 2,
    rows: int = 2,
    ordered: bool = False,
    shows_early: bool = False,
    make_store: Callable[[str], ObjectStore] = open_store,
    job_store: ObjectStore | None = None,
    reset: Callable[[], object] | None = None,
    kill: Callable[[TwoPhaseCommitSink], None] | None = None,
    leftovers: Callable[[], Collection[object]] | None = None,
    only: str | None = None,
) -> Certificate:
    """Crashes a sink in many scenarios, whose number is printed first. Raises `NotCertified` at the first broken rule.

    `make_sink`: returns a new, unopened sink, one per subtask and generation; all write to the same target.

    `read`: returns the rows (mappings) that a reader of the target sees now; also called before the first write. Every
    scenario writes new ids, so the target need not be emptied. A `read` with a parameter receives the scenario's lowest
    id, and may omit rows with lower ids.

    `make_row`, `schema`, `id_column`, `key_column`: rows to write; `make_row(n)[id_column]` must be n.

    `scenarios`: number of crashes and stalls, evenly drawn; None: all (some thousand). Other scenarios, and a random
    walk for each of `seeds` (a number n: 0 to n - 1), always run.

    `inside`: number of deaths inside a call, between two lines of the sink's own files (and its package's); None: at
    every line. A stand-in of a target must then be in another file. Writes of files are always interrupted.

    `quick`: at most 10 of each of these (seeds: 2), while a sink is being written.

    `parallelism`: subtasks of a generation. `rows`: rows of a subtask per checkpoint. `ordered`: `read` returns rows in
    the readers' order; a subtask's rows of a key must have the order of writing.

    `shows_early`: for upserts that rely on a deterministic replay: undecided rows may be visible. A sink with
    `after_decision` needs no such permission: its rows must never be visible undecided.

    `make_store` opens object stores by URL; `job_store`: store of the jobs, by default in memory.

    `reset`: empties the target between scenarios.

    `kill`: ends everything else of a sink's process, such as connections, without notice.

    `leftovers`: returns everything staged in the target; must be empty after a generation that found all work done.

    `only`: the scenario to run, as named by a failure.
    """
    sample = make_sink()
    if not isinstance(sample, TwoPhaseCommitSink):
        raise InvalidJob(f"certify: make_sink gave {sample!r}: let it return a TwoPhaseCommitSink")
    if not isinstance(schema, pa.Schema):
        raise InvalidJob(f"certify: schema={schema!r}: give the pyarrow.Schema of what make_row returns")
    promise = Promise(
        exactly_once=sample.guarantee == "exactly_once",
        global_committer=sample.global_committer,
        ordered=ordered,
        shows_early=shows_early,
        id_column=id_column,
        key_column=key_column,
        after_decision=sample.after_decision,
    )
    target = Target(
        make_sink=make_sink,
        read=_reader(read),
        make_row=make_row,
        schema=schema,
        promise=promise,
        make_store=make_store,
        job_store=job_store or MemoryStore(),
        parallelism=parallelism,
        rows=rows,
        files=own_files(sample),
        every_line=inside != 0 or (only or "").startswith("inside"),
        kill=kill,
        leftovers=leftovers,
    )
    run = _Run(target, type(sample).__name__, reset)
    del sample
    if only is not None:
        run.play(by_name(only))
    else:
        run.play_all(scenarios, inside, range(seeds) if isinstance(seeds, int) else seeds, quick)
    return run.certificate()


def _reader(read: Reader) -> Callable[[int], Iterable[Mapping[str, Any]]]:
    if inspect.signature(read).parameters:
        return read  # type: ignore[return-value]
    return lambda lowest: read()  # type: ignore[call-arg]


_MOST_WRITES = 60  # scenarios with a death inside a write of a file, and with a failing write
_QUICK, _QUICK_SEEDS = 10, 2


def _drawn(every: list[Scenario], most: int | None) -> list[Scenario]:
    """All scenarios, or an even sample that is equal in every run."""
    if most is None or most >= len(every):
        return every
    chosen = sorted(random.Random(len(every)).sample(range(len(every)), max(0, most)))
    return [every[index] for index in chosen]


class _Run:
    def __init__(self, target: Target, sink: str, reset: Callable[[], object] | None) -> None:
        self.sink = sink
        self.scenarios = self.crashes = self.observations = 0
        self.began = time.monotonic()
        self._target = target
        self._reset = reset
        self._name = uuid.uuid4().hex[:8]
        column = target.promise.id_column
        self._next_id = 1 + max((int(row[column]) for row in target.read(0)), default=0)

    def play_all(self, between_calls: int | None, inside_calls: int | None, seeds: Iterable[int], quick: bool) -> None:
        lived = {plan: self.play(straight(plan)) for plan in PLANS}
        between = [
            each
            for plan, points in lived.items()
            for each in (*crashes(plan, points["call"]), *stalls(plan, points["call"]))
        ]
        within, writes, full = (
            [
                inside_call(word, plan, number)
                for number in range(lived["plain"][kind])
                for plan in ("plain", "recovery")
            ]
            for word, kind in INSIDE.items()
        )
        kinds = (between, between_calls), (within, inside_calls), (writes, _MOST_WRITES), (full, _MOST_WRITES)
        most = _QUICK if quick else len(between) + len(within)
        drawn = [each for every, of in kinds for each in _drawn(every, most if of is None else min(of, most))]
        walks = [walk(seed) for seed in seeds][: _QUICK_SEEDS if quick else None]
        todo = (*single_scenarios(), *drawn, *walks)
        print(f"certify {self.sink}: {counted(self.scenarios + len(todo), 'scenario')}", file=sys.stderr, flush=True)
        for each in todo:
            self.play(each)

    def certificate(self) -> Certificate:
        guarantee = "exactly once" if self._target.promise.exactly_once else "at least once"
        seconds = time.monotonic() - self.began
        return Certificate(self.sink, guarantee, self.scenarios, self.crashes, self.observations, seconds)

    def play(self, scenario: Scenario) -> Counter[str]:
        """Returns how many crash points of each kind the first generation reached. Raises `NotCertified`."""
        if self._reset is not None:
            self._reset()
        self.scenarios += 1
        job = f"certify-{self._name}-{self.scenarios}"
        environment = Environment(self._target, job, self._next_id, scenario.plan, scenario.seed)
        self._next_id += self._target.rows * self._target.parallelism * MOST_ROUNDS
        try:
            scenario.play(environment)
        except Broken as broken:
            raise NotCertified(self.sink, scenario.name, broken, environment.steps) from broken.__cause__
        finally:
            self.crashes += environment.crashes
            self.observations += environment.observations
        return environment.lived
