"""Committable of a Delta sink: data files and their log entries."""

import msgspec

from barrier_runtime.connectors.delta.schema import DeltaType
from barrier_runtime.connectors.sink import committable_format
from barrier_runtime.connectors.sink_bases.file_committable import StagedFile, is_name_of
from barrier_runtime.state.errors import Corrupt
from barrier_runtime.state.versioned import VersionedDecoder

DELTA_COMMITTABLE_VERSION = 1


class DeltaFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    file: StagedFile
    partition: dict[str, str | None]
    statistics: str  # JSON, as in the log
    written_ms: int


class DeltaCommittable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    job: str
    sink: str
    lineage: str
    checkpoint: int
    fields: dict[str, DeltaType]  # of the rows, in order
    partition_by: tuple[str, ...]
    files: tuple[DeltaFile, ...]

    @property
    def application(self) -> str:
        """Id under which the table stores the highest committed checkpoint."""
        return f"{self.job}/{self.sink}/{self.lineage}"


_DECODER = VersionedDecoder(committable_format(DELTA_COMMITTABLE_VERSION), msgspec.json.Decoder(DeltaCommittable))


def encode_delta_committable(committable: DeltaCommittable) -> bytes:
    return msgspec.json.encode(committable)


def decode_delta_committable(data: bytes, job: str, sink: str, where: str) -> DeltaCommittable:
    committable = _DECODER.decode(data, where)
    strange = [each.file.final for each in committable.files if not is_name_of(each.file, job, sink)]
    if (committable.job, committable.sink) != (job, sink) or strange:
        raise Corrupt(
            f"{where}: a committable of job {committable.job!r}, sink {committable.sink!r} with files {strange[:3]} is "
            "none of this sink: nothing was committed or deleted; restore an intact copy of the checkpoint"
        )
    return committable
