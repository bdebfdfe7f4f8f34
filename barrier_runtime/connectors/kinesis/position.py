"""Which part of a stream a split is, and how far it was read: the JSON of split payloads and positions."""

import zlib
from datetime import datetime, timezone

import msgspec

from barrier_runtime.connectors.source import Split


class KinesisSplit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A shard. `from_ms`: records that arrived at that time or later; None: all that it retains. `until_ms`: the shard
    is read up to the first record that arrived later; None: for ever."""

    shard: str
    from_ms: int | None = None
    until_ms: int | None = None

    def split(self) -> Split:
        return Split(self.shard, msgspec.json.encode(self))


SPLIT = msgspec.json.Decoder(KinesisSplit)


class KinesisPosition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`after`: sequence number of the last record that went out; None: none did. `complete_ms`: everything that had
    arrived by then went out, to the minute (None: not known), so nothing is lost before that time plus the stream's
    retention."""

    after: str | None = None
    complete_ms: int | None = None


POSITION = msgspec.json.Decoder(KinesisPosition)


def owner(shard: str, parallelism: int) -> int:
    """Shards are numbered, also those that come later, and go to subtasks in turn."""
    number = shard.rpartition("-")[2]
    return (int(number) if number.isdigit() else zlib.crc32(shard.encode())) % parallelism


def shown_time(ms: int) -> str:
    """For people, to the minute."""
    return f"{datetime.fromtimestamp(ms / 1000, timezone.utc):%Y-%m-%d %H:%M} UTC"
