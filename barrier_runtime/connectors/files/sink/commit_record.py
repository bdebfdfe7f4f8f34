"""Records of a file sink's commit log.

| version | written                                                                             |
|---------|-------------------------------------------------------------------------------------|
| 1       | for a commit, up to record `FIRST_RECORDS`; by earlier releases for every commit    |
| 2       | for a compaction of files, likewise                                                 |
| 3       | for both, beyond: earlier releases refuse the log, because records may be deleted   |
"""

from collections.abc import Iterable, Mapping
from typing import TypeAlias

import msgspec

from barrier_runtime.connectors.sink_bases.file_committable import origin_of_name
from barrier_runtime.state.errors import Corrupt
from barrier_runtime.state.versioned import Format, VersionedDecoder, sha256_hex, stamp_of

COMMIT_RECORD_VERSION = 3
FIRST_RECORDS = 1_024  # these are never deleted
MAY_GO_FROM = 3  # version from which records may be deleted

Origins: TypeAlias = dict[str, tuple[int, int]]  # highest fencing token and checkpoint, by decision log

_UNKNOWN = ("", (1 << 62, 1 << 62))  # of foreign names: no origins exclude them


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
    turn: bool = False  # not put right behind an answered record of the same process: never deleted


_FORMAT = Format(
    "commit record {}",
    COMMIT_RECORD_VERSION,
    damaged="restore it from a backup",
    refusal=Corrupt,
)
_RECORD = VersionedDecoder(_FORMAT, msgspec.json.Decoder(CommitRecord))


def encode_commit_record(record: CommitRecord) -> bytes:
    unstamped = _encoded(record, "")
    return _encoded(record, sha256_hex(unstamped))


def _encoded(record: CommitRecord, check: str) -> bytes:
    fields = {**msgspec.structs.asdict(record), "check": check}
    if not record.replaces:  # older releases refuse unknown fields
        del fields["replaces"], fields["wall_ms"]
    if not record.turn:
        del fields["turn"]
    return msgspec.json.encode(fields)


def version_at(sequence: int, *, of_compaction: bool = False) -> int:
    if sequence > FIRST_RECORDS:
        return COMMIT_RECORD_VERSION
    return 2 if of_compaction else 1


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


def log_of(file: str) -> str:
    """Tag of the decision log of the file's writer; "" if unknown."""
    return (origin_of_name(file) or _UNKNOWN)[0]


def highest_origins(before: Origins, records: Iterable[CommitRecord]) -> Origins:
    highest = dict(before)
    for record in records:
        for file in record.files:
            log, origin = origin_of_name(file.name) or _UNKNOWN
            known = highest.get(log, origin)
            highest[log] = max(known[0], origin[0]), max(known[1], origin[1])
    return highest


def may_name(origins: Origins, lowest: Mapping[str, tuple[int, int]]) -> bool:
    """False if records with these origins name no file of these logs with such or higher origins."""
    return any(
        log in origins and origins[log][0] >= token and origins[log][1] >= checkpoint
        for log, (token, checkpoint) in lowest.items()
    )
