"""`verify`: compares state and rows of a repeated run with the job's.

Compared                  with
  keyed state             state of the later checkpoint, entry by entry. Ignored: times of writing; expired entries,
                          which may be deleted late; the layout of rows in windows, which depends on batches; ids of
                          a `deduplicate` with `within=`, which forgets ids
  rows to a sink          the rows that the sink made visible between the checkpoints, if the sink can read them back
                          (`ReadsBack`); else the rows of a second replay, which differ only if they depend on the run
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from barrier_runtime.connectors.sink import ReadsBack
from barrier_runtime.coordinator.log.decision_log import complete_of
from barrier_runtime.coordinator.log.manifest import Manifest, load_manifest
from barrier_runtime.coordinator.log.reader import read_log
from barrier_runtime.data.elements import Batch
from barrier_runtime.graph.job_graph import JobGraph, place_of
from barrier_runtime.launch.options import JobOptions
from barrier_runtime.operators.aggregation.kinds.sketches import same_sketches
from barrier_runtime.operators.deduplication.operator import DeduplicateOperator
from barrier_runtime.operators.keyed.progress import fires_still, reached_ms
from barrier_runtime.operators.outputs.side_outputs import ERROR_SCHEMA
from barrier_runtime.operators.windows.operator import WindowOperator
from barrier_runtime.operators.windows.whole.window_rows import HELD_ROWS
from barrier_runtime.replay.ranges import read_ranges, reading, without_sinks
from barrier_runtime.replay.replaying import ReplayedFlow, Stretch, run_stretch, scratch, url_of
from barrier_runtime.runtime.sinks.operator import SinkOperator
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.store.object_store import ObjectNotFound, ObjectStore
from barrier_runtime.state.store.paths import Paths
from barrier_runtime.state.texts import counted
from barrier_runtime.state_tables.differences import StateDifference, diff
from barrier_runtime.state_tables.finding import StoredCheckpoint, find_checkpoint
from barrier_runtime.state_tables.stored_state import StoredState

_MOST = 10


@dataclass(frozen=True)
class Divergence:
    """`operator`: a step with state, or a sink. `what`: state and key, or the row, as text. `committed`,
    `replayed`: the value on either side; for a row its number of occurrences.
    """

    operator: str
    what: str
    committed: str
    replayed: str

    def __str__(self) -> str:
        return f"{self.operator}: {self.what}: committed {self.committed}, replayed {self.replayed}"


@dataclass(frozen=True)
class Verified:
    """`differences`: the first ones, in the order of the flow's steps; empty: both sides are equal.
    `read_back`: sinks whose visible rows were compared; `repeated`: sinks for which two replays were compared.
    """

    after: int
    until: int
    read: int
    states: int
    read_back: tuple[str, ...]
    repeated: tuple[str, ...]
    differences: tuple[Divergence, ...]

    @property
    def same(self) -> bool:
        return not self.differences

    def __str__(self) -> str:
        what = f"checkpoint {self.after} to {self.until}, {counted(self.read, 'row')} read"
        if self.differences:
            return f"{what}: it differs, first in {self.differences[0]}"
        sinks = f"{len(self.read_back)} sinks read back, {len(self.repeated)} replayed twice"
        return f"{what}: the same ({self.states} states, {sinks})"


def verify(
    flow: ReplayedFlow,
    *,
    after: int | str,
    until: int | str | None = None,
    checkpoints: str | None = None,
    redact: Sequence[str] = (),
) -> Verified:
    """Runs `flow` again in this process from checkpoint `after` to `until`, and compares.

    `until` None: the newest checkpoint. `checkpoints` and `redact` are those of `replay`.

    No sink runs and nothing is written to the job's store. Raises `InvalidJob` for missing checkpoints, for rows that
    cannot be read again, and for an unaligned checkpoint with rows in flight as `until`.
    """
    url = url_of(flow, checkpoints)
    if until is None:
        until = find_checkpoint(url, flow.plan.name).manifest.checkpoint
    stretch = Stretch(flow, url, after, until)
    _check(stretch)
    return _Verifying(stretch, redact).verified()


def _check(stretch: Stretch) -> None:
    assert stretch.reached is not None
    reached = stretch.reached
    if stretch.before is not None and reached.manifest.checkpoint <= stretch.before.manifest.checkpoint:
        raise InvalidJob(f"{reached.what} is not behind {stretch.before.what}: give the earlier one first")
    if any(each.in_flight for each in reached.manifest.operators):
        raise InvalidJob(
            f"{reached.what} has rows in flight, so its state is of no one position of the sources: verify up to an "
            "aligned one (aligned_timeout=, or the one that the job was stopped with)"
        )
    firing = sorted({each.operator for each in reached.manifest.operators if fires_still(each)})
    if firing:
        raise InvalidJob(
            f"{reached.what} was taken while timers of {firing[0]!r} were firing, and nobody recorded how many had: "
            "verify up to another one"
        )
    if stretch.before is not None and stretch.before.manifest.parallelism != reached.manifest.parallelism:
        raise InvalidJob(
            f"the job was rescaled between {stretch.before.what} and {reached.what}: verify up to or from the rescale"
        )


class _Rows:
    """Rows that arrived at the sinks of one replay, as texts.

    `failed`: sinks of error outputs, whose rows contain the newest checkpoint and so differ between runs.
    """

    def __init__(self, sinks: dict[str, ReadsBack | None]) -> None:
        self._sinks = sinks
        self.by_sink: dict[str, Counter[str]] = {name: Counter() for name in sinks}
        self.failed: set[str] = set()

    def came(self, sink: str, batch: Batch) -> None:
        if batch.rows.schema.names == ERROR_SCHEMA.names:
            self.failed.add(sink)
        reads = None if sink in self.failed else self._sinks[sink]
        texts = map(str, batch.rows.to_pylist()) if reads is None else reads.texts_of([batch.rows])
        self.by_sink[sink].update(texts)


class _Verifying:
    def __init__(self, stretch: Stretch, redact: Sequence[str]) -> None:
        assert stretch.reached is not None
        self._stretch = stretch
        self._reached = stretch.reached
        self._redact = redact
        self._options = stretch.options()
        self._graph = stretch.graph(self._options)
        stretch.check_switches(spec.name for chain in self._graph.chains for spec in chain.operators)
        specs = [spec for chain in self._graph.chains for spec in chain.operators]
        self._sinks = {spec.name: _reads_back(spec.make()) for spec in specs if spec.is_sink}
        made = {spec.name: spec.make() for spec in specs if not spec.is_sink}
        self._steps = tuple(made)
        windows = {name: each for name, each in made.items() if isinstance(each, WindowOperator)}
        self._holding = {name for name, each in windows.items() if each.content.holds_rows}
        self._ids = {name: each.forgets for name, each in made.items() if isinstance(each, DeduplicateOperator)}
        self._states = 0

    def verified(self) -> Verified:
        found: list[Divergence] = []
        rows = _Rows(self._sinks)
        with scratch() as own:
            read, manifest = self._replayed(rows, own)
            found += self._states_differ(manifest)
        read_back, repeated = [], []
        for sink, reads in self._sinks.items():
            committed = None if reads is None or sink in rows.failed else self._committed(sink, reads)
            if committed is None:
                repeated.append(sink)
            else:
                read_back.append(sink)
                found += self._rows_differ(sink, committed, rows.by_sink[sink])
        if repeated:
            again = _Rows(self._sinks)
            with scratch() as own:
                self._replayed(again, own)
            for sink in repeated:
                found += self._rows_differ(sink, again.by_sink[sink], rows.by_sink[sink])
        before = self._stretch.before
        return Verified(
            0 if before is None else before.manifest.checkpoint,
            self._reached.manifest.checkpoint,
            read,
            self._states,
            tuple(read_back),
            tuple(repeated),
            tuple(found[:_MOST]),
        )

    def _replayed(self, rows: _Rows, own: ObjectStore) -> tuple[int, Manifest]:
        stretch = self._stretch
        ranges = read_ranges(self._graph, stretch.before, self._reached)
        graph: JobGraph = reading(without_sinks(self._graph, rows.came), ranges)
        options: JobOptions = self._options
        ended, store = run_stretch(stretch, graph, options, ranges, own)
        ended.check(self._redact)
        view = read_log(store, Paths(graph.name))
        manifest = load_manifest(complete_of(view.completes[0]), store.get)
        assert manifest is not None, "the store raises for a manifest that is missing"
        self._store = store
        return sum(each.total for each in ranges.values()), manifest

    def _states_differ(self, manifest: Manifest) -> Iterator[Divergence]:
        reached = self._reached
        with (
            StoredState(reached.store, _without(reached, set(self._sinks)), reached.what) as committed,
            StoredState(self._store, manifest, "the replay") as replayed,
        ):
            self._states = len(committed.tables())
            for operator in self._steps:
                sides = (*committed.manifest.operators, *replayed.manifest.operators)
                until_ms = reached_ms(each for each in sides if each.operator == operator)
                found = (each for each in diff(committed, replayed, operator) if not self._same(each, until_ms))
                for number, each in enumerate(found):
                    if number == _MOST:
                        break
                    yield self._divergence(each)

    def _same(self, found: StateDifference, until_ms: int) -> bool:
        """`until_ms`: event time that the operator had reached."""
        if found.operator in self._ids:  # an id's value is the time at which it was seen
            return found.change == "changed" or self._ids[found.operator]
        if found.change != "changed" and found.over_ms is not None and found.over_ms <= until_ms:
            return True
        held = found.operator in self._holding and (found.state == HELD_ROWS or found.change == "changed")
        return held or same_content(found)

    def _divergence(self, found: StateDifference) -> Divergence:
        columns = place_of(self._graph, found.operator).keys.values()
        shown = found.redacted(self._redact, list(zip(*columns, strict=False)))
        beside = "" if shown.beside is None else f", {shown.beside}"
        key = ", ".join(f"{name}={value!r}" for name, value in shown.key.items())
        values = ["nothing" if value is None else repr(value) for value in (shown.before, shown.after)]
        return Divergence(found.operator, f"state {found.state!r} of key {key}{beside}", *values)

    def _committed(self, sink: str, reads: ReadsBack) -> Counter[str] | None:
        before = self._stretch.before
        after, until = 0 if before is None else before.manifest.checkpoint, self._reached.manifest.checkpoint
        try:
            return Counter(reads.committed_rows(self._graph.name, sink, after, until))
        except ObjectNotFound:
            return None

    def _rows_differ(self, sink: str, committed: Counter[str], replayed: Counter[str]) -> Iterator[Divergence]:
        for row in [*replayed, *[each for each in committed if each not in replayed]]:
            if committed[row] != replayed[row]:
                shown = "row (hidden)" if self._redact else f"row {row}"
                yield Divergence(sink, shown, counted(committed[row], "time"), counted(replayed[row], "time"))


def same_content(found: StateDifference) -> bool:
    """True if only the encoding of aggregates' sketches differs."""
    before, after = found.before, found.after
    if not (isinstance(before, dict) and isinstance(after, dict) and before.keys() == after.keys()):
        return False
    return all(same_sketches(name, before[name], after[name]) for name in before if before[name] != after[name])


def _reads_back(operator: object) -> ReadsBack | None:
    sink = operator.fresh_sink() if isinstance(operator, SinkOperator) else None
    return sink if isinstance(sink, ReadsBack) else None


def _without(at: StoredCheckpoint, sinks: set[str]) -> Manifest:
    operators = tuple(each for each in at.manifest.operators if each.operator not in sinks)
    return msgspec.structs.replace(at.manifest, operators=operators)
