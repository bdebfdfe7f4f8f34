"""For tests of users: `certify` crashes a sink at every point of the contract and compares what a reader sees.

    from barrier_runtime.testing import certify

    def test_my_sink_is_exactly_once():
        print(certify(lambda: MySink(url), lambda: read_all(url)))

No Spark and no event loop: real `SinkOperator`s around your sink, many small jobs one after another, in one thread. In
each, generations of subtasks die or are held up somewhere and their successors go on; after every step your reader is
asked. What it must see: every row of a commit that has returned; only rows of decided checkpoints; none twice; nothing
in parts. See `docs/writing-a-sink.md`.
"""

import inspect
import random
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import pyarrow as pa

from barrier_runtime.connectors.declared_kinds import arguments_checked
from barrier_runtime.connectors.sink import TwoPhaseCommitSink
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.store.memory import MemoryStore
from barrier_runtime.state.store.object_store import ObjectStore
from barrier_runtime.state.store.open import open_store
from barrier_runtime.testing.environment import Environment
from barrier_runtime.testing.judge import Broken, Promise, Rule
from barrier_runtime.testing.kill_lines import own_files
from barrier_runtime.testing.scenarios import (
    MOST_ROUNDS,
    PLANS,
    Scenario,
    by_name,
    crashes,
    inside_recovery,
    inside_write,
    inside_write_of_recovery,
    single_scenarios,
    stalls,
    straight,
    walk,
)
from barrier_runtime.testing.scenarios import inside as inside_call
from barrier_runtime.testing.target import Target

SCHEMA = pa.schema([("id", pa.int64()), ("key", pa.string()), ("value", pa.int64())])


Reader: TypeAlias = Callable[[], Iterable[Mapping[str, Any]]] | Callable[[int], Iterable[Mapping[str, Any]]]


def make_row(number: int) -> dict[str, Any]:
    """Row `number` of `SCHEMA`; two keys."""
    return {"id": number, "key": f"key-{number % 2}", "value": number * 10}


@dataclass(frozen=True)
class Certificate:
    """The sink did as it must in all of these."""

    sink: str
    guarantee: str
    scenarios: int
    crashes: int  # of generations, all their subtasks at once
    observations: int  # how often the reader looked
    seconds: float

    def __str__(self) -> str:
        return (
            f"{self.sink}: {self.guarantee} held in {self.scenarios} scenarios with {self.crashes} crashes, "
            f"{self.observations} observations, {self.seconds:.1f} s"
        )


class NotCertified(AssertionError):
    """A rule was broken. `scenario` can be run alone: `certify(..., only=scenario)`."""

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
    seeds: Iterable[int] = range(20),
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
    """Raises `NotCertified` at the first broken rule.

    `make_sink`: a fresh, unopened sink, one per subtask and generation; all write to one target.
    `read`: the rows (mappings) that a reader of the target sees now; also called before anything was written. Rows have
    ids that no other scenario uses, and every scenario is a job of its own, so the target need not be emptied. A `read`
    that takes an argument is given the scenario's lowest id: it may leave out lower ones, which is faster.
    `make_row`, `schema`, `id_column`, `key_column`: rows to write; `make_row(n)[id_column]` must be n.
    `scenarios`: how many of the enumerated crashes and stalls, evenly drawn; None: all (some thousand). Single ones are
    always run, as is one random walk for each of `seeds`.
    `inside`: how many times a process dies inside a call, between two lines of the sink's own files (and its
    package's); None: at every line. An in-memory stand-in of a target must be in a file of its own then.
    Files that the sink opens and writes are always broken off, after `open` and in the middle of a write.
    `rows`: that a subtask writes per checkpoint. `ordered`: one subtask's rows of one key come out of `read` in the
    order in which readers get them, and that must be the order in which they were written.
    `shows_early`: for upserts that rely on a deterministic replay: undecided rows may be seen.
    `reset`: empties the target, between scenarios; not needed, but makes long certifications faster.
    `kill`: what else ends with a sink's process: its connections, without a word. Default: sinks are only dropped.
    `leftovers`: what is staged in the target; it must be empty when a generation found everything done.
    `only`: the one scenario to run, as named by a failure.
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
        run.play_all(scenarios, inside, seeds)
    return run.certificate()


def _reader(read: Reader) -> Callable[[int], Iterable[Mapping[str, Any]]]:
    if inspect.signature(read).parameters:
        return read  # type: ignore[return-value]
    return lambda lowest: read()  # type: ignore[call-arg]


_MOST_WRITES = 60  # scenarios in which a process dies while it writes a file
_WRITING: tuple[Callable[[int], Scenario], ...] = (partial(inside_write, "plain"), inside_write_of_recovery)
_INSIDE: tuple[Callable[[int], Scenario], ...] = (partial(inside_call, "plain"), inside_recovery)


def _drawn(every: list[Scenario], most: int | None) -> list[Scenario]:
    """Every one, or evenly drawn ones; the same every time."""
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

    def play_all(self, between_calls: int | None, inside_calls: int | None, seeds: Iterable[int]) -> None:
        """Undisturbed runs first: they count the moments at which later runs crash."""
        lived = {plan: self.play(straight(plan)) for plan in PLANS}
        between = [
            each
            for plan, (crash_points, _, _) in lived.items()
            for each in (*crashes(plan, crash_points), *stalls(plan, crash_points))
        ]
        _, lines, files = lived["plain"]
        within = [line_of(number) for number in range(lines) for line_of in _INSIDE]
        writes = [writing(number) for number in range(files) for writing in _WRITING]
        drawn = _drawn(between, between_calls) + _drawn(within, inside_calls) + _drawn(writes, _MOST_WRITES)
        for each in (*single_scenarios(), *drawn, *(walk(seed) for seed in seeds)):
            self.play(each)

    def certificate(self) -> Certificate:
        guarantee = "exactly once" if self._target.promise.exactly_once else "at least once"
        seconds = time.monotonic() - self.began
        return Certificate(self.sink, guarantee, self.scenarios, self.crashes, self.observations, seconds)

    def play(self, scenario: Scenario) -> tuple[int, int, int]:
        """How many crash points, lines in calls and writes of files its first generation had. Raises `NotCertified`."""
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
