"""Checkers of user actions on a running job: rescale, replace, drain, savepoints.

A planned change of generation is a FENCE of the same run with another parallelism or another program. Beyond the
guarantees of every generation, sources read no row twice, and the old slots leave no commit open.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

from checkers import Checker, Report
from facts import Decision, Facts
from workload import Row, Workload

from barrier_runtime.coordinator.log.records import Complete, Fence, Finish, Lead, Record, StopWish
from barrier_runtime.coordinator.log.savepoint import DATA_PREFIX, Savepoint
from barrier_runtime.state.store.object_store import ObjectNotFound
from barrier_runtime.state.versioned import sha256_hex


def moves(before: Fence | None, record: Record) -> bool:
    """Returns whether `record` is a FENCE of a planned change: same run, other program or parallelism.

    A FENCE with fewer slots because cores are away follows a failure.
    """
    if before is None or not isinstance(record, Fence) or before.spec.run_id != record.spec.run_id:
        return False
    if before.spec.parallelism > record.spec.parallelism and record.spec.full_parallelism:
        return False
    return (before.spec.program, before.spec.parallelism) != (record.spec.program, record.spec.parallelism)


class NothingIsReadTwice(Checker):
    """1.11: after a planned change sources continue at the next row; the old sources read no row after their last
    barrier."""

    def __init__(self, facts: Facts, workload: Workload, report: Report) -> None:
        super().__init__(facts, workload, report)
        self._read: dict[int, dict[tuple[str, int], int]] = defaultdict(dict)  # token -> split -> rows
        self._moved: dict[int, Decision] = {}  # token of the old slots -> the checkpoint that the new slots restore
        self._before: Fence | None = None

    def on_read(self, token: int, split: str, rows: int) -> None:
        source, _, index = split.rpartition("-")
        place = source, int(index)
        self._read[token][place] = max(rows, self._read[token].get(place, 0))
        if token in self._moved:
            self._judge(token)

    def on_record(self, position: int, record: Record) -> None:
        before = self._before
        if isinstance(record, Fence):
            self._before = record
        if before is not None and moves(before, record) and self.facts.decisions:
            self._moved[before.token] = self.facts.decisions[-1]
            self._judge(before.token)

    def _judge(self, token: int) -> None:
        """Compares the splits that have a position; an ended split may have none, and cannot be read further."""
        decision = self._moved[token]
        for place, position in decision.positions.items():
            rows = self._read[token].get(place, 0)
            if rows > position:
                source, split = place
                self.wrong(
                    f"generation {token} has read {rows} rows of {source}-{split}, and moved with checkpoint "
                    f"{decision.record.checkpoint}, whose position is {position}"
                )


class OneOwner(Checker):
    """Each key group has exactly one owning subtask in every decided checkpoint."""

    def on_decision(self, decision: Decision) -> None:
        ranges: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for snapshot in decision.manifest.operators:
            if snapshot.keyed is not None:
                ranges[snapshot.operator].append((snapshot.keyed.key_group_first, snapshot.keyed.key_group_last))
        for operator, owned in ranges.items():
            groups = [group for first, last in owned for group in range(first, last + 1)]
            if sorted(groups) != list(range(decision.manifest.max_parallelism)):
                self.wrong(
                    f"checkpoint {decision.record.checkpoint}: key groups of {operator} have none or several owners: "
                    f"{sorted(owned)}"
                )


class MovesWaitForCommits(Checker):
    """1.15: when new slots take over, readers see all rows of the old slots: no commit is outstanding."""

    def __init__(self, facts: Facts, workload: Workload, report: Report) -> None:
        super().__init__(facts, workload, report)
        self._shown: dict[str, set[tuple[str, int, int, int]]] = defaultdict(set)
        self._before: Fence | None = None

    def on_visible(self, sink: str, checkpoint: int, committables: Sequence[bytes], rows: Sequence[Row]) -> None:
        self._shown[sink].update((row.source, row.split, row.seq, row.leg) for row in rows)

    def on_record(self, position: int, record: Record) -> None:
        before = self._before
        if isinstance(record, Fence):
            self._before = record
        if not moves(before, record) or not self.facts.decisions:
            return
        decision = self.facts.decisions[-1]
        came = {(*split, seq, leg) for split, n in decision.positions.items() for seq in range(n) for leg in (0, 1)}
        for sink in self.workload.sinks:
            lacking = came - decision.not_shown(sink) - self._shown[sink]
            if lacking:
                self.wrong(
                    f"the job moved with checkpoint {decision.record.checkpoint}, but sink {sink} shows {len(lacking)} "
                    "of its rows not yet"
                )


class SavepointsShareNothing(Checker):
    """1.3: a savepoint keeps all files in the savepoint's folder, whatever the job deletes."""

    def __init__(self, facts: Facts, workload: Workload, report: Report) -> None:
        super().__init__(facts, workload, report)
        # By id: a job that continues after a failed stop writes its savepoint again.
        self._written: dict[str, tuple[Savepoint, Callable[[str], bytes]]] = {}

    def on_savepoint(self, savepoint: Savepoint, read: Callable[[str], bytes]) -> None:
        self._written[savepoint.id] = savepoint, read
        for snapshot in savepoint.taken.operators:
            for ref in snapshot.files:
                if ref.key is not None and not ref.key.startswith(DATA_PREFIX):
                    self.wrong(f"the savepoint of checkpoint {savepoint.taken.checkpoint} names {ref.key}")

    def at_end(self, expected_all: bool) -> None:
        for savepoint, read in self._written.values():
            for snapshot in savepoint.taken.operators:
                for ref in snapshot.files:
                    if ref.key is not None and _bytes_of(read, ref.key, ref.offset, ref.size) != ref.sha256:
                        self.wrong(f"the savepoint of checkpoint {savepoint.taken.checkpoint} has lost {ref.key}")


class DrainedReadsNoMore(Checker):
    """1.5: sources of a drained job stay ended. No slot, old or restarted, reads past the positions of a checkpoint
    that was taken after the drain."""

    def __init__(self, facts: Facts, workload: Workload, report: Report) -> None:
        super().__init__(facts, workload, report)
        self._read: dict[tuple[str, int], int] = {}  # in the current run, since generation _token
        self._token = 0  # the first generation that may have been drained
        self._run = ""
        self._ends: Decision | None = None

    def on_read(self, token: int, split: str, rows: int) -> None:
        if token >= self._token:
            source, _, index = split.rpartition("-")
            self._read[source, int(index)] = max(rows, self._read.get((source, int(index)), 0))
            self._judge()

    def on_record(self, position: int, record: Record) -> None:
        if isinstance(record, Fence) and (self._ends is None or record.spec.run_id != self._run):
            self._read, self._token, self._run, self._ends = {}, record.token, record.spec.run_id, None

    def on_decision(self, decision: Decision) -> None:
        if self._ends is not None and decision.positions != self._ends.positions:
            self.wrong(
                f"checkpoint {decision.record.checkpoint} has positions {decision.positions}; those of checkpoint "
                f"{self._ends.record.checkpoint}, when the job was drained, were {self._ends.positions}"
            )
        elif decision.manifest.drained_by:
            self._ends = decision
            self._judge()

    def _judge(self) -> None:
        ends = self._ends
        for (source, split), rows in self._read.items():
            if ends is not None and rows > ends.positions.get((source, split), rows):
                self.wrong(
                    f"{rows} rows of {source}-{split} were read; the job was drained with checkpoint "
                    f"{ends.record.checkpoint}, whose position is {ends.positions[source, split]}"
                )


class DrainedIsOut(Checker):
    """1.5: a drained job ends with a last checkpoint that has nothing in flight, and readers see each row before its
    positions once. The checkpoint names the run that drained the job."""

    def __init__(self, facts: Facts, workload: Workload, report: Report) -> None:
        super().__init__(facts, workload, report)
        self._shown: dict[str, Counter[tuple[str, int, int, int]]] = defaultdict(Counter)
        self._run = ""

    def on_visible(self, sink: str, checkpoint: int, committables: Sequence[bytes], rows: Sequence[Row]) -> None:
        self._shown[sink].update((row.source, row.split, row.seq, row.leg) for row in rows)

    def on_record(self, position: int, record: Record) -> None:
        if isinstance(record, Fence):
            self._run = record.spec.run_id
        if isinstance(record, Finish) and record.outcome == "finished" and not self.workload.bounded:
            self._judge()

    def _judge(self) -> None:
        if not self.facts.decisions:
            self.wrong("the job was drained without any checkpoint")
            return
        last = self.facts.decisions[-1]
        what = f"checkpoint {last.record.checkpoint}, the last of a drained job,"
        if last.manifest.drained_by != self._run:
            self.wrong(f"{what} was taken before its sources had ended")
        came = Counter((*split, seq, leg) for split, n in last.positions.items() for seq in range(n) for leg in (0, 1))
        for sink in self.workload.sinks:
            if last.not_shown(sink):
                self.wrong(f"{what} has {len(last.not_shown(sink))} rows that sink {sink} is to show later")
            elif self._shown[sink] != came:
                lacking, more = came - self._shown[sink], self._shown[sink] - came
                self.wrong(f"{what} has rows that sink {sink} shows not: {len(lacking)}, or not once: {len(more)}")


class StoppedIsOut(Checker):
    """1.4: a FINISH that names a visible checkpoint is written after readers see each row before its positions."""

    def __init__(self, facts: Facts, workload: Workload, report: Report) -> None:
        super().__init__(facts, workload, report)
        self._shown: dict[str, set[tuple[str, int, int, int]]] = defaultdict(set)

    def on_visible(self, sink: str, checkpoint: int, committables: Sequence[bytes], rows: Sequence[Row]) -> None:
        self._shown[sink].update((row.source, row.split, row.seq, row.leg) for row in rows)

    def on_record(self, position: int, record: Record) -> None:
        if not isinstance(record, Finish) or not record.visible:
            return
        what = f"log record {position} names checkpoint {record.visible} as visible"
        decision = next((each for each in self.facts.decisions if each.record.checkpoint == record.visible), None)
        if decision is None:
            self.wrong(f"{what}, which was never decided")
            return
        came = {(*split, seq, leg) for split, n in decision.positions.items() for seq in range(n) for leg in (0, 1)}
        for sink in self.workload.sinks:
            lacking = came - decision.not_shown(sink) - self._shown[sink]
            if lacking:
                self.wrong(f"{what}, and sink {sink} lacks {len(lacking)} of its rows")


class StopsAreKept(Checker):
    """1.4: the log holds a run's stop request, and every coordinator that continues the generation keeps the request.

    A new generation may drop the request: the savepoint could not be copied."""

    def __init__(self, facts: Facts, workload: Workload, report: Report) -> None:
        super().__init__(facts, workload, report)
        self._wish: StopWish | None = None

    def on_record(self, position: int, record: Record) -> None:
        before, self._wish = self._wish, record.stops_with
        if before is not None and self._wish is None and isinstance(record, Lead | Complete):
            self.wrong(
                f"the job was to stop with savepoint {before.savepoint}; log record {position} says no more of it"
            )


class MovedFilesAreShown(Checker):
    """Rows in open files that are restored at another parallelism become visible with the first checkpoint.

    Another subtask may hold newer rows of their keys."""

    def __init__(self, facts: Facts, workload: Workload, report: Report) -> None:
        super().__init__(facts, workload, report)
        self._parallelism: dict[int, int] = {}  # by token
        self._moved: frozenset[tuple[str, int, int, int]] = frozenset()

    def on_record(self, position: int, record: Record) -> None:
        if isinstance(record, Fence):
            self._parallelism[record.token] = record.spec.parallelism
            restored = (each for each in self.facts.decisions if each.position == record.restored_position)
            decision = next(restored, None)
            had = None if decision is None else self._parallelism.get(decision.record.token)
            moved = decision is not None and had != record.spec.parallelism
            self._moved = decision.kept if decision is not None and moved else frozenset()

    def on_decision(self, decision: Decision) -> None:
        left, self._moved = decision.kept & self._moved, frozenset()
        if left:
            self.wrong(
                f"checkpoint {decision.record.checkpoint}, the first at another parallelism, has rows of open files "
                f"that were moved: {sorted(left)[:3]}"
            )


def _bytes_of(read: Callable[[str], bytes], key: str, offset: int, size: int) -> str:
    """Returns the SHA-256 of the stored bytes; "" if the object is missing."""
    try:
        return sha256_hex(read(key)[offset : offset + size])
    except ObjectNotFound:
        return ""


MOVE_CHECKERS: tuple[type[Checker], ...] = (
    NothingIsReadTwice,
    OneOwner,
    DrainedReadsNoMore,
    StopsAreKept,
)  # for every kind of job
BANK_MOVE_CHECKERS: tuple[type[Checker], ...] = (
    MovesWaitForCommits,
    SavepointsShareNothing,
    DrainedIsOut,
    StoppedIsOut,
    MovedFilesAreShown,
)  # for jobs of the bank: these checkers compare visible rows
