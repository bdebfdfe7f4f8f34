"""Summaries of a commit log: 250 records in one object, so that a log of weeks is read with few requests.

    <url>/_commits/<job>/<sink>/summaries/<number, 20 digits>.json        number n: of records 250·(n-1)+1 … 250·n

A summary is made of records that are there, durable and immutable, so whoever writes it, and however often, writes the
same bytes. It is never the truth: one that is missing, damaged, or of records that were replaced since (the last record
is not the one in the log) is as good as none, and the records are read. They are written in order, one per commit: a
log of an older release gets summaries while it goes on.

`origins` says of each decision log (see `file_committable`) the highest token and the highest checkpoint of any file
named by these records *and all before them*. A job begun anew in the same folder has another log: it need not read
what was there before.
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
RECORDS = 250  # in one summary
READS_AT_ONCE = 32

Origins: TypeAlias = dict[str, tuple[int, int]]  # decision log -> fencing token, checkpoint
_UNKNOWN = ("", (1 << 62, 1 << 62))  # of a name that is none of ours: no summary says that it is not there


class Summary(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    job: str
    sink: str
    number: int
    records: tuple[CommitRecord, ...]  # oldest first
    origins: Origins  # highest token, highest checkpoint
    check: str = ""  # sha256 of the bytes without it

    def may_name(self, lowest: Mapping[str, tuple[int, int]]) -> bool:
        """False: neither these records nor those before them name a file of these logs, tokens and checkpoints, or of
        higher ones."""
        return any(
            log in self.origins and self.origins[log][0] >= token and self.origins[log][1] >= checkpoint
            for log, (token, checkpoint) in lowest.items()
        )


_FORMAT = Format("summary of commit records", SUMMARY_VERSION, damaged="the records are read", refusal=Corrupt)
_SUMMARY = VersionedDecoder(_FORMAT, msgspec.json.Decoder(Summary))


def log_of(file: str) -> str:
    """Tag of the decision log under which a file of this name was written; "" where the name does not tell."""
    return (origin_of_name(file) or _UNKNOWN)[0]


class Summaries:
    """Those of one log. Blocking; for one thread. `record_at` reads one record of it, None: there is none."""

    def __init__(
        self, store: ObjectStore, prefix: str, job: str, sink: str, record_at: Callable[[int], CommitRecord | None]
    ) -> None:
        self._store = store
        self._prefix = prefix
        self._job = job
        self._sink = sink
        self._record_at = record_at
        self._through = -1  # summaries up to this one need not be looked at; -1: not looked yet

    def read(self, number: int) -> Summary | None:
        """None unless it is intact and of the records that are there."""
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
        """Write the oldest summary that is missing in a log of `head` records, all of them durable; one per call."""
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
        """False: records, or the summary before, are gone or damaged. It is for the reader of those to say so."""
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
    except Corrupt:  # of another version, too
        return None
    return summary if summary.check == stamp_of(data, summary.check) else None
