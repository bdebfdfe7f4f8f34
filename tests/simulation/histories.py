"""Builders of histories: events at the stores of one job, reported to every checker as the world reports them.

Facts, records, manifests, committables and rows are real. Every method returns the history, so that a history is one
expression: `job().checkpoint(1, 2).out(1)`.
"""

import dataclasses
import functools
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence

import msgspec
import pyarrow as pa
from checkers import CHECKERS, Checker
from facts import Facts
from workload import TRANSFERS, Row, Workload, legs, rows_in

from barrier_runtime.connectors.files.sink.sink import JsonlSink
from barrier_runtime.connectors.sink_bases.file_committable import FileNames, StagedFile, encode_committable
from barrier_runtime.coordinator.log.manifest import Manifest, encode_manifest, manifest_data
from barrier_runtime.coordinator.log.records import (
    NO_RECORD,
    Complete,
    Fence,
    Finish,
    Lead,
    Record,
    Stop,
    StopWish,
    encode_record,
)
from barrier_runtime.coordinator.log.savepoint import savepoint_copy
from barrier_runtime.coordinator.wire.messages import CheckpointOptions, JobSpec
from barrier_runtime.runtime.sinks.pending_set import PENDING_VALUE, PendingEntry, encode_pending
from barrier_runtime.runtime.sources.progress import SPLITS_VALUE, SourceProgress, SplitProgress
from barrier_runtime.state.snapshots.snapshot import FileRef, KeyedSnapshot, OperatorSnapshot
from barrier_runtime.state.store.memory import MemoryStore
from barrier_runtime.state.store.object_store import PutOutcome
from barrier_runtime.state.store.paths import Paths
from barrier_runtime.state.versioned import sha256_hex

JOB = "bank"
PATHS = Paths(JOB)
COORDINATOR = "coordinator-1"
SLOT = "slot-0-2"

Rows = Sequence[Row]
Spoil = Callable[[Rows], Rows]


def data(name: str, token: int = 1) -> str:
    return PATHS.data_file(token, "slot", name)


class Bank:
    """The complete keyed state of the workload's job: numbers the legs as the operators do."""

    def __init__(self, workload: Workload) -> None:
        self._audited = workload.audited
        self._n: dict[int, int] = defaultdict(int)
        self._balance: dict[int, int] = defaultdict(int)
        self._opened: dict[int, int] = {}
        self._peak: dict[int, tuple[int, int]] = {}  # delta and number of the transfer
        self._m: dict[tuple[str, int], int] = defaultdict(int)

    def read(self, source: str, split: int, first: int, end: int) -> list[Row]:
        """Returns the rows of transfers `first` to `end` (exclusive) of one split, as in a file of the sink."""
        seqs = range(first, end)
        columns = [[source] * len(seqs), [split] * len(seqs), seqs]
        if not seqs:
            return []
        batch = pa.RecordBatch.from_arrays(
            [pa.array(column, field.type) for column, field in zip(columns, TRANSFERS, strict=True)], schema=TRANSFERS
        )
        lines: list[bytes] = []
        for leg in legs(batch).to_pylist():
            account, place = leg["account"], (source, split)
            self._n[account] += 1
            self._balance[account] += leg["delta"]
            self._m[place] += self._audited
            opened = self._opened.setdefault(account, leg["seq"])
            if account not in self._peak or leg["delta"] > self._peak[account][0]:
                self._peak[account] = leg["delta"], leg["seq"]
            counted = {"n": self._n[account], "balance": self._balance[account], "m": self._m[place]}
            row = {**leg, **counted, "opened": opened, "peak": self._peak[account][1]}
            lines.append(msgspec.json.encode(row))
        return rows_in(b"\n".join(lines))


class History:
    def __init__(
        self,
        graph: str = "one-shuffle",
        *,
        splits: int = 2,
        count: int = 6,
        retained: int = 1,
        bounded: bool = True,
        more: Sequence[type[Checker]] = (),
    ) -> None:
        self.store = MemoryStore()
        self.folder = MemoryStore()  # of savepoints
        self.facts = Facts(PATHS)
        sink = functools.partial(JsonlSink, "sim://target")
        self.workload = Workload(graph, splits, count, 0, 1, bounded, sink, sink)
        self.bank = Bank(self.workload)
        self.reports: list[tuple[str, str]] = []
        self.checkers: list[Checker] = [
            make(self.facts, self.workload, lambda checker, what: self.reports.append((checker, what)))
            for make in (*CHECKERS, *more)
        ]
        self.lots: dict[Hashable, list[Row]] = {}  # by checkpoint, or by the name given to `read`
        self._retained = retained
        self._leader = "leader-a"
        self._files: dict[str, FileRef] = {}
        self._read: dict[tuple[str, int], int] = defaultdict(int)
        self._put_ids = 0
        self._last_sha256 = ""

    # ---- the checkpoint store

    def _peek(self, key: str) -> bytes | None:
        return self.store.get(key) if key in self.store.keys() else None  # noqa: SIM118

    def put(self, key: str, data: bytes, actor: str = COORDINATOR) -> "History":
        self.store.put(key, data)
        for checker in self.checkers:
            checker.on_put(actor, key, data, self._peek)
        position = self.facts.position_of(key)
        if position is None or position != self._next_position:
            return self
        record = self.facts.appended(key, data)
        self._last_sha256 = sha256_hex(data)
        for checker in self.checkers:
            checker.on_record(position, record)
        manifest = manifest_data(record, self._peek) if isinstance(record, Complete) else None
        if isinstance(record, Complete) and manifest is not None:
            decision = self.facts.decided(position, record, manifest, self._peek)
            for checker in self.checkers:
                checker.on_decision(decision)
        return self

    def put_again(self, position: int) -> "History":
        """Writes the log record at `position` again, with the same bytes."""
        return self.put(PATHS.log_record(position), self.store.get(PATHS.log_record(position)))

    def put_in_a_gap(self, position: int, data: bytes) -> "History":
        """Writes bytes at the position of a deleted log record, where nobody reads them."""
        for checker in self.checkers:
            checker.on_put(COORDINATOR, PATHS.log_record(position), data, self._peek)
        return self

    def upload(self, *names: str, holds: bytes = b"state", token: int | None = None) -> "History":
        """Uploads snapshot files of the current generation, or of `token`."""
        for name in names:
            key = data(name, self.facts.token if token is None else token)
            self._files[name] = FileRef(f"{name}.sst", len(holds), sha256_hex(holds), key)
            self.put(key, holds, SLOT)
        return self

    def delete(self, *keys: str, actor: str = COORDINATOR) -> "History":
        for key in keys:
            for checker in self.checkers:
                checker.on_delete(actor, key)
            self.store.delete([key])
        return self

    def lose(self, key: str) -> "History":
        """Loses the file: nobody requested a delete."""
        self.store.delete([key])
        return self

    def request(self, operation: str, key: str, actor: str = COORDINATOR) -> "History":
        for checker in self.checkers:
            checker.on_request(actor, operation, key)
        return self

    def trigger(self, checkpoint: int, token: int, triggered_ms: int, slot: str = SLOT) -> "History":
        for checker in self.checkers:
            checker.on_trigger(slot, token, checkpoint, triggered_ms)
        return self

    def answer(self, position: int, outcome: PutOutcome, actor: str = COORDINATOR) -> "History":
        for checker in self.checkers:
            checker.on_log_put_answered(actor, position, outcome)
        return self

    def get_answer(self, position: int, there: bool | None, actor: str = COORDINATOR) -> "History":
        for checker in self.checkers:
            checker.on_log_get_answered(actor, position, there)
        return self

    # ---- the log

    @property
    def _next_position(self) -> int:
        return len(self.facts.records) + 1

    def append(self, record: Record, position: int | None = None) -> "History":
        return self.put(PATHS.log_record(position or self._next_position), encode_record(record))

    def _common(self, token: int | None) -> dict[str, object]:
        self._put_ids += 1
        return {
            "put_id": f"{self._leader}-{self._put_ids}",
            "parent_sha256": self._last_sha256,
            "token": self.facts.token if token is None else token,
            "writer": "host pid 1",
            "wall_ms": 0,
        }

    def fence(
        self,
        restored: int = 0,
        *,
        token: int | None = None,
        at: int | None = None,
        says: dict[str, object] | None = None,
    ) -> "History":
        """Appends a FENCE that restores this checkpoint.

        `says` overrides fields of the record; `at` is the log position, by default the next."""
        decision = next((each for each in self.facts.decisions if each.record.checkpoint == restored), None)
        record = Fence(
            **self._common(token or at or self._next_position),
            reason="a start",
            restored_checkpoint=restored,
            restored_position=NO_RECORD if decision is None else decision.position,
            lineage="line",
            checkpoint_floor=0,
            spec=JobSpec(JOB, "run-1", "test", 1, 16, (), CheckpointOptions(retained=self._retained)),
        )
        return self.append(msgspec.structs.replace(record, **(says or {})), at)

    def by(self, leader: str) -> "History":
        self._leader = leader
        return self

    def lead(self, leader: str = "leader-a") -> "History":
        return self.by(leader).append(Lead(**self._common(None), leader=leader))

    def stop(self) -> "History":
        """Appends the request to stop the job with a savepoint."""
        wish = StopWish(mode="checkpoint", savepoint="last-1", url="memory://last-1")
        return self.append(Stop(**self._common(None), stop=wish))

    def finish(self, outcome: str = "finished", visible: int = 0) -> "History":
        return self.append(Finish(**self._common(None), outcome=outcome, visible=visible or msgspec.UNSET))

    # ---- checkpoints

    def _manifest(
        self,
        checkpoint: int,
        token: int | None,
        positions: dict[tuple[str, int], int],
        committables: Sequence[bytes],
        files: Sequence[str | FileRef],
        drained: str = "",
    ) -> Manifest:
        splits = {
            f"{source}-{split}": SplitProgress(rows, 0, False, msgspec.Raw(b"%d" % rows))
            for (source, split), rows in positions.items()
        }
        pending = encode_pending(checkpoint, [PendingEntry(checkpoint, 0, each) for each in committables])
        refs = tuple(self._files[each] if isinstance(each, str) else each for each in files)
        size = sum(ref.size for ref in refs)
        return Manifest(
            job=JOB,
            lineage="line",
            checkpoint=checkpoint,
            token=self.facts.token if token is None else token,
            created_wall_ms=0,
            parallelism=1,
            max_parallelism=16,
            operators=(
                OperatorSnapshot("a", 0, 1, {SPLITS_VALUE: msgspec.json.encode(SourceProgress(splits))}),
                OperatorSnapshot("out", 0, 1, {PENDING_VALUE: pending}),
                OperatorSnapshot("balance", 0, 1, {}, KeyedSnapshot("lsm", 16, 0, 15, {}, refs, size, size)),
            ),
            parent_position=len(self.facts.records),
            parent_sha256=self._last_sha256,
            drained=drained or msgspec.UNSET,
        )

    def decide(
        self,
        checkpoint: int,
        *,
        token: int | None = None,
        positions: dict[tuple[str, int], int] | None = None,
        committables: Sequence[bytes] = (),
        files: Sequence[str | FileRef] = (),
        stored: bool = True,
        appended: bool = True,
        says: dict[str, object] | None = None,
        drained: str = "",
    ) -> "History":
        """Stores the manifest, then appends the decision that names it; `says` overrides fields of the record."""
        manifest = self._manifest(checkpoint, token, positions or {}, committables, files, drained)
        encoded = encode_manifest(manifest)
        key = PATHS.manifest(checkpoint, manifest.token)
        if stored:
            self.put(key, encoded)
        if not appended:
            return self
        record = Complete(
            **self._common(manifest.token),
            checkpoint=checkpoint,
            lineage="line",
            manifest=key,
            sha256=sha256_hex(encoded),
        )
        return self.append(msgspec.structs.replace(record, **(says or {})))

    def checkpoint(
        self, checkpoint: int, upto: int, *files: str, drained: str = "", says: dict[str, object] | None = None
    ) -> "History":
        """Decides a checkpoint at transfer `upto` of every split, and uploads `files` that are not uploaded yet.

        The checkpoint's lot are the rows since the checkpoint before. `drained`: the run that drained the job."""
        self.upload(*(name for name in files if name not in self._files))
        lot = self.lots[checkpoint] = []
        positions: dict[tuple[str, int], int] = {}
        for place in ((source, split) for source in self.workload.sources for split in range(self.workload.splits)):
            lot += self.bank.read(*place, self._read[place], upto)
            self._read[place] = positions[place] = upto
        return self.decide(
            checkpoint,
            positions=positions,
            committables=[file_committable(checkpoint)],
            files=files,
            drained=drained,
            says=says,
        )

    def savepoint(
        self, checkpoint: int, *, sinks: Sequence[str] | None = None, lost: str = "", token: int = 1
    ) -> "History":
        """Writes a savepoint of a decided checkpoint.

        `sinks`: sinks whose transactions the savepoint omits (by default all); `lost`: a file that gets wrong bytes."""
        manifest = next(each.manifest for each in self.facts.decisions if each.record.checkpoint == checkpoint)
        manifest = msgspec.structs.replace(manifest, token=token)
        copy = savepoint_copy(manifest, self.workload.sinks if sinks is None else sinks, f"wish-{checkpoint}")
        for key, to in copy.objects.items():
            self.folder.put(to, b"other" if lost and lost in key else self.store.get(key))
        for checker in self.checkers:
            checker.on_savepoint(copy.savepoint, self.folder.get)
        return self

    def lose_of_savepoint(self) -> "History":
        """Deletes the files of all savepoints."""
        self.folder.delete([each.key for each in self.folder.list("")])
        return self

    def reads(self, token: int, split: str, rows: int) -> "History":
        for checker in self.checkers:
            checker.on_read(token, split, rows)
        return self

    # ---- what readers see

    def read(self, lot: str, split: int, first: int, end: int) -> "History":
        """Adds a lot of rows of source "a" that belong to no checkpoint."""
        self.lots[lot] = self.bank.read("a", split, first, end)
        return self

    def given(self, lot: Hashable, what: Callable[[Row], object], values: set[object]) -> "History":
        """Asserts a precondition of the history: `what` takes exactly these values on the rows of the lot."""
        assert {what(row) for row in self.lots[lot]} == values
        return self

    def publish(self, *names: str) -> "History":
        for name in names:
            for checker in self.checkers:
                checker.on_published(name)
        return self

    def out(self, *lots: Hashable, spoil: Spoil = list, at: int | None = None) -> "History":
        """Shows lots in the sink with a global committer, as checkpoint `at`: by default the last lot's."""
        return self._show("out", lots, spoil, lots[-1] if at is None else at)

    def side(self, *lots: Hashable, spoil: Spoil = list) -> "History":
        """Shows lots in the sink without a global committer."""
        return self._show("side", lots, spoil, 0)

    def commit(self, committable: bytes) -> "History":
        for checker in self.checkers:
            checker.on_visible("side", 0, [committable], [])
        return self

    def _show(self, sink: str, lots: Iterable[Hashable], spoil: Spoil, checkpoint: int) -> "History":
        rows = list(spoil([row for lot in lots for row in self.lots[lot]]))
        for checker in self.checkers:
            checker.on_visible(sink, checkpoint, (), rows)
        return self

    def keeps(self, *legs: tuple[str, int, int, int]) -> "History":
        """Puts these legs into open files of `out` in the last checkpoint."""
        self.facts.decisions[-1] = dataclasses.replace(self.facts.decisions[-1], kept=frozenset(legs))
        return self

    def end(self, *, expected_all: bool = True) -> "History":
        for checker in self.checkers:
            checker.at_end(expected_all)
        return self


def job(**settings: int) -> History:
    return History(**settings).fence()


def two_sinks(*more: type[Checker]) -> History:
    """Returns the history of a started job with two sinks, `out` and `side`, and a second shuffle."""
    return History("two-sinks", more=more).fence()


def final_name(checkpoint: int) -> str:
    return FileNames(JOB, "out", 1, 0, "0" * 16, "abcdef12", "jsonl").final(checkpoint, 0)


def file_committable(checkpoint: int) -> bytes:
    names = FileNames(JOB, "out", 1, 0, "0" * 16, "abcdef12", "jsonl")
    staged = StagedFile(names.staged(checkpoint), names.final(checkpoint, 0), sha256_hex(b"rows"), 1)
    return encode_committable((staged,))


# ---------------------------------------------------------------- spoiled rows


def but_last(count: int) -> Spoil:
    return lambda rows: rows[:-count]


def last(count: int) -> Spoil:
    return lambda rows: rows[-count:]


def of_split(split: int) -> Spoil:
    return lambda rows: [row for row in rows if row.split == split]


def raised(row: Row, **by: int) -> Row:
    return msgspec.structs.replace(row, **{name: getattr(row, name) + more for name, more in by.items()})


def row_raised(at: int, **by: int) -> Spoil:
    """Returns a spoil that increases fields of row `at` (modulo the number of rows)."""
    return lambda rows: [raised(row, **by) if index == at % len(rows) else row for index, row in enumerate(rows)]


def account_raised(rows: Rows, **by: int) -> Rows:
    """Increases fields of all rows of the first row's account."""
    return [raised(row, **by) if row.account == rows[0].account else row for row in rows]


def pair_numbered(of_first: int, of_second: int, *, same_split: bool = True) -> Spoil:
    """Returns a spoil that keeps one `pair`, and gives its rows the numbers of the pair's rows at these indexes."""

    def spoil(rows: Rows) -> Rows:
        both = pair(rows, same_split=same_split)
        numbers = both[of_first].n, both[of_second].n
        return [msgspec.structs.replace(row, n=n) for row, n in zip(both, numbers, strict=True)]

    return spoil


def pair(rows: Rows, *, same_split: bool = True) -> tuple[Row, Row]:
    """Returns two rows of one account, from one split or from two, in the order in which state processed them."""
    return next(
        (first, second)
        for index, first in enumerate(rows)
        for second in rows[index + 1 :]
        if first.account == second.account and (first.split == second.split) is same_split
    )
