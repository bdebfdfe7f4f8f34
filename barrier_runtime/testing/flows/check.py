"""Check of whole flows in virtual time: crashes must not change rows (docs/testing.md)."""

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from barrier_runtime.connectors.files.source.files import ROWS_ARE_GIVEN
from barrier_runtime.data.argument_types import arguments_checked
from barrier_runtime.graph.logical import Plan, SourceNode, StepNode
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.texts import counted
from barrier_runtime.testing.flows.given_rows import Difference, GivenInput, difference, tables_of
from barrier_runtime.testing.flows.outputs import CheckedSink
from barrier_runtime.testing.flows.run import (
    MAX_PARALLELISM,
    PHASES,
    CrashPoint,
    Flow,
    FlowOutcome,
    FlowScenario,
    FlowUnderTest,
    Victim,
    named,
    run_flow,
)

Crashes: TypeAlias = Literal["every phase", "every point", "none"]
_VICTIMS: tuple[Victim, ...] = ("process", "program")


@dataclass(frozen=True)
class Checked:
    """Result of a check whose runs all gave the same rows."""

    flow: str
    runs: int
    crashes: int
    phases: tuple[str, ...]  # phases with a crash, in checkpoint order
    rows: dict[str, int]  # of each sink
    virtual_s: float
    seconds: float = field(compare=False)

    def __str__(self) -> str:
        rows = ", ".join(f"{counted(count, 'row')} in {sink!r}" for sink, count in self.rows.items())
        crashes = counted(self.crashes, "crash", "crashes")
        return (
            f"{self.flow}: the same {rows} in {counted(self.runs, 'run')} with {crashes} in "
            f"{counted(len(self.phases), 'phase')}"
        )


class CheckFailed(AssertionError):
    """Run with other rows, or without an end; `check(…, only=scenario)` runs the scenario alone."""

    def __init__(
        self, flow: str, scenario: FlowScenario, what: str, found: Difference | None = None, hint: str = ""
    ) -> None:
        self.scenario = scenario.name
        self.seed = scenario.seed
        self.parallelism = scenario.parallelism
        self.phase = "" if scenario.crash is None else scenario.crash.phase
        self.sink = "" if found is None else found.sink
        self.missing = () if found is None else found.missing
        self.unexpected = () if found is None else found.unexpected
        lines = [f"flow {flow!r}: {what}", f"  run:   {scenario}"]
        if found is not None:
            lines += [f"  {line}" for line in found.lines()]
        if hint:
            lines.append(f"  hint:  {hint}")
        lines.append(f"  alone: check(…, only={scenario.name!r})")
        super().__init__("\n".join(lines))


@arguments_checked
def check(
    flow: Flow | Callable[[], Flow],
    inputs: Mapping[str, GivenInput],
    *,
    crashes: Crashes = "every phase",
    parallelism: int | Sequence[int] = (1, 2, 3),
    seeds: Iterable[int] | int = 1,
    sinks: Mapping[str, Callable[[], CheckedSink]] | None = None,
    only: str | None = None,
) -> Checked:
    """Runs a flow with crashes. Raises `CheckFailed` if rows differ from the undisturbed run's.

    `flow`: a `Dataflow`, or a function that builds one. The function is called for each simulated process, so closures
    start fresh after a crash; module globals do not.

    `inputs`: the rows of each source: a list of dicts or a table (a single split, read in this order), or a list of
    such lists (a split each, in another order in each run). Rows arrive within a second of virtual time, with a
    checkpoint every 0.12 s.

    `crashes`: "every phase" crashes, in each phase of the protocol, the active process, and in another run the whole
    program, which continues with the next parallelism; the seed selects the checkpoint. "every point" crashes at each
    occurrence of each phase. "none" only compares seeds and parallelisms.

    `parallelism`: numbers of slots, at most 16. The run with the first number, the first seed and no crash gives the
    expected rows. Rows are compared as a multiset.

    `seeds`: each gives another interleaving of messages, rows, threads and requests. A number n: 0 to n - 1.

    `sinks`: real sinks by name: a function, called for each run, that returns a `CheckedSink` with a separate target.
    Rows of other sinks go to a transactional memory, whatever system they name.

    `only`: the run to compare, as named by a failure.

    Raises `InvalidJob` for a flow that cannot run and for inputs that do not fit it.
    """
    build = _building(flow) if callable(flow) else lambda: flow
    built = build()
    if not isinstance(getattr(built, "plan", None), Plan):
        raise InvalidJob(f"check: flow={built!r}: give a Dataflow, or a function that builds and returns one")
    plan = built.plan
    chosen = (parallelism,) if isinstance(parallelism, int) else tuple(parallelism)
    drawn = tuple(range(seeds) if isinstance(seeds, int) else seeds)
    _check_arguments(plan, inputs, crashes, chosen, drawn, sinks or {})
    tables = {
        node.name: tables_of(node.name, inputs[node.name], node.source.schema)
        for node in plan.nodes
        if isinstance(node, SourceNode)
    }
    run = _Check(plan.name, FlowUnderTest(build, tables, sinks or {}, chosen), FlowScenario(drawn[0], chosen[0]))
    if only is not None:
        scenario = _scenario(only)
        outcome = run.compare(scenario)
        if scenario.crash is not None and not outcome.crashed:
            raise InvalidJob(f"check: only={only!r}: the run does not come to that point: copy one from a failure")
        return run.result()
    run.compare(FlowScenario(drawn[0], chosen[0], again=True))
    quiet = {(seed, slots): run.compare(FlowScenario(seed, slots)) for seed in drawn for slots in chosen}
    todo = [
        FlowScenario(seed, slots, crash)
        for (seed, slots), outcome in quiet.items()
        for crash in _crashes(crashes, seed, outcome)
    ]
    print(f"check {plan.name}: {counted(1 + len(quiet) + len(todo), 'run')}", file=sys.stderr, flush=True)
    for scenario in todo:
        run.compare(scenario)
    return run.result()


def _building(flow: Callable[[], Flow]) -> Callable[[], Flow]:
    def build() -> Flow:
        given = ROWS_ARE_GIVEN.set(True)
        try:
            return flow()
        finally:
            ROWS_ARE_GIVEN.reset(given)

    return build


def _crashes(crashes: Crashes, seed: int, quiet: FlowOutcome) -> Iterator[CrashPoint]:
    """Yields the crashes of a run from the points of `quiet`, the run without crashes."""
    if crashes == "none":
        return
    for number, phase in enumerate(PHASES):
        often = quiet.points[phase]
        for which, victim in enumerate(_VICTIMS):
            if crashes == "every point":
                yield from (CrashPoint(phase, nth, victim) for nth in range(1, often + 1))
            elif often:  # spread over the run
                yield CrashPoint(phase, 1 + (seed * 31 + number * 7 + which * 13 + often // 2) % often, victim)


class _Check:
    def __init__(self, name: str, flow: FlowUnderTest, reference: FlowScenario) -> None:
        self._name = name
        self._flow = flow
        self._began = time.monotonic()
        self._runs = self._crashes = 0
        self._phases: Counter[str] = Counter()
        self._virtual_s = 0.0
        self._expected: FlowOutcome | None = None
        self._reference = reference
        self._expected = self._played(reference)
        if not any(self._expected.rows.values()):
            raise CheckFailed(
                name, reference, "no sink got a row, so nothing is checked: give inputs of which something comes"
            )

    def _played(self, scenario: FlowScenario) -> FlowOutcome:
        outcome = run_flow(self._flow, scenario)
        self._runs += 1
        self._crashes += outcome.crashed
        self._virtual_s += outcome.virtual_s
        if outcome.crashed and scenario.crash is not None:
            self._phases[scenario.crash.phase] += 1
        if outcome.trouble:
            raise CheckFailed(self._name, scenario, outcome.trouble)
        return outcome

    def compare(self, scenario: FlowScenario) -> FlowOutcome:
        assert self._expected is not None
        if scenario == self._reference:
            return self._expected
        outcome = self._played(scenario)
        for sink, expected in self._expected.rows.items():
            found = difference(sink, expected, outcome.rows[sink])
            if found is not None:
                raise CheckFailed(
                    self._name, scenario, f"sink {sink!r} got other rows", found, _hint(scenario, self._reference)
                )
        return outcome

    def result(self) -> Checked:
        assert self._expected is not None
        return Checked(
            flow=self._name,
            runs=self._runs,
            crashes=self._crashes,
            phases=tuple(phase for phase in PHASES if self._phases[phase]),
            rows={sink: len(rows) for sink, rows in self._expected.rows.items()},
            virtual_s=self._virtual_s,
            seconds=time.monotonic() - self._began,
        )


def _hint(scenario: FlowScenario, reference: FlowScenario) -> str:
    if scenario.again:
        return (
            "the very same run gave other rows the second time: something outlives it (a global variable, a file), or "
            "is not decided by rows and time (random numbers, the order of a set); keep it in keyed state"
        )
    if scenario.crash is None:
        return (
            f"nothing crashed, but rows came in another order than in the run with seed {reference.seed} and "
            f"{reference.parallelism} slots: make rows depend on what they hold (event time, a number), not on arrival"
        )
    return (
        "what a process did before its crash was seen (state outside of the flow's, an effect before its commit), or "
        "rows depend on the order of arrival, which is another one after a crash"
    )


def _check_arguments(
    plan: Plan,
    inputs: Mapping[str, Any],
    crashes: str,
    parallelism: tuple[int, ...],
    seeds: tuple[int, ...],
    sinks: Mapping[str, Any],
) -> None:
    where = f"check of flow {plan.name!r}"
    known = {node.name for node in plan.nodes if isinstance(node, SourceNode)}
    if known - inputs.keys():
        raise InvalidJob(f"{where}: no rows for source {_names(known - inputs.keys())}: add them to inputs")
    if inputs.keys() - known:
        raise InvalidJob(f"{where}: inputs for {_names(inputs.keys() - known)}: it has only {_names(known)}")
    ends = {node.name or "" for node in plan.nodes if isinstance(node, StepNode) and node.is_sink}
    if sinks.keys() - ends:
        raise InvalidJob(f"{where}: sinks for {_names(sinks.keys() - ends)}: it has only {_names(ends)}")
    if crashes not in ("every phase", "every point", "none"):
        raise InvalidJob(f"{where}: crashes={crashes!r}: use 'every phase', 'every point' or 'none'")
    if not parallelism or not all(type(slots) is int and 1 <= slots <= MAX_PARALLELISM for slots in parallelism):
        raise InvalidJob(f"{where}: parallelism={parallelism}: give numbers from 1 to {MAX_PARALLELISM}")
    if not seeds or not all(type(seed) is int for seed in seeds):
        what = f"seeds={seeds}" if seeds else "no seeds"
        raise InvalidJob(f"{where}: {what}: give at least one, whole numbers, such as seeds=[0]")


def _scenario(only: str) -> FlowScenario:
    try:
        return named(only)
    except ValueError as error:
        raise InvalidJob(
            f"check: only={only!r} is not the name of a run: copy that from a failure, such as '0/2/ack/3/process'"
        ) from error


def _names(names: Iterable[str]) -> str:
    return ", ".join(map(repr, sorted(names)))
