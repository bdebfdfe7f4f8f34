"""Summaries of 250 commit records, written by earlier releases. Read only.

    <url>/_commits/<job>/<sink>/summaries/<number, 20 digits>.json        number n: of records 250·(n-1)+1 … 250·n

The records decide: a summary that is missing, damaged or outdated (the last record differs from the log's) is ignored.
"""

from collections.abc import Callable

import msgspec

from barrier_runtime.connectors.files.sink.commit_record import MAY_GO_FROM, CommitRecord, Origins
from barrier_runtime.coordinator.log.hashing import stamp_of
from barrier_runtime.state.errors import Corrupt
from barrier_runtime.state.store.object_store import ObjectStore, get_or_none
from barrier_runtime.state.versioned import Format, VersionedDecoder

SUMMARY_VERSION = 1
SUMMARISED = 250


class Summary(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
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
