"""Records of the decision log and their canonical bytes (JSON).

A unique `put_id` lets a writer recognise its record after a lost answer. Each record has the sha256 of the previous
record, and back links: `token` to the generation's FENCE, `prior_complete` to the last COMPLETE, `prior_run` to the
last FENCE of an earlier run. `check` is the sha256 of the bytes without `check`: no later record has the newest
record's hash yet.

While a job is to stop with a savepoint, every record says so (`stop`); a record without `stop` revokes the request.
"""

from collections.abc import Container
from typing import Literal, TypeAlias

import msgspec

from barrier_runtime.coordinator.wire.messages import JobSpec
from barrier_runtime.state.errors import Corrupt, InvalidJob
from barrier_runtime.state.versioned import Format, VersionedDecoder, sha256_hex, stamp_of

RECORD_VERSION = 5  # a record has the lowest version with all of the record's fields
STOP_VERSION = 2  # adds `stop`
LISTS_FROM = 3  # FENCE and COMPLETE list kept decisions
VISIBLE_FROM = 4  # adds `visible` to FINISH
BASE_FROM = 5  # adds `base`
NO_RECORD = -1
FIRST_POSITION = 1  # so that token 0 can mean "no generation"


class StopWish(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """Request to end with a savepoint. In FINISH: the job has ended so."""

    mode: Literal["checkpoint", "drain"]
    savepoint: str
    url: str
    checkpoint: int = 0  # only in FINISH
    bytes: int = 0  # only in FINISH


class _Record(msgspec.Struct, frozen=True, tag_field="kind", forbid_unknown_fields=True, kw_only=True):
    version: int = 1
    put_id: str
    parent_sha256: str  # of the bytes at position - 1; "" at the first position
    token: int
    writer: str  # for people
    wall_ms: int  # for people
    prior_complete: int = NO_RECORD
    check: str = ""
    stop: StopWish | msgspec.UnsetType = msgspec.UNSET
    base: int | msgspec.UnsetType = msgspec.UNSET  # lower records may be deleted

    @property
    def lists_kept(self) -> bool:
        return self.version >= LISTS_FROM

    @property
    def stops_with(self) -> StopWish | None:
        return self.stop or None


class Fence(_Record, frozen=True, tag="FENCE", kw_only=True):
    """Starts generation `token`, the record's position. Earlier writers must stop."""

    reason: str
    restored_checkpoint: int  # 0: nothing
    restored_position: int = NO_RECORD  # of the COMPLETE record
    lineage: str  # of all state from the same start; a replay of older state begins a new lineage
    prior_run: int = NO_RECORD
    checkpoint_floor: int  # below all ids of this generation: a job's ids always rise
    spec: JobSpec
    kept: tuple[int, ...] = ()  # positions of kept decisions, the first to be dropped first
    earlier: tuple[int, ...] = ()  # last FENCEs of earlier runs, newest first


class Lead(_Record, frozen=True, tag="LEAD", kw_only=True):
    """Another process leads the generation; the previous leader's next append fails."""

    leader: str


class Stop(_Record, frozen=True, tag="STOP", kw_only=True):
    """Carries only `stop`, if no other record is due."""


class Complete(_Record, frozen=True, tag="COMPLETE", kw_only=True):
    checkpoint: int
    lineage: str
    manifest: str  # key; no object if `inline`
    sha256: str  # of the manifest's bytes
    inline: bytes = b""  # compressed manifest; empty: an object
    kept: tuple[int, ...] = ()  # as in FENCE, besides this decision, which is dropped last


class Finish(_Record, frozen=True, tag="FINISH", kw_only=True):
    """The job is over. `discarded`: the user dropped the checkpoints; a later run starts empty.

    `visible`: sinks show all rows through this last checkpoint.
    """

    outcome: Literal["finished", "cancelled", "failed"]
    reason: str = ""
    discarded: bool = False
    visible: int | msgspec.UnsetType = msgspec.UNSET

    def shows(self, checkpoint: int) -> bool:
        return self.outcome == "finished" or checkpoint <= (self.visible or 0)


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
    unstamped = _ENCODER.encode(msgspec.structs.replace(record, check=""))
    record = msgspec.structs.replace(record, check=sha256_hex(unstamped))
    return record, _ENCODER.encode(record)


def encode_record(record: Record) -> bytes:
    return stamped(record)[1]


def decode_record(name: str, data: bytes) -> Record:
    try:
        record = _DECODER.decode(data, name)
    except InvalidJob:  # a misread version field must raise Corrupt
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


# Deletable records of the decision log. Pure.
#
# A new log after a deleted job uses the positions again, so the first record is compared before each deletion. Design:
# docs/design/log-compaction.md.

# Part of the stored format, a power of two: compacted logs keep milestones at its multiples, and by these readers
# find the end of a log. Another step would lose the end of existing logs. Between MILESTONE_STEP and twice as many
# records are in reach, more while sinks have not committed.
MILESTONE_STEP = 1_024


def is_milestone(position: int, step: int = 0) -> bool:
    """`step` of another log: a power of two."""
    return position % (step or MILESTONE_STEP) == 0 or position & (position - 1) == 0


def milestone_after(position: int, step: int = 0) -> int:
    step = step or MILESTONE_STEP
    return (position // step + 1) * step


def base_of(record: Record | None) -> int:
    """Lowest position in reach after `record`."""
    return FIRST_POSITION if record is None else record.base or FIRST_POSITION


def is_due(base: int, position: int) -> bool:
    return position - base >= 2 * MILESTONE_STEP


def base_after(base: int, position: int, committed: int) -> int:
    """Returns a milestone, because readers bisect from there. `committed`: position of the last decision that all sinks
    have committed; sinks read later decisions.
    """
    return max(base, min(position - MILESTONE_STEP, committed) // MILESTONE_STEP * MILESTONE_STEP)


def may_go(position: int, record: Record, base: int, kept: Container[int]) -> bool:
    if position >= base or is_milestone(position) or position in kept:
        return False
    return not isinstance(record, Fence | Lead)
