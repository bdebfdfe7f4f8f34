"""One record of a file sink's commit log: its fields, its bytes, and how they are checked."""

import msgspec

from barrier_runtime.coordinator.log.hashing import sha256_hex, stamp_of
from barrier_runtime.state.errors import Corrupt
from barrier_runtime.state.versioned import Format, VersionedDecoder

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


_FORMAT = Format(
    "commit record {}",
    COMMIT_RECORD_VERSION,
    damaged="restore it from a backup",
    refusal=Corrupt,  # it stops readers as damage does, and summaries do without it
)
_RECORD = VersionedDecoder(_FORMAT, msgspec.json.Decoder(CommitRecord))


def encode_commit_record(record: CommitRecord) -> bytes:
    unstamped = msgspec.json.encode(msgspec.structs.replace(record, check=""))
    return msgspec.json.encode(msgspec.structs.replace(record, check=sha256_hex(unstamped)))


def decode_commit_record(data: bytes, where: str, job: str, sink: str) -> CommitRecord:
    """`where`: URL of the object. Raises `Corrupt` for anything that is not a record of this log."""
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
