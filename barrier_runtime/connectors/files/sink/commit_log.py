"""The commit log of a file sink: which files readers may see, one record per commit over all subtasks.

A checkpoint's files appear one by one, because a file system has no rename of many. Who reads the folder as it is
sees each file whole, but may see one subtask's rows before another's. Who reads through the commit log sees the rows of
whole checkpoints only: record k is one object, written by put-if-absent after all files of the record are in place.

    <url>/_commits/<job>/<sink>/<sequence, 20 digits>.json        1, 2, 3, … without gaps; immutable

Of every 250 records there is a summary, for readers of many; see `commit_log_summary`.

A file is named by exactly one record, whoever writes it and however often a commit is repeated: `CommitLog.append`
leaves out what the log already names, and loses the put when another process (a zombie of an older generation, or the
successor) was faster. Names never repeat (see `file_committable`), so this also holds for a target that has seen
another life of the same job.
"""

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import takewhile
from urllib.parse import quote, unquote

import msgspec

from barrier_runtime.connectors.files.sink.commit_log_summary import READS_AT_ONCE, RECORDS, Summaries, Summary, log_of
from barrier_runtime.connectors.files.sink.commit_record import (
    COMMIT_RECORD_VERSION,
    PLAIN_VERSION,
    decode_commit_record,
    encode_commit_record,
    live_files,
)
from barrier_runtime.connectors.files.sink.commit_record import CommitRecord as CommitRecord
from barrier_runtime.connectors.files.sink.commit_record import CommittedFile as CommittedFile
from barrier_runtime.coordinator.log.hint import READ_AHEAD, HeadHint
from barrier_runtime.coordinator.log.reader import find_head
from barrier_runtime.state.errors import BarrierRuntimeError, Corrupt, InvalidJob, Unavailable
from barrier_runtime.state.snapshots.transfer import in_parallel
from barrier_runtime.state.store.object_store import ObjectStore, PutOutcome, folders_in, get_or_none, side_by_side
from barrier_runtime.state.store.open import open_existing_store

_ONE_BY_ONE = 16  # records read back before many are asked for at a time
_MOST_SUMMARIES = 64  # asked for at a time


def commits_prefix(job: str, sink: str) -> str:
    return f"_commits/{job}/{sink}/"


def read_commit_log(store: ObjectStore, job: str, sink: str, after: int = 0) -> tuple[CommitRecord, ...]:
    """Every record after the first `after` ones, oldest first. A reader that keeps count reads each record once.

    Summaries stand for whole blocks of records; where there is none, records are asked for in batches that double, many
    at a time: one by one, a long log would take hours on S3."""
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
    """The log as one writer or reader sees it. Blocking. `later`: does work, in order, that no commit waits for."""

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
        self._head: int | None = None  # highest record seen; None: not looked for yet
        self._looking = threading.Lock()
        self._read: dict[int, CommitRecord] = {}  # on the way to the head; then the head alone
        self._read_head: int | None = None  # as `look_ahead` found it
        self._kept = 0  # records up to this one are known to survive a power cut
        self._highest = (0, 0)  # checkpoint and token, of the head and all before it
        self._named: dict[
            str, int
        ] = {}  # files that may be asked for again, and the checkpoint of the record naming each

    def record(self, sequence: int) -> CommitRecord | None:
        """Raises `Corrupt` for anything that is not a record of this log."""
        key = self._key(sequence)
        data = get_or_none(self._store, key)
        if data is None:
            return None
        return decode_commit_record(data, f"{self._store.url}/{key}", self._job, self._sink)

    def summary(self, number: int) -> Summary | None:
        return self._summaries.read(number)

    def look_ahead(self) -> None:
        """Find the head before the first `append` asks for it; any thread. The put decides whether that is still the
        head. Trouble is left for the `append` to meet."""
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
        """Make `files` visible at once, those that the log does not name yet. Idempotent. `origin_of` tells under which
        token a file was written and which checkpoint closed it: no record below either can name it.

        Calls come for ever higher checkpoints. What a later call asks for and this one does not was closed after this
        `checkpoint`: only a record of a later one can name it, and a successor may have written that already."""
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
            if self._put(self._head + 1, record):  # behind a head that is the newest record: no other names `new`
                self._saw(record)
                self._later(partial(self._hint.follow, self._head))
            else:
                self._catch_up()
        self._keep()
        self._later(partial(self._summaries.follow, self._head or 0))
        asked = {file.name for file in files}
        self._named = {name: of for name, of in self._named.items() if name in asked or of > checkpoint}

    def replace(self, known: list[CommitRecord], old: Sequence[str], new: CommittedFile, wall_ms: int) -> bool:
        """One record that puts `new` in the place of the files `old`, for readers at once. False: not all of these are
        visible any more; another compaction was faster. For who writes no rows. `known`: the records from the first
        on, as far as they were read; what came since is added."""
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
        """False: another record is there."""
        key = self._key(sequence)
        outcome = self._store.put_if_absent(key, encode_commit_record(record))
        if outcome is PutOutcome.UNKNOWN:
            raise Unavailable(f"nobody knows whether {self._store.url}/{key} was written: it is tried again")
        self._kept = sequence
        return outcome is PutOutcome.CREATED

    def _keep(self) -> None:
        """What was only read may be of a writer that died before it was durable: an attempt of ours, another process.
        To put the newest there once more is to hear that it is, and so are all in the folder."""
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
        """Does a record name this file, written under `token` and closed by `checkpoint` or a later one? Then it was
        visible, whatever became of it since. Reads the records back to the time of that origin."""
        records = self._newest_first(self._find_head(), {log_of(file): (token, checkpoint)})
        return any(each.name == file for record in records for each in record.files)

    def _look(self, lowest: Mapping[str, tuple[int, int]]) -> None:
        """Find the head; at the first time also what the records name that may be asked for."""
        if self._head is not None:
            return  # a record that came since makes the next put fail
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
        """Records, as far back as any may name a file of one of these decision logs that is not older than its lowest
        (fencing token, checkpoint)."""
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
        """`record` follows the head and is the head from now on."""
        assert self._head is not None
        self._head += 1
        self._highest = record.highest_checkpoint, record.highest_token
        self._named.update((file.name, record.checkpoint) for file in record.files)

    def _key(self, sequence: int) -> str:
        return f"{commits_prefix(self._job, self._sink)}{sequence:020d}.json"


def _lowest(
    files: Sequence[CommittedFile], origin_of: Callable[[CommittedFile], tuple[int, int]]
) -> dict[str, tuple[int, int]]:
    """Of each decision log under which any of them was written: lowest fencing token, lowest checkpoint."""
    lowest: dict[str, tuple[int, int]] = {}
    for file in files:
        log, origin = log_of(file.name), origin_of(file)
        known = lowest.get(log, origin)
        lowest[log] = min(known[0], origin[0]), min(known[1], origin[1])
    return lowest


def committed_files(url: str, job: str | None = None, sink: str | None = None) -> tuple[str, ...]:
    """The files below `url` that whole committed checkpoints consist of, in commit order, ready for a reader:
    `spark.read.json(list(committed_files(url)))`. `job`, `sink`: only those; default: all that write there.

    URLs, with the scheme of `url`: Spark outside EMR and Databricks reads `s3a://` only, most others `s3://`. Plain
    paths where a folder's name has characters that a URL must quote: some readers unquote, some do not, and paths are
    read by all. (Spark alone takes `*`, `?`, `[…]` and `{…}` in either for patterns.)

    A job with unaligned checkpoints shows what its sinks had taken of a checkpoint: while it runs, rows that a barrier
    overtook are not there yet, though later ones of the same split may be. At its end nothing is missing."""
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
    """A folder's URL as every reader takes it. `asked`: as the reader wrote it; `names`: of the files below it."""
    if asked.startswith("s3a://"):
        return "s3a://" + url.removeprefix("s3://")
    path = unquote(url.removeprefix("file://"))
    plain = quote(path) == path and all(quote(name, safe="/=") == name for name in names)
    return path if url.startswith("file://") and not plain else url


def jobs_and_sinks(store: ObjectStore) -> tuple[tuple[str, str], ...]:
    """Every (job, sink) that has a commit log below this url. Where the store can, without listing the records."""
    jobs = folders_in(store, "_commits/")
    return tuple((job, sink) for job in jobs for sink in folders_in(store, f"_commits/{job}/"))
