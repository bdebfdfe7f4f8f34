"""Records of a file sink's commit log, and summaries of 250 records: few requests read a log of weeks.

    <url>/_commits/<job>/<sink>/summaries/<number, 20 digits>.json        number n: of records 250·(n-1)+1 … 250·n

Readers ignore a summary that is missing, damaged or outdated (the last record differs from the log's).

`origins`: the highest token and checkpoint per decision log of files named by these *and all earlier records*: a job
that starts anew in the same folder skips older records.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from barrier_runtime.connectors.sink_bases.file_committable import origin_of_name
from barrier_runtime.coordinator.log.hashing import sha256_hex, stamp_of
from barrier_runtime.coordinator.log.reader import find_head
from barrier_runtime.state.errors import Corrupt
from barrier_runtime.state.snapshots.transfer import in_parallel
from barrier_runtime.state.store.object_store import ObjectStore, get_or_none
from barrier_runtime.state.versioned import Format, VersionedDecoder

COMMIT_RECORD_VERSION = 2  # of compactions; other records use version 1
PLAIN_VERSION = 1


class CommittedFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str  # key relative to the sink's URL
    sha256: str
    rows: int


class CommitRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    job: str
    sink: str
    checkpoint: int  # that made these files visible
    token: int
    highest_checkpoint: int  # of this and all earlier records
    highest_token: int
    files: tuple[CommittedFile, ...]  # in row order: by checkpoint, subtask and part
    check: str = ""
    replaces: tuple[str, ...] = ()  # files that a compaction replaced by `files`
    wall_ms: int = 0  # time of a compaction


_FORMAT = Format(
    "commit record {}",
    COMMIT_RECORD_VERSION,
    damaged="restore it from a backup",
    refusal=Corrupt,  # an unknown version stops readers, but not summaries
)
_RECORD = VersionedDecoder(_FORMAT, msgspec.json.Decoder(CommitRecord))


def encode_commit_record(record: CommitRecord) -> bytes:
    unstamped = _encoded(record, "")
    return _encoded(record, sha256_hex(unstamped))


def _encoded(record: CommitRecord, check: str) -> bytes:
    fields = {**msgspec.structs.asdict(record), "check": check}
    if not record.replaces:  # older releases refuse unknown fields
        del fields["replaces"], fields["wall_ms"]
    return msgspec.json.encode(fields)


def live_files(records: Iterable[CommitRecord]) -> list[CommittedFile]:
    """Files that readers may see, in row order.
    A compacted file takes the place of the first replaced file.
    """
    order: list[CommittedFile] = []
    into: dict[str, tuple[CommittedFile, ...]] = {}
    for record in records:
        if not record.replaces:
            order += record.files
        else:
            into.update(dict.fromkeys(record.replaces, ()))
            into[record.replaces[0]] = record.files
    live: list[CommittedFile] = []
    waiting = order[::-1]
    while waiting:
        file = waiting.pop()
        if file.name in into:
            waiting += into[file.name][::-1]
        else:
            live.append(file)
    return live


def decode_commit_record(data: bytes, where: str, job: str, sink: str) -> CommitRecord:
    record = _RECORD.decode(data, where)
    if (record.job, record.sink) != (job, sink):
        raise Corrupt(
            f"commit record {where} is of job {record.job}, sink {record.sink}; expected {job}, {sink}: it was put "
            "there by something else; move it away and restore the right one"
        )
    check = stamp_of(data, record.check)
    if record.check != check:
        raise Corrupt(
            f"commit record {where} is damaged: its bytes should hash to {record.check!r}, they hash to "
            f"{check!r}: it is read again; restore it from a backup if that does not help"
        )
    return record


SUMMARY_VERSION = 1


RECORDS = 250


READS_AT_ONCE = 32


Origins: TypeAlias = dict[str, tuple[int, int]]  # fencing token and checkpoint, by decision log


_UNKNOWN = ("", (1 << 62, 1 << 62))  # of foreign names: no summary excludes them


class Summary(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    job: str
    sink: str
    number: int
    records: tuple[CommitRecord, ...]
    origins: Origins
    check: str = ""

    def may_name(self, lowest: Mapping[str, tuple[int, int]]) -> bool:
        """False if these and earlier records name no file of these logs with such or higher origins."""
        return any(
            log in self.origins and self.origins[log][0] >= token and self.origins[log][1] >= checkpoint
            for log, (token, checkpoint) in lowest.items()
        )


_SUMMARY_FORMAT = Format("summary of commit records", SUMMARY_VERSION, damaged="the records are read", refusal=Corrupt)


_SUMMARY = VersionedDecoder(_SUMMARY_FORMAT, msgspec.json.Decoder(Summary))


def log_of(file: str) -> str:
    """Tag of the decision log of the file's writer; "" if unknown."""
    return (origin_of_name(file) or _UNKNOWN)[0]


@dataclass
class Summaries:
    _store: ObjectStore
    _prefix: str
    _job: str
    _sink: str
    _record_at: Callable[[int], CommitRecord | None]
    _through: int = -1  # summaries up to this number need no check; -1: unknown

    def read(self, number: int) -> Summary | None:
        data = get_or_none(self._store, self._key(number))
        summary = None if data is None else _decoded_summary(data)
        if summary is None or not summary.records:
            return None
        about = summary.job, summary.sink, summary.number, len(summary.records)
        if about != (self._job, self._sink, number, RECORDS):
            return None
        return summary if summary.records[-1] == self._record_at(number * RECORDS) else None

    def follow(self, head: int) -> None:
        wanted = head // RECORDS
        if wanted <= max(self._through, 0):
            return
        if self._through < 0:
            newest = self.read(wanted) is not None
            self._through = wanted if newest else max(0, find_head(lambda number: self.read(number) is not None))
        if self._through < wanted:
            written = self._write(self._through + 1)
            self._through = self._through + 1 if written else wanted

    def _write(self, number: int) -> bool:
        before = self.read(number - 1) if number > 1 else None
        if number > 1 and before is None:
            return False
        first = (number - 1) * RECORDS + 1
        found = in_parallel(self._intact, range(first, first + RECORDS), READS_AT_ONCE)
        records = tuple(record for record in found if record is not None)
        if len(records) < RECORDS:
            return False
        origins = _highest(before.origins if before is not None else {}, records)
        summary = Summary(SUMMARY_VERSION, self._job, self._sink, number, records, origins)
        self._store.put(self._key(number), _encoded_summary(summary))
        return True

    def _intact(self, sequence: int) -> CommitRecord | None:
        try:
            return self._record_at(sequence)
        except Corrupt:
            return None

    def _key(self, number: int) -> str:
        return f"{self._prefix}summaries/{number:020d}.json"


def _highest(before: Origins, records: Iterable[CommitRecord]) -> Origins:
    highest = dict(before)
    for record in records:
        for file in record.files:
            log, origin = origin_of_name(file.name) or _UNKNOWN
            known = highest.get(log, origin)
            highest[log] = max(known[0], origin[0]), max(known[1], origin[1])
    return highest


def _encoded_summary(summary: Summary) -> bytes:
    unstamped = msgspec.json.encode(msgspec.structs.replace(summary, check=""))
    return msgspec.json.encode(msgspec.structs.replace(summary, check=sha256_hex(unstamped)))


def _decoded_summary(data: bytes) -> Summary | None:
    try:
        summary = _SUMMARY.decode(data, "")
    except Corrupt:  # also for another version
        return None
    return summary if summary.check == stamp_of(data, summary.check) else None
