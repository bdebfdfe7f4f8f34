"""Commit log of a file sink: the files that readers may see, with a record per commit of all subtasks.

    <url>/_commits/<job>/<sink>/<sequence, 20 digits>.json        1, 2, 3, … without gaps; immutable

Only readers of the log see whole checkpoints. A record is put, if absent, when all files of the record are in place.

A file is in exactly one record: `CommitLog.append` omits files that the log names, and loses the put if another process
was faster. File names never repeat.
"""

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar
from urllib.parse import quote, unquote

import msgspec

from barrier_runtime.connectors.files.sink.commit_record import (
    COMMIT_RECORD_VERSION,
    PLAIN_VERSION,
    READS_AT_ONCE,
    RECORDS,
    Summaries,
    Summary,
    decode_commit_record,
    encode_commit_record,
    live_files,
    log_of,
)
from barrier_runtime.connectors.files.sink.commit_record import CommitRecord as CommitRecord
from barrier_runtime.connectors.files.sink.commit_record import CommittedFile as CommittedFile
from barrier_runtime.coordinator.log.reader import READ_AHEAD, HeadHint, find_head
from barrier_runtime.state.errors import BarrierRuntimeError, Corrupt, InvalidJob, Unavailable
from barrier_runtime.state.snapshots.transfer import in_parallel
from barrier_runtime.state.store.object_store import ObjectStore, PutOutcome, folders_in, get_or_none, side_by_side
from barrier_runtime.state.store.open import open_existing_store

T = TypeVar("T")

_ONE_BY_ONE = 16
_MOST_SUMMARIES = 64


def commits_prefix(job: str, sink: str) -> str:
    return f"_commits/{job}/{sink}/"


def read_commit_log(store: ObjectStore, job: str, sink: str, after: int = 0) -> tuple[CommitRecord, ...]:
    """Records after the first `after` records, oldest first, read in growing batches."""
    log = CommitLog(store, job, sink)
    records: list[CommitRecord] = []
    count = summaries = 1
    with ThreadPoolExecutor(READS_AT_ONCE) as reading:
        while True:
            block, over = divmod(after + len(records), RECORDS)
            if not over:
                wanted = range(block + 1, block + 1 + summaries)
                found = list(_until_none(reading.map(log.summary, wanted)))
                records += [record for summary in found for record in summary.records]
                summaries = min(2 * summaries, _MOST_SUMMARIES) if found else 1
                if found:
                    continue
            first, asked = after + len(records) + 1, min(count, RECORDS - over)
            read = list(_until_none(reading.map(log.record, range(first, first + asked))))
            records += read
            if len(read) < asked:
                return tuple(records)
            count = min(2 * count, RECORDS)


def _until_none(found: Iterable[T | None]) -> Iterator[T]:
    for each in found:
        if each is None:
            return
        yield each


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
        self._summaries = Summaries(store, commits_prefix(job, sink), job, sink, self.record)
        self._hint = HeadHint(store, f"{commits_prefix(job, sink)}hint.json")
        self._head: int | None = None
        self._looking = threading.Lock()
        self._read: dict[int, CommitRecord] = {}  # during the search all records read; then the head
        self._read_head: int | None = None
        self._durable = 0  # records up to this number are durable
        self._highest = (0, 0)  # checkpoint and token of the head and all earlier records
        # Files that a later call may repeat, with the checkpoint of the record.
        self._named: dict[str, int] = {}

    def record(self, sequence: int) -> CommitRecord | None:
        key = self._key(sequence)
        data = get_or_none(self._store, key)
        if data is None:
            return None
        return decode_commit_record(data, f"{self._store.url}/{key}", self._job, self._sink)

    def summary(self, number: int) -> Summary | None:
        return self._summaries.read(number)

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
        self._look(_lowest(files, origin_of))
        while True:
            new = tuple(file for file in files if file.name not in self._named)
            if not new:
                break
            assert self._head is not None
            highest = max(checkpoint, self._highest[0]), max(token, self._highest[1])
            record = CommitRecord(PLAIN_VERSION, self._job, self._sink, checkpoint, token, *highest, new)
            if self._put(self._head + 1, record):  # the head is the newest record, so no record names `new`
                self._advance_to(record)
                self._later(partial(self._hint.follow, self._head))
            else:
                self._catch_up()
        self._make_durable()
        self._later(partial(self._summaries.follow, self._head or 0))
        asked = {file.name for file in files}
        self._named = {name: of for name, of in self._named.items() if name in asked or of > checkpoint}

    def replace(self, known: list[CommitRecord], old: Sequence[str], new: CommittedFile, wall_ms: int) -> bool:
        """Replaces `old` by `new`, for callers that write no rows.

        Returns False if another compaction has replaced some of `old`. `known`: all records read so far; newer
        records are appended.
        """
        while True:
            known += read_commit_log(self._store, self._job, self._sink, len(known))
            if not set(old) <= {file.name for file in live_files(known)}:
                return False
            record = msgspec.structs.replace(
                known[-1], version=COMMIT_RECORD_VERSION, files=(new,), replaces=tuple(old), wall_ms=wall_ms
            )
            key = self._key(len(known) + 1)
            outcome = self._store.put_if_absent(key, encode_commit_record(record))
            if outcome is PutOutcome.UNKNOWN:
                raise Unavailable(f"nobody knows if {self._store.url}/{key} is written: start the compaction again")
            if outcome is PutOutcome.CREATED:
                return True

    def _put(self, sequence: int, record: CommitRecord) -> bool:
        key = self._key(sequence)
        outcome = self._store.put_if_absent(key, encode_commit_record(record))
        if outcome is PutOutcome.UNKNOWN:
            raise Unavailable(f"nobody knows whether {self._store.url}/{key} was written: it is tried again")
        self._durable = sequence
        return outcome is PutOutcome.CREATED

    def _make_durable(self) -> None:
        """Puts a head again that was only read: the writer may have died before the record was durable.

        A durable head proves all records durable.
        """
        assert self._head is not None
        if self._durable < self._head:
            self._put(self._head, self._existing(self._head))

    def _existing(self, sequence: int) -> CommitRecord:
        record = self._read.get(sequence) or self.record(sequence)
        if record is None:
            raise Corrupt(
                f"commit record {self._store.url}/{self._key(sequence)} is gone, later ones are there: restore it "
                "from a backup"
            )
        return record

    def names(self, file: str, token: int, checkpoint: int) -> bool:
        """True if a record names this file, written under `token` and closed by `checkpoint` or later."""
        records = self._newest_first(self._find_head(), {log_of(file): (token, checkpoint)})
        return any(each.name == file for record in records for each in record.files)

    def _look(self, lowest: Mapping[str, tuple[int, int]]) -> None:
        if self._head is not None:
            return  # a newer record makes the next put fail
        with self._looking:
            head = self._find_head() if self._read_head is None else self._read_head
            records = list(self._newest_first(head, lowest))
            if head:
                newest = self._existing(head)
                self._highest = newest.highest_checkpoint, newest.highest_token
                self._read = {head: newest}
            self._named = {file.name: record.checkpoint for record in records for file in record.files}
            self._head = head

    def _find_head(self) -> int:
        at_once = side_by_side(self._store, READ_AHEAD)
        return max(0, find_head(self._exists, hint=self._hint.read(), at_once=at_once))

    def _exists(self, sequence: int) -> bool:
        record = self.record(sequence)
        if record is not None:
            self._read[sequence] = record
        return record is not None

    def _newest_first(self, head: int, lowest: Mapping[str, tuple[int, int]]) -> Iterator[CommitRecord]:
        """Yields records while they may name a file of `lowest`: (token, checkpoint) per decision log."""
        token, checkpoint = (min(each) for each in zip(*lowest.values(), strict=True))
        sequence = head
        while sequence:
            block, over = divmod(sequence, RECORDS)
            summary = None if over else self._summaries.read(block)
            if summary is not None and not summary.may_name(lowest):
                return
            if summary is not None:
                records: Sequence[CommitRecord] = summary.records
            else:
                count = 1 if head - sequence < _ONE_BY_ONE else over or RECORDS
                records = in_parallel(self._existing, range(sequence - count + 1, sequence + 1), READS_AT_ONCE)
            for record in reversed(records):
                yield record
                if record.highest_token < token or record.highest_checkpoint < checkpoint:
                    return
            sequence -= len(records)

    def _catch_up(self) -> None:
        assert self._head is not None
        while (record := self.record(self._head + 1)) is not None:
            self._advance_to(record)

    def _advance_to(self, record: CommitRecord) -> None:
        assert self._head is not None
        self._head += 1
        self._highest = record.highest_checkpoint, record.highest_token
        self._named.update((file.name, record.checkpoint) for file in record.files)

    def _key(self, sequence: int) -> str:
        return f"{commits_prefix(self._job, self._sink)}{sequence:020d}.json"


def _lowest(
    files: Sequence[CommittedFile], origin_of: Callable[[CommittedFile], tuple[int, int]]
) -> dict[str, tuple[int, int]]:
    lowest: dict[str, tuple[int, int]] = {}
    for file in files:
        log, origin = log_of(file.name), origin_of(file)
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
