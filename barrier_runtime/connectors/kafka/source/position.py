"""Which part of a topic a split is, and how far it was read: the JSON of split payloads and positions."""

import zlib

import msgspec

from barrier_runtime.connectors.source import Split
from barrier_runtime.state.errors import InvalidJob


class KafkaSplit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A partition, from the offset found for it once. `end`: where it stops being read (None: never)."""

    topic: str
    partition: int
    offset: int
    end: int | None = None
    topic_id: str = ""  # another topic of the same name has another; "" where the brokers have none

    def split(self) -> Split:
        return Split(split_id(self.topic, self.partition), msgspec.json.encode(self))


SPLIT = msgspec.json.Decoder(KafkaSplit)


class KafkaPosition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`offset`: the next one to read; the rest stays what it was when the partition was first read."""

    offset: int
    end: int | None = None
    topic_id: str = ""
    epoch: int | None = None  # of the leader that wrote the record before it: shows a log that lost its end


POSITION = msgspec.json.Decoder(KafkaPosition)


def split_id(topic: str, partition: int) -> str:
    return f"{topic}-{partition}"


def owner(id: str, parallelism: int) -> int:
    """The partitions of a topic go to subtasks in turn; each topic begins somewhere else."""
    topic, _, partition = id.rpartition("-")
    return (zlib.crc32(topic.encode()) + int(partition)) % parallelism


def begin(split: KafkaSplit) -> KafkaPosition:
    return KafkaPosition(split.offset, split.end, split.topic_id)


def resumed(split: KafkaSplit, position: KafkaPosition, where: str) -> KafkaPosition:
    """Where to go on. Raises `InvalidJob` if the topic is not the one that was read. A position without an id, as of a
    snapshot from before there were any, takes the split's."""
    if position.topic_id and split.topic_id and position.topic_id != split.topic_id:
        raise made_again(where, position.offset)
    return msgspec.structs.replace(position, topic_id=position.topic_id or split.topic_id)


def made_again(where: str, offset: int) -> InvalidJob:
    return InvalidJob(
        f"{where}: the topic was deleted and made again since it was read, so offset {offset} means nothing in it: "
        "bring the old records back, or start without state (restore='none')"
    )


def where_of(source: str, topic: str, partition: int) -> str:
    return f"{source}, topic {topic!r}, partition {partition}"
