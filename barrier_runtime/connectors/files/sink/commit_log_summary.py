"""Summaries of a commit log: 250 records in an object, so that few requests read a log of weeks.

    <url>/_commits/<job>/<sink>/summaries/<number, 20 digits>.json        number n: of records 250·(n-1)+1 … 250·n

A summary consists of durable, immutable records, so all writers write the same bytes. A summary is only a copy: a
missing, damaged or outdated summary (the last record differs from the log's) is ignored, and the records are read.
Summaries are written in order, at most one per commit, also for logs of older releases.

`origins`: the highest token and checkpoint per decision log (see `file_committable`) of files named by these records
*and all earlier records*. A job that starts anew in the same folder has another decision log and need not read older
records.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

import msgspec

from barrier_runtime.connectors.files.sink.commit_record import CommitRecord
from barrier_runtime.connectors.sink_bases.file_committable import origin_of_name
from barrier_runtime.coordinator.log.hashing import sha256_hex, stamp_of
from barrier_runtime.coordinator.log.reader import find_head
from barrier_runtime.state.errors import Corrupt
from barrier_runtime.state.snapshots.transfer import in_parallel
from barrier_runtime.state.store.object_store import ObjectStore, get_or_none
from barrier_runtime.state.versioned import Format, VersionedDecoder

SUMMARY_VERSION = 1
RECORDS = 250  # in a summary
READS_AT_ONCE = 32

Origins: TypeAlias = dict[str, tuple[int, int]]  # decision log -> fencing token, checkpoint
_UNKNOWN = ("", (1 << 62, 1 << 62))  # for foreign names, which no summary can exclude


class Summary(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    job: str
    sink: str
    number: int
    records: tuple[CommitRecord, ...]  # oldest first
    origins: Origins  # highest token, highest checkpoint
    check: str = ""  # sha256 of the bytes without this field

    def may_name(self, lowest: Mapping[str, tuple[int, int]]) -> bool:
        """False if these and earlier records name no file of these logs with such or higher origins."""
        return any(
            log in self.origins and self.origins[log][0] >= token and self.origins[log][1] >= checkpoint
            for log, (token, checkpoint) in lowest.items()
        )


_FORMAT = Format("summary of commit records", SUMMARY_VERSION, damaged="the records are read", refusal=Corrupt)
_SUMMARY = VersionedDecoder(_FORMAT, msgspec.json.Decoder(Summary))


def log_of(file: str) -> str:
    """Tag of the decision log under which the file was written; "" if the name has none."""
    return (origin_of_name(file) or _UNKNOWN)[0]


class Summaries:
    """Summaries of a log. Blocks; for one thread. `record_at`: reads a record; None if there is none."""

    def __init__(
        self, store: ObjectStore, prefix: str, job: str, sink: str, record_at: Callable[[int], CommitRecord | None]
    ) -> None:
        self._store = store
        self._prefix = prefix
        self._job = job
        self._sink = sink
        self._record_at = record_at
        self._through = -1  # summaries up to this number need no check; -1: unknown

    def read(self, number: int) -> Summary | None:
        """Returns a summary; None unless it is intact and matches the records."""
        data = get_or_none(self._store, self._key(number))
        summary = None if data is None else _decoded(data)
        if summary is None or not summary.records:
            return None
        if (summary.job, summary.sink, summary.number, len(summary.records)) != (
            self._job,
            self._sink,
            number,
            RECORDS,
        ):
            return None
        return summary if summary.records[-1] == self._record_at(number * RECORDS) else None

    def follow(self, head: int) -> None:
        """Writes the oldest missing summary of a log with `head` durable records; one per call."""
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
        """Writes a summary.
        Returns False if a record or the previous summary is missing or damaged; readers report that."""
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
        self._store.put(self._key(number), _encoded(summary))
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


def _encoded(summary: Summary) -> bytes:
    unstamped = msgspec.json.encode(msgspec.structs.replace(summary, check=""))
    return msgspec.json.encode(msgspec.structs.replace(summary, check=sha256_hex(unstamped)))


def _decoded(data: bytes) -> Summary | None:
    try:
        summary = _SUMMARY.decode(data, "")
    except Corrupt:  # also for another version
        return None
    return summary if summary.check == stamp_of(data, summary.check) else None
