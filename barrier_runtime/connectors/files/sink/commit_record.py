"""Record of a file sink's commit log: fields, encoding and checks."""

from collections.abc import Iterable

import msgspec

from barrier_runtime.coordinator.log.hashing import sha256_hex, stamp_of
from barrier_runtime.state.errors import Corrupt
from barrier_runtime.state.versioned import Format, VersionedDecoder

COMMIT_RECORD_VERSION = 2  # version 1 has no compaction; records without compaction still use version 1
PLAIN_VERSION = 1


class CommittedFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str  # key relative to the sink's URL
    sha256: str  # hex, of the whole file
    rows: int


class CommitRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    job: str
    sink: str
    checkpoint: int  # the checkpoint that made these files visible
    token: int  # fencing token of the generation that wrote the record
    highest_checkpoint: int  # of this record and all earlier records
    highest_token: int  # likewise
    files: tuple[CommittedFile, ...]  # in row order: by checkpoint, subtask and part
    check: str = ""  # sha256 of the bytes without this field; a misread name would be named again
    # Files that a compaction replaced by `files`, which contain the same rows.
    replaces: tuple[str, ...] = ()
    wall_ms: int = 0  # time of a compaction


_FORMAT = Format(
    "commit record {}",
    COMMIT_RECORD_VERSION,
    damaged="restore it from a backup",
    refusal=Corrupt,  # like damage, an unknown version stops readers, but not summaries
)
_RECORD = VersionedDecoder(_FORMAT, msgspec.json.Decoder(CommitRecord))


def encode_commit_record(record: CommitRecord) -> bytes:
    unstamped = _encoded(record, "")
    return _encoded(record, sha256_hex(unstamped))


def _encoded(record: CommitRecord, check: str) -> bytes:
    fields = {**msgspec.structs.asdict(record), "check": check}
    if not record.replaces:  # older releases read records without these fields and refuse unknown fields
        del fields["replaces"], fields["wall_ms"]
    return msgspec.json.encode(fields)


def live_files(records: Iterable[CommitRecord]) -> list[CommittedFile]:
    """Returns the files that readers may see now, in row order.

    Files of a compaction take the place of the first file that they replaced.
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
    """Decodes a record. `where`: URL of the object.
    Raises `Corrupt` for an object that is no record of this log."""
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
