"""Commit log of a file sink: the files that readers may see, with a record per commit of all subtasks.

    <url>/_commits/<job>/<sink>/<sequence, 20 digits>.json        1, 2, 3, … without gaps; immutable

Only readers of the log see whole checkpoints. A record is put, if absent, when all files of the record are in place.
Blocks replace old records (`commit_blocks`).

A file is in exactly one record: `CommitLog.append` omits files that the log names, and loses the put if another process
was faster. File names never repeat.
"""

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from urllib.parse import quote, unquote

import msgspec

from barrier_runtime.connectors.files.sink import commit_blocks
from barrier_runtime.connectors.files.sink.block_writer import BlockWriter
from barrier_runtime.connectors.files.sink.commit_reader import READS_AT_ONCE, StoredRecords
from barrier_runtime.connectors.files.sink.commit_reader import commits_prefix as commits_prefix
from barrier_runtime.connectors.files.sink.commit_reader import read_commit_log as read_commit_log
from barrier_runtime.connectors.files.sink.commit_record import (
    MAY_GO_FROM,
    encode_commit_record,
    live_files,
    log_of,
    may_name,
    version_at,
)
from barrier_runtime.connectors.files.sink.commit_record import CommitRecord as CommitRecord
from barrier_runtime.connectors.files.sink.commit_record import CommittedFile as CommittedFile
from barrier_runtime.coordinator.log.reader import READ_AHEAD, HeadHint, find_head
from barrier_runtime.state.errors import BarrierRuntimeError, InvalidJob, Unavailable
from barrier_runtime.state.snapshots.transfer import in_parallel
from barrier_runtime.state.store.object_store import ObjectStore, PutOutcome, folders_in, side_by_side
from barrier_runtime.state.store.open import open_existing_store

_ONE_BY_ONE = 16


class _Deleted(Exception):
    """Records were moved into a block while they were read."""


class CommitLog:
    """Blocks. `later`: runs work, in order, for which no commit waits."""

    def __init__(
        self,
        store: ObjectStore,
        job: str,
        sink: str,
        later: Callable[[Callable[[], None]], None] = lambda work: work(),
    ) -> None:
        self._store = store
        self._job = job
        self._sink = sink
        self._later = later
        self._stored = StoredRecords(store, job, sink)
        self._blocks = self._stored.blocks
        self._writer = BlockWriter(self._stored)
        self._hint = HeadHint(store, f"{commits_prefix(job, sink)}hint.json")
        self._head: int | None = None
        self._own = 0  # number of an answered record of this process, behind which nothing is in doubt
        self._looking = threading.Lock()
        self._read: dict[int, CommitRecord] = {}  # during the search all records read; then the head
        self._read_head: int | None = None
        self._unproven = False  # records were read since the proof that none was deleted
        self._durable = 0  # records up to this number are durable
        self._highest = (0, 0)  # checkpoint and token of the head and all earlier records
        # Files that a later call may repeat, with the checkpoint of the record.
        self._named: dict[str, int] = {}

    def record(self, sequence: int) -> CommitRecord | None:
        return self._stored.record(sequence)

    def look_ahead(self) -> None:
        """Searches the head before the first `append`, in any thread."""
        with self._looking:
            if self._head is None and self._read_head is None:
                with contextlib.suppress(BarrierRuntimeError, OSError):
                    self._read_head = self._find_head()

    def append(
        self,
        checkpoint: int,
        token: int,
        files: Sequence[CommittedFile],
        origin_of: Callable[[CommittedFile], tuple[int, int]],
    ) -> None:
        """Makes `files` visible at once, except files already in the log. Idempotent.

        `origin_of`: the token under which a file was written and the checkpoint that closed the file; no record below
        either can name the file. Checkpoints of calls only rise.
        """
        if not files:
            return
        while True:
            if self._head is None:
                self._look(_lowest({file.name: origin_of(file) for file in files}))
            new = tuple(file for file in files if file.name not in self._named)
            if not new:
                break
            assert self._head is not None
            highest = max(checkpoint, self._highest[0]), max(token, self._highest[1])
            sequence = self._head + 1
            record = CommitRecord(version_at(sequence), self._job, self._sink, checkpoint, token, *highest, new)
            if not self._put_next(sequence, record):  # the head is the newest record, so no record names `new`
                self._catch_up()
            elif self._head is not None:
                self._advance_to(record)
                self._later(partial(self._hint.follow, sequence))
        self._make_durable()
        self._later(partial(self._writer.follow, self._head or 0))
        asked = {file.name for file in files}
        self._named = {name: of for name, of in self._named.items() if name in asked or of > checkpoint}

    def replace(self, known: list[CommitRecord], old: Sequence[str], new: CommittedFile, wall_ms: int) -> bool:
        """Replaces `old` by `new`, for callers that write no rows.

        Returns False if another compaction has replaced some of `old`. `known`: all records read so far; newer
        records are appended.
        """
        while True:
            before = len(known)
            known += read_commit_log(self._store, self._job, self._sink, before)
            if any(new in record.files for record in known[before:]):
                return True  # put by an earlier round, whose answer was in doubt
            if not set(old) <= {file.name for file in live_files(known)}:
                return False
            sequence = len(known) + 1
            record = msgspec.structs.replace(
                known[-1],
                version=version_at(sequence, of_compaction=True),
                files=(new,),
                replaces=tuple(old),
                wall_ms=wall_ms,
                turn=False,
            )
            self._head = sequence - 1
            if self._put_next(sequence, record) and self._head is not None:
                return True

    def _put_next(self, sequence: int, record: CommitRecord) -> bool:
        """Returns whether the put created the record. If perhaps in a gap, the log is to be read again: no head."""
        behind_own = self._own == sequence - 1 > 0
        if record.version >= MAY_GO_FROM:
            record = msgspec.structs.replace(record, turn=not behind_own)
        self._own = 0
        if not self._put(sequence, record):
            return False
        if not behind_own and self._stored.goes_on(sequence):
            self._forget()
            return True
        self._own = sequence
        return True

    def _put(self, sequence: int, record: CommitRecord) -> bool:
        key = self._stored.key(sequence)
        outcome = self._store.put_if_absent(key, encode_commit_record(record))
        if outcome is PutOutcome.UNKNOWN:
            raise Unavailable(f"nobody knows whether {self._store.url}/{key} was written: it is tried again")
        self._durable = sequence
        return outcome is PutOutcome.CREATED

    def _make_durable(self) -> None:
        """Puts a head again that was only read: the writer may have died before the record was durable.

        A durable head proves all records durable, and so does a deleted head: a block has it.
        """
        assert self._head is not None
        if self._durable < self._head:
            with contextlib.suppress(_Deleted):
                self._put(self._head, self._existing(self._head))

    def _existing(self, sequence: int) -> CommitRecord:
        record = self._read.get(sequence)
        if record is None:
            record = self.record(sequence)
            self._unproven = True
        if record is None:
            if self._blocks.cover(sequence):
                raise _Deleted
            raise self._stored.gone(sequence)
        return record

    def names(self, file: str, token: int, checkpoint: int) -> bool:
        """True if a record names this file, written under `token` and closed by `checkpoint` or later."""
        return bool(self.named({file: (token, checkpoint)}))

    def named(self, files: Mapping[str, tuple[int, int]]) -> set[str]:
        """Those of `files` that a record names. The values are as for `names`: token, checkpoint."""
        _, records = self._search(_lowest(files)) if files else (0, [])
        return {file.name for record in records for file in record.files} & files.keys()

    def _look(self, lowest: Mapping[str, tuple[int, int]]) -> None:
        with self._looking:
            head, records = self._search(lowest)
            if head:
                newest = self._existing(head)
                self._highest = newest.highest_checkpoint, newest.highest_token
                self._read = {head: newest}
            self._named = {file.name: record.checkpoint for record in records for file in record.files}
            self._head = head

    def _search(self, lowest: Mapping[str, tuple[int, int]]) -> tuple[int, list[CommitRecord]]:
        """The head, and the records that may name a file of `lowest`. All of them are in the log."""
        while True:
            head = self._find_head() if self._read_head is None else self._read_head
            without_block: set[int] = set()
            with contextlib.suppress(_Deleted):
                records = list(self._newest_first(head, lowest, without_block))
                deleted = self._unproven and self._stored.goes_on(head)
                if not deleted and not any(map(self._blocks.cover, without_block)):
                    return head, records
            self._forget()

    def _forget(self) -> None:
        self._head = self._read_head = None
        self._own, self._read = 0, {}

    def _find_head(self) -> int:
        at_once = side_by_side(self._store, READ_AHEAD)
        hint, step = self._hint.read(), commit_blocks.RECORDS
        head = max(0, find_head(self._exists, hint=hint, at_once=at_once, exists_now=self._exists_now, step=step))
        self._unproven = False
        return head

    def _exists(self, sequence: int) -> bool:
        record = self.record(sequence)
        if record is not None:
            self._read[sequence] = record
        return record is not None

    def _exists_now(self, milestone: int) -> bool:
        if not self._exists(milestone):
            return False
        self._read = {milestone: self._read[milestone]}  # earlier ones may have been read in gaps
        return True

    def _newest_first(
        self, head: int, lowest: Mapping[str, tuple[int, int]], without_block: set[int]
    ) -> Iterator[CommitRecord]:
        """Yields records while they may name a file of `lowest`: (token, checkpoint) per decision log.

        `without_block` gets the last positions of whole blocks whose records were read one by one.
        """
        token, checkpoint = (min(each) for each in zip(*lowest.values(), strict=True))
        sequence = head
        while sequence:
            over = sequence % commit_blocks.RECORDS
            block = None if over else self._blocks.covering(sequence)
            if block is not None and not may_name(block.head.origins, lowest):
                return
            if block is not None:
                records: Sequence[CommitRecord] = block.records(last=sequence)
            else:
                count = 1 if head - sequence < _ONE_BY_ONE else over or commit_blocks.RECORDS
                records = in_parallel(self._existing, range(sequence - count + 1, sequence + 1), READS_AT_ONCE)
                if not over:
                    without_block.add(sequence)
            for record in reversed(records):
                yield record
                if record.highest_token < token or record.highest_checkpoint < checkpoint:
                    return
            sequence -= len(records)

    def _catch_up(self) -> None:
        """Reads on behind a record of another process."""
        assert self._head is not None
        while (record := self.record(self._head + 1)) is not None:
            self._advance_to(record)
        if self._stored.goes_on(self._head):
            self._forget()

    def _advance_to(self, record: CommitRecord) -> None:
        assert self._head is not None
        self._head += 1
        self._highest = record.highest_checkpoint, record.highest_token
        self._named.update((file.name, record.checkpoint) for file in record.files)


def _lowest(origins: Mapping[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
    lowest: dict[str, tuple[int, int]] = {}
    for name, origin in origins.items():
        log = log_of(name)
        known = lowest.get(log, origin)
        lowest[log] = min(known[0], origin[0]), min(known[1], origin[1])
    return lowest


def committed_files(url: str, job: str | None = None, sink: str | None = None) -> tuple[str, ...]:
    """Files of whole committed checkpoints below `url`, in commit order.

    `job`, `sink`: only their files. Example: `spark.read.json(list(committed_files(url)))`.

    Returns URLs with the scheme of `url` (`s3a://` for Spark), or plain local paths if names have characters that a URL
    must quote. Spark takes `*`, `?`, `[…]` and `{…}` for patterns.

    With unaligned checkpoints, rows that a barrier overtook may be missing until the job ends.
    """
    store = open_existing_store(url)
    writers = writers_of(store, job, sink)
    names = [file.name for each in writers for file in live_files(read_commit_log(store, *each))]
    folder = _for_readers(store.url, url, names)
    return tuple(f"{folder}/{name}" for name in names)


def _for_readers(url: str, asked: str, names: Iterable[str]) -> str:
    if asked.startswith("s3a://"):
        return "s3a://" + url.removeprefix("s3://")
    path = unquote(url.removeprefix("file://"))
    plain = quote(path) == path and all(quote(name, safe="/=") == name for name in names)
    return path if url.startswith("file://") and not plain else url


def jobs_and_sinks(store: ObjectStore) -> tuple[tuple[str, str], ...]:
    jobs = folders_in(store, "_commits/")
    return tuple((job, sink) for job in jobs for sink in folders_in(store, f"_commits/{job}/"))


def writers_of(store: ObjectStore, job: str | None, sink: str | None) -> list[tuple[str, str]]:
    """Every (job, sink) with a commit log here, of `job` and `sink` (None: any).
    Raises `InvalidJob` if there is none.
    """
    there = jobs_and_sinks(store)
    found = [each for each in there if job in (None, each[0]) and sink in (None, each[1])]
    if not found:
        raise _no_commit_log(store.url, job, sink, there)
    return found


def _no_commit_log(url: str, job: str | None, sink: str | None, there: Sequence[tuple[str, str]]) -> InvalidJob:
    if not there:
        return InvalidJob(
            f"{url} has no commit log: no file sink has committed rows there yet, or the sink writes to another folder"
        )
    wanted = ", ".join(f"{kind} {name}" for kind, name in (("job", job), ("sink", sink)) if name is not None)
    names = ", ".join(f"{job}/{sink}" for job, sink in there)
    return InvalidJob(f"{url} has no commit log of {wanted}: there are logs (job/sink) of {names}")
