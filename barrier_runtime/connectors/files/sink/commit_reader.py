"""Reads a commit log: blocks, and the records behind the last block. Blocks.

Records are read before the proof that they were not deleted: as long as the last record of a block is missing, nothing
of the block is deleted; and nothing is deleted before a block covers it.
"""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import msgspec

from barrier_runtime.connectors.files.sink import commit_blocks, commit_record
from barrier_runtime.connectors.files.sink.commit_blocks import LEVELS, Blocks, is_there, span
from barrier_runtime.connectors.files.sink.commit_record import MAY_GO_FROM, CommitRecord, Origins, decode_commit_record
from barrier_runtime.coordinator.log.records import milestone_after
from barrier_runtime.state.errors import Corrupt
from barrier_runtime.state.store.object_store import ObjectStore, get_or_none
from barrier_runtime.state.versioned import Format, VersionedDecoder, stamp_of

SUMMARY_VERSION = 1
SUMMARISED = 250


class Summary(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """250 commit records, up to record 250 * `number`; earlier releases wrote such objects. Read only.

    The records decide: a summary that is missing, damaged or outdated (the last record differs) is ignored.
    """

    version: int
    job: str
    sink: str
    number: int
    records: tuple[CommitRecord, ...]
    origins: Origins
    check: str = ""


_FORMAT = Format("summary of commit records", SUMMARY_VERSION, damaged="the records are read", refusal=Corrupt)
_SUMMARY = VersionedDecoder(_FORMAT, msgspec.json.Decoder(Summary))


def read_summary(
    store: ObjectStore,
    prefix: str,
    job: str,
    sink: str,
    number: int,
    record_at: Callable[[int], CommitRecord | None],
) -> Summary | None:
    data = get_or_none(store, f"{prefix}summaries/{number:020d}.json")
    summary = None if data is None else _decoded(data)
    if summary is None or not summary.records:
        return None
    about = summary.job, summary.sink, summary.number, len(summary.records)
    last = summary.records[-1]
    if about != (job, sink, number, SUMMARISED) or last.version >= MAY_GO_FROM:
        return None
    return summary if last == record_at(number * SUMMARISED) else None


def _decoded(data: bytes) -> Summary | None:
    try:
        summary = _SUMMARY.decode(data, "")
    except Corrupt:  # also for another version
        return None
    return summary if summary.check == stamp_of(data, summary.check) else None


T = TypeVar("T")

READS_AT_ONCE = 32
_MOST_SUMMARIES = 64


def commits_prefix(job: str, sink: str) -> str:
    return f"_commits/{job}/{sink}/"


class StoredRecords:
    """Records by their number, and proofs that records are in the log."""

    def __init__(self, store: ObjectStore, job: str, sink: str) -> None:
        self.store = store
        self.job = job
        self.sink = sink
        self.prefix = commits_prefix(job, sink)
        self.blocks = Blocks(store, self.prefix, job, sink, self.record)

    def key(self, sequence: int) -> str:
        return f"{self.prefix}{sequence:020d}.json"

    def record(self, sequence: int) -> CommitRecord | None:
        key = self.key(sequence)
        data = get_or_none(self.store, key)
        if data is None:
            return None
        return decode_commit_record(data, f"{self.store.url}/{key}", self.job, self.sink)

    def goes_on(self, sequence: int) -> bool:
        """True if the log goes on behind the block of the next record, which then may be deleted already.

        Call after the read or put of that record.
        """
        if sequence <= commit_record.FIRST_RECORDS:
            return False
        return is_there(self.store, self.key(milestone_after(sequence, commit_blocks.RECORDS)))

    def gone(self, sequence: int) -> Corrupt:
        return Corrupt(
            f"commit record {self.store.url}/{self.key(sequence)} is gone, later ones are there: restore it "
            "from a backup"
        )


def read_commit_log(store: ObjectStore, job: str, sink: str, after: int = 0) -> tuple[CommitRecord, ...]:
    """Records after the first `after` records, oldest first, read in growing batches."""
    with ThreadPoolExecutor(READS_AT_ONCE) as reading:
        return tuple(Reading(StoredRecords(store, job, sink), reading, after).all())


class Reading:
    def __init__(self, stored: StoredRecords, reading: ThreadPoolExecutor, after: int) -> None:
        self._stored = stored
        self._reading = reading
        self._at = after
        self._missing: dict[int, int] = {}  # number of the first missing block, by level
        self._at_once = 1

    def all(self) -> Iterator[CommitRecord]:
        goes_on = False  # behind this block
        while True:
            end = milestone_after(self._at, commit_blocks.RECORDS)
            found: list[CommitRecord] = []
            if goes_on or self._at % commit_blocks.RECORDS == 0:
                found = self._from_blocks() or self._from_summaries()
            if not found:
                found = self._one_by_one(end)
                whole = self._at + len(found) == end
                if not whole and not goes_on:
                    if end <= commit_record.FIRST_RECORDS or not is_there(self._stored.store, self._stored.key(end)):
                        yield from found
                        return
                    goes_on = True
                    continue
                if end > commit_record.FIRST_RECORDS and self._stored.blocks.cover(end):
                    self._missing.clear()
                    goes_on = True
                    continue
                if not whole:
                    raise self._stored.gone(self._at + len(found) + 1)
            yield from found
            self._at += len(found)
            goes_on = False

    def _from_blocks(self) -> list[CommitRecord]:
        for level in range(LEVELS, 0, -1):
            first = self._at // span(level) + 1
            if self._missing.get(level) == first:
                continue
            wanted = range(first, first + min(self._at_once, max(1, commit_blocks.FAN >> 2 * (level - 1))))
            blocks = list(_until_none(self._reading.map(partial(self._stored.blocks.read, level), wanted)))
            if blocks:
                self._at_once *= 2
                return [record for block in blocks for record in block.records(self._at + 1)]
            self._missing[level], self._at_once = first, 1
        return []

    def _from_summaries(self) -> list[CommitRecord]:
        stored = self._stored

        def summary(number: int) -> list[CommitRecord] | None:
            read = read_summary(stored.store, stored.prefix, stored.job, stored.sink, number, stored.record)
            return None if read is None else list(read.records)

        first, over = divmod(self._at, SUMMARISED)
        wanted = range(first + 1, first + 1 + min(self._at_once, _MOST_SUMMARIES))
        found = [record for records in _until_none(self._reading.map(summary, wanted)) for record in records]
        self._at_once = 2 * self._at_once if found else 1
        return found[over:]

    def _one_by_one(self, end: int) -> list[CommitRecord]:
        records: list[CommitRecord] = []
        count = 1
        while self._at + len(records) < end:
            first = self._at + len(records) + 1
            asked = min(count, end - first + 1)
            read = list(_until_none(self._reading.map(self._stored.record, range(first, first + asked))))
            records += read
            if len(read) < asked:
                break
            count *= 2
        return records


def _until_none(found: Iterable[T | None]) -> Iterator[T]:
    for each in found:
        if each is None:
            return
        yield each
