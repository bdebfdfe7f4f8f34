"""The write-ahead sink over in-memory targets: certification, and lifetime of the sink's objects in the job's store."""

import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from sink_harness import Subtask

from barrier_runtime.connectors.sink import SinkContext
from barrier_runtime.connectors.sink_bases.write_ahead import WriteAheadSink
from barrier_runtime.connectors.sink_bases.write_ahead_committable import DeliveryToken, decode_committable
from barrier_runtime.state.errors import Corrupt, InvalidJob, Unavailable
from barrier_runtime.state.store.memory import Fault, MemoryStore
from barrier_runtime.testing import certify
from barrier_runtime.testing.scenarios import SINGLE_SCENARIOS


@dataclass
class Mailbox:
    """Target that stores each delivery once, under the token's text."""

    letters: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    deliveries: list[DeliveryToken] = field(default_factory=list)
    closed: bool = False

    def keep(self, name: str, rows: list[dict[str, Any]]) -> None:
        self.letters.setdefault(name, rows)

    def read(self) -> list[dict[str, Any]]:
        return [row for rows in self.letters.values() for row in rows]


class MailboxSink(WriteAheadSink):
    def __init__(self, mailbox: Mailbox, **settings: Any) -> None:
        super().__init__(**settings)
        self.mailbox = mailbox

    def deliver(self, token: DeliveryToken, batches: Iterator[pa.RecordBatch]) -> None:
        if self.mailbox.closed:
            raise Unavailable("the mailbox is closed: it is tried again")
        self.mailbox.deliveries.append(token)
        self.mailbox.keep(token.text, [row for batch in batches for row in batch.to_pylist()])


class RememberingSink(MailboxSink):
    """Sink whose target is not idempotent, but knows the deliveries."""

    def delivered(self, token: DeliveryToken, rows: int) -> bool:
        return token.text in self.mailbox.letters

    def deliver(self, token: DeliveryToken, batches: Iterator[pa.RecordBatch]) -> None:
        assert token.text not in self.mailbox.letters, "delivered twice"
        super().deliver(token, batches)


class ReadStore(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.read: list[str] = []

    def get(self, key: str, offset: int = 0, size: int | None = None) -> bytes:
        self.read.append(key)
        return super().get(key, offset, size)


class FromMemorySink(RememberingSink):
    delivers_from_memory = True


def opened(sink: WriteAheadSink, store: MemoryStore, token: int = 1, subtask: int = 0, parallelism: int = 1) -> Any:
    def no_store(url: str) -> MemoryStore:
        raise AssertionError("a write-ahead sink has nothing but the job's store")

    sink.open(SinkContext("job", "out", token, subtask, parallelism, no_store, store, "line", lambda: uuid.uuid4().hex))
    return sink


def sealed(sink: WriteAheadSink, checkpoint: int, numbers: Sequence[int]) -> bytes | None:
    transaction = sink.begin_transaction()
    for number in numbers:
        sink.write(transaction, pa.RecordBatch.from_pydict({"n": [number]}))
        early = sink.stage_early(transaction)
        if early is not None:
            early()
    return sink.pre_commit(transaction, checkpoint)


def staged_in(store: MemoryStore) -> list[str]:
    return [info.key for info in store.list("") if "/staged/" in info.key]


def notes_in(store: MemoryStore) -> list[str]:
    return [info.key for info in store.list("") if "/delivered/" in info.key]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [MailboxSink, RememberingSink, FromMemorySink])
def test_the_sink_is_exactly_once_wherever_it_crashes(kind: type[MailboxSink]) -> None:
    """T1, T2, T3, T6, T7, T8, T9, T10, T11, T14, T15: see the scenarios of `certify`."""
    mailbox, store = Mailbox(), MemoryStore()
    certify(
        lambda: kind(mailbox, max_bytes_in_memory=3_000),
        mailbox.read,
        scenarios=60,
        seeds=range(6),
        ordered=True,
        job_store=store,
        reset=mailbox.letters.clear,
        leftovers=lambda: staged_in(store),
    )


@pytest.mark.slow
def test_the_sink_is_exactly_once_where_no_list_shows_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    """O10: except a start from an older checkpoint, which cannot name notes written later."""
    mailbox, store = Mailbox(), MemoryStore()
    store.inject(Fault.STALE_LIST, "list", times=None)
    monkeypatch.delitem(SINGLE_SCENARIOS, "older checkpoint")
    certify(
        lambda: MailboxSink(mailbox, max_bytes_in_memory=3_000),
        mailbox.read,
        scenarios=60,
        seeds=range(6),
        ordered=True,
        job_store=store,
        reset=mailbox.letters.clear,
    )


def test_staged_objects_go_as_soon_as_they_are_delivered_and_a_note_stays() -> None:
    store, mailbox = MemoryStore(), Mailbox()
    sink = opened(MailboxSink(mailbox), store)
    first, second = sealed(sink, 1, [1, 2]), sealed(sink, 2, [3])
    assert first is not None
    assert second is not None
    assert len(staged_in(store)) == 2
    sink.commit(first)
    assert len(staged_in(store)) == 1
    sink.commit(second)
    assert staged_in(store) == []
    assert notes_in(store) == ["job/write-ahead/out/delivered/line/0/00000000000000000002-1"]


class CountedStore(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.requests: Counter[str] = Counter()

    def get(self, key: str, offset: int = 0, size: int | None = None) -> bytes:
        self.requests["get"] += 1
        return super().get(key, offset, size)

    def put(self, key: str, data: bytes) -> None:
        self.requests["put"] += 1
        super().put(key, data)

    def delete(self, keys: Iterable[str]) -> None:
        self.requests["delete"] += 1
        super().delete(keys)

    def list(self, prefix: str) -> Iterator[Any]:
        self.requests["list"] += 1
        return super().list(prefix)


def decided(sink: WriteAheadSink, *checkpoints: int) -> list[bytes]:
    return [each for number in checkpoints if (each := sealed(sink, number, [number])) is not None]


def test_transactions_decided_in_the_meantime_share_a_note_and_a_delete_request() -> None:
    store, mailbox = CountedStore(), Mailbox()
    sink = opened(MailboxSink(mailbox), store)
    sink.commit(*decided(sink, 1))
    waiting = decided(sink, *range(2, 12))
    store.requests.clear()
    sink.commit_together(waiting)
    assert [token.checkpoint for token in mailbox.deliveries] == list(range(1, 12))
    assert store.requests == {"get": 10, "put": 1, "delete": 2}, "rows; a note; the older note and the rows"
    assert staged_in(store) == []
    assert notes_in(store) == ["job/write-ahead/out/delivered/line/0/00000000000000000011-1"]


def test_what_was_delivered_together_is_known_to_a_successor_by_the_newest_note() -> None:
    """T6, O10: for a single transaction, for all, and if no list shows the note."""
    store, mailbox = MemoryStore(), Mailbox()
    sink = opened(MailboxSink(mailbox), store)
    waiting = decided(sink, 1, 2, 3)
    sink.commit_together(waiting)
    sink.commit(waiting[0])
    sink.commit_together(waiting[1:])
    store.inject(Fault.STALE_LIST, "list", times=None)
    opened(MailboxSink(mailbox), store, token=2).recover(waiting)
    assert [token.checkpoint for token in mailbox.deliveries] == [1, 2, 3]


def test_rows_that_are_gone_keep_nothing_older_from_being_delivered() -> None:
    store, mailbox = MemoryStore(), Mailbox()
    sink = opened(MailboxSink(mailbox), store)
    first = decided(sink, 1)
    before = staged_in(store)
    waiting = first + decided(sink, 2)
    store.delete([key for key in staged_in(store) if key not in before])
    with pytest.raises(Corrupt, match="1 decided rows of checkpoint 2, written by subtask 0"):
        sink.commit_together(waiting)
    assert [row["n"] for row in mailbox.read()] == [1]
    assert staged_in(store) == []


def test_a_target_that_leaves_rows_unread_gets_the_next_transaction_from_its_start() -> None:
    class Headlines(MailboxSink):
        """Sink that reads only the first batch."""

        def deliver(self, token: DeliveryToken, batches: Iterator[pa.RecordBatch]) -> None:
            self.mailbox.keep(token.text, next(batches).to_pylist())

    store, mailbox = MemoryStore(), Mailbox()
    sink = opened(Headlines(mailbox, max_bytes_in_memory=1), store)
    waiting = [each for number in (1, 2) if (each := sealed(sink, number, [10 * number, 10 * number + 1])) is not None]
    assert len(staged_in(store)) == 4
    sink.commit_together(waiting)
    assert [row["n"] for row in mailbox.read()] == [10, 20]


def test_a_commit_that_is_repeated_after_its_rows_were_deleted_is_known_by_the_note() -> None:
    """T6: also for another process, after a newer commit, and for a target that remembers nothing."""
    store, mailbox = MemoryStore(), Mailbox()
    sink = opened(MailboxSink(mailbox), store)
    first, second = sealed(sink, 1, [1]), sealed(sink, 2, [2])
    assert first is not None
    assert second is not None
    sink.commit(first)
    sink.commit(second)
    sink.commit(first)
    opened(MailboxSink(mailbox), store, token=2).recover([first, second])
    assert [token.checkpoint for token in mailbox.deliveries] == [1, 2]


@pytest.mark.parametrize("by_a_successor", [False, True])
def test_what_was_delivered_is_known_also_when_lists_do_not_show_it(by_a_successor: bool) -> None:
    """O10: no list shows the notes; only the newest note exists, whichever process delivered."""
    store, mailbox = MemoryStore(), Mailbox()
    sink = opened(MailboxSink(mailbox), store)
    decided = [each for each in (sealed(sink, 1, [1]), sealed(sink, 2, [2])) if each is not None]
    store.inject(Fault.STALE_LIST, "list", times=None)
    if by_a_successor:
        sink = opened(MailboxSink(mailbox), store, token=2)
    sink.recover(decided)
    opened(MailboxSink(mailbox), store, token=3).recover(decided)
    assert [token.checkpoint for token in mailbox.deliveries] == [1, 2]
    store.heal()
    assert notes_in(store) == ["job/write-ahead/out/delivered/line/0/00000000000000000002-1"]


def test_a_note_of_another_subtask_or_lineage_proves_nothing() -> None:
    """Each origin among the restored committables has separate notes."""
    store, mailbox = MemoryStore(), Mailbox()
    lost = sealed(opened(MailboxSink(mailbox), store), 1, [1])
    assert lost is not None
    store.delete(staged_in(store))
    other = sealed(opened(MailboxSink(mailbox), store, subtask=1, parallelism=2), 2, [2])
    assert other is not None
    opened(MailboxSink(mailbox), store, subtask=1, parallelism=2).commit(other)
    with pytest.raises(Corrupt, match="1 decided rows of checkpoint 1, written by subtask 0"):
        opened(MailboxSink(mailbox), store, token=2).recover([lost, other])


def test_a_note_that_an_earlier_build_named_after_who_delivered_is_known() -> None:
    store, mailbox = MemoryStore(), Mailbox()
    committable = sealed(opened(MailboxSink(mailbox), store), 1, [1])
    assert committable is not None
    store.delete(staged_in(store))
    store.put("job/write-ahead/out/delivered/line/0/00000000000000000001-2", b"")
    opened(MailboxSink(mailbox), store, token=3).recover([committable])
    assert mailbox.deliveries == []


def test_process_killed_between_delivery_and_note_redelivers_under_the_same_token() -> None:
    """T10, T11: both deliveries have the same name, so the target shows the rows once."""
    store, mailbox = MemoryStore(), Mailbox()

    class DiesBeforeTheNote(MailboxSink):
        def _note(self, entry: Any) -> None:
            raise ConnectionError("dead")

    sink = opened(DiesBeforeTheNote(mailbox), store)
    committable = sealed(sink, 7, [1, 2])
    assert committable is not None
    with pytest.raises(ConnectionError):
        sink.commit(committable)
    opened(MailboxSink(mailbox), store, token=2).recover([committable])
    assert mailbox.deliveries == [DeliveryToken("job", "out", "line", 0, 7, 1)] * 2
    assert mailbox.read() == [{"n": 1}, {"n": 2}]
    assert staged_in(store) == []


def test_a_large_transaction_is_staged_in_parts_and_delivered_as_one_in_order() -> None:
    store, mailbox = MemoryStore(), Mailbox()
    sink = opened(MailboxSink(mailbox, max_bytes_in_memory=20_000), store)
    committable = sealed(sink, 1, range(50))
    assert committable is not None
    assert len(staged_in(store)) > 3
    sink.commit(committable)
    assert [row["n"] for row in mailbox.read()] == list(range(50))
    assert len(mailbox.deliveries) == 1


def test_few_rows_are_delivered_without_a_read_back_and_kept_only_until_then() -> None:
    store, mailbox = ReadStore(), Mailbox()
    sink = opened(FromMemorySink(mailbox), store)
    committed, aborted, tried = sealed(sink, 1, [1, 2]), sealed(sink, 2, [3]), sealed(sink, 3, [4])
    assert committed is not None
    assert aborted is not None
    assert tried is not None
    sink.commit(committed)
    sink.abort(aborted)
    assert [row["n"] for row in mailbox.read()] == [1, 2]
    assert store.read == []
    mailbox.closed = True
    with pytest.raises(Unavailable):
        sink.commit(tried)
    mailbox.closed = False
    sink.commit(tried)
    assert [row["n"] for row in mailbox.read()] == [1, 2, 4]
    assert len(store.read) == 1
    assert sink._in_memory == {}
    assert staged_in(store) == []


@pytest.mark.slow
def test_rows_beyond_a_mebibyte_are_read_back() -> None:
    store, mailbox = ReadStore(), Mailbox()
    sink = opened(FromMemorySink(mailbox), store)
    committables = []
    for checkpoint in (1, 2, 3):
        transaction = sink.begin_transaction()
        sink.write(transaction, pa.RecordBatch.from_pydict({"n": [checkpoint] * 60_000}))
        committables.append(sink.pre_commit(transaction, checkpoint))
    (*_, third) = staged_in(store)
    for committable in committables:
        sink.commit(committable)
    assert store.read == [third]
    assert [row["n"] for row in mailbox.read()] == [1] * 60_000 + [2] * 60_000 + [3] * 60_000


def test_a_restart_sweeps_what_was_never_decided_and_delivers_what_was() -> None:
    """T3, T9: rows of a decided checkpoint are delivered, the others' objects deleted unread."""
    store, mailbox = MemoryStore(), Mailbox()
    sink = opened(MailboxSink(mailbox), store)
    decided, _undecided = sealed(sink, 1, [1]), sealed(sink, 2, [2])
    assert decided is not None
    opened(MailboxSink(mailbox), store, token=2).recover([decided])
    assert mailbox.read() == [{"n": 1}]
    assert staged_in(store) == []


def test_after_rescaling_each_origin_is_swept_by_one_subtask_only() -> None:
    """T8: three subtasks wrote and two continue: subtask 0 owns the origins 0 and 2."""
    store, mailbox = MemoryStore(), Mailbox()
    for subtask in range(3):
        sealed(opened(MailboxSink(mailbox), store, subtask=subtask, parallelism=3), 1, [subtask])
    opened(MailboxSink(mailbox), store, token=2, subtask=0, parallelism=2).recover([])
    assert [key.rsplit("/", 1)[1].split("-")[0] for key in staged_in(store)] == ["1"]
    opened(MailboxSink(mailbox), store, token=2, subtask=1, parallelism=2).recover([])
    assert staged_in(store) == []


def test_damaged_rows_are_never_delivered() -> None:
    """O8: after one flipped byte, the error names the object and both hashes."""
    store, mailbox = MemoryStore(), Mailbox()
    sink = opened(MailboxSink(mailbox), store)
    committable = sealed(sink, 1, [1])
    assert committable is not None
    (key,) = staged_in(store)
    data = bytearray(store.get(key))
    data[-3] ^= 1
    store.put(key, bytes(data))
    with pytest.raises(Corrupt, match=r"should have sha256 [0-9a-f]{64}, it has [0-9a-f]{64}") as caught:
        sink.commit(committable)
    assert key in str(caught.value)
    assert mailbox.deliveries == []


def test_decided_rows_that_are_gone_undelivered_are_damage_and_not_done() -> None:
    store, mailbox = MemoryStore(), Mailbox()
    sink = opened(MailboxSink(mailbox), store)
    committable = sealed(sink, 1, [1])
    assert committable is not None
    store.delete(staged_in(store))
    with pytest.raises(Corrupt, match="1 decided rows of checkpoint 1, written by subtask 0 of generation 1, are gone"):
        sink.commit(committable)


def test_what_was_aborted_cannot_be_committed() -> None:
    """T6: a commit after an abort is an error; a second abort is not."""
    store, mailbox = MemoryStore(), Mailbox()
    sink = opened(MailboxSink(mailbox), store)
    committable = sealed(sink, 1, [1])
    assert committable is not None
    sink.abort(committable)
    sink.abort(committable)
    with pytest.raises(Corrupt):
        sink.commit(committable)


def test_an_empty_transaction_has_no_committable(store: MemoryStore) -> None:
    """T7: nothing written, nothing to commit, no object."""
    assert sealed(opened(MailboxSink(Mailbox()), store), 1, []) is None
    assert staged_in(store) == []


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"version": 2}, InvalidJob),
        ({"job": "another"}, Corrupt),
        ({"sink": "another"}, Corrupt),
        ({"token": 9}, Corrupt),
        ({"subtask": 9}, Corrupt),
        ({"objects": [{"key": "job/log/00000000000000000001.json", "sha256": "0", "rows": 1}]}, Corrupt),
        ({"objects": [{"key": "job/write-ahead/another/staged/1/0-1-a", "sha256": "0", "rows": 1}]}, Corrupt),
        ({"objects": 3}, Corrupt),
    ],
)
def test_a_committable_that_is_not_ours_is_refused_and_touches_nothing(
    change: dict[str, Any], error: type[Exception]
) -> None:
    """B6: an abort, too, may delete only objects staged by this sink."""
    store, mailbox = MemoryStore(), Mailbox()
    sink = opened(MailboxSink(mailbox), store)
    committable = sealed(sink, 1, [1])
    assert committable is not None
    before = [info.key for info in store.list("")]
    wrong = msgspec.json.encode({**msgspec.json.decode(committable), **change})
    for call in (sink.commit, sink.abort):
        with pytest.raises(error):
            call(wrong)
    assert [info.key for info in store.list("")] == before
    assert mailbox.deliveries == []


def test_a_target_out_of_reach_keeps_the_rows_until_it_is_back() -> None:
    """T4: the commit fails until the target is back; no row is dropped."""
    store, mailbox = MemoryStore(), Mailbox(closed=True)
    sink = opened(MailboxSink(mailbox), store)
    committable = sealed(sink, 1, [1])
    assert committable is not None
    for _ in range(3):
        with pytest.raises(Unavailable):
            sink.commit(committable)
    assert len(staged_in(store)) == 1
    mailbox.closed = False
    sink.commit(committable)
    assert mailbox.read() == [{"n": 1}]


def test_after_rescaling_nothing_begins_before_everything_decided_is_delivered() -> None:
    """R2: another subtask may have to deliver the older rows of a key."""
    store, mailbox = MemoryStore(), Mailbox()
    before = Subtask(lambda: MailboxSink(mailbox), store)
    before.write([1])
    decided = before.barrier(4)()
    mailbox.closed = True
    Subtask(lambda: MailboxSink(mailbox), store, token=2, restored=(decided,))  # same parallelism: delivers later
    Subtask(lambda: MailboxSink(mailbox), store, token=3, restored=(decided,), subtask=1, parallelism=2)
    with pytest.raises(Unavailable, match="the job was rescaled, and what checkpoint 4 decided must be"):
        Subtask(lambda: MailboxSink(mailbox), store, token=3, restored=(decided,), parallelism=2)
    mailbox.closed = False
    Subtask(lambda: MailboxSink(mailbox), store, token=4, restored=(decided,), parallelism=2)
    assert mailbox.read() == [{"n": 1}]


def test_of_the_objects_of_a_checkpoint_the_first_is_deleted_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """T11: while the first object exists, all exist. If another object were deleted first and the process killed, the
    repeated delivery would send a part of the rows to a target that remembers nothing.
    """
    store, mailbox = MemoryStore(), Mailbox()
    sink = opened(MailboxSink(mailbox, max_bytes_in_memory=1), store)
    committable = sealed(sink, 1, [1, 2, 3])
    assert committable is not None
    staged = [each.key for each in decode_committable(committable, "job", "out", "here").objects]
    assert len(staged) == 3
    deleted: list[str] = []
    delete = store.delete

    def one_by_one(keys: Sequence[str]) -> None:
        """Deletes keys in turn; the process is killed after the first."""
        for key in keys:
            if key in staged and deleted:
                raise Unavailable("killed")
            deleted.append(key)
            delete([key])

    monkeypatch.setattr(store, "delete", one_by_one)
    with pytest.raises(Unavailable, match="killed"):
        sink.commit(committable)
    assert [key for key in deleted if key in staged] == staged[:1]
    monkeypatch.undo()
    opened(MailboxSink(mailbox, max_bytes_in_memory=1), store, token=2).recover([committable])
    assert [len(rows) for rows in mailbox.letters.values()] == [3]
    assert len(mailbox.deliveries) == 1
    assert staged_in(store) == []
