"""Converts Kafka records to rows, and treats bad records.

Few good records become lists (`data/few_rows`); the Arrow path finds bad records and reasons.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import methodcaller
from typing import Any, Literal, TypeAlias

import pyarrow as pa

from barrier_runtime.connectors.kafka.source.client import log
from barrier_runtime.connectors.kafka.source.decoders import PayloadFormat, make_decoder, raise_outage
from barrier_runtime.connectors.kafka.source.position import where_of
from barrier_runtime.connectors.source_bases.payloads import JsonPayloads, PlainPayloads, decoded
from barrier_runtime.data.few_rows import MOST_ROWS, FewRows, layout_of
from barrier_runtime.state.errors import InvalidJob

BadRecords: TypeAlias = Literal["fail", "dead_letter"]
NullValues: TypeAlias = Literal["row", "skip", "bad"]

_NULL = (
    'null: a deletion? null_values="skip" passes over records without value, null_values="row" makes rows of nulls of '
    "them"
)

METADATA: dict[str, pa.DataType] = {
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("ms", "UTC"),
    "headers": pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
}
ERROR = "dead_letter_error"  # null for a good record
DEAD_LETTER = {
    "key": "dead_letter_key",
    "value": "dead_letter_value",
    **{name: f"dead_letter_{name}" for name in METADATA},
}


@dataclass(frozen=True)
class RecordColumns:
    """Columns of a record. `metadata`: column name by Kafka's name.
    Dead letters have hidden columns, null for good records.
    """

    key: PayloadFormat | None
    value: PayloadFormat
    metadata: Mapping[str, str]
    bad_records: BadRecords = "fail"
    null_values: NullValues = "row"

    @property
    def nulls_are_told(self) -> bool:
        decoded = self.value.format_name not in ("bytes", "string") and self.value.debezium is None
        return decoded and self.null_values == "row"

    @property
    def schema(self) -> pa.Schema:
        parts = [*(self.key.schema if self.key else ()), *self.value.schema]
        return pa.schema([*parts, *((column, METADATA[name]) for name, column in self.metadata.items())])

    @property
    def whole_schema(self) -> pa.Schema:
        """Columns with those of dead letters; then every column may be null."""
        if self.bad_records == "fail":
            return self.schema
        types = {"key": pa.binary(), "value": pa.binary(), **METADATA}
        dead_letter = [(column, types[name]) for name, column in DEAD_LETTER.items()]
        return pa.schema([*(field.with_nullable(True) for field in self.schema), (ERROR, pa.string()), *dead_letter])


def record_columns(
    key: PayloadFormat | None,
    value: PayloadFormat,
    metadata: Sequence[str] | Mapping[str, str],
    bad: str,
    where: str,
    null_values: NullValues = "row",
) -> RecordColumns:
    if bad not in ("fail", "dead_letter"):
        raise InvalidJob(f'{where}: bad_records={bad!r}: use "fail" or "dead_letter"')
    if null_values not in ("row", "skip", "bad"):
        raise InvalidJob(f'{where}: null_values={null_values!r}: use "row", "skip" or "bad"')
    if isinstance(metadata, str):
        metadata = (metadata,)
    named = dict(metadata) if isinstance(metadata, Mapping) else {name: name for name in metadata}
    for name in named:
        if name not in METADATA:
            raise InvalidJob(f"{where}: metadata= has {name!r}: choose from {', '.join(METADATA)}")
    columns = RecordColumns(key, value, named, "dead_letter" if bad == "dead_letter" else "fail", null_values)
    names = columns.whole_schema.names
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise InvalidJob(f"{where}: there would be two columns {repeated!r}: {_remedies(columns, repeated)}")
    return columns


def _remedies(columns: RecordColumns, repeated: str) -> str:
    remedies = []
    for name, column in columns.metadata.items():
        if column == repeated:
            remedies += [
                f'rename the metadata by metadata={{"{name}": "kafka_{name}"}}',
                f"leave {name!r} out of metadata=",
            ]
    if columns.key is not None and repeated in columns.key.schema.names:
        remedies.append("pass key=None")
    if columns.bad_records == "dead_letter" and repeated in (ERROR, *DEAD_LETTER.values()):
        remedies.append('pass bad_records="fail", as dead letters need that name')
    return ", or ".join(remedies)


@dataclass(frozen=True)
class Converted:
    """Rows in offset order, None if all records were skipped. `size`: an upper bound of their bytes.

    `bad_at`: index of an undecodable message, `bad`: the reason; the rows precede the message. `nulls`: records without
    value before `bad_at`. `kept`: indices of the unskipped messages; None: all.
    """

    rows: pa.RecordBatch | FewRows | None
    size: int
    bad: str = ""
    bad_at: int | None = None
    nulls: int = 0
    kept: Sequence[int] | None = None

    @property
    def count(self) -> int:
        if self.rows is None:
            return 0
        return self.rows.count if isinstance(self.rows, FewRows) else int(self.rows.num_rows)


class RecordConverter:
    def __init__(self, columns: RecordColumns, where: str) -> None:
        self._columns = columns
        self._where = where
        self._told = False
        self._schema = columns.whole_schema
        self._key = make_decoder(columns.key, where) if columns.key else None
        self._value = make_decoder(columns.value, where)
        decoders = {"value": self._value} if self._key is None else {"key": self._key, "value": self._value}
        self._listed = [
            (decoder, methodcaller(part))
            for part, decoder in decoders.items()
            if isinstance(decoder, (JsonPayloads, PlainPayloads))
        ]
        self._has_lists = (
            columns.bad_records == "fail" and layout_of(self._schema) is not None and len(self._listed) == len(decoders)
        )

    def convert(self, messages: Sequence[Any]) -> Converted:
        """Converts messages of one partition. Raises `Unavailable` without a schema registry."""
        if self._columns.null_values == "skip":
            return self._without_nulls(messages)
        converted = self._all(messages)
        if converted.nulls and self._columns.nulls_are_told and not self._told:
            self._told = True
            self._tell_of_null(next(message for message in messages if message.value() is None))
        return converted

    def _without_nulls(self, messages: Sequence[Any]) -> Converted:
        kept = [index for index, message in enumerate(messages) if message.value() is not None]
        if not kept:
            return Converted(None, 0, nulls=len(messages), kept=kept)
        if len(kept) == len(messages):
            return self._all(messages)
        converted = self._all([messages[index] for index in kept])
        if converted.bad_at is None:
            return replace(converted, nulls=len(messages) - len(kept), kept=kept)
        bad_at = kept[converted.bad_at]
        return replace(converted, bad_at=bad_at, nulls=bad_at - converted.bad_at, kept=kept)

    def _tell_of_null(self, message: Any) -> None:
        log.warning(
            "%s, offset %d: the record has no value and becomes a row of nulls, as later ones do: "
            'null_values="skip" passes over such records, null_values="bad" treats them as bad records',
            where_of(self._where, message.topic(), message.partition()),
            message.offset(),
        )

    def _all(self, messages: Sequence[Any]) -> Converted:
        if self._has_lists and len(messages) <= MOST_ROWS:
            try:
                return self._lists(messages)
            except Exception:
                return self._arrow(messages)
        return self._arrow(messages)

    def _lists(self, messages: Sequence[Any]) -> Converted:
        columns: list[list[Any]] = []
        size = nulls = 0
        for decoder, payload in self._listed:
            payloads = list(map(payload, messages))
            nulls = payloads.count(None)
            columns += decoder.values(decoder.rows(payloads, messages))
            size += sum(map(len, filter(None, payloads)))
        if nulls and self._columns.null_values == "bad":
            raise ValueError(_NULL)
        columns += [_METADATA_VALUES[name](messages) for name in self._columns.metadata]
        rows = FewRows.of_values(self._schema, columns)
        return Converted(rows, size + rows.cell_bytes + rows.count * len(messages[0].topic()), nulls=nulls)

    def _arrow(self, messages: Sequence[Any]) -> Converted:
        arrays: list[pa.Array] = []
        bad: dict[int, str] = {}
        if self._key is not None:
            arrays, wrong = decoded(self._key, [message.key() for message in messages], messages, raise_outage)
            bad = {index: f"its key: {reason}" for index, reason in wrong.items()}
        payloads = [message.value() for message in messages]
        values, wrong = decoded(self._value, payloads, messages, raise_outage)
        if self._columns.null_values == "bad":
            wrong.update({index: _NULL for index, payload in enumerate(payloads) if payload is None})
        bad.update({index: f"its value: {reason}" for index, reason in wrong.items()})
        arrays += values
        arrays += [_metadata_array(name, messages) for name in self._columns.metadata]
        if self._columns.bad_records == "dead_letter":
            arrays += _letters(messages, bad)
            rows = _masked(pa.RecordBatch.from_arrays(arrays, schema=self._schema), bad, self._columns)
            return Converted(rows, int(rows.nbytes), nulls=payloads.count(None))
        rows = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        if bad:
            rows = rows.slice(0, min(bad))
        first = min(bad, default=None)
        reason = "" if first is None else bad[first]
        return Converted(rows, int(rows.nbytes), reason, first, payloads[:first].count(None))


def _masked(rows: pa.RecordBatch, bad: Mapping[int, str], columns: RecordColumns) -> pa.RecordBatch:
    """Hides bad records in all visible columns, so that they do not move the watermark."""
    if not bad:
        return rows
    shown = len(columns.schema)
    kept = pa.array([None if index in bad else index for index in range(rows.num_rows)], pa.int64())
    arrays = [column.take(kept) if number < shown else column for number, column in enumerate(rows.columns)]
    return pa.RecordBatch.from_arrays(arrays, schema=rows.schema)


def _letters(messages: Sequence[Any], bad: Mapping[int, str]) -> list[pa.Array]:
    count = len(messages)
    types = {"key": pa.binary(), "value": pa.binary(), **METADATA}
    if not bad:
        return [pa.nulls(count, pa.string()), *(pa.nulls(count, types[name]) for name in DEAD_LETTER)]
    order = sorted(bad)
    dead_letters = [messages[index] for index in order]
    places: list[int | None] = [None] * count
    for place, index in enumerate(order):
        places[index] = place
    indices = pa.array(places, pa.int64())
    arrays = [pa.array([bad[index] for index in order], pa.string())]
    for name in DEAD_LETTER:
        if name in METADATA:
            arrays.append(_metadata_array(name, dead_letters))
        else:
            arrays.append(pa.array([getattr(dead_letter, name)() for dead_letter in dead_letters], pa.binary()))
    return [array.take(indices) for array in arrays]


def _topics(messages: Sequence[Any]) -> list[Any]:
    return [messages[0].topic()] * len(messages)


def _partitions(messages: Sequence[Any]) -> list[Any]:
    return [messages[0].partition()] * len(messages)


def _offsets(messages: Sequence[Any]) -> list[Any]:
    return [message.offset() for message in messages]


def _timestamps(messages: Sequence[Any]) -> list[Any]:
    return [ms if kind else None for kind, ms in (message.timestamp() for message in messages)]


def _headers(messages: Sequence[Any]) -> list[Any]:
    found = [message.headers() for message in messages]
    return [[{"key": key, "value": value} for key, value in headers] if headers else [] for headers in found]


_METADATA_VALUES: dict[str, Callable[[Sequence[Any]], list[Any]]] = {
    "topic": _topics,
    "partition": _partitions,
    "offset": _offsets,
    "timestamp": _timestamps,
    "headers": _headers,
}


def _metadata_array(name: str, messages: Sequence[Any]) -> pa.Array:
    return pa.array(_METADATA_VALUES[name](messages), METADATA[name])
