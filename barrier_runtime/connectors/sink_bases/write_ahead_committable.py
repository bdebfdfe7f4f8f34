"""Committable of a write-ahead sink: origin and checkpoint of a transaction, objects with hashes."""

from dataclasses import dataclass

import msgspec

from barrier_runtime.connectors.sink import committable_format
from barrier_runtime.state.errors import Corrupt
from barrier_runtime.state.store.paths import Paths
from barrier_runtime.state.versioned import VersionedDecoder

COMMITTABLE_VERSION = 1


@dataclass(frozen=True)
class DeliveryToken:
    """Identity of a delivery, equal in every repetition.

    Within (job, sink, lineage, subtask) checkpoints only rise. `subtask` wrote the rows, under the fencing token
    `token`; after rescaling another subtask may deliver them.
    """

    job: str
    sink: str
    lineage: str
    subtask: int
    checkpoint: int
    token: int

    @property
    def text(self) -> str:
        """Idempotency key, for targets that take a text."""
        return f"{self.job}/{self.sink}/{self.lineage}/{self.subtask}/{self.checkpoint}"


class StagedRows(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    key: str  # in the job's store
    sha256: str
    rows: int


class WriteAheadCommittable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    job: str
    sink: str
    lineage: str
    token: int
    subtask: int
    checkpoint: int
    objects: tuple[StagedRows, ...]  # in row order

    @property
    def rows(self) -> int:
        return sum(each.rows for each in self.objects)

    @property
    def delivery(self) -> DeliveryToken:
        return DeliveryToken(self.job, self.sink, self.lineage, self.subtask, self.checkpoint, self.token)


_FORMAT = committable_format(COMMITTABLE_VERSION, "delivered")
_DECODER = VersionedDecoder(_FORMAT, msgspec.json.Decoder(WriteAheadCommittable))


def encode_committable(delivery: DeliveryToken, objects: tuple[StagedRows, ...]) -> bytes:
    return msgspec.json.encode(
        WriteAheadCommittable(
            COMMITTABLE_VERSION,
            delivery.job,
            delivery.sink,
            delivery.lineage,
            delivery.token,
            delivery.subtask,
            delivery.checkpoint,
            objects,
        )
    )


def decode_committable(data: bytes, job: str, sink: str, where: str) -> WriteAheadCommittable:
    committable = _DECODER.decode(data, where)
    if (committable.job, committable.sink) != (job, sink):
        raise Corrupt(
            f"{where}: a committable is of job {committable.job[:100]!r}, sink {committable.sink[:100]!r}: nothing was "
            "delivered or deleted; restore an intact copy of the checkpoint"
        )
    paths, origin = Paths(job), (committable.token, committable.subtask)
    for each in committable.objects:
        if not each.key.startswith(paths.staged_rows_prefix(sink)) or paths.staged_rows_origin(each.key) != origin:
            raise Corrupt(
                f"{where}: a committable of subtask {committable.subtask}, generation {committable.token} names "
                f"{each.key[:200]!r}, which is not an object of theirs: nothing was delivered or deleted; restore an "
                "intact copy of the checkpoint"
            )
    return committable
