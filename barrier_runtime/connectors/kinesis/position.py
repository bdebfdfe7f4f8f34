"""Kinesis's split payloads and positions, as JSON."""

import zlib
from datetime import datetime, timezone

import msgspec

from barrier_runtime.connectors.source import Split


class KinesisSplit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A shard, from records that arrived at `from_ms` (None: all) to the first after `until_ms` (None: no end)."""

    shard: str
    from_ms: int | None = None
    until_ms: int | None = None

    def split(self) -> Split:
        return Split(self.shard, msgspec.json.encode(self))


SPLIT = msgspec.json.Decoder(KinesisSplit)


class KinesisPosition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Position in a shard: `after` is the sequence number of the last emitted record.

    All records that had arrived by `complete_ms` (a whole minute) were emitted.
    """

    after: str | None = None
    complete_ms: int | None = None


POSITION = msgspec.json.Decoder(KinesisPosition)


def owner(shard: str, parallelism: int) -> int:
    number = shard.rpartition("-")[2]
    return (int(number) if number.isdigit() else zlib.crc32(shard.encode())) % parallelism


def shown_time(ms: int) -> str:
    return f"{datetime.fromtimestamp(ms / 1000, timezone.utc):%Y-%m-%d %H:%M} UTC"
