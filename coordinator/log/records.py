"""What the decision log consists of: the records, their canonical bytes, and nothing that acts on them.

Every record carries a `put_id` of its own (so that a writer recognises its record after a lost answer), the sha256 of
its predecessor's bytes (so that the log is a chain) and back links that let a reader derive all facts from a few reads:
`token` is the position of the generation's FENCE, `prior_complete` that of the last COMPLETE before, `prior_run` that
of the last FENCE of an earlier run. Bytes are canonical JSON; wall times are for people only.

Once a job is to stop with a savepoint, every record says so (`stop`), until one does not: the head tells it.

FENCE and COMPLETE list the decisions that may still be restored (`kept`), and a COMPLETE holds its manifest if that is
small (`inline`): see `decided`.

`check` is the sha256 of the record's own bytes without it. The parent's hash covers every record but the newest, and
the next record carries the newest one's hash: a single bit that was read wrongly there would be in the chain for ever.
"""

from typing import Literal, TypeAlias

import msgspec

from barrier_runtime.coordinator.log.hashing import sha256_hex, stamp_of
from barrier_runtime.coordinator.wire.messages import JobSpec
from barrier_runtime.state.errors import Corrupt, InvalidJob
from barrier_runtime.state.versioned import Format, VersionedDecoder

RECORD_VERSION = 3  # FENCE and COMPLETE: with what is kept
STOP_VERSION = 2  # with `stop`, and nothing newer
LISTS_FROM = 3  # versions of FENCE and COMPLETE that list what is kept
NO_RECORD = -1  # a back link that leads nowhere
FIRST_POSITION = 1  # so that token 0 can mean "no generation"


class StopWish(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """The job is to end with a savepoint. Of FINISH: it has."""

    mode: Literal["checkpoint", "drain"]
    savepoint: str  # id
    url: str
    checkpoint: int = 0  # of FINISH: that the savepoint is of
    bytes: int = 0  # of FINISH: that it has


class _Record(msgspec.Struct, frozen=True, tag_field="kind", forbid_unknown_fields=True, kw_only=True):
    version: int = 1
    put_id: str
    parent_sha256: str  # of the bytes at position - 1; "" at the first position
    token: int  # of the generation that wrote this
    writer: str  # host and submitter, for people
    wall_ms: int  # for people
    prior_complete: int = NO_RECORD
    check: str = ""
    stop: StopWish | msgspec.UnsetType = msgspec.UNSET

    @property
    def lists_kept(self) -> bool:
        """Of FENCE and COMPLETE: whether the record lists the decisions that are kept."""
        return self.version >= LISTS_FROM

    @property
    def stops_with(self) -> StopWish | None:
        return self.stop or None


class Fence(_Record, frozen=True, tag="FENCE", kw_only=True):
    """Starts generation `token`, which is this record's own position. Whoever wrote anything before must stop."""

    reason: str
    restored_checkpoint: int  # 0: nothing
    restored_position: int = NO_RECORD  # of the COMPLETE record that `restored_checkpoint` is
    lineage: str  # of all state that grew from one start; a replay from something older begins a new one
    prior_run: int = NO_RECORD
    checkpoint_floor: int  # every checkpoint id of this generation is higher, so that ids rise for ever in a job
    spec: JobSpec
    kept: tuple[int, ...] = ()  # positions of decisions that may be restored, the first one to be dropped first
    earlier: tuple[int, ...] = ()  # where `prior_run` and the same link of those FENCEs lead, newest first


class Lead(_Record, frozen=True, tag="LEAD", kw_only=True):
    """A restarted coordinator goes on with generation `token`; the process that led it before loses its next append."""

    leader: str


class Stop(_Record, frozen=True, tag="STOP", kw_only=True):
    """Says nothing but `stop`, for which no other record came."""


class Complete(_Record, frozen=True, tag="COMPLETE", kw_only=True):
    """The decision: checkpoint `checkpoint` is complete, and its manifest has this content."""

    checkpoint: int
    lineage: str
    manifest: str  # key; nothing is stored there if the manifest is `inline`
    sha256: str  # of the manifest's bytes
    inline: bytes = b""  # the manifest's bytes, compressed; empty: it is an object of its own
    kept: tuple[int, ...] = ()  # as in FENCE, besides this decision, which is dropped last


class Finish(_Record, frozen=True, tag="FINISH", kw_only=True):
    """The job is over. `discarded`: its checkpoints were dropped by the user's wish, a later run starts empty."""

    outcome: Literal["finished", "cancelled", "failed"]
    reason: str = ""  # why it failed
    discarded: bool = False


Record: TypeAlias = Fence | Lead | Stop | Complete | Finish

_ENCODER = msgspec.json.Encoder(order="deterministic")
_JSON: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Record)
_FORMAT = Format(
    "log record {}",
    RECORD_VERSION,
    damaged="the log is never skipped or guessed; restore the object from a backup of the store",
)
_DECODER = VersionedDecoder(_FORMAT, _JSON)


def stamped(record: Record) -> tuple[Record, bytes]:
    """The record with its `check`, and its bytes."""
    unstamped = _ENCODER.encode(msgspec.structs.replace(record, check=""))
    record = msgspec.structs.replace(record, check=sha256_hex(unstamped))
    return record, _ENCODER.encode(record)


def encode_record(record: Record) -> bytes:
    return stamped(record)[1]


def decode_record(name: str, data: bytes) -> Record:
    """The record stored under `name`. Raises `InvalidJob` for one of another version, `Corrupt` for anything else."""
    try:
        record = _DECODER.decode(data, name)
    except InvalidJob:  # unless it is the version that was read wrongly
        if stamp := _STAMP.decode(data).check:
            _check_stamp(name, data, stamp)
        raise
    _check_stamp(name, data, record.check)
    return record


class _Stamp(msgspec.Struct, frozen=True):
    check: str = ""


_STAMP = msgspec.json.Decoder(_Stamp)


def _check_stamp(name: str, data: bytes, stamp: str) -> None:
    check = stamp_of(data, stamp)
    if stamp != check:
        raise Corrupt(
            f"log record {name} is damaged: its bytes should hash to {stamp or 'what it says'}, they hash to "
            f"{check}: read it again, or restore the object from a backup of the store"
        )
