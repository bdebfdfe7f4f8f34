"""The judges of the simulation are judged: each one reports the events that break its rule, and only those.

Every history is told to all checkers at once, as the world tells it, through the real `Facts`, real records, manifests,
committables and rows. A history that breaks one rule says which checkers may speak, so a checker that is deaf and one
that accuses the innocent both fail here.
"""

import functools
import hashlib
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from checkers import CHECKERS, TARGET_CHECKERS, Checker, TrueRows
from checkers import AcksOfThisGeneration as Acks
from checkers import ContiguousLog as Contiguous
from checkers import FinishedMeansCommitted as Finished
from checkers import FirstObjectFirst as First
from checkers import IdsAreUsedOnce as Ids
from checkers import NoBugIsReported as NoBug
from checkers import NothingDoubled as Doubled
from checkers import NothingLost as Lost
from checkers import NothingNeededIsDeleted as Deleted
from checkers import NothingReordered as Reordered
from checkers import OneCut as Cut
from checkers import OneLeader as Leader
from checkers import OnlyDecidedIsVisible as Visible
from checkers import OnlyReadIsVisible as Read
from checkers import RisingTokens as Tokens
from checkers import UnknownBlocks as Unknown
from checkers import WholeManifests as Manifests
from checkers import WholeState as State
from checkers import ZombiesDeleteNothing as Zombies
from facts import Decision, Facts
from hanging import Hang, HangingOpens
from loop import SimProcess, Simulation
from schedule import draw
from upsert_checkers import LastValues
from workload import TRANSFERS, Row, Workload, legs, rows_in
from world import World

from barrier_runtime.connectors.files.sink.sink import JsonlSink
from barrier_runtime.connectors.sink_bases.file_committable import FileNames, StagedFile, encode_committable
from barrier_runtime.coordinator.log.hashing import sha256_hex
from barrier_runtime.coordinator.log.manifest import Manifest, encode_manifest
from barrier_runtime.coordinator.log.records import NO_RECORD, Complete, Fence, Finish, Lead, Record, encode_record
from barrier_runtime.coordinator.status.history import History as StoredHistory
from barrier_runtime.coordinator.status.history import encode_history
from barrier_runtime.coordinator.status.status import CheckpointStatus
from barrier_runtime.coordinator.wire.messages import CheckpointOptions, JobSpec
from barrier_runtime.runtime.sinks.pending_set import PENDING_VALUE, PendingEntry, encode_pending
from barrier_runtime.runtime.sources.progress import SPLITS_VALUE, SourceProgress, SplitProgress
from barrier_runtime.state.snapshots.snapshot import FileRef, KeyedSnapshot, OperatorSnapshot
from barrier_runtime.state.store.memory import MemoryStore
from barrier_runtime.state.store.object_store import PutOutcome
from barrier_runtime.state.store.paths import Paths

JOB = "bank"
COORDINATOR = "coordinator-1"
SLOT = "slot-0-2"


class Bank:
    """The keyed state of the workload's job, whole: numbers the legs as the operators do."""

    def __init__(self, workload: Workload) -> None:
        self._audited = workload.audited
        self._n: dict[int, int] = defaultdict(int)
        self._balance: dict[int, int] = defaultdict(int)
        self._m: dict[tuple[str, int], int] = defaultdict(int)

    def read(self, source: str, split: int, first: int, end: int) -> list[Row]:
        """The rows of transfers `first` to `end` (exclusive) of one split, as a file of the sink has them."""
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
            row = {**leg, "n": self._n[account], "balance": self._balance[account], "m": self._m[place]}
            lines.append(msgspec.json.encode(row))
        return rows_in(b"\n".join(lines))


class History:
    """What the stores of one job have seen, told to every checker in the order in which the world tells it."""

    def __init__(
        self,
        graph: str = "one-shuffle",
        *,
        splits: int = 2,
        count: int = 6,
        retained: int = 1,
        more: Sequence[type[Checker]] = (),
    ) -> None:
        self.paths = Paths(JOB)
        self.store = MemoryStore()
        self.facts = Facts(self.paths)
        sink = functools.partial(JsonlSink, "sim://target")
        self.workload = Workload(graph, splits, count, 0, 1, True, sink, sink)
        self.bank = Bank(self.workload)
        self.reports: list[tuple[str, str]] = []
        self.checkers: list[Checker] = [
            make(self.facts, self.workload, lambda checker, what: self.reports.append((checker, what)))
            for make in (*CHECKERS, *more)
        ]
        self.retained = retained
        self.leader = "leader-a"
        self._read: dict[tuple[str, int], int] = defaultdict(int)
        self._put_ids = 0
        self._last_sha256 = ""

    # ---- the checkpoint store

    def peek(self, key: str) -> bytes | None:
        return self.store.get(key) if self.store.keys().count(key) else None

    def put(self, key: str, data: bytes, actor: str = COORDINATOR) -> Decision | None:
        self.store.put(key, data)
        for checker in self.checkers:
            checker.on_put(actor, key, data, self.peek)
        position = self.facts.position_of(key)
        if position is None or position != len(self.facts.records) + 1:
            return None
        record = self.facts.appended(key, data)
        self._last_sha256 = sha256_hex(data)
        for checker in self.checkers:
            checker.on_record(position, record)
        manifest = self.peek(record.manifest) if isinstance(record, Complete) else None
        if not isinstance(record, Complete) or manifest is None:
            return None
        decision = self.facts.decided(position, record, manifest, self.peek)
        for checker in self.checkers:
            checker.on_decision(decision)
        return decision

    def delete(self, *keys: str, actor: str = COORDINATOR) -> None:
        for key in keys:
            for checker in self.checkers:
                checker.on_delete(actor, key)
            self.store.delete([key])

    def request(self, operation: str, key: str, actor: str = COORDINATOR) -> None:
        for checker in self.checkers:
            checker.on_request(actor, operation, key)

    def trigger(self, checkpoint: int, token: int, triggered_ms: int, slot: str = SLOT) -> None:
        for checker in self.checkers:
            checker.on_trigger(slot, token, checkpoint, triggered_ms)

    def answer(self, position: int, outcome: PutOutcome, actor: str = COORDINATOR) -> None:
        for checker in self.checkers:
            checker.on_log_put_answered(actor, position, outcome)

    # ---- the log

    @property
    def next_position(self) -> int:
        return len(self.facts.records) + 1

    def append(self, record: Record) -> Decision | None:
        return self.put(self.paths.log_record(self.next_position), encode_record(record))

    def _common(self, token: int | None) -> dict[str, object]:
        self._put_ids += 1
        return {
            "put_id": f"{self.leader}-{self._put_ids}",
            "parent_sha256": self._last_sha256,
            "token": self.facts.token if token is None else token,
            "writer": "host pid 1",
            "wall_ms": 0,
        }

    def fence_record(
        self, restored: Decision | None = None, token: int | None = None, reason: str = "a start"
    ) -> Fence:
        return Fence(
            **self._common(self.next_position if token is None else token),
            reason=reason,
            restored_checkpoint=0 if restored is None else restored.record.checkpoint,
            restored_position=NO_RECORD if restored is None else restored.position,
            lineage="line",
            checkpoint_floor=0,
            spec=JobSpec(JOB, "run-1", "test", 1, 16, (), CheckpointOptions(retained=self.retained)),
        )

    def fence(self, restored: Decision | None = None, token: int | None = None) -> None:
        self.append(self.fence_record(restored, token))

    def lead(self) -> None:
        self.append(Lead(**self._common(None), leader=self.leader))

    def finish(self, outcome: str = "finished") -> None:
        self.append(Finish(**self._common(None), outcome=outcome))

    # ---- checkpoints

    def upload(self, file: str, data: bytes = b"state", *, token: int | None = None) -> FileRef:
        """A snapshot file of the present generation, or of `token`."""
        key = self.paths.data_file(self.facts.token if token is None else token, "slot", file)
        self.put(key, data, SLOT)
        return FileRef(f"{file}.sst", len(data), sha256_hex(data), key)

    def manifest(
        self,
        checkpoint: int,
        *,
        token: int | None = None,
        positions: dict[tuple[str, int], int] | None = None,
        committables: Sequence[bytes] = (),
        files: Sequence[FileRef] = (),
    ) -> Manifest:
        splits = {
            f"{source}-{split}": SplitProgress(rows, 0, False, msgspec.Raw(b"%d" % rows))
            for (source, split), rows in (positions or {}).items()
        }
        pending = encode_pending(checkpoint, [PendingEntry(checkpoint, 0, each) for each in committables])
        size = sum(file.size for file in files)
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
                OperatorSnapshot("balance", 0, 1, {}, KeyedSnapshot("lsm", 16, 0, 15, {}, tuple(files), size, size)),
            ),
            parent_position=len(self.facts.records),
            parent_sha256=self._last_sha256,
        )

    def complete_record(self, manifest: Manifest, *, token: int | None = None) -> Complete:
        return Complete(
            **self._common(manifest.token if token is None else token),
            checkpoint=manifest.checkpoint,
            lineage="line",
            manifest=self.paths.manifest(manifest.checkpoint, manifest.token),
            sha256=sha256_hex(encode_manifest(manifest)),
        )

    def decide(self, manifest: Manifest, *, token: int | None = None) -> Decision:
        """Store the manifest, then append the decision that names it."""
        record = self.complete_record(manifest, token=token)
        self.put(record.manifest, encode_manifest(manifest))
        decision = self.append(record)
        assert decision is not None
        return decision

    def checkpoint(self, checkpoint: int, upto: int, *, files: Sequence[FileRef] = ()) -> tuple[Decision, list[Row]]:
        """A checkpoint at transfer `upto` of every split, decided; and the rows that it makes due."""
        rows: list[Row] = []
        positions: dict[tuple[str, int], int] = {}
        for place in ((source, split) for source in self.workload.sources for split in range(self.workload.splits)):
            rows += self.bank.read(*place, self._read[place], upto)
            self._read[place] = positions[place] = upto
        committables = [file_committable(checkpoint)]
        return self.decide(self.manifest(checkpoint, positions=positions, committables=committables, files=files)), rows

    # ---- what readers see

    def publish(self, name: str) -> None:
        for checker in self.checkers:
            checker.on_published(name)

    def show(self, sink: str, rows: Iterable[Row], checkpoint: int = 0, committables: Sequence[bytes] = ()) -> None:
        for checker in self.checkers:
            checker.on_visible(sink, checkpoint, committables, list(rows))

    def end(self, *, expected_all: bool) -> None:
        for checker in self.checkers:
            checker.at_end(expected_all)


def final_name(checkpoint: int) -> str:
    return FileNames(JOB, "out", 1, 0, "0" * 16, "abcdef12", "jsonl").final(checkpoint, 0)


def file_committable(checkpoint: int) -> bytes:
    names = FileNames(JOB, "out", 1, 0, "0" * 16, "abcdef12", "jsonl")
    staged = StagedFile(names.staged(checkpoint), names.final(checkpoint, 0), sha256_hex(b"rows"), 1)
    return encode_committable((staged,))


def changed(rows: Sequence[Row], at: int, **fields: int) -> list[Row]:
    return [msgspec.structs.replace(row, **fields) if index == at else row for index, row in enumerate(rows)]


def pair_of_an_account(rows: Sequence[Row], *, same_split: bool) -> tuple[Row, Row]:
    """Two rows of one account, of one split or of two, in the order in which state saw them."""
    return next(
        (first, second)
        for index, first in enumerate(rows)
        for second in rows[index + 1 :]
        if first.account == second.account and (first.split == second.split) is same_split
    )


# ---------------------------------------------------------------- how a history is judged

Body = Callable[[], History]
BROKEN: dict[type[Checker], list[str]] = defaultdict(list)
KEPT: dict[type[Checker], list[str]] = defaultdict(list)


def breaks(checker: type[Checker], what: str, *, also: Sequence[type[Checker]] = ()) -> Callable[[Body], object]:
    """The history makes `checker` say `what`, and nobody else speaks but those in `also`."""

    def register(body: Body) -> object:
        BROKEN[checker].append(body.__name__)

        @functools.wraps(body)
        def test() -> None:
            history = body()
            said = [each for name, each in history.reports if name == checker.__name__]
            assert any(what in each for each in said), history.reports
            assert {name for name, _ in history.reports} == {each.__name__ for each in (checker, *also)}

        return test

    return register


def keeps(checker: type[Checker]) -> Callable[[Body], object]:
    """The history comes close to what `checker` forbids, and nobody speaks."""

    def register(body: Body) -> object:
        KEPT[checker].append(body.__name__)

        @functools.wraps(body)
        def test() -> None:
            assert body().reports == []

        return test

    return register


# ---------------------------------------------------------------- the log


@breaks(Contiguous, "replaced log record 1")
def test_a_log_record_that_is_replaced() -> History:
    """I1: positions are immutable."""
    history = History()
    history.fence()
    history.put(history.paths.log_record(1), encode_record(history.fence_record(token=1)))
    return history


@breaks(Contiguous, "wrote log record 3, the head is 1")
def test_a_log_record_beyond_a_gap() -> History:
    """I1: positions are contiguous."""
    history = History()
    history.fence()
    history.put(history.paths.log_record(3), encode_record(history.fence_record(token=3)))
    return history


@breaks(Contiguous, "deleted log record")
def test_a_log_record_that_is_deleted() -> History:
    """I1: positions are immutable, also for the one who leads."""
    history = History()
    history.fence()
    history.delete(history.paths.log_record(1))
    return history


@keeps(Contiguous)
def test_a_log_of_every_kind_of_record() -> History:
    """I1: one record after the other, the same bytes again, and other objects that come and go, are no violation."""
    history = History()
    record = history.fence_record()
    history.append(record)
    history.checkpoint(1, 2)
    history.lead()
    history.fence()
    history.finish("cancelled")
    history.put(history.paths.log_record(1), encode_record(record))
    for _ in range(2):
        history.put(history.paths.lease, b"{}")
    history.delete(history.paths.lease)
    return history


@breaks(Manifests, "its manifest is gone")
def test_a_decision_whose_manifest_was_never_written() -> History:
    """I2: the manifest exists before the put."""
    history = History()
    history.fence()
    history.append(history.complete_record(history.manifest(1)))
    return history


@breaks(Manifests, "its manifest is other")
def test_a_decision_that_says_another_hash_than_its_manifest_has() -> History:
    """I2: the manifest has the hash that the decision says."""
    history = History()
    history.fence()
    record = history.complete_record(history.manifest(1))
    history.put(record.manifest, encode_manifest(history.manifest(1, positions={("a", 0): 1})))
    history.append(record)
    return history


@breaks(Manifests, "decided without its file bank/data/1/slot/second")
def test_a_decision_one_of_whose_files_is_gone() -> History:
    """I2: every file exists before the put, not only the first."""
    history = History()
    history.fence()
    first, second = history.upload("first"), history.upload("second")
    history.store.delete([str(second.key)])
    history.decide(history.manifest(1, files=[first, second]))
    return history


@breaks(Manifests, "has other bytes than it says")
def test_a_decision_one_of_whose_files_has_other_bytes() -> History:
    """I2: every file has its hash."""
    history = History()
    history.fence()
    file = history.upload("file", b"0123456789")
    history.put(str(file.key), b"01234", SLOT)
    history.decide(history.manifest(1, files=[file]))
    return history


@breaks(Manifests, "has other bytes than it says")
def test_a_decision_whose_bytes_inside_of_the_manifest_are_others() -> History:
    """I2: what is inside of the manifest has its hash, too."""
    history = History()
    history.fence()
    history.decide(history.manifest(1, files=[FileRef("CURRENT", 3, sha256_hex(b"old"), inline=b"new")]))
    return history


@keeps(Manifests)
def test_a_decision_whose_files_are_objects_parts_of_objects_and_inside_of_it() -> History:
    """I2: a whole manifest with all three kinds of files is no violation."""
    history = History()
    history.fence()
    whole = history.upload("file", b"0123456789")
    part = FileRef("part.sst", 4, sha256_hex(b"3456"), whole.key, 3)
    inside = FileRef("CURRENT", 3, hashlib.sha256(b"new").hexdigest(), inline=b"new")
    history.decide(history.manifest(1, files=[whole, part, inside]))
    return history


@breaks(Tokens, "log record 3 has token 1 after 2")
def test_a_decision_of_a_generation_that_was_fenced() -> History:
    """I3: tokens never decrease."""
    history = History()
    history.fence()
    history.fence()
    history.decide(history.manifest(1, token=1))
    return history


@breaks(Tokens, "the FENCE at 1 has token 5")
def test_a_fence_whose_token_is_not_its_position() -> History:
    """I3: tokens are positions."""
    history = History()
    history.fence(token=5)
    return history


@breaks(Tokens, "generation 9 stands in generation 1")
def test_a_decision_of_a_generation_that_never_began() -> History:
    """I3: only a FENCE raises the token."""
    history = History()
    history.fence()
    history.decide(history.manifest(1, token=9))
    return history


@breaks(Tokens, "checkpoint 1 is decided after 2")
def test_a_checkpoint_id_that_falls() -> History:
    """I3: checkpoint ids rise, also across generations."""
    history = History()
    history.fence()
    history.checkpoint(2, 1)
    history.fence()
    history.checkpoint(1, 2)
    return history


@breaks(Tokens, "checkpoint 2 is decided after 2")
def test_a_checkpoint_that_is_decided_twice() -> History:
    """I3: a checkpoint id is used once."""
    history = History()
    history.fence()
    history.checkpoint(2, 1)
    history.checkpoint(2, 2)
    return history


@keeps(Tokens)
def test_generations_one_after_the_other() -> History:
    """I3: every generation's token is its position, and ids may leap."""
    history = History()
    history.fence()
    history.checkpoint(1, 1)
    history.fence()
    history.lead()
    history.checkpoint(7, 2)
    history.finish("failed")
    history.fence()
    return history


@breaks(Leader, "log record 3 is of leader-b, the generation is led by leader-a")
def test_a_decision_of_a_coordinator_that_does_not_lead() -> History:
    """I3: a token alone does not decide: of two coordinators of one generation only the one that leads it appends."""
    history = History()
    history.fence()
    history.checkpoint(1, 1)
    history.leader = "leader-b"
    history.checkpoint(2, 2)
    return history


@breaks(Leader, "log record 3 is of leader-a, the generation is led by leader-b")
def test_a_decision_of_a_coordinator_whose_successor_leads() -> History:
    """I3: the one that was replaced never appends again, although its token is still the highest."""
    history = History()
    history.fence()
    history.leader = "leader-b"
    history.lead()
    history.leader = "leader-a"
    history.finish("failed")
    return history


@keeps(Leader)
def test_coordinators_that_take_the_lead_before_they_decide() -> History:
    """I3: LEAD and FENCE pass the lead on."""
    history = History()
    history.fence()
    history.checkpoint(1, 1)
    history.leader = "leader-b"
    history.lead()
    history.checkpoint(2, 2)
    history.leader = "leader-c"
    history.fence()
    history.checkpoint(3, 3)
    return history


# ---------------------------------------------------------------- IdsAreUsedOnce


@breaks(Ids, "had heard of another one with that id (generation 1, 100)")
def test_a_successor_that_uses_a_checkpoint_id_again() -> History:
    """I3: a coordinator that takes over begins behind all ids that slots have seen."""
    history = History()
    history.trigger(3, 1, 100)
    history.trigger(3, 1, 250)
    return history


@keeps(Ids)
def test_a_trigger_that_is_repeated_and_ids_of_other_processes() -> History:
    """I3: who was not connected is told again; a new process has seen nothing."""
    history = History()
    history.trigger(3, 1, 100)
    history.trigger(3, 1, 100)
    history.trigger(4, 1, 250)
    history.trigger(3, 1, 250, "slot-0-9")
    return history


# ---------------------------------------------------------------- what readers see


@breaks(Visible, f"{final_name(2)} is visible")
def test_a_file_that_appears_before_its_checkpoint_is_decided() -> History:
    """I4: a file is published after the decision that lists it."""
    history = History()
    history.fence()
    history.checkpoint(1, 1)
    history.publish(final_name(1))
    history.publish(final_name(2))
    return history


@breaks(Visible, "sink side shows a transaction that no completed checkpoint lists")
def test_a_transaction_that_is_committed_before_its_checkpoint_is_decided() -> History:
    """I4: a sink without a global committer commits what a decision lists, byte for byte."""
    history = History("two-sinks")
    history.fence()
    history.decide(history.manifest(1, committables=[b'{"transaction":"1-0-1"}']))
    history.show("side", [], committables=[b'{"transaction":"1-0-2"}'])
    return history


@keeps(Visible)
def test_what_is_decided_becomes_visible() -> History:
    """I4: also later than the next decision, by another generation, and again."""
    history = History("two-sinks")
    history.fence()
    history.decide(history.manifest(1, committables=[file_committable(1), b'{"transaction":"1-0-1"}']))
    history.decide(history.manifest(2, committables=[file_committable(2)]))
    history.fence()
    for _ in range(2):
        history.publish(final_name(1))
        history.publish(final_name(2))
    history.show("side", [], committables=[b'{"transaction":"1-0-1"}'])
    return history


@breaks(Doubled, "sink side shows", also=[Reordered, State])
def test_a_row_that_appears_twice() -> History:
    """I5: a row is visible once. Its number and its place in the order come again, too."""
    history = History("two-sinks")
    rows = history.bank.read("a", 0, 0, 3)
    history.show("side", rows)
    history.show("side", rows[-1:])
    return history


@breaks(Doubled, "sink side shows", also=[Reordered])
def test_a_row_that_is_read_and_counted_twice() -> History:
    """I5: a record that state counted anew is doubled all the same."""
    history = History("two-sinks")
    history.show("side", history.bank.read("a", 0, 0, 3))
    history.show("side", history.bank.read("a", 0, 2, 3))
    return history


@keeps(Doubled)
def test_equal_rows_of_different_places() -> History:
    """I5: both legs of a transfer, the same number in another split or source, and the same row in another sink."""
    history = History("two-inputs")
    history.fence()
    _, rows = history.checkpoint(1, 3)
    assert {(row.source, row.split) for row in rows} == {("a", 0), ("a", 1), ("b", 0), ("b", 1)}
    history.show("out", rows, 1)
    history.show("side", rows)
    return history


@breaks(Reordered, "sink side shows")
def test_rows_of_a_split_that_change_places() -> History:
    """I5: readers see one account's rows of a split in the order of the split."""
    history = History("two-sinks")
    first, second = pair_of_an_account(history.bank.read("a", 0, 0, 6), same_split=True)
    history.show("side", [second])
    history.show("side", [first])
    return history


@breaks(Reordered, "sink side shows")
def test_rows_of_a_split_that_state_saw_in_another_order() -> History:
    """I5: the order of the split is also the one in which keyed state saw the rows."""
    history = History("two-sinks")
    first, second = pair_of_an_account(history.bank.read("a", 0, 0, 6), same_split=True)
    history.show("side", [msgspec.structs.replace(first, n=second.n), msgspec.structs.replace(second, n=first.n)])
    return history


@breaks(Reordered, "sink side shows", also=[State])
def test_rows_of_a_split_to_which_state_gave_one_number() -> History:
    """I5: the later row of a split has the higher number, not the same."""
    history = History("two-sinks")
    first, second = pair_of_an_account(history.bank.read("a", 0, 0, 6), same_split=True)
    history.show("side", [first, msgspec.structs.replace(second, n=first.n)])
    return history


@keeps(Reordered)
def test_rows_of_different_splits_in_any_order() -> History:
    """I5: there is no order between splits."""
    history = History("two-sinks")
    one, other = history.bank.read("a", 0, 0, 6), history.bank.read("a", 1, 0, 6)
    history.show("side", other)
    history.show("side", one)
    return history


@breaks(Lost, "sink side lacks 2 rows of a-1, e.g. [(5, 0), (5, 1)]")
def test_a_finished_job_that_lacks_its_last_transfer() -> History:
    """I5: nothing is lost, in any sink, also where a hole shows in no number: at the end."""
    history = History("two-sinks")
    history.fence()
    _, rows = history.checkpoint(1, 6)
    history.show("out", rows, 1)
    history.show("side", rows[:-2])
    history.end(expected_all=True)
    return history


@breaks(Lost, "sink out lacks 12 rows of a-0")
def test_a_finished_job_that_shows_nothing() -> History:
    """I10: an empty target is everything lost."""
    history = History()
    history.fence()
    history.checkpoint(1, 6)
    history.end(expected_all=True)
    return history


@breaks(Lost, "sink side lacks 2 rows of a-1, e.g. [(3, 0), (3, 1)]")
def test_a_stopped_job_that_lacks_what_its_last_checkpoint_had_read() -> History:
    """I5: of a stopped job everything before its last decision is visible."""
    history = History("two-sinks")
    history.fence()
    _, rows = history.checkpoint(1, 4)
    history.show("out", rows, 1)
    history.show("side", rows[:-2])
    history.finish("cancelled")
    history.end(expected_all=False)
    return history


@keeps(Lost)
def test_a_finished_job_that_shows_everything() -> History:
    """I5, I10: over several checkpoints, each sink at its own pace."""
    history = History("two-sinks")
    history.fence()
    _, first = history.checkpoint(1, 4)
    history.show("out", first, 1)
    _, second = history.checkpoint(2, 6)
    history.show("side", first)
    history.show("side", second)
    history.show("out", second, 2)
    history.finish()
    history.end(expected_all=True)
    return history


@keeps(Lost)
def test_a_stopped_job_that_shows_what_its_last_checkpoint_had_read() -> History:
    """I5: what comes after the last decision of a stopped job was never promised."""
    history = History("two-sinks")
    history.fence()
    _, rows = history.checkpoint(1, 4)
    history.show("out", rows, 1)
    history.show("side", rows)
    history.finish("cancelled")
    history.end(expected_all=False)
    return history


@keeps(Lost)
def test_a_job_that_is_stopped_before_its_first_checkpoint() -> History:
    """I5: nothing was decided, nothing is owed."""
    history = History("two-sinks")
    history.fence()
    history.finish("cancelled")
    history.end(expected_all=False)
    return history


@breaks(Finished, "the log says finished, sink side shows 22 of 24 rows")
def test_a_job_that_is_called_finished_before_all_is_committed() -> History:
    """I10: FINISH comes after the last commit of the last sink."""
    history = History("two-sinks")
    history.fence()
    _, rows = history.checkpoint(1, 6)
    history.show("out", rows, 1)
    history.show("side", rows[:-2])
    history.finish()
    history.show("side", rows[-2:])
    return history


@keeps(Finished)
def test_a_job_that_is_called_finished_when_all_is_committed() -> History:
    """I10: and one that was stopped or failed may have shown less."""
    history = History("two-sinks")
    history.fence()
    history.finish("failed")
    history.fence()
    history.finish("cancelled")
    history.fence()
    _, rows = history.checkpoint(1, 6)
    history.show("out", rows, 1)
    history.show("side", rows)
    history.finish()
    return history


# ---------------------------------------------------------------- state


@breaks(State, "with the same number")
def test_two_rows_of_an_account_with_the_same_number() -> History:
    """I5: an update that was lost gives its number to the next one."""
    history = History("two-sinks")
    rows = [row for split in range(2) for row in history.bank.read("a", split, 0, 6)]
    first, second = pair_of_an_account(rows, same_split=False)
    history.show("side", [first, msgspec.structs.replace(second, n=first.n)])
    return history


@breaks(State, "has no leg 1 of")
def test_an_account_that_counted_an_update_which_no_row_has() -> History:
    """I5: numbers without a gap. All rows are there, so nobody else can see that state counted one too many."""
    history = History("two-sinks")
    history.fence()
    _, rows = history.checkpoint(1, 6)
    history.show("out", rows, 1)
    account = rows[0].account
    history.show("side", [msgspec.structs.replace(r, n=r.n + 1) if r.account == account else r for r in rows])
    history.end(expected_all=True)
    return history


@breaks(State, "sink out: account", also=[Cut])
def test_a_stopped_job_with_a_gap_in_an_account() -> History:
    """I5: also of a job that did not read all, in a sink that shows whole checkpoints."""
    history = History()
    history.fence()
    _, rows = history.checkpoint(1, 4)
    account = rows[0].account
    history.show("out", [msgspec.structs.replace(r, n=r.n + 1) if r.account == account else r for r in rows], 1)
    history.end(expected_all=False)
    return history


@breaks(State, "should have balance")
def test_a_balance_that_is_not_the_sum_of_its_legs() -> History:
    """I5: a value that state has forgotten, although it still counts."""
    history = History("two-sinks")
    history.fence()
    _, rows = history.checkpoint(1, 6)
    history.show("out", rows, 1)
    history.show("side", changed(rows, 5, balance=rows[5].balance + 1))
    history.end(expected_all=True)
    return history


@breaks(State, "the legs of a-0 are not numbered 1 to 13")
def test_a_split_that_counted_an_update_which_no_row_has() -> History:
    """I5: the state behind the second shuffle is judged like that behind the first."""
    history = History("two-sinks")
    history.fence()
    _, rows = history.checkpoint(1, 6)
    history.show("out", rows, 1)
    assert rows[11].m == 12
    history.show("side", changed(rows, 11, m=13))
    history.end(expected_all=True)
    return history


@breaks(State, "the legs of a-0 are not numbered 1 to 12")
def test_two_rows_of_a_split_with_the_same_number() -> History:
    """I5: a number that was given twice behind the second shuffle."""
    history = History("two-sinks")
    history.fence()
    _, rows = history.checkpoint(1, 6)
    history.show("out", rows, 1)
    history.show("side", changed(rows, 4, m=rows[3].m))
    history.end(expected_all=True)
    return history


@keeps(State)
def test_whole_state_of_graphs_with_one_and_two_shuffles() -> History:
    """I5: one state, two sinks; rows of a later number may be visible first."""
    history = History("two-sinks")
    history.fence()
    _, rows = history.checkpoint(1, 6)
    history.show("out", rows, 1)
    for split in (1, 0):
        history.show("side", [row for row in rows if row.split == split])
    history.end(expected_all=True)
    return history


@keeps(State)
def test_rows_without_an_audit_have_no_number_of_their_split() -> History:
    """I5: where there is no second shuffle nothing is asked of it."""
    history = History("union")
    history.fence()
    _, rows = history.checkpoint(1, 6)
    assert {row.m for row in rows} == {0}
    history.show("out", rows, 1)
    history.end(expected_all=True)
    return history


# ---------------------------------------------------------------- one cut


@breaks(Cut, "1 legs of ('a', 0) are visible, the last of transfer 0")
def test_half_a_transfer() -> History:
    """I6: both legs of a transfer become visible together."""
    history = History()
    history.fence()
    _, rows = history.checkpoint(1, 1)
    history.show("out", rows[:1], 1)
    return history


@breaks(Cut, "the auditor finds 1 too much", also=[TrueRows])
def test_money_that_comes_from_nowhere() -> History:
    """I6: all deltas together are nothing."""
    history = History()
    history.fence()
    _, rows = history.checkpoint(1, 2)
    history.show("out", changed(rows, 0, delta=rows[0].delta + 1), 1)
    return history


@breaks(Cut, "the last is number")
def test_a_row_whose_state_is_of_a_later_cut() -> History:
    """I6: the rows of an account are all that its state had counted."""
    history = History()
    history.fence()
    _, rows = history.checkpoint(1, 2)
    last = len(rows) - 1
    history.show("out", changed(rows, last, n=rows[last].n + 1), 1)
    return history


@breaks(Cut, "said to be checkpoint 2, which is not complete")
def test_a_view_of_a_checkpoint_that_nobody_decided() -> History:
    """I6: what is visible is a completed checkpoint."""
    history = History()
    history.fence()
    _, rows = history.checkpoint(1, 2)
    history.show("out", rows, 2)
    return history


@breaks(Cut, "its position of ('a', 1) is 2, shown are 0 transfers")
def test_a_view_that_lacks_a_split_of_its_checkpoint() -> History:
    """I6: one vector of positions, over all splits."""
    history = History()
    history.fence()
    _, rows = history.checkpoint(1, 2)
    history.show("out", [row for row in rows if row.split == 0], 1)
    return history


@breaks(Cut, "checkpoint 1 is visible; its position of ('a', 0) is 2, shown are 4 transfers")
def test_a_view_that_is_further_than_its_checkpoint() -> History:
    """I6: rows of the next checkpoint are not shown with those of this one."""
    history = History()
    history.fence()
    _, first = history.checkpoint(1, 2)
    _, second = history.checkpoint(2, 4)
    history.show("out", [*first, *second], 1)
    return history


@keeps(Cut)
def test_views_that_step_from_checkpoint_to_checkpoint() -> History:
    """I6: a checkpoint may be passed over; a sink without a global committer shows transaction by transaction."""
    history = History("two-sinks")
    history.fence()
    _, first = history.checkpoint(1, 2)
    _, second = history.checkpoint(2, 2)
    _, third = history.checkpoint(3, 5)
    history.show("out", first, 1)
    history.show("out", [*second, *third], 3)
    for split in range(2):
        history.show("side", [row for row in first if row.split == split])
    return history


@breaks(TrueRows, "which no record gives")
def test_rows_that_say_other_amounts_than_their_records() -> History:
    """I5: rows that agree with each other and with state, and are all wrong."""
    history = History()
    history.fence()
    _, rows = history.checkpoint(1, 6)
    history.show("out", [msgspec.structs.replace(r, delta=2 * r.delta, balance=2 * r.balance) for r in rows], 1)
    history.finish()
    history.end(expected_all=True)
    return history


@keeps(TrueRows)
def test_rows_that_say_what_their_records_say() -> History:
    """I5: all of them, of every source."""
    history = History("two-inputs")
    history.fence()
    _, rows = history.checkpoint(1, 6)
    history.show("out", rows, 1)
    return history


@breaks(Lost, "sink side lacks 2 rows of a-1, e.g. [(3, 0), (3, 1)]")
def test_a_job_that_is_stopped_and_keeps_its_checkpoints() -> History:
    """I5: such a job writes no FINISH; what its last checkpoint had read is visible all the same."""
    history = History("two-sinks")
    history.fence()
    _, rows = history.checkpoint(1, 4)
    history.show("out", rows, 1)
    history.show("side", rows[:-2])
    history.end(expected_all=False)
    return history


@breaks(State, "should have balance")
def test_a_wrong_account_behind_one_with_a_gap() -> History:
    """I5: the first account that is wrong does not hide the others."""
    history = History("two-sinks")
    history.fence()
    _, rows = history.checkpoint(1, 4)
    history.show("out", rows, 1)
    gap = rows[0].account
    history.show(
        "side",
        [
            msgspec.structs.replace(r, n=r.n + 1) if r.account == gap else msgspec.structs.replace(r, balance=0)
            for r in rows
        ],
    )
    history.end(expected_all=False)
    return history


@breaks(State, "has no leg")
def test_an_account_whose_numbers_begin_with_nothing() -> History:
    """I5: the first leg is number 1."""
    history = History("two-sinks")
    history.fence()
    _, rows = history.checkpoint(1, 6)
    history.show("out", rows, 1)
    first = rows[0]
    history.show(
        "side",
        [
            msgspec.structs.replace(r, n=r.n - 1, balance=r.balance - first.delta) if r.account == first.account else r
            for r in rows
        ],
    )
    history.end(expected_all=True)
    return history


@breaks(Cut, "its position of ('a', 1) is 0, shown are 2 transfers")
def test_a_view_with_a_split_that_its_checkpoint_does_not_have() -> History:
    """I6: one vector of positions, over all splits that are visible."""
    history = History()
    history.fence()
    history.decide(history.manifest(1, positions={("a", 0): 2}))
    history.show("out", [*history.bank.read("a", 0, 0, 2), *history.bank.read("a", 1, 0, 2)], 1)
    return history


@breaks(Contiguous, "does not follow the bytes of 1")
def test_a_log_record_that_follows_another_predecessor() -> History:
    """I1: the log is a chain."""
    history = History()
    history.fence()
    history.append(msgspec.structs.replace(history.fence_record(), parent_sha256="0" * 64))
    return history


@breaks(Acks, "names a manifest of 1")
def test_a_decision_for_the_manifest_of_another_checkpoint() -> History:
    """I8: a decision names the manifest of its own checkpoint."""
    history = History()
    history.fence()
    manifest = history.manifest(1)
    record = msgspec.structs.replace(history.complete_record(manifest), checkpoint=2)
    history.put(record.manifest, encode_manifest(manifest))
    history.append(record)
    return history


@breaks(Deleted, "of the living generation was deleted before its decision", also=[Manifests])
def test_a_manifest_of_the_living_generation_that_is_not_decided_yet() -> History:
    """I7: a manifest is written before its decision, and is not deleted in between."""
    history = History()
    history.fence()
    manifest = history.manifest(1)
    key = history.paths.manifest(1, 1)
    history.put(key, encode_manifest(manifest))
    history.delete(key)
    history.append(history.complete_record(manifest))
    return history


# ---------------------------------------------------------------- deleting, acks, unknown outcomes


@breaks(Deleted, "tasks never delete what checkpoints are made of")
def test_a_snapshot_file_that_a_slot_deletes() -> History:
    """I7: tasks never delete, not even what nobody needs."""
    history = History()
    history.fence()
    orphan = history.upload("orphan")
    history.fence()
    history.delete(str(orphan.key), actor=SLOT)
    return history


@breaks(Deleted, "tasks never delete what checkpoints are made of")
def test_a_manifest_that_a_slot_deletes() -> History:
    """I7: the same for manifests."""
    history = History()
    history.fence()
    old, _ = history.checkpoint(1, 1)
    history.checkpoint(2, 2)
    history.delete(old.record.manifest, actor=SLOT)
    return history


@breaks(Deleted, "which retained checkpoint 2 needs")
def test_a_manifest_that_is_retained_is_deleted() -> History:
    """I7: the manifests of the newest checkpoints stay, as many as the job retains."""
    history = History(retained=2)
    history.fence()
    decisions = [history.checkpoint(checkpoint, checkpoint)[0] for checkpoint in (1, 2, 3)]
    history.delete(decisions[0].record.manifest)
    history.delete(decisions[1].record.manifest)
    return history


@breaks(Deleted, "which retained checkpoint 2 needs")
def test_a_file_of_an_older_checkpoint_that_a_retained_one_shares_is_deleted() -> History:
    """I7: a file stays while any retained manifest names it."""
    history = History()
    history.fence()
    shared = history.upload("shared")
    history.checkpoint(1, 1, files=[shared])
    history.checkpoint(2, 2, files=[shared])
    history.delete(str(shared.key))
    return history


@breaks(Deleted, "which retained checkpoint 1 needs")
def test_the_checkpoint_that_a_generation_has_restored_is_deleted_before_it_has_grown() -> History:
    """I7: until the generation has a checkpoint of its own, a restart wants the restored one, however old it is."""
    history = History()
    history.fence()
    file = history.upload("old")
    old, _ = history.checkpoint(1, 1, files=[file])
    history.checkpoint(2, 2)
    history.fence(restored=old)
    history.delete(str(file.key))
    return history


@breaks(Deleted, "of the living generation was deleted: an upload under way", also=[Manifests])
def test_an_upload_of_the_living_generation_is_deleted() -> History:
    """I7: nothing of a generation that is not fenced, if a decision names it later."""
    history = History()
    history.fence()
    history.fence()
    file = history.upload("under-way")
    history.delete(str(file.key))
    history.checkpoint(1, 1, files=[file])
    return history


@breaks(Deleted, "of the living generation lost an upload: it refers to 1 files that were already deleted")
def test_a_checkpoint_is_refused_because_an_upload_of_it_was_deleted() -> History:
    """I7: that it is refused saves the rows, and is no excuse."""
    history = History()
    history.fence()
    reason = "it refers to 1 files that were already deleted, e.g. x"
    ended = CheckpointStatus(checkpoint=1, token=1, outcome="aborted", reason=reason, triggered_ms=0, duration_ms=1)
    history.put(history.paths.history, encode_history(StoredHistory(job=JOB, run_id="run", history=(ended,))))
    return history


@keeps(Deleted)
def test_an_upload_of_a_checkpoint_that_ended_undecided_is_deleted() -> History:
    """I7: no decision names it, nor will one."""
    history = History()
    history.fence()
    given_up = history.upload("given-up")
    history.checkpoint(1, 1, files=[history.upload("f")])
    history.delete(str(given_up.key))
    history.checkpoint(2, 2)
    return history


@breaks(Deleted, "of generation 3, which the log does not know: an upload under way")
def test_an_upload_of_a_later_generation_is_deleted() -> History:
    """I7: nor of one that the log does not know yet."""
    history = History()
    history.fence()
    history.fence()
    history.delete(str(history.upload("under-way", token=3).key))
    return history


@keeps(Deleted)
def test_what_nobody_needs_is_deleted() -> History:
    """I7: checkpoints no longer retained, orphans of fenced generations, and what is no part of checkpoints."""
    history = History()
    history.fence()
    orphan = history.upload("orphan")
    own, shared = history.upload("own"), history.upload("shared")
    old, _ = history.checkpoint(1, 1, files=[own, shared])
    new, _ = history.checkpoint(2, 2, files=[shared])
    history.delete(old.record.manifest, str(own.key))
    history.fence(restored=new)
    history.delete(str(orphan.key))
    history.checkpoint(3, 3)
    history.delete(new.record.manifest, str(shared.key))
    history.delete(f"{history.paths.probe_prefix}/x", actor=SLOT)
    return history


@breaks(Acks, "checkpoint 1 of generation 2 holds bank/data/1/slot/late of generation 1")
def test_a_manifest_with_a_file_of_a_fenced_generation_that_no_decision_confirmed() -> History:
    """I8: an ack of an older generation counts for nothing."""
    history = History()
    history.fence()
    late = history.upload("late")
    history.fence()
    history.checkpoint(1, 1, files=[late, history.upload("own")])
    return history


@breaks(Acks, "the decision of generation 2 names a manifest of 1")
def test_a_decision_for_the_manifest_of_an_older_generation() -> History:
    """I8: a manifest that an older generation wrote is not decided by a later one."""
    history = History()
    history.fence()
    manifest = history.manifest(1)
    history.fence()
    history.decide(manifest, token=2)
    return history


@keeps(Acks)
def test_a_manifest_with_files_of_earlier_decisions() -> History:
    """I8: what an earlier decision has confirmed may be used again, whichever generation wrote it."""
    history = History()
    history.fence()
    old = history.upload("old")
    first, _ = history.checkpoint(1, 1, files=[old])
    history.fence(restored=first)
    own = history.upload("own")
    second, _ = history.checkpoint(2, 2, files=[old, own])
    history.fence(restored=second)
    history.checkpoint(3, 3, files=[old, own, history.upload("newest")])
    return history


@breaks(Unknown, "puts log record 3 while 2 is undecided")
def test_the_next_append_while_the_outcome_of_one_is_unknown() -> History:
    """I9: an unknown outcome blocks deciding."""
    history = History()
    history.answer(2, PutOutcome.UNKNOWN)
    history.request("put_if_absent", history.paths.log_record(3))
    return history


@pytest.mark.parametrize("key", [Paths(JOB).data_file(1, "slot", "file"), Paths(JOB).manifest(1, 1)])
def test_a_delete_while_the_outcome_of_an_append_is_unknown(key: str) -> None:
    """I9: an unknown outcome blocks deleting, of files and of manifests."""
    history = History()
    history.answer(2, PutOutcome.UNKNOWN)
    history.request("delete", key)
    assert history.reports == [("UnknownBlocks", f"{COORDINATOR} deletes {key} while log record 2 is undecided")]


@keeps(Unknown)
def test_what_may_be_done_while_an_outcome_is_unknown_and_when_it_is_known() -> History:
    """I9: the same put again, reads and manifests, whatever others do; and everything once the outcome is known."""
    history = History()
    paths = history.paths
    for outcome in (PutOutcome.LANDED, PutOutcome.EXISTS):
        history.answer(2, PutOutcome.UNKNOWN)
        history.request("put_if_absent", paths.log_record(2))
        history.request("get", paths.log_record(3))
        history.request("put", paths.manifest(2, 1))
        history.request("put_if_absent", paths.manifest(3, 1))
        history.request("delete", f"{paths.probe_prefix}/x")
        history.request("put_if_absent", paths.log_record(3), "coordinator-2")
        history.request("delete", paths.manifest(1, 1), "coordinator-2")
        history.answer(2, outcome)
        history.request("put_if_absent", paths.log_record(3))
        history.request("delete", paths.manifest(1, 1))
    return history


# ---------------------------------------------------------------- ZombiesDeleteNothing


@breaks(Zombies, "coordinator-1 deletes bank/data/1/slot/file after it could read that coordinator-2 leads")
def test_a_zombie_reads_of_its_successor_and_deletes() -> History:
    """I7: what it could read of ends its right to delete."""
    history = History()
    history.leader = COORDINATOR
    history.fence()
    history.leader = "coordinator-2"
    history.lead()
    history.request("get", history.paths.log_record(2))
    history.request("delete", "bank/data/1/slot/file")
    return history


@keeps(Zombies)
def test_a_zombie_that_could_not_know_yet_deletes() -> History:
    """I7: a request that was under way when the log changed breaks nothing."""
    history = History()
    history.leader = COORDINATOR
    history.fence()
    history.request("get", history.paths.log_record(2))
    history.leader = "coordinator-2"
    history.lead()
    history.request("delete", "bank/data/1/slot/file")
    history.request("get", history.paths.log_record(2), "coordinator-2")
    history.request("delete", "bank/data/1/slot/other", "coordinator-2")
    return history


# ---------------------------------------------------------------- NoBugIsReported


@breaks(NoBug, "log record 2 tells of a bug: ProtocolViolation: barrier 3 after 3")
def test_a_generation_ends_by_a_violation_of_the_protocol() -> History:
    """What breaks the protocol inside is no failure like others."""
    history = History()
    history.fence()
    history.append(history.fence_record(reason="ProtocolViolation: barrier 3 after 3"))
    return history


@keeps(NoBug)
def test_a_generation_ends_by_trouble_from_outside() -> History:
    """A failure from outside is none of ours."""
    history = History()
    history.fence()
    history.append(history.fence_record(reason="ConnectionError: the data connection with slot 2 broke"))
    return history


# ---------------------------------------------------------------- FirstObjectFirst


def staged_rows() -> tuple[History, list[str]]:
    """A decided transaction of three objects."""
    history = History()
    history.fence()
    keys = [history.paths.staged_rows("out", 1, 0, number, f"id{number}") for number in (1, 2, 3)]
    committable = msgspec.json.encode({"objects": [{"key": key} for key in keys]})
    for key in keys:
        history.put(key, b"rows", SLOT)
    history.decide(history.manifest(1, committables=[committable]))
    return history, keys


@breaks(First, "the first object of the same decided rows, is there")
def test_the_first_of_staged_objects_is_deleted_last() -> History:
    """I5: who finds the first object takes it for a whole that was not delivered."""
    history, keys = staged_rows()
    history.delete(*keys[1:], actor=SLOT)
    return history


@keeps(First)
def test_the_first_of_staged_objects_is_deleted_first() -> History:
    """I5: what is left without it says that it was delivered."""
    history, keys = staged_rows()
    history.delete(*keys, actor=SLOT)
    return history


# ---------------------------------------------------------------- OnlyReadIsVisible


@breaks(Read, "which no completed checkpoint covers")
def test_rows_of_a_target_that_no_checkpoint_covers() -> History:
    """I4: whatever the target, a row is visible after its decision only."""
    history = History("two-sinks", more=(Read,))
    history.fence()
    _, rows = history.checkpoint(1, 1)
    history.show("side", rows)
    later = history.bank.read("a", 0, 1, 2)
    history.show("side", later)
    return history


@keeps(Read)
def test_rows_of_a_target_that_a_checkpoint_covers() -> History:
    """I4: whatever the target, a row is visible after its decision."""
    history = History("two-sinks", more=(Read,))
    history.fence()
    _, rows = history.checkpoint(1, 1)
    history.show("side", rows)
    return history


# ---------------------------------------------------------------- judges that hear something of their own


class Upserts:
    """What Redis wrote of one split, told to its judge."""

    def __init__(self) -> None:
        self.last: list[Row] = []
        self.history = History(splits=1, more=(LastValues,))
        self.judge = next(each for each in self.history.checkers if isinstance(each, LastValues))
        self.history.fence()

    def decided(self, checkpoint: int, upto: int, token: int = 1, left_out: int = 0) -> "Upserts":
        """Rows of the transfer before `upto`, less the last `left_out`; then the decision that covers all of them."""
        self.last = self.history.bank.read("a", 0, upto - 1, upto)
        self.judge.on_upserts(token, self.last[: len(self.last) - left_out])
        manifest = self.history.manifest(checkpoint, positions={("a", 0): upto})
        self.history.decide(manifest)
        return self

    def written(self, token: int, **fields: int) -> "Upserts":
        """The last transfer's first leg again, changed."""
        self.judge.on_upserts(token, changed(self.last[:1], 0, **fields))
        return self

    @property
    def reports(self) -> list[tuple[str, str]]:
        return self.history.reports


def dropped_by(actor: str, *, decided: bool = False) -> list[tuple[str, str]]:
    """Of two jobs with one target, "ours" has staged a file; what is said when `actor` drops it."""
    world = World(next(each for each in map(draw, itertools.count()) if each.twins))
    assert world.twin is not None
    world._processes.add("ours")
    world.twin._processes.add("another's")
    world._target_wrote("ours", "_staging/file", b"rows")
    if decided:
        world.facts.committables.add(b"_staging/file")
    world._target_dropped(actor, "_staging/file")
    world._target_dropped("another's", "_staging/file")  # nobody's any more
    return world.violations


def told_of_a_hanging_open(condition: str, reason: str, *, after_s: int = 60) -> list[tuple[str, str]]:
    """The source "a" hangs in a job whose condition is this, looked at twice."""
    reports: list[tuple[str, str]] = []
    simulation = Simulation(1)
    hanging = HangingOpens(simulation, Hang("a", 0, 90_000), lambda *said: reports.append(said), lambda what: None)
    hanging._waiting[SimProcess(simulation, "slot-0")] = 0
    status = SimpleNamespace(phase="restoring", token=1, condition=condition, condition_reason=reason)
    runner: Any = SimpleNamespace(status=lambda: status)
    hanging.look(runner, 1_000)
    simulation.run_for(after_s)
    hanging.look(runner, 1_000)
    return reports


JUDGED: tuple[tuple[str, Callable[[], list[tuple[str, str]]], str], ...] = (  # what is shown, how, who says what
    ("upserts before their decisions", lambda: Upserts().decided(1, 1).decided(2, 2).reports, ""),
    ("upserts of a successor", lambda: Upserts().decided(1, 1).decided(2, 2, token=2).reports, ""),
    ("an upsert that was not written", lambda: Upserts().decided(1, 1, left_out=1).reports, "LastValues: checkpoint 1"),
    ("a zombie's upsert", lambda: Upserts().decided(1, 1, token=2).written(1).reports, "over a value of generation 2"),
    ("an upsert of torn state", lambda: Upserts().decided(1, 1).written(1, balance=1).reports, "which is not leg"),
    ("a staged file dropped by its own job", lambda: dropped_by("ours"), ""),
    (
        "a staged file dropped by the other job",
        lambda: dropped_by("another's"),
        "OthersRowsStay: another's, of another",
    ),
    ("a decided one", lambda: dropped_by("another's", decided=True), "a decided file"),
    ("a hang that is told", lambda: told_of_a_hanging_open("WAITING_RESTORE", "opening a for 60 s"), ""),
    ("a hang, too early to be told", lambda: told_of_a_hanging_open("RECOVERING", "", after_s=2), ""),
    ("a hang beside trouble of the store", lambda: told_of_a_hanging_open("WAITING_STORE", "no answer"), ""),
    ("a hang that is not told", lambda: told_of_a_hanging_open("RECOVERING", "restoring"), "TroubleIsTold: a hangs in"),
    ("a hang of somebody else", lambda: told_of_a_hanging_open("WAITING_RESTORE", "opening out for 60 s"), "told is:"),
)


@pytest.mark.parametrize(("shown", "verdict"), [each[1:] for each in JUDGED], ids=[each[0] for each in JUDGED])
def test_judges_that_hear_something_of_their_own(shown: Callable[[], list[tuple[str, str]]], verdict: str) -> None:
    """I5, F7: who is wrong is told, once, and nobody else."""
    said = [f"{judge}: {what.split(' s: ', 1)[-1]}" for judge, what in shown()]
    assert len({each.split(":")[0] for each in said}) == bool(verdict), said
    assert all(verdict in each for each in said[:1]), said


# ---------------------------------------------------------------- all of them


@pytest.mark.parametrize("checker", [*CHECKERS, *TARGET_CHECKERS])
def test_every_checker_is_shown_to_speak_and_to_be_silent(checker: type[Checker]) -> None:
    """Who adds a checker adds a history that breaks its rule and one that keeps it."""
    assert BROKEN[checker], f"no history breaks the rule of {checker.__name__}"
    assert KEPT[checker], f"no history keeps the rule of {checker.__name__}"
