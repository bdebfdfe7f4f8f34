"""Converts Kafka records to rows: columns of key, value and metadata; treats bad records.

Few good records become lists (`data/few_rows`), at a fraction of Arrow's cost. Many records become Arrow, and so do few
records with a bad record among them: the Arrow path finds the record and the reason.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import methodcaller
from typing import Any, Literal, TypeAlias

import pyarrow as pa

from barrier_runtime.connectors.kafka.source.decoders import PayloadFormat, make_decoder, raise_outage
from barrier_runtime.connectors.source_bases.payloads import JsonPayloads, PlainPayloads, decoded
from barrier_runtime.data.few_rows import MOST_ROWS, FewRows, layout_of
from barrier_runtime.state.errors import InvalidJob

BadRecords: TypeAlias = Literal["fail", "dead_letter"]

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

    With dead letters there are hidden columns, null for good records: the reason, and the undecoded record.
    """

    key: PayloadFormat | None
    value: PayloadFormat
    metadata: Mapping[str, str]
    bad_records: BadRecords = "fail"

    @property
    def schema(self) -> pa.Schema:
        """Columns of good records."""
        parts = [*(self.key.schema if self.key else ()), *self.value.schema]
        return pa.schema([*parts, *((column, METADATA[name]) for name, column in self.metadata.items())])

    @property
    def whole_schema(self) -> pa.Schema:
        """Columns including the hidden columns of dead letters; with these every column may be null."""
        if self.bad_records == "fail":
            return self.schema
        types = {"key": pa.binary(), "value": pa.binary(), **METADATA}
        dead_letter = [(column, types[name]) for name, column in DEAD_LETTER.items()]
        return pa.schema([*(field.with_nullable(True) for field in self.schema), (ERROR, pa.string()), *dead_letter])


def record_columns(
    key: PayloadFormat | None, value: PayloadFormat, metadata: Sequence[str] | Mapping[str, str], bad: str, where: str
) -> RecordColumns:
    """Returns the columns after a check of their names. Raises `InvalidJob`."""
    if bad not in ("fail", "dead_letter"):
        raise InvalidJob(f'{where}: bad_records={bad!r}: use "fail" or "dead_letter"')
    if isinstance(metadata, str):
        metadata = (metadata,)
    named = dict(metadata) if isinstance(metadata, Mapping) else {name: name for name in metadata}
    for name in named:
        if name not in METADATA:
            raise InvalidJob(f"{where}: metadata= has {name!r}: choose from {', '.join(METADATA)}")
    columns = RecordColumns(key, value, named, "dead_letter" if bad == "dead_letter" else "fail")
    names = columns.whole_schema.names
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise InvalidJob(f"{where}: there would be two columns {repeated!r}: {_remedies(columns, repeated)}")
    return columns


def _remedies(columns: RecordColumns, repeated: str) -> str:
    """Returns remedies for a repeated column. A field of the value or of the key keeps its name."""
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
    """Rows in offset order. `size`: an upper bound of their bytes.

    `bad`: why the record after the last row cannot be decoded, if so.
    """

    rows: pa.RecordBatch | FewRows
    size: int
    bad: str = ""

    @property
    def count(self) -> int:
        return self.rows.count if isinstance(self.rows, FewRows) else int(self.rows.num_rows)


class RecordConverter:
    """Converts the client's messages, of one partition at a time, in the slot."""

    def __init__(self, columns: RecordColumns, where: str) -> None:
        self._columns = columns
        self._schema = columns.whole_schema
        self._key = make_decoder(columns.key, where) if columns.key else None
        self._value = make_decoder(columns.value, where)
        decoders = {"value": self._value} if self._key is None else {"key": self._key, "value": self._value}
        self._listed = [  # decoders that return lists, with the getter of a message's payload
            (decoder, methodcaller(part))
            for part, decoder in decoders.items()
            if isinstance(decoder, (JsonPayloads, PlainPayloads))
        ]
        self._has_lists = (
            columns.bad_records == "fail" and layout_of(self._schema) is not None and len(self._listed) == len(decoders)
        )

    def convert(self, messages: Sequence[Any]) -> Converted:
        """Converts one or more messages, none of them an error.
        Raises `Unavailable` if a schema registry does not answer."""
        if self._has_lists and len(messages) <= MOST_ROWS:
            try:
                return self._lists(messages)
            except Exception:  # a record is bad: the Arrow path finds the record and the reason
                return self._arrow(messages)
        return self._arrow(messages)

    def _lists(self, messages: Sequence[Any]) -> Converted:
        """Converts to lists; raises any error of a record."""
        columns: list[list[Any]] = []
        size = 0
        for decoder, payload in self._listed:
            payloads = list(map(payload, messages))
            columns += decoder.values(decoder.rows(payloads, messages))
            size += sum(map(len, filter(None, payloads)))  # no text is longer than its payload
        columns += [_METADATA_VALUES[name](messages) for name in self._columns.metadata]
        rows = FewRows.of_values(self._schema, columns)
        return Converted(rows, size + rows.cell_bytes + rows.count * len(messages[0].topic()))

    def _arrow(self, messages: Sequence[Any]) -> Converted:
        arrays: list[pa.Array] = []
        bad: dict[int, str] = {}
        if self._key is not None:
            arrays, wrong = decoded(self._key, [message.key() for message in messages], messages, raise_outage)
            bad = {index: f"its key: {reason}" for index, reason in wrong.items()}
        values, wrong = decoded(self._value, [message.value() for message in messages], messages, raise_outage)
        bad.update({index: f"its value: {reason}" for index, reason in wrong.items()})
        arrays += values
        arrays += [_metadata_array(name, messages) for name in self._columns.metadata]
        if self._columns.bad_records == "dead_letter":
            arrays += _letters(messages, bad)
            rows = _masked(pa.RecordBatch.from_arrays(arrays, schema=self._schema), bad, self._columns)
            return Converted(rows, int(rows.nbytes))
        rows = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        if bad:
            rows = rows.slice(0, min(bad))
        return Converted(rows, int(rows.nbytes), bad[min(bad)] if bad else "")


def _masked(rows: pa.RecordBatch, bad: Mapping[int, str], columns: RecordColumns) -> pa.RecordBatch:
    """Hides bad records in all visible columns, so that their event time does not move the watermark."""
    if not bad:
        return rows
    shown = len(columns.schema)
    kept = pa.array([None if index in bad else index for index in range(rows.num_rows)], pa.int64())
    arrays = [column.take(kept) if number < shown else column for number, column in enumerate(rows.columns)]
    return pa.RecordBatch.from_arrays(arrays, schema=rows.schema)


def _letters(messages: Sequence[Any], bad: Mapping[int, str]) -> list[pa.Array]:
    """Returns the hidden columns: the reason, then the record."""
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
    """Returns milliseconds, as Arrow stores them; None for a record without time (type 0)."""
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
