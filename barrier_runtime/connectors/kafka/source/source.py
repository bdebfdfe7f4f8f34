"""Source of Kafka topics; a position is an offset."""

import datetime
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any, Literal, TypeAlias

import msgspec
import pyarrow as pa

from barrier_runtime.connectors.discovery import ListingThread
from barrier_runtime.connectors.kafka.brokers import KafkaBrokers, with_brokers
from barrier_runtime.connectors.kafka.source.client import EARLIEST, LATEST, Cluster, KafkaClient, Partition, Settings
from barrier_runtime.connectors.kafka.source.debezium import Absent, Debezium
from barrier_runtime.connectors.kafka.source.debezium_values import UNAVAILABLE
from barrier_runtime.connectors.kafka.source.decoders import FormatName, format_of
from barrier_runtime.connectors.kafka.source.fetcher import FetcherPool
from barrier_runtime.connectors.kafka.source.position import (
    POSITION,
    SPLIT,
    KafkaSplit,
    owner,
    partition_of,
    split_id,
    where_of,
)
from barrier_runtime.connectors.kafka.source.reader import KafkaReader
from barrier_runtime.connectors.kafka.source.records import (
    DEAD_LETTER,
    ERROR,
    BadRecords,
    NullValues,
    RecordColumns,
    RecordConverter,
    record_columns,
)
from barrier_runtime.connectors.name_set import NameSet
from barrier_runtime.connectors.source import DeadLetters, Discovery, Remaining, SourceSettings, Split
from barrier_runtime.connectors.source_bases.payloads import checked_start, start_ms
from barrier_runtime.data.argument_types import kinds_checked
from barrier_runtime.data.schemas import Duration, SchemaLike, as_schema, milliseconds
from barrier_runtime.state.errors import InvalidJob

Start: TypeAlias = Literal["earliest", "latest", "group"] | datetime.datetime
Config: TypeAlias = Settings | Callable[[], Settings]

_HELD_BYTES = 64 * 1024 * 1024  # fetched but not taken, by all readers of a process
_ONCE_S = 1e9


@dataclass(frozen=True)
class Topics:
    names: tuple[str, ...] = ()
    pattern: str | None = None

    def chooses(self, topic: str) -> bool:
        if self.pattern is None:
            return topic in self.names
        return re.fullmatch(self.pattern, topic) is not None

    def __str__(self) -> str:
        return f"topics like {self.pattern!r}" if self.pattern is not None else f"topics {', '.join(self.names)}"


def chosen_topics(topics: str | Sequence[str] | None, pattern: str | None, where: str) -> Topics:
    if (topics is None) == (pattern is None):
        raise InvalidJob(f"{where}: pass either topics= or pattern=")
    if topics is not None:
        names = (topics,) if isinstance(topics, str) else tuple(dict.fromkeys(topics))
        if not names or not all(isinstance(name, str) and name for name in names):
            raise InvalidJob(f"{where}: topics={topics!r}: give the name of a topic, or several")
        return Topics(names)
    try:
        re.compile(pattern or "")
    except (re.error, TypeError) as error:
        raise InvalidJob(f"{where}: pattern={pattern!r} is not a regular expression ({error}): correct it") from error
    if not pattern:
        raise InvalidJob(f'{where}: pattern="" matches no topic: give a regular expression such as "orders-.*"')
    return Topics(pattern=pattern)


@kinds_checked
@dataclass(frozen=True)
class KafkaSource(SourceSettings):
    """Kafka topics, by name or by a regular expression that matches the whole name; a split per partition.

    Only committed records are read. Offsets of decided checkpoints are also committed to `group`, for monitoring.

    `start` applies without a checkpoint: "earliest", "latest", a datetime (of the records' timestamps) or "group": that
    group's committed offsets, else the earliest record. `discover`: interval of the search for new partitions (None:
    only at a restart), read from the earliest record. `until="latest"`: the stream ends where each partition ends at
    the start.

    `key`, `value`: "bytes", "string", "json", or a function that makes a deserialiser of the client, called in each
    slot; the latter two need `key_schema=`, `schema=` with their columns. `key=None`: no such column. In JSON absent
    fields are null, times are RFC 3339 text. `metadata`: of topic, partition, offset, timestamp and headers, or a
    mapping of these to names.

    `null_values`: a record without value (a tombstone) is a row of nulls, with "skip" no row, with "bad" a bad record.

    `debezium`: the values are Debezium's change events (JSON, or from a deserialiser), and `schema` has the columns of
    the table. "changes": `op`, `changed_at`, `lsn`, `xid`, `before`, `after`, `unchanged`; "upsert": the columns,
    `deleted` and `changed_at` (docs/changes.md). A column that an event lacks makes a bad record, or with
    `absent="null"` a null. `unavailable_value_placeholder`: as set in the connector.

    A bad record ends the job; with `bad_records="dead_letter"` the record goes to a separate stream: use
    `source_with_dead_letters`.

    Records that are deleted before they were read end the job, after a warning. `config`: further settings of
    librdkafka, or a function that returns them in driver and slots.

    >>> bids = KafkaSource("broker:9092", "bids", group="billing", value="json", schema={"item": str, "price": float})
    >>> flow.source("bids", bids, event_time="timestamp")
    """

    bootstrap_servers: str | KafkaBrokers
    topics: str | Sequence[str] | None = None
    _: KW_ONLY
    group: str
    pattern: str | None = None
    start: Start = "earliest"
    until: Literal["latest"] | None = None
    key: FormatName | None = "bytes"
    value: FormatName = "bytes"
    schema: SchemaLike | None = None
    key_schema: SchemaLike | None = None
    metadata: Sequence[str] | Mapping[str, str] = ("topic", "partition", "offset", "timestamp")
    bad_records: BadRecords = "fail"
    null_values: NullValues = "row"
    discover: Duration | None = datetime.timedelta(minutes=1)
    debezium: Debezium | None = None
    absent: Absent = "fail"
    unavailable_value_placeholder: str = UNAVAILABLE
    config: Config | None = field(default=None, repr=False)

    def named(self, name: str) -> "KafkaTopics":
        """Checks the settings without requests to the brokers. Raises `InvalidJob`."""
        where = f"source {name!r}"
        schema = as_schema(self.schema, where) if self.schema is not None else None
        key_schema = as_schema(self.key_schema, where, "key_schema") if self.key_schema is not None else None
        key = format_of("key", self.key, key_schema, where) if self.key is not None else None
        value = format_of(
            "value", self.value, schema, where, self.debezium, self.absent, self.unavailable_value_placeholder
        )
        servers, config = with_brokers(self.bootstrap_servers, self.config, where)
        return KafkaTopics(
            name,
            servers,
            chosen_topics(self.topics, self.pattern, where),
            record_columns(key, value, self.metadata, self.bad_records, where, self.null_values),
            group=self.group,
            start=self.start,
            until=self.until,
            discover=self.discover,
            config=config,
        )


class KafkaTopics:
    exactly_once = True
    positions_in = "Kafka"

    def __init__(
        self,
        name: str,
        bootstrap_servers: str,
        topics: Topics,
        columns: RecordColumns,
        *,
        group: str,
        start: Start = "earliest",
        until: Literal["latest"] | None = None,
        discover: Duration | None = None,
        config: Config | None = None,
    ) -> None:
        self._name = name
        self._where = f"source {name!r}"
        for what, value in (("bootstrap_servers", bootstrap_servers), ("group", group)):
            if not isinstance(value, str) or not value.strip():
                raise InvalidJob(f"{self._where}: {what}={value!r}: give a text that is not empty")
        if "@" in bootstrap_servers:
            raise InvalidJob(
                f"{self._where}: bootstrap_servers= must not carry credentials: give host:port, and sasl.* in config="
            )
        if until not in (None, "latest"):
            raise InvalidJob(f'{self._where}: until={until!r}: use "latest" (what is there at the start), or leave it')
        self._start = checked_start(start, ("earliest", "latest", "group"), self._where)
        self._until = until
        self._discover_s = _period_s(discover, self._where)
        self._topics = topics
        self._columns = columns
        self._client = KafkaClient(self._where, bootstrap_servers, group, config or {})
        self.schema: pa.Schema = columns.whole_schema
        self._pool = self._make_pool()

    @property
    def endless(self) -> bool:
        return self._until is None

    @property
    def dead_letters(self) -> DeadLetters | None:
        if self._columns.bad_records == "fail":
            return None
        return DeadLetters(ERROR, tuple(self._columns.schema.names), {**DEAD_LETTER, "error": ERROR})

    def __repr__(self) -> str:
        start = f"{self._start:%Y-%m-%dT%H:%M:%S%z}" if isinstance(self._start, datetime.datetime) else self._start
        until = ", until what is latest now" if self._until else ""
        return f"Kafka {self._topics} at {self._client.servers}, from {start}{until}, group {self._client.group}"

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_pool"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._pool = self._make_pool()

    def splits(self, parallelism: int) -> Sequence[Split]:
        with Cluster(self._client) as cluster:
            partitions = cluster.partitions(self._topics.names, self._topics.pattern)
            if not partitions and (self._until or self._discover_s is None):
                raise InvalidJob(
                    f"{self._where}: there are no {self._topics} at {self._client.servers}: correct pattern="
                )
            begins = self._begins(cluster, partitions)
            ends = cluster.offsets(partitions, LATEST) if self._until else {}
            ids = cluster.topic_ids(topic for topic, _ in partitions)
        return [
            KafkaSplit(topic, number, begins[topic, number], ends.get((topic, number)), ids.get(topic, "")).split()
            for topic, number in partitions
        ]

    def not_chosen(self, split_id: str) -> str:
        topic = split_id.rpartition("-")[0]
        if self._topics.chooses(topic):
            return ""
        return (
            f"the checkpoint has an offset in topic {topic!r}, which is not among its {self._topics}: choose that "
            "topic as well, or give the source another name, which begins anew (start='group' goes on with the offsets "
            "that were committed to its group), and set allow_non_restored to drop the offsets of the old name"
        )

    def _begins(self, cluster: Cluster, partitions: Sequence[Partition]) -> dict[Partition, int]:
        if self._start == "latest":
            return cluster.offsets(partitions, LATEST)
        if isinstance(self._start, datetime.datetime):
            return cluster.offsets(partitions, start_ms(self._start))
        earliest = cluster.offsets(partitions, EARLIEST)
        if self._start == "earliest":
            return earliest
        committed = cluster.committed(partitions)
        for (topic, number), offset in committed.items():
            if offset < earliest[topic, number]:
                raise InvalidJob(
                    f"{where_of(self._where, topic, number)}: group {self._client.group!r} is at offset {offset}, but "
                    f"the earliest that is retained is {earliest[topic, number]}: the records between are lost. Pass "
                    'start="earliest" if you accept that, or another group='
                )
        return {**earliest, **committed}

    def no_longer_there(self, positions: Mapping[str, bytes | None]) -> Sequence[str]:
        offsets = {split: POSITION.decode(at).offset for split, at in positions.items() if at is not None}
        with Cluster(self._client) as cluster:
            partitions = cluster.partitions(self._topics.names, self._topics.pattern)
            earliest = cluster.offsets(partitions, EARLIEST)
        gone = []
        for topic, number in partitions:
            offset = offsets.get(split_id(topic, number))
            if offset is not None and offset < earliest[topic, number]:
                gone.append(
                    f"topic {topic!r}, partition {number}: offsets {offset} to {earliest[topic, number] - 1} are no "
                    "longer retained"
                )
        return gone

    def left(self, splits: Sequence[Split], positions: Mapping[str, bytes]) -> Remaining:
        listed = {split.id: SPLIT.decode(split.payload) for split in splits}
        known = {id: POSITION.decode(at) for id, at in positions.items() if id in listed}
        places = {id: (of.topic, of.partition) for id, of in listed.items()}
        with Cluster(self._client) as cluster:
            ends = cluster.offsets(list(places.values()), LATEST)
            begins = cluster.offsets([place for id, place in places.items() if id not in known], EARLIEST)
        rows = 0
        for id, place in places.items():
            at, last = (known[id].offset, known[id].end) if id in known else (begins[place], listed[id].end)
            rows += max(0, min(ends[place], ends[place] if last is None else last) - at)
        return Remaining(rows=rows)

    def not_to_end(self) -> str:
        return "until= ends the stream where each partition ended at the first start" if self._until else ""

    def to_end(self, positions: Mapping[str, bytes]) -> Mapping[str, tuple[bytes, int]]:
        """Counts offsets. A position after the end stays; the reader reports the loss."""
        places = {id: partition_of(id) for id in positions}
        with Cluster(self._client) as cluster:
            ends = cluster.offsets(list(places.values()), LATEST)
        found = {}
        for id, place in places.items():
            before = POSITION.decode(positions[id])
            skipped = ends[place] - before.offset
            if skipped > 0:
                at = msgspec.json.encode(msgspec.structs.replace(before, offset=ends[place], epoch=None))
                found[id] = at, skipped
            else:
                found[id] = positions[id], 0
        return found

    def reader(self, split: Split) -> KafkaReader:
        return KafkaReader(self._where, SPLIT.decode(split.payload), self._pool)

    def owner(self, split_id: str, parallelism: int) -> int:
        return owner(split_id, parallelism)

    def discovery(self, known: NameSet) -> Discovery | None:
        """Lists only once without `discover=`, at a start from a checkpoint."""
        if self._until:
            return None
        listing = _Listing(self._client, self._topics, known, self._where)
        period_s = _ONCE_S if self._discover_s is None else self._discover_s
        return ListingThread(listing.splits, known, period_s, self._name)

    def _make_pool(self) -> FetcherPool:
        make_converter = partial(RecordConverter, self._columns, self._where)
        return FetcherPool(self._where, self._client, make_converter, _HELD_BYTES)


class _Listing:
    def __init__(self, client: KafkaClient, topics: Topics, known: NameSet, where: str) -> None:
        self._client = client
        self._topics = topics
        self._known = known
        self._ids: dict[str, str] = {}
        self._where = where

    def splits(self) -> list[Split]:
        with Cluster(self._client, must_exist=False) as cluster:
            partitions = cluster.partitions(self._topics.names, self._topics.pattern)
            ids = cluster.topic_ids(topic for topic, _ in partitions)
            for topic, id in ids.items():
                if self._ids.setdefault(topic, id) != id:
                    raise InvalidJob(
                        f"{self._where}, topic {topic!r}: it was deleted and made again while it was read: bring the "
                        "old records back, or start without state (restore='none')"
                    )
            new = [(topic, number) for topic, number in partitions if split_id(topic, number) not in self._known]
            begins = cluster.offsets(new, EARLIEST)
        return [
            KafkaSplit(topic, number, begins[topic, number], None, ids.get(topic, "")).split() for topic, number in new
        ]


def _period_s(discover: Any, where: str) -> float | None:
    if discover is None:
        return None
    period_ms = milliseconds(discover, f"discover of {where}")
    if not period_ms:
        raise InvalidJob(f"{where}: discover={discover}: give a period above 0, or None not to look for new partitions")
    return period_ms / 1000
