"""Commit log of a file sink: the files that readers may see, with a record per commit of all subtasks.

A file system cannot rename many files at once, so the files of a checkpoint appear gradually. Readers that list the
folder see each file whole, but may see rows of one subtask before rows of another. Readers of the commit log see rows
of whole checkpoints only: record k is an object, written by put-if-absent after all files of the record are in place.

    <url>/_commits/<job>/<sink>/<sequence, 20 digits>.json        1, 2, 3, … without gaps; immutable

A summary covers 250 records, see `commit_record`.

Exactly one record names a file, whoever writes the record and however often a commit is repeated: `CommitLog.append`
omits files that the log names, and loses the put if another process (a zombie of an older generation, or the successor)
was faster. File names never repeat (see `file_committable`), also in a target with files of another start of the same
job.
"""

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import takewhile
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
from barrier_runtime.coordinator.log.hint import READ_AHEAD, HeadHint
from barrier_runtime.coordinator.log.reader import find_head
from barrier_runtime.state.errors import BarrierRuntimeError, Corrupt, InvalidJob, Unavailable
from barrier_runtime.state.snapshots.transfer import in_parallel
from barrier_runtime.state.store.object_store import ObjectStore, PutOutcome, folders_in, get_or_none, side_by_side
from barrier_runtime.state.store.open import open_existing_store

_ONE_BY_ONE = 16  # records read back singly, before parallel reads
_MOST_SUMMARIES = 64  # of a parallel read


def commits_prefix(job: str, sink: str) -> str:
    return f"_commits/{job}/{sink}/"


def read_commit_log(store: ObjectStore, job: str, sink: str, after: int = 0) -> tuple[CommitRecord, ...]:
    """Returns every record after the first `after` records, oldest first.
    A reader that counts reads each record once.

    Summaries replace whole blocks of records. Without summaries, records are read in parallel, in batches that double:
    one by one, a long log would take hours on S3.
    """
    log = CommitLog(store, job, sink)
    records: list[CommitRecord] = []
    count = summaries = 1
    with ThreadPoolExecutor(READS_AT_ONCE) as reading:
        while True:
            block, over = divmod(after + len(records), RECORDS)
            if not over:
                wanted = range(block + 1, block + 1 + summaries)
                found = [each for each in takewhile(_is_there, reading.map(log.summary, wanted)) if each]
                records += [record for summary in found for record in summary.records]
                summaries = min(2 * summaries, _MOST_SUMMARIES) if found else 1
                if found:
                    continue
            first, asked = after + len(records) + 1, min(count, RECORDS - over)
            news = [each for each in takewhile(_is_there, reading.map(log.record, range(first, first + asked))) if each]
            records += news
            if len(news) < asked:
                return tuple(records)
            count = min(2 * count, RECORDS)


def _is_there(found: CommitRecord | Summary | None) -> bool:
    return found is not None


class CommitLog:
    """Commit log for a writer or reader. Blocks. `later`: runs work, in order, for which no commit waits."""

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
        self._head: int | None = None  # highest record seen; None before the first search
        self._looking = threading.Lock()
        self._read: dict[int, CommitRecord] = {}  # records read during the search for the head; then only the head
        self._read_head: int | None = None  # found by `look_ahead`
        self._kept = 0  # records up to this number are known to be durable
        self._highest = (0, 0)  # checkpoint and token of the head and all earlier records
        self._named: dict[
            str, int
        ] = {}  # files that a later call may repeat, with the checkpoint of the record that names them

    def record(self, sequence: int) -> CommitRecord | None:
        """Returns a record; None if there is none.
        Raises `Corrupt` for an object that is no record of this log."""
        key = self._key(sequence)
        data = get_or_none(self._store, key)
        if data is None:
            return None
        return decode_commit_record(data, f"{self._store.url}/{key}", self._job, self._sink)

    def summary(self, number: int) -> Summary | None:
        return self._summaries.read(number)

    def look_ahead(self) -> None:
        """Searches the head before the first `append`, in any thread.

        The put of `append` detects a later head, and `append` reports errors.
        """
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
        """Makes `files` visible at once, except files that the log names already. Idempotent.

        `origin_of`: returns the token under which a file was written and the checkpoint that closed the file; no record
        below either can name the file.

        Checkpoints of calls only rise. Files that only a later call passes were closed after this `checkpoint`: only a
        record of a later checkpoint can name them, and a successor may have written that record already.
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
                self._saw(record)
                self._later(partial(self._hint.follow, self._head))
            else:
                self._catch_up()
        self._keep()
        self._later(partial(self._summaries.follow, self._head or 0))
        asked = {file.name for file in files}
        self._named = {name: of for name, of in self._named.items() if name in asked or of > checkpoint}

    def replace(self, known: list[CommitRecord], old: Sequence[str], new: CommittedFile, wall_ms: int) -> bool:
        """Writes a record that replaces the files `old` by `new`.

        Returns False if some of `old` are no longer visible because another compaction was faster. For callers that
        write no rows. `known`: the records read so far, from the first; newer records are appended.
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
        """Writes a record. Returns False if another record exists."""
        key = self._key(sequence)
        outcome = self._store.put_if_absent(key, encode_commit_record(record))
        if outcome is PutOutcome.UNKNOWN:
            raise Unavailable(f"nobody knows whether {self._store.url}/{key} was written: it is tried again")
        self._kept = sequence
        return outcome is PutOutcome.CREATED

    def _keep(self) -> None:
        """Makes the head durable if it was only read.

        A record that was only read may not be durable, if the writer (an earlier attempt, another process) died.
        Putting the newest record again confirms that all records in the folder are durable.
        """
        assert self._head is not None
        if self._kept < self._head:
            self._put(self._head, self._there(self._head))

    def _there(self, sequence: int) -> CommitRecord:
        record = self._read.get(sequence) or self.record(sequence)
        if record is None:
            raise Corrupt(
                f"commit record {self._store.url}/{self._key(sequence)} is gone, later ones are there: restore it "
                "from a backup"
            )
        return record

    def names(self, file: str, token: int, checkpoint: int) -> bool:
        """True if a record names this file, which was therefore visible once.

        The file was written under `token` and closed by `checkpoint` or a later checkpoint. Reads records back to that
        origin.
        """
        records = self._newest_first(self._find_head(), {log_of(file): (token, checkpoint)})
        return any(each.name == file for record in records for each in record.files)

    def _look(self, lowest: Mapping[str, tuple[int, int]]) -> None:
        """Finds the head; the first call also reads the names of files that a call may repeat."""
        if self._head is not None:
            return  # a newer record makes the next put fail
        with self._looking:
            head = self._find_head() if self._read_head is None else self._read_head
            records = list(self._newest_first(head, lowest))
            if head:
                newest = self._there(head)
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
        """Yields records backwards while they may name a file of these decision logs.

        `lowest`: lowest (fencing token, checkpoint) of the files, by decision log.
        """
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
                records = in_parallel(self._there, range(sequence - count + 1, sequence + 1), READS_AT_ONCE)
            for record in reversed(records):
                yield record
                if record.highest_token < token or record.highest_checkpoint < checkpoint:
                    return
            sequence -= len(records)

    def _catch_up(self) -> None:
        assert self._head is not None
        while True:
            record = self.record(self._head + 1)
            if record is None:
                return
            self._saw(record)

    def _saw(self, record: CommitRecord) -> None:
        """Makes `record`, the successor of the head, the new head."""
        assert self._head is not None
        self._head += 1
        self._highest = record.highest_checkpoint, record.highest_token
        self._named.update((file.name, record.checkpoint) for file in record.files)

    def _key(self, sequence: int) -> str:
        return f"{commits_prefix(self._job, self._sink)}{sequence:020d}.json"


def _lowest(
    files: Sequence[CommittedFile], origin_of: Callable[[CommittedFile], tuple[int, int]]
) -> dict[str, tuple[int, int]]:
    """Returns the lowest fencing token and the lowest checkpoint of the files, by decision log."""
    lowest: dict[str, tuple[int, int]] = {}
    for file in files:
        log, origin = log_of(file.name), origin_of(file)
        known = lowest.get(log, origin)
        lowest[log] = min(known[0], origin[0]), min(known[1], origin[1])
    return lowest


def committed_files(url: str, job: str | None = None, sink: str | None = None) -> tuple[str, ...]:
    """Returns the files of whole committed checkpoints below `url`, in commit order, for a reader:
    `spark.read.json(list(committed_files(url)))`.

    `job`, `sink`: only their files; default: files of all jobs and sinks.

    Returns URLs with the scheme of `url`: Spark outside EMR and Databricks reads only `s3a://`, most others `s3://`. If
    a folder's name has characters that a URL must quote, returns plain paths, which all readers understand; some
    readers do not unquote URLs. (Spark alone takes `*`, `?`, `[…]` and `{…}` in either for patterns.)

    With unaligned checkpoints, a checkpoint shows the rows that the sinks had received: while the job runs, rows that a
    barrier overtook may be missing although later rows of the same split are there. At the job's end no row is missing.
    """
    store = open_existing_store(url)
    writers = jobs_and_sinks(store)
    wanted = [one for one in writers if job in (None, one[0]) and sink in (None, one[1])]
    if not wanted:
        there = ", ".join(f"{each[0]}/{each[1]}" for each in writers) or "none"
        raise InvalidJob(
            f"{store.url} has no commit log of job {job or 'any'}, sink {sink or 'any'}; there are: {there}"
        )
    names = [file.name for each in wanted for file in live_files(read_commit_log(store, *each))]
    folder = _for_readers(store.url, url, names)
    return tuple(f"{folder}/{name}" for name in names)


def _for_readers(url: str, asked: str, names: Iterable[str]) -> str:
    """Returns a folder's URL for readers.
    `asked`: the URL as the reader wrote it; `names`: files below the folder."""
    if asked.startswith("s3a://"):
        return "s3a://" + url.removeprefix("s3://")
    path = unquote(url.removeprefix("file://"))
    plain = quote(path) == path and all(quote(name, safe="/=") == name for name in names)
    return path if url.startswith("file://") and not plain else url


def jobs_and_sinks(store: ObjectStore) -> tuple[tuple[str, str], ...]:
    """Returns every (job, sink) with a commit log below this URL, preferably without listing records."""
    jobs = folders_in(store, "_commits/")
    return tuple((job, sink) for job in jobs for sink in folders_in(store, f"_commits/{job}/"))
