"""Source of Kinesis streams; a position is a sequence number.

After resharding, a key continues in another shard, read in parallel with the rest of the old shard.
"""

import datetime
import time
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import ClassVar, Literal, TypeAlias

import pyarrow as pa

from barrier_runtime.connectors.discovery import ListingThread
from barrier_runtime.connectors.kinesis.client import (
    POSITION,
    SPLIT,
    KinesisClient,
    KinesisRecord,
    KinesisSplit,
    owner,
    shown_time,
)
from barrier_runtime.connectors.kinesis.reader import KinesisReader
from barrier_runtime.connectors.name_set import NameSet
from barrier_runtime.connectors.source import Discovery, SourceOf, Split
from barrier_runtime.connectors.source_bases.payloads import (
    Decoder,
    JsonPayloads,
    PlainPayloads,
    checked_start,
    decoded,
    json_row,
    start_ms,
)
from barrier_runtime.data.argument_types import kinds_checked
from barrier_runtime.data.schemas import Duration, Rows, SchemaOf, as_schema, milliseconds
from barrier_runtime.state.errors import InvalidJob

Value: TypeAlias = Literal["bytes", "string", "json"]

METADATA: dict[str, pa.DataType] = {
    "partition_key": pa.string(),
    "shard": pa.string(),
    "sequence_number": pa.string(),
    "arrived_at": pa.timestamp("ms", "UTC"),
}


@dataclass(frozen=True)
class KinesisColumns:
    value: Value
    payload: pa.Schema
    metadata: tuple[str, ...]

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([*self.payload, *((name, METADATA[name]) for name in self.metadata)])


def record_columns(value: str, schema: pa.Schema | None, metadata: Sequence[str], where: str) -> KinesisColumns:
    if value not in ("bytes", "string", "json"):
        raise InvalidJob(f'{where}: value={value!r}: use "bytes", "string" or "json"')
    if value == "json" and schema is None:
        raise InvalidJob(f'{where}: pass schema=, as value="json" needs it: the columns of the JSON')
    if value != "json" and schema is not None:
        raise InvalidJob(f'{where}: schema= goes with value="json": pass that, or leave schema= out')
    names = (metadata,) if isinstance(metadata, str) else tuple(dict.fromkeys(metadata))
    for name in names:
        if name not in METADATA:
            raise InvalidJob(f"{where}: metadata= has {name!r}: choose from {', '.join(METADATA)}")
    if schema is None:
        payload = pa.schema([("value", pa.binary() if value == "bytes" else pa.string())])
    else:
        json_row(schema, f"{where}, schema=")
        payload = schema
    twice = [name for name in names if name in payload.names]
    if twice:
        raise InvalidJob(f"{where}: there would be two columns {twice[0]!r}: leave it out of metadata=")
    return KinesisColumns(value, payload, names)  # type: ignore[arg-type]


class KinesisRows:
    def __init__(self, columns: KinesisColumns, where: str) -> None:
        self._columns = columns
        self._schema = columns.schema
        self._where = where
        self._decoder: Decoder = (
            JsonPayloads(columns.payload, where) if columns.value == "json" else PlainPayloads(columns.payload)
        )

    def convert(self, shard: str, records: Sequence[KinesisRecord]) -> pa.RecordBatch:
        arrays, bad = decoded(self._decoder, [record.data for record in records], records)
        if bad:
            first = min(bad)
            raise InvalidJob(
                f"{self._where}, shard {shard!r}: the record with sequence number {records[first].sequence} cannot be "
                f'decoded: {bad[first]}. Correct schema=, or read value="bytes" and decode in a function with on_error='
            )
        made = {
            "partition_key": lambda: pa.array([record.key for record in records], pa.string()),
            "shard": lambda: pa.array([shard] * len(records), pa.string()),
            "sequence_number": lambda: pa.array([record.sequence for record in records], pa.string()),
            "arrived_at": lambda: pa.array([record.arrived_ms for record in records], METADATA["arrived_at"]),
        }
        arrays += [made[name]() for name in self._columns.metadata]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


Start: TypeAlias = Literal["earliest", "latest"] | datetime.datetime

_ONCE_S = 1e9


@kinds_checked
@dataclass(frozen=True)
class KinesisSource(SourceOf[Rows]):
    """A stream of Amazon Kinesis or of a compatible server at `endpoint`; a split per shard.

    Credentials, and the region unless `region` is given, come from boto3's default chain (environment, ~/.aws, role).

    `start` applies without a checkpoint: "earliest" (all retained records), "latest" (records that arrive from now on)
    or a datetime. `until="latest"`: the stream ends with the records that had arrived at the start. `discover`:
    interval of the search for shards from splits and merges (None: only at a restart), read from the first record.

    Columns: `value` (bytes, or text with `value="string"`), or with `value="json"` the columns of `schema`; then those
    of `metadata`: partition_key, shard, sequence_number, arrived_at. An invalid record ends the job. Records that
    Amazon's producer library has aggregated stay aggregated.

    `every`: interval of polls after the newest record; Kinesis allows five requests a second per shard, of all readers
    together. A job that was stopped for longer than the stream's retention does not start.

    >>> clicks = KinesisSource("clicks", value="json", schema={"page": str, "user": int})
    >>> flow.source("clicks", clicks, event_time="arrived_at")
    """

    stream: str
    _: KW_ONLY
    region: str | None = None
    endpoint: str | None = field(default=None, repr=False)
    start: Start = "earliest"
    until: Literal["latest"] | None = None
    value: Value = "bytes"
    schema: SchemaOf[Rows] | None = None
    metadata: Sequence[str] = tuple(METADATA)
    every: Duration = datetime.timedelta(milliseconds=250)
    discover: Duration | None = datetime.timedelta(minutes=1)

    def named(self, name: str) -> "KinesisStream":
        """Checks the settings without requests to the service. Raises `InvalidJob`."""
        where = f"source {name!r}"
        if not isinstance(self.stream, str) or not self.stream.strip():
            raise InvalidJob(f"{where}: stream={self.stream!r}: give the name of a stream")
        if self.endpoint is not None and "@" in self.endpoint:
            raise InvalidJob(f"{where}: endpoint= must not carry credentials: boto3 finds them in the environment")
        if self.until not in (None, "latest"):
            raise InvalidJob(f'{where}: until={self.until!r}: use "latest" (what is there at the start), or leave it')
        schema = as_schema(self.schema, where) if self.schema is not None else None
        return KinesisStream(
            name,
            KinesisClient(self.stream, self.region, self.endpoint, where),
            record_columns(self.value, schema, self.metadata, where),
            start=checked_start(self.start, ("earliest", "latest"), where),
            bounded=self.until is not None,
            every_s=milliseconds(self.every, f"every of {where}") / 1000,
            discover_s=_ONCE_S if self.discover is None else milliseconds(self.discover, f"discover of {where}") / 1000,
        )


@dataclass(frozen=True, repr=False, eq=False)
class KinesisStream:
    name: str
    client: KinesisClient
    columns: KinesisColumns
    _: KW_ONLY
    start: Start
    bounded: bool
    every_s: float
    discover_s: float
    exactly_once: ClassVar[bool] = True

    @property
    def schema(self) -> pa.Schema:
        return self.columns.schema

    @property
    def positions_in(self) -> str:
        """Name of the stream, because shards of different streams have the same names."""
        return f"Kinesis stream {self.client.stream}"

    @property
    def endless(self) -> bool:
        return not self.bounded

    def __repr__(self) -> str:
        start = f"{self.start:%Y-%m-%dT%H:%M:%S%z}" if isinstance(self.start, datetime.datetime) else self.start
        return f"Kinesis stream {self.client.stream}, from {start}{', until what is there now' if self.bounded else ''}"

    def splits(self, parallelism: int) -> Sequence[Split]:
        from_ms: int | None = None
        until_ms: int | None = None
        if isinstance(self.start, datetime.datetime):
            from_ms = start_ms(self.start)
        if self.start == "latest" or self.bounded:
            least_ms, most_ms = self.client.now_ms()
            from_ms = least_ms if self.start == "latest" else from_ms
            until_ms = most_ms if self.bounded else None
        return [KinesisSplit(shard, from_ms, until_ms).split() for shard in self.client.shards()]

    def reader(self, split: Split) -> KinesisReader:
        convert = KinesisRows(self.columns, f"source {self.name!r}").convert
        return KinesisReader(self.client, SPLIT.decode(split.payload), convert, self.every_s)

    def owner(self, split_id: str, parallelism: int) -> int:
        return owner(split_id, parallelism)

    def discovery(self, known: NameSet) -> Discovery | None:
        if self.bounded:
            return None
        return ListingThread(self._all_shards, known, self.discover_s, self.name)

    def _all_shards(self) -> list[Split]:
        return [KinesisSplit(shard).split() for shard in self.client.shards()]

    def no_longer_there(self, positions: Mapping[str, bytes | None]) -> Sequence[str]:
        oldest_ms = time.time_ns() // 1_000_000 - self.client.retention_ms()
        read_to = {shard: POSITION.decode(at).complete_ms for shard, at in positions.items() if at is not None}
        return [
            f"shard {shard!r}: records that arrived behind {shown_time(ms)} are no longer retained"
            for shard, ms in sorted(read_to.items())
            if ms is not None and ms < oldest_ms
        ]
