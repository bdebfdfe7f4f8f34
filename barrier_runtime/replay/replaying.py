"""`replay`: shows row by row how one operator processed the rows of one key.

The operator gets only the key's state and rows. Earlier steps run whole, because each of their rows may become a row of
the key.
"""

import pdb as debuggers
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from barrier_runtime.connectors.read_range import ReadRange, RowAt
from barrier_runtime.graph.compiler import compile_plan
from barrier_runtime.graph.job_graph import JobGraph, OperatorPlace, place_of
from barrier_runtime.graph.logical import Plan, StepNode
from barrier_runtime.launch.local import run_to_its_end
from barrier_runtime.launch.options import JobOptions, job_spec, usable_locally
from barrier_runtime.launch.prepare import patient_listing
from barrier_runtime.operators.functions.switching import switched_between
from barrier_runtime.replay.observing import DebuggerQuit, Observer, ReplayedRow, Wanted, shown_error
from barrier_runtime.replay.ranges import read_ranges, reading, up_to
from barrier_runtime.replay.running import SCRATCH, OneKey, ReplayEnded, Stops, begin, run_replay, state_key
from barrier_runtime.state.errors import InvalidJob, UserCodeError
from barrier_runtime.state.scratch import scratch_folder
from barrier_runtime.state.store.local import LocalStore
from barrier_runtime.state.store.object_store import ObjectStore
from barrier_runtime.state.store.read_only import LinkedStore
from barrier_runtime.state_tables.finding import StoredCheckpoint, find_checkpoint

_NEVER_S = 365 * 86_400.0


class ReplayedFlow(Protocol):
    plan: Plan

    @property
    def options(self) -> Any: ...


@dataclass(frozen=True)
class Replayed:
    """`error`: error of a function, which ended the replay, or empty. `read`: rows read from sources.
    `without_state`: why no state is shown, or empty. `unread`: without `until`, splits that had no more rows for a
    while, but have not ended.
    """

    rows: tuple[ReplayedRow, ...]
    error: str
    read: int
    without_state: str = ""
    unread: int = 0

    @property
    def emitted(self) -> list[dict[str, Any]]:
        return [row for each in self.rows for row in each.emitted]


@dataclass
class Stretch:
    """`after` 0: from the first row on, without state.
    `until` None: to the end of the rows.
    """

    flow: ReplayedFlow
    url: str
    after: int | str
    until: int | str | None
    before: StoredCheckpoint | None = field(init=False)
    reached: StoredCheckpoint | None = field(init=False)

    def __post_init__(self) -> None:
        self.before = None if self.after == 0 else self._found(self.after)
        self.reached = None if self.until is None else self._found(self.until)
        if self.before is None and self.reached is None:
            return
        one, other = self.before, self.reached
        if one is not None and other is not None and one.manifest.max_parallelism != other.manifest.max_parallelism:
            raise InvalidJob(f"{one.what} and {other.what} have other key groups: they are of no one job")

    def _found(self, at: int | str) -> StoredCheckpoint:
        if isinstance(at, str) and not at.isdigit():
            return find_checkpoint(at)
        if not self.url:
            raise InvalidJob("where are the job's checkpoints? give checkpoints=, the folder or URL that the job has")
        return find_checkpoint(self.url, self.flow.plan.name, int(at))

    def options(self) -> JobOptions:
        known = self.before or self.reached
        given: dict[str, object] = {
            **usable_locally(dict(self.flow.options)),
            "checkpoint_interval": _NEVER_S,
            "restart": "none",
            "allow_non_restored": True,
            "check_state": False,
            "on_cancel": "retain",
            "restore": "latest",
        }
        dropped = ("checkpoints", "max_drift", "restore_mode", "unaligned", "aligned_timeout", "progress_timeout")
        for name in [*dropped, *[name for name in given if name.startswith("restart_")]]:
            given.pop(name, None)
        if known is not None:
            given["parallelism"] = known.manifest.parallelism
            given["max_parallelism"] = known.manifest.max_parallelism
        return JobOptions.for_local_run(given)

    def graph(self, options: JobOptions) -> JobGraph:
        return compile_plan(
            self.flow.plan,
            options.parallelism,
            options.max_parallelism,
            mode="at_least_once",  # no sink runs
            sinks_run=False,
            list_splits=patient_listing(options),
        )

    def check_switches(self, operators: Iterable[str]) -> None:
        """Refuses broadcast rows that became valid at a barrier: a replay has no barriers."""
        if self.reached is None:
            return
        first = 0 if self.before is None else self.before.manifest.checkpoint
        for name in operators:
            then, later = (
                [each for each in (() if at is None else at.manifest.operators) if each.operator == name]
                for at in (self.before, self.reached)
            )
            if switched_between(then, first, later, f"operator {name!r}"):
                raise InvalidJob(
                    f'step {name!r} has broadcast(switch="barrier"), and rows became valid at a checkpoint between '
                    f"{first} and {self.reached.manifest.checkpoint}: a replay goes over no barrier, so give two "
                    "checkpoints one behind the other"
                )

    @property
    def sinks(self) -> set[str]:
        return {node.name or "" for node in self.flow.plan.nodes if isinstance(node, StepNode) and node.is_sink}

    @property
    def wall_ms(self) -> int | None:
        return None if self.reached is None else self.reached.manifest.created_wall_ms


def url_of(flow: ReplayedFlow, checkpoints: str | None) -> str:
    return str(checkpoints or dict(flow.options).get("checkpoints") or "")


def replay(
    flow: ReplayedFlow,
    operator: str,
    key: Any = None,
    *,
    after: int | str,
    until: int | str | None = None,
    checkpoints: str | None = None,
    row: str | None = None,
    stop: bool | debuggers.Pdb = False,
    redact: Sequence[str] = (),
    told: Callable[[ReplayedRow], None] = lambda row: None,
) -> Replayed:
    """Runs `flow` again in this process from checkpoint `after` to `until`, and observes `operator`.

    `key`: the observed key: the value of the column of `key_by`, a tuple for several columns, or a dict of columns and
    values; None: all rows. State is shown only with the whole key. `after`, `until`: numbers of completed checkpoints
    that are still stored, or URLs of savepoints; `after` 0: from the first row on; `until` None: until a function
    raises, or no more rows arrive. `checkpoints`: the folder or URL of the job's checkpoints. `row`: only row
    "split:number" of a source (from 0), or "split:first-last", for a step in one chain with the source. `stop`: stops
    at the first line of the step's function, in Python's debugger. `redact`: columns whose values are hidden. `told`
    receives each processed row.

    Sinks do not run, nothing is written to the job's store, and the wall clock stands at the time of `until`. Raises
    `InvalidJob` for missing steps or checkpoints, and for rows that cannot be read again."""
    stretch = Stretch(flow, url_of(flow, checkpoints), after, until)
    options = stretch.options()
    whole = stretch.graph(options)
    target = place_of(whole, operator)
    by_port = _columns(target, key, operator)
    at_row = None if row is None else _row_at(row)
    if at_row is not None and target.chain.source is None:
        raise InvalidJob(
            f"row {row!r} is one of a source, and step {operator!r} is in one chain with none, so nobody knows what "
            "came of it there: give the row's key, or nothing for all rows"
        )
    rows: list[ReplayedRow] = []

    def took(found: ReplayedRow) -> None:
        rows.append(found.redacted(redact))
        told(rows[-1])

    wanted = Wanted(by_port, lambda: True if at_row is None else at_row.came())
    only = _one_key(stretch.before, operator, whole, target, by_port)
    without_state = _without_state(target, by_port, stretch.before is None or only is not None)
    if stop:
        stops = Stops(stop if isinstance(stop, debuggers.Pdb) else None, redact)
        observer = Observer(wanted, took, stops.call, one_key=not without_state)
    else:
        observer = Observer(wanted, took, one_key=not without_state)
    graph = up_to(whole, target, observer.watch)
    stretch.check_switches(spec.name for chain in graph.chains for spec in chain.operators)
    needed = {chain.source.name for chain in graph.chains if chain.source is not None}
    ranges = read_ranges(whole, stretch.before, stretch.reached, needed)
    for each in ranges.values():
        each.row_at = at_row
    with scratch() as store:
        ended, _ = run_stretch(stretch, reading(graph, ranges), options, ranges, store, only)
    trouble = ended.trouble
    if not isinstance(trouble, UserCodeError):
        ended.check(redact)
    error = "" if trouble is None or isinstance(trouble, DebuggerQuit) else str(shown_error(trouble, redact))
    read = sum(each.total for each in ranges.values())
    return Replayed(tuple(rows), error, read, without_state if observer.hides_state else "", ended.unread)


@contextmanager
def scratch() -> Iterator[ObjectStore]:
    with scratch_folder(SCRATCH) as folder:
        yield LocalStore(folder)


def run_stretch(
    stretch: Stretch,
    graph: JobGraph,
    options: JobOptions,
    ranges: Mapping[str, ReadRange],
    own: ObjectStore,
    only: OneKey | None = None,
) -> tuple[ReplayEnded, ObjectStore]:
    """Writes log and files to `own`. Returns the end, and a store with restored and written files."""
    spec, before = job_spec(graph, options), stretch.before
    source = before.store if before is not None else own
    store = LinkedStore(own, source)
    if before is not None:
        begin(store, before, spec, stretch.sinks, only)
    ended = run_to_its_end(run_replay(graph, spec, store, options, ranges, stretch.wall_ms))
    return ended, store


def _columns(target: OperatorPlace, key: Any, operator: str) -> dict[int, dict[str, Any]]:
    if key is None:
        return {}
    if isinstance(key, Mapping):
        names = next((columns for columns in target.keys.values() if set(columns) == set(key)), None)
        if names is None:
            return {port: dict(key) for port in target.keys or (0,)}
        key = tuple(key[name] for name in names)
    if not target.keys:
        raise InvalidJob(
            f"step {operator!r} does not come right behind key_by: give the key as column and value, such as "
            "key={'user': 'ann'} (on the command line --key user=ann)"
        )
    values = key if isinstance(key, tuple) else (key,)
    for columns in target.keys.values():
        if len(columns) != len(values):
            raise InvalidJob(
                f"the key of step {operator!r} has the columns {', '.join(columns)}: give a value for each"
            )
    return {port: dict(zip(columns, values, strict=True)) for port, columns in target.keys.items()}


def _one_key(
    before: StoredCheckpoint | None,
    operator: str,
    graph: JobGraph,
    target: OperatorPlace,
    by_port: Mapping[int, Mapping[str, Any]],
) -> OneKey | None:
    """Restored key of the operator; None: all keys."""
    if before is None or not target.keys or not by_port:
        return None
    for port, columns in target.keys.items():
        if set(by_port[port]) != set(columns):
            return None
    port, columns = next(iter(target.keys.items()))
    rows = next(edge.schema for edge in graph.inputs(target.chain.id) if edge.port == port)
    key = state_key(before.manifest, operator, {column: by_port[port][column] for column in columns}, rows)
    return None if key is None else OneKey(operator, key)


def _without_state(target: OperatorPlace, by_port: Mapping[int, Mapping[str, Any]], only_one: bool) -> str:
    """Why rows of several keys may come; empty: the operator has rows and state of at most one key."""
    for port, columns in target.keys.items():
        if set(by_port.get(port, ())) != set(columns):
            return f"state is shown with --key for the whole key: {', '.join(columns)}"
    return "" if only_one or not target.keys else "state is not shown: the checkpoint lacks the types of the key"


def _row_at(told: str) -> RowAt:
    split, colon, numbers = told.rpartition(":")
    first, _, last = numbers.partition("-")
    if not colon or not first.isdigit() or not (last or first).isdigit():
        raise InvalidJob(f"row {told!r}: write it as split:number or split:first-last, counted from 0")
    return RowAt(split, int(first), int(last or first))
