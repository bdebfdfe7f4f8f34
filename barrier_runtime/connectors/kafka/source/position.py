"""Kafka's split payloads and positions, as JSON."""

import zlib

import msgspec

from barrier_runtime.connectors.source import Split
from barrier_runtime.state.errors import InvalidJob


class KafkaSplit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A partition from an offset that was looked up once, to `end`."""

    topic: str
    partition: int
    offset: int
    end: int | None = None
    topic_id: str = ""

    def split(self) -> Split:
        return Split(split_id(self.topic, self.partition), msgspec.json.encode(self))


SPLIT = msgspec.json.Decoder(KafkaSplit)


class KafkaPosition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`offset`: the next to read; `end` and `topic_id` stay as at the first read."""

    offset: int
    end: int | None = None
    topic_id: str = ""
    epoch: int | None = None  # of the previous record's leader: reveals lost records


POSITION = msgspec.json.Decoder(KafkaPosition)


def split_id(topic: str, partition: int) -> str:
    return f"{topic}-{partition}"


def partition_of(id: str) -> tuple[str, int]:
    topic, _, partition = id.rpartition("-")
    return topic, int(partition)


def owner(id: str, parallelism: int) -> int:
    """Round-robin per topic, each topic from another subtask."""
    topic, partition = partition_of(id)
    return (zlib.crc32(topic.encode()) + partition) % parallelism


def begin(split: KafkaSplit) -> KafkaPosition:
    return KafkaPosition(split.offset, split.end, split.topic_id)


def resumed(split: KafkaSplit, position: KafkaPosition, where: str) -> KafkaPosition:
    """Raises `InvalidJob` if the topic was recreated.
    Positions of older snapshots lack a topic id and take the split's.
    """
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
