"""`lookup`: a user's function finds data for rows' keys in another system while more rows arrive.

A snapshot holds the rows, not the calls: after a restore these rows come first and are requested again. After
rescaling, rows of subtask i go to subtask i modulo the parallelism. A barrier never waits for replies. Design:
docs/design/joins-and-lookups.md.
"""

import copy
import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

import numpy as np
import pyarrow as pa

from barrier_runtime.coordinator.metric_table import (
    LOOKUP_CACHE_HITS,
    LOOKUP_LATE_REPLIES,
    LOOKUP_MISSES,
    LOOKUP_REQUESTS,
    LOOKUP_RETRIES,
    LOOKUP_ROWS,
    LOOKUP_TIMEOUTS,
)
from barrier_runtime.data.elements import WATERMARK_MIN, Batch
from barrier_runtime.data.keys import check_key_type
from barrier_runtime.data.row_class import RowClass, row_class
from barrier_runtime.data.rows import RowWriter, preview, values_of
from barrier_runtime.data.schemas import Duration, SchemaLike, as_schema, milliseconds, require_columns
from barrier_runtime.operators.base import Capture, Emit, Operator, OperatorContext
from barrier_runtime.operators.joins.broadcast import enriched_schema
from barrier_runtime.operators.lookups.book import AT_ONCE, Book, BookSettings, Counts, Effects, Failed
from barrier_runtime.operators.lookups.calls import (
    Calls,
    CoroutineCalls,
    PricedReply,
    ThreadCalls,
    is_coroutine_function,
)
from barrier_runtime.operators.lookups.held_rows import HELD_VALUE, HeldRows, decode_batches, encode_held
from barrier_runtime.operators.lookups.replies import Cache, ReplyReader, keys_of
from barrier_runtime.operators.outputs.failures import Failures
from barrier_runtime.operators.outputs.side_outputs import OnError, send
from barrier_runtime.operators.rate_limit import CallLimits, RateLimit, RateLimits, rate_limits
from barrier_runtime.operators.retry import Retry
from barrier_runtime.operators.token_bucket import check_rate
from barrier_runtime.operators.uncopyable import own_copy
from barrier_runtime.operators.user_code import function_name, said, user_error
from barrier_runtime.state.errors import BarrierRuntimeError, InvalidJob, Unavailable

HowMissing = Literal["left", "inner", "side"]
MISSES = "misses"


@dataclass(frozen=True)
class LookupSettings:
    """`schema`: the added columns. `how`: treatment of rows without data for their key.
    `rows`: class of replies.
    """

    on: tuple[str, ...]
    schema: pa.Schema
    book: BookSettings
    how: HowMissing = "left"
    on_error: OnError = "fail"
    rows: RowClass | None = None


class LookupOperator(Operator):
    """`function`: a function of a list of keys, or a class or object with `fetch_many(self, keys)`."""

    holds_watermarks = True
    takes_rows_before_barriers = True

    def __init__(self, name: str, function: Any, settings: LookupSettings) -> None:
        self._name = name
        self._function = function
        self._settings = settings
        self._where = f"lookup {name!r}"
        self._said = function_name(function)
        self._calls: Calls | None = None
        self._book = Book(settings.book)
        self._held = HeldRows()
        self._counts = Counts()
        self._inbox: deque[tuple[int, PricedReply | None, Exception | None]] = deque()
        self._woken = False
        self._timers: list[float] = []
        self._input: pa.Schema | None = None
        self._by_row = False
        self._failures = None if settings.on_error == "fail" else Failures(settings.on_error, name, self._said)

    def open(self, context: OperatorContext) -> None:
        self._context = context
        self._book.share_limits(self._name, context.subtask, context.parallelism)
        if self._failures is not None:
            self._failures.opened(context, later=True)
        self._writer = RowWriter(f"{self._said} of {self._where}", self._settings.schema, "correct it, or schema=")
        self._nothing = dict.fromkeys(self._settings.schema.names)
        self._calls = self._connect()
        own = [
            snapshot
            for snapshot in sorted(context.restored, key=lambda each: each.subtask)
            if snapshot.subtask % context.parallelism == context.subtask and HELD_VALUE in snapshot.values
        ]
        for snapshot in own:
            where = f"{self._where}, state of subtask {snapshot.subtask}"
            for batch in decode_batches(snapshot.values[HELD_VALUE], where):
                # rows of another subtask have another event time
                self._take_in_time(batch if len(own) == 1 and self.is_followed else batch.reaching(None))

    def _connect(self) -> Calls:
        target = self._function
        is_class, has_method = isinstance(target, type), hasattr(target, "fetch_many")
        try:
            if is_class:
                target = target()
            elif has_method:
                target = own_copy(target, self._where)
            fetch = target.fetch_many if has_method else target
            where = f"{self._said} of {self._where}"
            results = ReplyReader(self._settings.on, where, self._writer, self._settings.rows).results
            limits = self._settings.book.limits
            spent = CallLimits(limits, self._name, self._context.subtask).spent

            def read(keys: Sequence[Any], reply: Any) -> PricedReply:
                return PricedReply(deque(results(keys, reply)), spent(reply) if limits else None)

            owner = target if has_method else None
            if is_coroutine_function(fetch):
                return CoroutineCalls(f"barrier-lookup-{self._name}", owner, fetch, read, self._replied)
            threads = [self._context.new_executor() for _ in range(self._settings.book.most_requests)]
            return ThreadCalls(owner, fetch, read, self._replied, threads)
        except Exception as error:
            retry = self._settings.book.retry
            if isinstance(error, OSError) or (retry is not None and isinstance(error, retry.on)):
                raise Unavailable(
                    f"{self._where}: open() of {self._said[:-2]} raised {type(error).__name__}: {said(error)}: is "
                    "its server running? It is tried again"
                ) from error
            raise user_error(error, function=self._said, operator=self._name, subtask=self._context.subtask) from error

    def close(self) -> None:
        calls, self._calls = self._calls, None
        if calls is not None:
            calls.close()

    @property
    def has_room(self) -> bool:
        return self._book.has_room

    @property
    def unfinished(self) -> bool:
        return self._book.held > 0

    def own_watermark(self) -> int | None:
        reached = self._book.reached
        return None if reached == WATERMARK_MIN else reached

    def process(self, batch: Batch, emit: Emit, port: int = 0) -> None:
        self._take_in_time(batch if self.is_followed else batch.reaching(None))
        self._advance(emit)

    def on_watermark(self, watermark_ms: int, emit: Emit) -> None:
        self._book.watermark(watermark_ms)

    def on_wall_clock(self, emit: Emit, last: bool = False) -> bool:
        self._woken = False
        before, heard = self._book.finished, bool(self._inbox)
        now_s = self._context.now_s()
        while self._inbox and self._book.finished - before < AT_ONCE:
            request, answer, error = self._inbox.popleft()
            if error is None:
                assert answer is not None
                self._book.replied(request, answer.results, now_s, answer.spent)
            elif isinstance(error, BarrierRuntimeError | MemoryError):
                raise error
            else:
                self._book.failed(request, error, now_s)
        if heard or self.unfinished:
            self._advance(emit)
        if self._inbox or self._book.more:  # handled in parts, so that barriers pass between them
            self._context.wake()
        return self._book.finished > before

    def snapshot(self, checkpoint: int) -> Capture:
        if not self._book.held:
            return Capture()
        remaining = self._held.remaining()
        return Capture(blocking=lambda: {HELD_VALUE: encode_held(remaining)})

    def _take_in_time(self, batch: Batch) -> None:
        for moment in batch.moments():
            reached_ms = None if moment.reached is None else int(moment.reached[0])
            if reached_ms is not None:
                self._by_row = True
                self._book.watermark(reached_ms)
            self._take(moment.rows, moment.emit_ns, reached_ms)

    def _take(self, rows: pa.RecordBatch, emit_ns: int, reached_ms: int | None) -> None:
        if self._input is None or (rows.schema is not self._input and not rows.schema.equals(self._input)):
            self._bind(rows.schema)
        self._held.add(rows, emit_ns, reached_ms)
        self._book.add(keys_of(rows, self._settings.on, values_of))

    def _bind(self, schema: pa.Schema) -> None:
        require_columns(schema, self._settings.on, self._where)
        for column in self._settings.on:
            check_key_type(schema.field(column).type, column, self._where)
        self._output = enriched_schema(schema, self._settings.schema, self._settings.on, self._where)
        self._input = schema

    def _advance(self, emit: Emit) -> None:
        calls, now_s = self._calls, self._context.now_s()
        assert calls is not None, f"{self._where} is closed"
        effects = self._book.advance(now_s)
        for request in effects.give_up:
            calls.give_up(request)
        if effects.send:
            calls.send(effects.send)
        self._emit(effects, emit)
        self._count()
        due_s = self._book.next_due_s()
        timers = self._timers
        while timers and timers[0] <= now_s:
            heapq.heappop(timers)
        if due_s is not None and (not timers or due_s < timers[0]):
            heapq.heappush(timers, due_s)
            self._context.call_later(max(0.0, due_s - now_s), self._context.wake)

    def _replied(self, request: int, answer: PricedReply | None, error: Exception | None) -> None:
        """Called on any thread."""
        self._inbox.append((request, answer, error))
        if not self._woken:  # `on_wall_clock` resets the flag before it reads the inbox
            self._woken = True
            self._context.wake_from_thread()

    def _count(self) -> None:
        now, before, metrics = self._book.counts, self._counts, self._context.metrics
        if now != before:
            metrics.count(LOOKUP_REQUESTS, now.requests - before.requests)
            metrics.count(LOOKUP_CACHE_HITS, now.cache_hits - before.cache_hits)
            metrics.count(LOOKUP_MISSES, now.misses - before.misses)
            metrics.count(LOOKUP_TIMEOUTS, now.timeouts - before.timeouts)
            metrics.count(LOOKUP_RETRIES, now.retries - before.retries)
            metrics.count(LOOKUP_LATE_REPLIES, now.late - before.late)
            self._counts = copy.copy(now)
        metrics.gauge(LOOKUP_ROWS, self._book.held)

    def _emit(self, effects: Effects, emit: Emit) -> None:
        told_ms = None if not effects.finished or self._by_row else effects.finished[0][0]
        for reached_ms, finished in effects.finished:
            finished.sort(key=_number)
            rows, emit_ns = self._held.take([number for number, _ in finished])
            results = [result for _, result in finished]
            reached = None if reached_ms == told_ms else reached_ms
            self._emit_rows(rows, results, emit_ns, reached, emit)

    def _emit_rows(
        self, rows: pa.RecordBatch, results: list[Any], emit_ns: int, reached: int | None, emit: Emit
    ) -> None:
        failed = [at for at, result in enumerate(results) if type(result) is Failed]
        if failed:
            rows, results = self._without_failed(rows, results, failed, emit_ns, reached, emit)
        if None in results:
            if self._settings.how == "left":
                results = [self._nothing if result is None else result for result in results]
            else:
                rows, results = self._without_misses(rows, results, emit_ns, reached, emit)
        if results:
            found = self._writer.batch(results)
            columns = [*rows.columns, *found.columns]
            emit(_batch(pa.RecordBatch.from_arrays(columns, schema=self._output), emit_ns, reached))

    def _without_misses(
        self, rows: pa.RecordBatch, results: list[Any], emit_ns: int, reached: int | None, emit: Emit
    ) -> tuple[pa.RecordBatch, list[Any]]:
        found = pa.array([result is not None for result in results])
        if self._settings.how == "side":
            missed = rows.filter(pa.array([result is None for result in results]))
            send(emit, MISSES, _batch(missed, emit_ns, reached), self._context.metrics)
        return rows.filter(found), [result for result in results if result is not None]

    def _without_failed(
        self,
        rows: pa.RecordBatch,
        results: list[Any],
        failed: Sequence[int],
        emit_ns: int,
        reached: int | None,
        emit: Emit,
    ) -> tuple[pa.RecordBatch, list[Any]]:
        keys = keys_of(rows, self._settings.on, values_of)
        failures = self._failures
        if failures is None:
            self._fail(results[failed[0]], keys[failed[0]], rows, failed[0])
        failures.begin(Batch(rows, emit_ns))
        for at in failed:
            failures.add(results[at].error, at, reached, keys[at])
        failures.flush(emit, emit_ns)
        kept = [type(result) is not Failed for result in results]
        return rows.filter(pa.array(kept)), [result for result in results if type(result) is not Failed]

    def _fail(self, failed: Failed, key: Any, rows: pa.RecordBatch, at: int) -> NoReturn:
        error, attempts = failed.error, failed.attempts
        if failed.is_transient:
            times = "once" if attempts == 1 else f"{attempts} times"
            raise Unavailable(
                f"{self._where}, subtask {self._context.subtask}: {self._said} failed {times}, the last time with "
                f"{type(error).__name__}: {said(error)}\n  key: {key!r}\n  record: {preview(rows, at)}\n"
                "  Is the other system running? The job goes on as restart= says; pass retry= to try more often, or "
                "on_error= to go on without the row"
            ) from error
        raise user_error(
            error,
            function=self._said,
            operator=self._name,
            subtask=self._context.subtask,
            key=key,
            batch=rows,
            row=at,
        ) from error


def _number(finished: tuple[int, Any]) -> int:
    return finished[0]


def _batch(rows: pa.RecordBatch, emit_ns: int, reached: int | None) -> Batch:
    """`reached`: event time before the rows; None: carried by watermarks."""
    return Batch(rows, emit_ns, None if reached is None else np.full(rows.num_rows, reached, np.int64))


# Checked arguments of `Stream.lookup`: the settings of the operator.

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
    rate_limit: RateLimits,
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
    limits = (() if rate is None else (RateLimit(rate),)) + rate_limits(rate_limit, where)
    book = BookSettings(capacity, max_batch, max_requests, *seconds, ordered, retry, cache, limits)
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
