"""Converts messages to rows: body (bytes or typed JSON columns), then properties (null if missing)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import pyarrow as pa

from barrier_runtime.connectors.rabbitmq.consumer import ReceivedMessage
from barrier_runtime.connectors.source_bases.payloads import JsonPayloads, decoded, json_row
from barrier_runtime.state.errors import InvalidJob

Value = Literal["bytes", "json"]

BODY = "body"
MESSAGE_ID = "message_id"
METADATA = {
    MESSAGE_ID: pa.string(),
    "timestamp": pa.timestamp("ms", "UTC"),
    "routing_key": pa.string(),
    "redelivered": pa.bool_(),
    "headers": pa.string(),
}
HEADER_PREFIX = "headers."
_LAST_SECOND = 253_402_300_799  # of the year 9999; greater values are milliseconds by mistake


@dataclass(frozen=True)
class Columns:
    """`json`: columns of the body (None: bytes).
    `id_from`: "message_id" (the property) or "headers.<name>". `id_needed`: a message without id is bad.
    """

    json: pa.Schema | None
    metadata: tuple[str, ...]
    id_from: str = MESSAGE_ID
    id_needed: bool = False

    @property
    def schema(self) -> pa.Schema:
        body = [pa.field(BODY, pa.binary())] if self.json is None else list(self.json)
        return pa.schema([*body, *[pa.field(name, METADATA[name]) for name in self.metadata]])


def columns_of(
    value: Value,
    json: pa.Schema | None,
    metadata: Sequence[str],
    message_id: str,
    id_needed: bool,
    where: str,
) -> Columns:
    if value not in ("bytes", "json"):
        raise InvalidJob(f'{where}: value={value!r}: use "bytes" or "json"')
    if value == "json" and json is None:
        raise InvalidJob(f'{where}: pass schema=, as value="json" needs it: the columns of the JSON')
    if value != "json" and json is not None:
        raise InvalidJob(f'{where}: schema= goes with value="json": pass that, or leave schema= out')
    if json is not None:
        json_row(json, where)
    if message_id != MESSAGE_ID and (not message_id.startswith(HEADER_PREFIX) or message_id == HEADER_PREFIX):
        raise InvalidJob(f'{where}: message_id={message_id!r}: use "message_id" (the property) or "headers.<name>"')
    for name in metadata:
        if name not in METADATA:
            raise InvalidJob(f"{where}: metadata= names {name!r}: use some of {', '.join(METADATA)}")
    if id_needed and MESSAGE_ID not in metadata:
        raise InvalidJob(f"{where}: deduplicate= needs the column {MESSAGE_ID!r}: add it to metadata=")
    names = [*([BODY] if json is None else json.names), *metadata]
    for name in names:
        if names.count(name) > 1:
            remedy = "or pass no deduplicate=" if id_needed and name == MESSAGE_ID else "or leave it out of metadata="
            raise InvalidJob(f"{where}: there are two columns {name!r}: rename it in the body, {remedy}")
    return Columns(json, tuple(metadata), message_id, id_needed)


class MessageRows:
    def __init__(self, columns: Columns, where: str) -> None:
        self._columns = columns
        self._schema = columns.schema
        self._decoder = None if columns.json is None else JsonPayloads(columns.json, where)

    def batch(self, messages: Sequence[ReceivedMessage]) -> tuple[pa.RecordBatch, list[tuple[ReceivedMessage, str]]]:
        """Rows of the good messages in order, and the bad messages with reasons."""
        bad: list[tuple[ReceivedMessage, str]] = []
        good: list[ReceivedMessage] = []
        ids: list[str | None] = []
        for message in messages:
            id = _id(message, self._columns.id_from)
            wrong = self._wrong(message, id)
            if wrong:
                bad.append((message, wrong))
            else:
                good.append(message)
                ids.append(id)
        body, undecoded = self._bodies(good)
        if undecoded:
            bad += [(good[index], reason) for index, reason in undecoded.items()]
            kept = [index for index in range(len(good)) if index not in undecoded]
            body = [column.take(pa.array(kept, pa.int64())) for column in body]
            good, ids = [good[index] for index in kept], [ids[index] for index in kept]
        arrays = [*body, *[self._column(name, good, ids) for name in self._columns.metadata]]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema), bad

    def _wrong(self, message: ReceivedMessage, id: str | None) -> str:
        if id is None and self._columns.id_needed:
            return f"it has no {self._columns.id_from}, by which redeliveries are told"
        timestamp = message.properties.timestamp
        if timestamp is not None and timestamp > _LAST_SECOND:
            return f"its timestamp {timestamp} is not in seconds since 1970"
        return ""

    def _bodies(self, messages: Sequence[ReceivedMessage]) -> tuple[list[pa.Array], dict[int, str]]:
        bodies = [message.body for message in messages]
        if self._decoder is None:
            return [pa.array(bodies, pa.binary())], {}
        arrays, wrong = decoded(self._decoder, bodies, messages)
        return arrays, {
            index: f"its body ({len(bodies[index])} bytes) is not a JSON object of the declared columns: {reason}"
            for index, reason in wrong.items()
        }

    def _column(self, name: str, messages: Sequence[ReceivedMessage], ids: Sequence[str | None]) -> pa.Array:
        values: Sequence[Any]
        if name == MESSAGE_ID:
            values = ids
        elif name == "timestamp":
            stamps = [message.properties.timestamp for message in messages]
            return pa.array([None if each is None else each * 1_000 for each in stamps], pa.int64()).view(
                METADATA[name]
            )
        elif name == "headers":
            values = [_as_json(message.properties.headers) for message in messages]
        else:
            values = [getattr(message, name) for message in messages]
        return pa.array(values, METADATA[name])


def _id(message: ReceivedMessage, id_from: str) -> str | None:
    if id_from == MESSAGE_ID:
        id = message.properties.message_id
    else:
        id = (message.properties.headers or {}).get(id_from[len(HEADER_PREFIX) :])
    if isinstance(id, bytes):
        return id.decode(errors="backslashreplace")
    return None if id is None or id == "" else str(id)


def _as_json(headers: Any) -> str | None:
    return None if not headers else msgspec.json.encode(headers, enc_hook=str).decode()
