"""Rows as values of Redis keys, by idempotent upserts (`sink_bases/upsert`).

A script first compares the job's *fence*: a hash with the fencing token and decision log of the generation that opened
the sink last. The script refuses another token or log in the same atomic step, so a zombie cannot overwrite newer rows.

Within a log the higher token takes the fence. Tokens of different logs cannot be compared, so the fence stores the
newest token of each log, and a generation takes the fence from another log unless the fence has a token of the own log
as new.

A script also ignores writes with numbers up to that of the subtask's last write: an unanswered request may reach Redis
long after newer rows.

Redis must keep acknowledged writes: `appendonly yes`, and `appendfsync always` to survive a power failure. Clusters of
several shards are not supported: fence and rows must change together.
"""

import contextlib
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from barrier_runtime.connectors.job_log import log_id
from barrier_runtime.connectors.sink import SinkContext
from barrier_runtime.connectors.sink_bases.json_values import json_values
from barrier_runtime.connectors.sink_bases.sql.columns import below_microseconds
from barrier_runtime.connectors.sink_bases.upsert import UpsertSink
from barrier_runtime.data.argument_types import kinds_checked
from barrier_runtime.data.rows import each_row, rows_of, values_of
from barrier_runtime.data.schemas import key_columns, no_column
from barrier_runtime.state.errors import Fenced, InvalidJob, ProtocolViolation, Unavailable, missing_extra

_NULL = b"\\N"


def check_key(name: str, kind: pa.DataType) -> str | None:
    """Reason why a column of this type cannot be a key, or None."""
    if pa.types.is_union(kind):
        return f"column {name!r} has values of several types ({kind}), whose texts may be equal: cast it to one type"
    return None


def keys_of(rows: pa.RecordBatch, names: Sequence[str]) -> list[bytes]:
    """Rows with different keys have different Redis keys.

    The key of a single column is the plain value; null is `\\N`, so text that begins with a backslash gets another
    backslash. In a key of several columns, joined by colons, a backslash escapes backslashes and colons.
    """
    columns = [_named_texts(name, rows.column(name)) for name in names]
    if len(columns) == 1:
        return [_alone(text) for text in columns[0]]
    return [b":".join(map(_beside_others, texts)) for texts in zip(*columns, strict=True)]


def exact_rows(rows: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Rows whose times keep all digits and all years."""
    if not any(_has_nanoseconds(field.type) for field in rows.schema):
        with contextlib.suppress(InvalidJob):  # a year that Python's times lack raises before the first row
            return each_row(rows)
    names = rows.schema.names
    columns = [_exact_values(column) for column in rows.columns]
    return (dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True))


def _exact_values(column: pa.Array) -> list[Any]:
    if _has_nanoseconds(column.type):
        if pa.types.is_nested(column.type) or pc.any(below_microseconds(column)).as_py():
            return json_values(column)
        column = _whole_microseconds(column)
    try:
        return values_of(column)
    except InvalidJob:
        return json_values(column)


def text_of(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    return value if isinstance(value, bytes) else json_of(value).strip(b'"')


def json_of(value: Any) -> bytes:
    """NaN and infinities become text."""
    return msgspec.json.encode(_finite(value))


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return value


def _named_texts(name: str, column: pa.Array) -> list[bytes | None]:
    try:
        return _texts(column)
    except InvalidJob as error:
        raise InvalidJob(f"key column {name!r}: {error}") from error


def _texts(column: pa.Array) -> list[bytes | None]:
    if _has_nanoseconds(column.type) and pa.types.is_nested(column.type):
        return [None if value is None else json_of(value) for value in json_values(column)]
    rest: list[int | None] = []
    if _has_nanoseconds(column.type):
        numbers = column.view(pa.int64())
        rest = [None if number is None else number % 1000 for number in numbers.to_pylist()]
        column = _whole_microseconds(column)
    rows = rows_of(pa.RecordBatch.from_arrays([column], ["value"]))
    texts = [None if row["value"] is None else text_of(row["value"]) for row in rows]
    return (
        [text + b"+%dns" % ns if text and ns else text for text, ns in zip(texts, rest, strict=True)] if rest else texts
    )


def _has_nanoseconds(kind: pa.DataType) -> bool:
    if pa.types.is_nested(kind):
        return any(_has_nanoseconds(kind.field(number).type) for number in range(kind.num_fields))
    return getattr(kind, "unit", "") == "ns"


def _whole_microseconds(column: pa.Array) -> pa.Array:
    kind = column.type
    whole = pa.timestamp("us", kind.tz) if pa.types.is_timestamp(kind) else pa.duration("us")
    if pa.types.is_time(kind):
        whole = pa.time64("us")
    numbers = column.view(pa.int64())
    rest = pa.array([None if number is None else number % 1000 for number in numbers.to_pylist()], pa.int64())
    return pc.divide(pc.subtract(numbers, rest), 1000).view(whole)


def _alone(text: bytes | None) -> bytes:
    if text is None:
        return _NULL
    return b"\\" + text if text.startswith(b"\\") else text


def _beside_others(text: bytes | None) -> bytes:
    return _NULL if text is None else text.replace(b"\\", b"\\\\").replace(b":", b"\\:")


_PASSING = re.compile(r"\b(?:OOM|LOADING|BUSY|READONLY|MISCONF|CLUSTERDOWN|MASTERDOWN|NOREPLICAS|TRYAGAIN)\b")

_ROWS_AT_ONCE = 256  # per script, during which Redis serves no other client
_SCRIPTS_AT_ONCE = 16
_ANSWER_S = 10.0

_TAKE = """
local log, token, subtask = ARGV[1], ARGV[2], ARGV[3]
local held = redis.call('HMGET', KEYS[1], 'log', 'token', 'newest of ' .. log)
if held[1] ~= log or held[2] ~= token then
  if held[3] and tonumber(held[3]) >= tonumber(token) then return {log, held[3], false} end
  redis.call('HSET', KEYS[1], 'log', log, 'token', token, 'newest of ' .. log, token)
  redis.call('DEL', KEYS[2])
end
return {log, token, redis.call('HGET', KEYS[2], subtask) or '0'}
"""

_WRITE = """
local log, token, subtask, write = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local held = redis.call('HMGET', KEYS[1], 'log', 'token')
if held[1] ~= log or held[2] ~= token then return {held[1], held[2], false} end
local last = redis.call('HGET', KEYS[2], subtask) or '0'
if tonumber(last) >= tonumber(write) then return {log, token, last} end
redis.call('HSET', KEYS[2], subtask, write)
local at = 5
while at <= #ARGV do
  local key, kind, count = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2])
  at = at + 3
  if kind == 'set' then
    redis.call('SET', key, ARGV[at])
  else
    redis.call('DEL', key)
    if count > 0 then redis.call('HSET', key, unpack(ARGV, at, at + count - 1)) end
  end
  at = at + count
end
return {log, token, write}
"""


@kinds_checked
class RedisUpsertSink(UpsertSink):
    """Writes rows to Redis at `url`: redis://host:port/database, or rediss:// for TLS.

    Credentials: `username`, `password`, the URL, or REDIS_USERNAME and REDIS_PASSWORD in every slot; never shown or
    stored.

    - `key`: a column, or several; the Redis key is `prefix` and their values, joined by colons (`keys_of`).
    - `value`: "hash" (the other columns as fields, without nulls), "json" (the other columns as an object), or a column
      (text or binary; null deletes the key). Floats that are no numbers are NaN, Infinity and -Infinity.
    - `deterministic` or `after_decision`: see `UpsertSink`.
    """

    kind: ClassVar[str] = "redis"
    last_row_wins = True

    def __init__(
        self,
        url: str,
        *,
        key: str | Sequence[str],
        value: str = "hash",
        prefix: str = "",
        username: str | None = None,
        password: str | None = None,
        deterministic: bool = False,
        after_decision: bool = False,
    ) -> None:
        super().__init__(deterministic=deterministic, after_decision=after_decision)
        self.url, in_url = _apart(url)
        self.key = key_columns(key, "RedisUpsertSink: key")
        if not self.key:
            raise InvalidJob("RedisUpsertSink: key= names no column: name at least one")
        self.value = value
        self.prefix = prefix
        self._credentials = (username or in_url[0], password or in_url[1])

    def __repr__(self) -> str:
        return f"RedisUpsertSink({self.url!r}, key={','.join(self.key)}, {self.guarantee})"

    def settings(self) -> dict[str, Any]:
        return {
            "url": self.url,
            "key": list(self.key),
            "value": self.value,
            "prefix": self.prefix,
            "deterministic": self.deterministic,
            "after_decision": self.after_decision,
        }

    def target(self) -> str:
        return f"keys {self.prefix}*"

    def open(self, context: SinkContext) -> None:
        super().open(context)
        self._fence = f"barrier-runtime:{context.job}:{context.sink}:fence"
        self._write_numbers = f"barrier-runtime:{context.job}:{context.sink}:lots"
        self._log = log_id(context)
        self._redis = self._client()
        (self._write_number,) = self._run(_TAKE, [()])

    def check_schema(self, schema: pa.Schema) -> None:
        wanted = [*self.key, *([] if self.value in ("hash", "json") else [self.value])]
        for name in wanted:
            if name not in schema.names:
                raise no_column(name, schema.names, self._where, " for Redis")
        for name in self.key:
            if (wrong := check_key(name, schema.field(name).type)) is not None:
                raise InvalidJob(f"{self._where}: key={name!r} for Redis: {wrong}")

        if self.value == "hash" and not set(schema.names) - set(self.key):
            raise InvalidJob(
                f"{self._where}: the rows have nothing but their key, and Redis has no empty hash: select() a column "
                'beside it, or pass value="json"'
            )

    def upsert(self, rows: pa.RecordBatch) -> None:
        """Runs the scripts in order, each atomically."""
        for start in range(0, rows.num_rows, _ROWS_AT_ONCE * _SCRIPTS_AT_ONCE):
            writes = [
                self._numbered(rows.slice(first, min(_ROWS_AT_ONCE, rows.num_rows - first)))
                for first in range(start, rows.num_rows, _ROWS_AT_ONCE)[:_SCRIPTS_AT_ONCE]
            ]
            first_number = self._write_number - len(writes) + 1
            for number, last in enumerate(self._run(_WRITE, writes), first_number):
                # The client library may repeat all scripts if an answer is lost.
                if not number <= last <= self._write_number:
                    raise ProtocolViolation(
                        f"{self._where}: write {number} comes after write {last} of another instance of this "
                        f"subtask in generation {self._context.token}: file a bug"
                    )

    def _numbered(self, rows: pa.RecordBatch) -> list[bytes | str | int]:
        keyed = zip(keys_of(rows, self.key), exact_rows(rows), strict=True)
        flat = [part for key, row in keyed for part in self._written(self.prefix.encode() + key, row)]
        self._write_number += 1
        return [self._write_number, *flat]

    def close(self) -> None:
        client = getattr(self, "_redis", None)
        if client is not None:
            client.close()

    def _written(self, key: bytes, row: dict[str, Any]) -> list[bytes | str | int]:
        """Returns key, "set" or "hash", number of following parts, value or fields."""
        if self.value not in ("hash", "json"):
            value = row[self.value]
            return [key, "hash", 0] if value is None else [key, "set", 1, text_of(value)]
        others = {name: value for name, value in row.items() if name not in self.key}
        if self.value == "json":
            return [key, "set", 1, json_of(others)]
        fields = [part for name, value in others.items() if value is not None for part in (name, text_of(value))]
        if not fields:
            raise InvalidJob(
                f"{self._where}: the row of key {key!r} has no value but nulls, and Redis has no empty hash, so there "
                'would be no such key: write it with value="json", or filter such rows before the sink'
            )
        return [key, "hash", len(fields), *fields]

    def _run(self, script: str, calls: Sequence[Sequence[bytes | str | int]]) -> list[int]:
        """Returns the number of this subtask's last write after each call. Raises for the first failed call."""
        context = self._context
        keys, who = (self._fence, self._write_numbers), (self._log, context.token, context.subtask)
        with self._trouble():
            together = self._redis.pipeline(transaction=False)
            for arguments in calls:
                together.eval(script, len(keys), *keys, *who, *arguments)
            answers = together.execute()
        return [self._last_write(answer) for answer in answers]

    def _last_write(self, answer: Sequence[bytes | None]) -> int:
        log, token, last = [None if each is None else each.decode() for each in answer]
        if last is not None:
            return int(last)
        if log == self._log:
            raise Fenced(
                f"{self._where}: generation {token} writes to Redis at {self.url} now; generation "
                f"{self._context.token} stops"
            )
        raise Unavailable(
            f"{self._where}: the fence {self._fence} in Redis at {self.url} is "
            f"{'gone' if log is None else 'held by this job with other checkpoints'}: it is taken again at the next "
            "start; is the database emptied, does Redis evict keys, or does another job have these names?"
        )

    def _client(self) -> Any:
        try:
            import redis
        except ImportError as error:
            raise missing_extra("RedisUpsertSink", "redis", error) from None
        import os

        username = self._credentials[0] or os.environ.get("REDIS_USERNAME")
        password = self._credentials[1] or os.environ.get("REDIS_PASSWORD")
        return redis.Redis.from_url(
            self.url, username=username, password=password, socket_timeout=_ANSWER_S, socket_connect_timeout=_ANSWER_S
        )

    @contextmanager
    def _trouble(self) -> Iterator[None]:
        import redis

        what, known = f"{self._where}: Redis at {self.url}", redis.exceptions
        passing = (known.OutOfMemoryError, known.ReadOnlyError, known.ClusterDownError, known.TryAgainError)
        try:
            yield
        except (redis.AuthenticationError, known.AuthorizationError, known.NoPermissionError) as error:
            raise InvalidJob(f"{what} refuses user or password ({error}): set REDIS_PASSWORD in every slot") from error
        except (redis.ConnectionError, redis.TimeoutError) as error:
            raise Unavailable(f"{what} does not answer ({error}): it is tried again; is it up?") from error
        except redis.RedisError as error:
            # In a pipeline the text begins with the command; for errors with a class the server's code is missing.
            if isinstance(error, passing) or _PASSING.search(str(error)):
                raise Unavailable(f"{what} cannot take rows now ({error}): it is tried again") from error
            raise InvalidJob(f"{what} refuses the rows ({error}): correct keys, values or permissions") from error


def _apart(url: str) -> tuple[str, tuple[str | None, str | None]]:
    form = (
        "RedisUpsertSink: the URL is redis://host:port/database or rediss://…, without a query; special characters of "
        "a password are percent-encoded, or it comes from REDIS_PASSWORD"
    )
    try:
        parts = urlsplit(url)
        credentials = tuple(unquote(part) if part else None for part in (parts.username, parts.password))
        _ = parts.port  # raises for an invalid port
    except ValueError:
        raise InvalidJob(form) from None
    if parts.scheme not in ("redis", "rediss") or not parts.hostname or parts.query or parts.fragment:
        raise InvalidJob(form)
    if "@" in parts.path:  # the end of a password with an unescaped slash
        raise InvalidJob(form)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}", (credentials[0], credentials[1])
