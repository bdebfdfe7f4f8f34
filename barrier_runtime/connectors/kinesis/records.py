"""Converts Kinesis records to Arrow batches: the columns of the payload, then those of the record."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import pyarrow as pa

from barrier_runtime.connectors.kinesis.client import KinesisRecord
from barrier_runtime.connectors.source_bases.payloads import Decoder, JsonPayloads, PlainPayloads, decoded, json_row
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
    """Columns of a record."""

    value: Value
    payload: pa.Schema
    metadata: tuple[str, ...]

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([*self.payload, *((name, METADATA[name]) for name in self.metadata)])


def record_columns(value: str, schema: pa.Schema | None, metadata: Sequence[str], where: str) -> KinesisColumns:
    """Returns the columns after a check of names and types. Raises `InvalidJob`."""
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
    """Converts records in the slot, for the threads of all shards."""

    def __init__(self, columns: KinesisColumns, where: str) -> None:
        self._columns = columns
        self._schema = columns.schema
        self._where = where
        self._decoder: Decoder = (
            JsonPayloads(columns.payload, where) if columns.value == "json" else PlainPayloads(columns.payload)
        )

    def convert(self, shard: str, records: Sequence[KinesisRecord]) -> pa.RecordBatch:
        """Converts at least one record. Raises `InvalidJob` that names the first undecodable record."""
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
