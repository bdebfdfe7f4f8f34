"""Checked arguments of `Stream.lookup`: the settings of the operator."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from barrier_runtime.data.keys import check_key_type
from barrier_runtime.data.row_class import row_class
from barrier_runtime.data.schemas import Duration, SchemaLike, as_schema, milliseconds, require_columns
from barrier_runtime.operators.lookups.book import BookSettings
from barrier_runtime.operators.lookups.calls import is_coroutine_function
from barrier_runtime.operators.lookups.operator import HowMissing, LookupSettings
from barrier_runtime.operators.lookups.replies import Cache
from barrier_runtime.operators.outputs.side_outputs import OnError
from barrier_runtime.operators.retry import Retry
from barrier_runtime.operators.token_bucket import check_rate
from barrier_runtime.state.errors import InvalidJob

_THREADS = 16
_LONGEST_LINGER_MS = 60_000


def lookup_settings(
    where: str,
    fetch_many: Any,
    input: pa.Schema | None,
    *,
    key: str | Sequence[str],
    schema: SchemaLike,
    capacity: int,
    timeout: Duration,
    ordered: bool,
    how: HowMissing,
    retry: Retry | None,
    cache: Cache | None,
    on_error: OnError,
    max_batch: int,
    max_requests: int | None,
    max_requests_per_second: float | None,
    linger: Duration,
) -> LookupSettings:
    function = _function(fetch_many, where)
    on = (key,) if isinstance(key, str) else tuple(key)
    if not on or not all(isinstance(column, str) for column in on):
        raise InvalidJob(f"{where}: key={key!r}: name the column that is looked up, or several")
    require_columns(input, on, where)
    if input is not None:
        for column in on:
            check_key_type(input.field(column).type, column, where)
    added = as_schema(schema, where)
    added = pa.schema([field.with_nullable(True) for field in added if field.name not in on])
    if not added.names:
        raise InvalidJob(f"{where}: schema= has the key alone: name the columns that the lookup adds")
    timeout_ms = milliseconds(timeout, f"timeout of {where}")
    if not timeout_ms:
        raise InvalidJob(f"{where}: timeout is 0, and no reply is as fast: use a longer time")
    linger_ms = milliseconds(linger, f"linger of {where}")
    if linger_ms > _LONGEST_LINGER_MS:
        raise InvalidJob(f"{where}: linger={linger}: keys would wait longer than a minute for others: use less")
    if how not in ("left", "inner", "side"):
        raise InvalidJob(f'{where}: how={how!r}: use "left", "inner" or "side"')
    if not isinstance(ordered, bool):
        raise InvalidJob(f"{where}: ordered={ordered!r}: use True or False")
    if isinstance(on_error, Retry):
        raise InvalidJob(f"{where}: on_error={on_error!r}: pass it as retry=, so that other rows go on meanwhile")
    if retry is not None and not isinstance(retry, Retry):
        raise InvalidJob(f"{where}: retry={retry!r}: give a Retry, such as Retry(3)")
    if cache is not None and not isinstance(cache, Cache):
        raise InvalidJob(f"{where}: cache={cache!r}: give a Cache, such as Cache(100_000)")
    if max_requests is None:
        max_requests = capacity if is_coroutine_function(function) else _THREADS
    for what, number in (("capacity", capacity), ("max_batch", max_batch), ("max_requests", max_requests)):
        if type(number) is not int or number < 1:
            raise InvalidJob(f"{where}: {what}={number!r}: use a whole number, 1 or more")
    rate = check_rate(max_requests_per_second, f"{where}: max_requests_per_second")
    seconds = (linger_ms / 1000, timeout_ms / 1000)
    book = BookSettings(capacity, max_batch, max_requests, *seconds, ordered, retry, cache, rate)
    return LookupSettings(on, added, book, how, on_error, row_class(schema, where))


def _function(fetch_many: Any, where: str) -> Any:
    function = getattr(fetch_many, "fetch_many", None)
    if isinstance(fetch_many, type) and not callable(function):
        raise InvalidJob(
            f"{where}: class {fetch_many.__name__} has no method fetch_many(self, keys): add it; open(self) and "
            "close(self) are called too, if there are any"
        )
    if not callable(function or fetch_many):
        raise InvalidJob(f"{where}: {fetch_many!r} cannot be called: pass a function of a list of keys")
    return function or fetch_many
