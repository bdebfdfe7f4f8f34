"""Replies of a user's `fetch_many`, as one result per key: a row (dict), None without data, or an exception.
`KeptReplies` caches replies, misses included; the least recently used goes first."""

import datetime
import inspect
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from barrier_runtime.data.argument_types import kinds_checked
from barrier_runtime.data.row_class import RowClass, UnfitField, is_instance
from barrier_runtime.data.rows import RowWriter, cut, refuse_shared
from barrier_runtime.data.schemas import Duration, as_duration
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.texts import counted

_FOR_EVER = float("inf")


@kinds_checked
@dataclass(frozen=True)
class Cache:
    """Keeps the replies for up to `size` keys per subtask, for `ttl` each (None: until there is no room).

    >>> Cache(100_000, ttl=timedelta(minutes=1))

    Raises `InvalidJob` for a size below 1 or a `ttl` that is not a positive duration.
    """

    size: int
    ttl: Duration | None = None

    def __post_init__(self) -> None:
        if type(self.size) is not int or self.size < 1:
            raise InvalidJob(f"Cache({self.size!r}): give the number of keys to keep, 1 or more")
        if self.ttl is not None:
            ttl = as_duration(self.ttl, "ttl of a Cache")
            if ttl <= datetime.timedelta():
                raise InvalidJob(f"Cache ttl={ttl}: give a positive timedelta, as in ttl=timedelta(minutes=1), or None")
            object.__setattr__(self, "ttl", ttl)


class KeptReplies:
    __slots__ = ("_entries", "_size", "_ttl_s")

    def __init__(self, cache: Cache) -> None:
        self._size = cache.size
        self._ttl_s = _FOR_EVER if cache.ttl is None else as_duration(cache.ttl, "ttl").total_seconds()
        self._entries: dict[Hashable, tuple[float, Any]] = {}  # expiry time, reply; most recently used last

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Hashable, now_s: float, default: Any) -> Any:
        entry = self._entries.pop(key, None)
        if entry is None or entry[0] <= now_s:
            return default
        self._entries[key] = entry
        return entry[1]

    def put(self, key: Hashable, reply: Any, now_s: float) -> None:
        entries = self._entries
        entries.pop(key, None)
        entries[key] = now_s + self._ttl_s, reply
        if len(entries) > self._size:
            del entries[next(iter(entries))]


class ReplyReader:
    """Converts replies to results. `rows`: class whose instances are replies, beside dicts."""

    def __init__(self, on: Sequence[str], where: str, writer: RowWriter, rows: RowClass | None = None) -> None:
        self._on = tuple(on)
        self._where = where
        self._writer = writer
        self._rows = rows

    def results(self, keys: Sequence[Hashable], reply: Any) -> list[Any]:
        """Returns a result for each of `keys`, in order. Raises `InvalidJob` for a reply of another shape."""
        if isinstance(reply, list | tuple | Mapping):
            refuse_shared(reply, self._where)
        results: list[Any] = []
        self._writer.take(iter(self._given(keys, reply)), results)
        return results

    def _given(self, keys: Sequence[Hashable], reply: Any) -> list[Any]:
        if isinstance(reply, pa.Table | pa.RecordBatch):
            return self._of_table(keys, reply)
        if isinstance(reply, Mapping):
            return self._of_mapping(keys, reply)
        if isinstance(reply, list | tuple):
            if len(reply) != len(keys):
                raise InvalidJob(
                    f"{self._where} gave a list of {len(reply)} for {counted(len(keys), 'key')}: return one row for "
                    "each key, in their order, with None where there is nothing; or a dict by key"
                )
            return list(reply) if self._are_plain(reply) else list(map(self._result, keys, reply))
        if inspect.isawaitable(reply):
            raise InvalidJob(f"{self._where} gave something to be awaited: make it an `async def`")
        raise InvalidJob(
            f"{self._where} gave {type(reply).__name__}: return a list with a row (dict) or None for each key, a dict "
            "of key to row, or a pyarrow.Table with the key's column"
        )

    def _of_mapping(self, keys: Sequence[Hashable], reply: Mapping[Any, Any]) -> list[Any]:
        given = list(map(reply.get, keys))
        results = given if self._are_plain(given) else list(map(self._result, keys, given))
        if reply and not any(key in reply for key in keys):
            raise InvalidJob(
                f"{self._where} was asked for keys such as {cut(repr(keys[0]))} and gave a dict by others, such as "
                f"{cut(repr(next(iter(reply))))}: return a dict by the keys that were asked for"
            )
        return results

    def _are_plain(self, given: Sequence[Any]) -> bool:
        if not {dict, type(None)}.issuperset(map(type, given)):
            return False
        return not any(column in each for column in self._on for each in given if each)

    def _of_table(self, keys: Sequence[Hashable], reply: "pa.Table | pa.RecordBatch") -> list[Any]:
        for column in self._on:
            if column not in reply.schema.names:
                raise InvalidJob(
                    f"{self._where} gave a table without the key's column {column!r}: it has "
                    f"{', '.join(reply.schema.names)}; rows are found by it"
                )
        by_key: dict[Any, Any] = {}
        columns = [reply.column(column).to_pylist() for column in self._on]
        of_rows = columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))
        for key, row in zip(of_rows, reply.select(_others(reply.schema.names, self._on)).to_pylist(), strict=True):
            if key in by_key:
                raise InvalidJob(
                    f"{self._where} gave two rows of the key {cut(repr(key))}: a row is completed by one, so return one"
                )
            by_key[key] = row
        return [by_key.get(key) for key in keys]

    def _result(self, key: Hashable, given: Any) -> Any:
        if given is None or isinstance(given, Exception):
            return given
        if is_instance(given):
            given = self._record(key, given)
        if not isinstance(given, Mapping):
            raise InvalidJob(
                f"{self._where} gave {cut(repr(given))} for the key {cut(repr(key))}: give a row as a dict of column "
                "to value, or None where there is nothing"
            )
        for column in self._on:
            if column in given:
                return {name: value for name, value in given.items() if name not in self._on}
        return given

    def _record(self, key: Hashable, given: Any) -> dict[str, Any]:
        where = f"{self._where} gave {cut(repr(given))} for the key {cut(repr(key))}"
        if self._rows is None or type(given) is not self._rows.kind:
            raise InvalidJob(f"{where}: pass schema={type(given).__name__}, or return a dict")
        try:
            return self._rows.record(given)
        except UnfitField as error:
            raise InvalidJob(f"{where}: {error}: correct it, or the class") from None


def keys_of(rows: pa.RecordBatch, on: Sequence[str], values_of: Callable[[pa.Array], list[Any]]) -> list[Any]:
    """A key is a value, or a tuple of several columns; None if a part is null."""
    columns = [values_of(rows.column(column)) for column in on]
    if len(columns) == 1:
        return columns[0]
    return [None if None in key else key for key in zip(*columns, strict=True)]


def _others(names: Sequence[str], on: Sequence[str]) -> list[str]:
    return [name for name in names if name not in on]
