"""The commit log of a file sink: which files readers may see, one record per commit over all subtasks.

A checkpoint's files appear one by one, because a file system has no rename of many. Who reads the folder as it is
sees each file whole, but may see one subtask's rows before another's. Who reads through the commit log sees the rows of
whole checkpoints only: record k is one object, written by put-if-absent after all of its files are in place.

    <url>/_commits/<job>/<sink>/<sequence, 20 digits>.json        1, 2, 3, … without gaps; immutable

A file is named by exactly one record, whoever writes it and however often a commit is repeated: `CommitLog.append`
leaves out what the log already names, and loses the put when another process (a zombie of an older generation, or its
successor) was faster. Names never repeat (see `file_committable`), so this also holds for a target that has seen
another life of the same job.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence

import msgspec

from coordinator.log_reader import find_head
from state.errors import UNREADABLE, Corrupt, InvalidJob, Unavailable
from state.object_store import ObjectNotFound, ObjectStore, PutOutcome
from state.open_store import open_store

COMMIT_RECORD_VERSION = 1


class CommittedFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str  # key relative to the sink's url
    sha256: str  # hex, of the whole file
    rows: int


class CommitRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    job: str
    sink: str
    checkpoint: int  # whose completion made these files visible
    token: int  # fencing token of the generation that wrote the record
    highest_checkpoint: int  # of this record and all before it
    highest_token: int  # the same
    files: tuple[CommittedFile, ...]  # in the order of their rows: by checkpoint, subtask and part
    check: str = ""  # sha256 of the record's bytes without it: a name that is read wrongly would be named again


def encode_commit_record(record: CommitRecord) -> bytes:
    return msgspec.json.encode(msgspec.structs.replace(record, check=_check_of(record)))


def _check_of(record: CommitRecord) -> str:
    return hashlib.sha256(msgspec.json.encode(msgspec.structs.replace(record, check=""))).hexdigest()


def commits_prefix(job: str, sink: str) -> str:
    return f"_commits/{job}/{sink}/"


def read_commit_log(store: ObjectStore, job: str, sink: str, after: int = 0) -> tuple[CommitRecord, ...]:
    """Every record after the first `after` ones, oldest first. A reader that keeps count reads each record once."""
    log = CommitLog(store, job, sink)
    records: list[CommitRecord] = []
    while True:
        record = log.record(after + len(records) + 1)
        if record is None:
            return tuple(records)
        records.append(record)


class CommitLog:
    """The log as one writer or reader sees it. Blocking."""

    def __init__(self, store: ObjectStore, job: str, sink: str) -> None:
        self._store = store
        self._job = job
        self._sink = sink
        self._head: int | None = None  # highest record seen; None: not looked for yet
        self._highest = (0, 0)  # checkpoint and token, of the head and all before it
        self._named: dict[
            str, int
        ] = {}  # files that may be asked for again, and the checkpoint of the record naming each

    def record(self, sequence: int) -> CommitRecord | None:
        """Raises `Corrupt` for anything that is not a record of this log."""
        key = self._key(sequence)
        try:
            data = self._store.get(key)
        except ObjectNotFound:
            return None
        try:
            record = msgspec.json.decode(data, type=CommitRecord)
        except UNREADABLE as error:
            raise Corrupt(
                f"commit record {self._store.url}/{key} is not readable ({error}; sha256 "
                f"{hashlib.sha256(data).hexdigest()}): restore it from a backup, or use the release that wrote it"
            ) from error
        if (record.version, record.job, record.sink) != (COMMIT_RECORD_VERSION, self._job, self._sink):
            raise Corrupt(
                f"commit record {self._store.url}/{key} has version {record.version} and is of job {record.job}, sink "
                f"{record.sink}; expected version {COMMIT_RECORD_VERSION}, {self._job}, {self._sink}: it was put there "
                "by something else; move it away and restore the right one"
            )
        if record.check != _check_of(record):
            raise Corrupt(
                f"commit record {self._store.url}/{key} is damaged: its bytes should hash to {record.check!r}, they "
                f"hash to {_check_of(record)!r}: it is read again; restore it from a backup if that does not help"
            )
        return record

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
        origins = [origin_of(file) for file in files]
        self._look(min(origin[0] for origin in origins), min(origin[1] for origin in origins))
        while True:
            new = tuple(file for file in files if file.name not in self._named)
            if not new:
                break
            assert self._head is not None
            highest = max(checkpoint, self._highest[0]), max(token, self._highest[1])
            record = CommitRecord(COMMIT_RECORD_VERSION, self._job, self._sink, checkpoint, token, *highest, new)
            key = self._key(self._head + 1)
            outcome = self._store.put_if_absent(key, encode_commit_record(record))
            if outcome is PutOutcome.UNKNOWN:
                raise Unavailable(f"nobody knows whether {self._store.url}/{key} was written: it is tried again")
            self._catch_up()  # our record, or that of somebody who was faster
        asked = {file.name for file in files}
        self._named = {name: of for name, of in self._named.items() if name in asked or of > checkpoint}

    def _look(self, lowest_token: int, lowest_checkpoint: int) -> None:
        """Find the head; at the first time also what the records name that may be asked for."""
        if self._head is not None:
            self._catch_up()
            return
        head = max(find_head(lambda sequence: self.record(sequence) is not None), 0)
        named: dict[str, int] = {}
        for sequence in range(head, 0, -1):
            record = self.record(sequence)
            if record is None:
                raise Corrupt(
                    f"commit record {self._store.url}/{self._key(sequence)} is gone, later ones are there: restore it "
                    "from a backup"
                )
            if sequence == head:
                self._highest = record.highest_checkpoint, record.highest_token
            if record.highest_token < lowest_token or record.highest_checkpoint < lowest_checkpoint:
                break  # nothing here or before can name any of the files
            named.update((file.name, record.checkpoint) for file in record.files)
        self._named = named
        self._head = head

    def _catch_up(self) -> None:
        assert self._head is not None
        while True:
            record = self.record(self._head + 1)
            if record is None:
                return
            self._head += 1
            self._highest = record.highest_checkpoint, record.highest_token
            self._named.update((file.name, record.checkpoint) for file in record.files)

    def _key(self, sequence: int) -> str:
        return f"{commits_prefix(self._job, self._sink)}{sequence:020d}.json"


def committed_files(url: str, job: str | None = None, sink: str | None = None) -> tuple[str, ...]:
    """URLs of the files below `url` that whole committed checkpoints consist of, in commit order, ready for a reader:
    `spark.read.json(list(committed_files(url)))`. `job`, `sink`: only those; default: all that write there."""
    store = open_store(url)
    writers = jobs_and_sinks(store)
    wanted = [one for one in writers if job in (None, one[0]) and sink in (None, one[1])]
    if not wanted:
        there = ", ".join(f"{each[0]}/{each[1]}" for each in writers) or "none"
        raise InvalidJob(
            f"{store.url} has no commit log of job {job or 'any'}, sink {sink or 'any'}; there are: {there}"
        )
    records = (record for each in wanted for record in read_commit_log(store, *each))
    return tuple(f"{store.url}/{file.name}" for record in records for file in record.files)


def jobs_and_sinks(store: ObjectStore) -> tuple[tuple[str, str], ...]:
    """Every (job, sink) that has a commit log below this url."""
    found: Iterable[list[str]] = (info.key.split("/") for info in store.list("_commits/"))
    return tuple(sorted({(parts[1], parts[2]) for parts in found if len(parts) == 4}))
