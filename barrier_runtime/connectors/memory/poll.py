"""Source of the rows of a polled function, at most a page ahead."""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import msgspec
import pyarrow as pa

from barrier_runtime.connectors.source import Polled, SourceOf, Split, SplitReader
from barrier_runtime.data.argument_types import kinds_checked
from barrier_runtime.data.row_class import AnyRow, RowClass, row_class
from barrier_runtime.data.rows import Row, RowWriter, cut
from barrier_runtime.data.schemas import Duration, Rows, SchemaOf, as_schema, milliseconds
from barrier_runtime.operators.rate_limit import CallLimits, RateLimit, RateLimits, rate_limits
from barrier_runtime.operators.retry import Retry
from barrier_runtime.operators.user_code import function_name, user_error
from barrier_runtime.state.errors import BarrierRuntimeError, InvalidJob

Fetch = Callable[[Any], tuple[Iterable[AnyRow], Any] | None]

log = logging.getLogger("barrier_runtime.sources")
_LOOK_NS = 1_000_000_000  # between polls without a wake-up
_REMEDY = (
    "\n  Fix the function; or, if the error passes by itself, let retry=Retry(5, backoff=1) call the function again "
    "while the job goes on. Then start the job again."
)


class _Position(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    cursor: Any
    taken: int  # rows of the cursor's page


_POSITION = msgspec.json.Decoder(_Position)
_CURSOR = msgspec.json.Decoder()


@kinds_checked
@dataclass(frozen=True)
class PollSource(SourceOf[Rows]):
    """Rows (dicts) of `fetch(cursor)`, which is called every `every`.

    `fetch` returns `(rows, next_cursor)`, or None at the end. The first cursor is None, each further cursor is the
    `next_cursor` of the last call. A cursor is JSON, because checkpoints contain it: a number, text, or lists and dicts
    of these (keys: text).

    After a failure `fetch` gets the cursor of the current page again, and rows already emitted are skipped, so the same
    cursor must return the same rows first; else set `replayable=False`, and the job cannot be exactly-once.

    `fetch` runs in a thread, in a single subtask, and may wait. `retry`: exceptions after which `fetch` is called again
    with the same cursor. Any other exception, and the last exception, fails the job; `Unavailable` is retried under
    `restart=`. `rate_limit`: for calls that cost tokens; `reply_cost` gets `(rows, next_cursor)`.
    """

    fetch: Fetch
    _: KW_ONLY
    every: Duration
    schema: SchemaOf[Rows]
    replayable: bool = True
    retry: Retry | None = None
    rate_limit: RateLimits = None

    def named(self, name: str) -> "PolledRows":
        """Checks the settings; calls nothing. Raises `InvalidJob`."""
        where = f"source {name!r}"
        every_ms = milliseconds(self.every, f"every of {where}")
        if self.retry is not None and not isinstance(self.retry, Retry):
            raise InvalidJob(f"{where}: retry={self.retry!r}: give a Retry, such as Retry(3)")
        return PolledRows(
            name, self.fetch, every_ms, as_schema(self.schema, where), self.replayable, self.retry,
            row_class(self.schema, where), rate_limits(self.rate_limit, where),
        )  # fmt: skip


@dataclass(eq=False)
class PolledRows:
    positions_in = "rows of a function that is polled"
    pauses = True

    _name: str
    _fetch: Fetch
    _every_ms: int
    schema: pa.Schema
    exactly_once: bool
    _retry: Retry | None = None
    _rows: RowClass | None = None
    _limits: tuple[RateLimit, ...] = ()

    def __repr__(self) -> str:
        limits = "".join(f", at most {limit}" for limit in self._limits)
        return f"poll {function_name(self._fetch)}, every {self._every_ms / 1000:g} s{limits}"

    def splits(self, parallelism: int) -> Sequence[Split]:
        return [Split("all")]

    def reader(self, split: Split) -> SplitReader:
        return PollReader(
            self._name, self._fetch, self._every_ms / 1000, self._rows or self.schema, self._retry, self._limits
        )


@dataclass(frozen=True)
class _Page:
    rows: pa.RecordBatch | None
    cursor: Any
    next_cursor: Any


class PollReader:
    def __init__(
        self,
        name: str,
        fetch: Fetch,
        every_s: float,
        schema: pa.Schema | RowClass,
        retry: Retry | None = None,
        limits: Sequence[RateLimit] = (),
    ) -> None:
        self._retry = retry
        self._limits = CallLimits(limits, name)  # one subtask reads the only split
        self._name = name
        self._fetch = fetch
        self._every_s = every_s
        self._writer = RowWriter(f"{function_name(fetch)} of source {name!r}", schema)
        self._changed = threading.Condition()
        self._waiting: _Page | None = None
        self._ended = False
        self._closed = False
        self._error: BaseException | None = None
        self._wake: Callable[[], None] = _nothing
        self._thread: threading.Thread | None = None
        self._page: _Page | None = None
        self._place = _Position(None, 0)
        self._skip = 0  # of the first page, emitted before a restore
        self._due_ns: int | None = None

    @property
    def finished(self) -> bool:
        with self._changed:
            return self._page is None and self._waiting is None and self._ended and self._error is None

    def wake_by(self, wake: Callable[[], None]) -> None:
        self._wake = wake

    def poll(self, max_rows: int, now_ns: int) -> Polled | None:
        self._start()
        self._due_ns = None
        while self._page is None:
            page = self._take()
            if page is None:
                self._due_ns = now_ns + _LOOK_NS
                return None
            self._place = _Position(page.cursor, self._skip)
            self._skip = 0
            self._page = page
            self._leave_if_over()
        assert self._page.rows is not None
        rows = self._page.rows.slice(self._place.taken, max_rows)
        self._place = _Position(self._place.cursor, self._place.taken + rows.num_rows)
        self._leave_if_over()
        return Polled(rows, now_ns)

    def next_due_ns(self) -> int | None:
        return self._due_ns

    def position(self) -> bytes:
        return msgspec.json.encode(self._place)

    def seek(self, position: bytes) -> None:
        self._place = _POSITION.decode(position)
        self._skip = self._place.taken

    def close(self) -> None:
        """Does not wait for a waiting function."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _leave_if_over(self) -> None:
        page = self._page
        assert page is not None
        if page.rows is None or self._place.taken >= page.rows.num_rows:
            self._place = _Position(page.next_cursor, 0)
            self._page = None

    def _take(self) -> _Page | None:
        with self._changed:
            page, self._waiting = self._waiting, None
            if page is not None:
                self._changed.notify_all()
            elif self._error is not None:
                raise self._error
            return page

    # ------------------------------------------------------------ the thread

    def _start(self) -> None:
        if self._thread is None:
            begin = self._place.cursor
            self._thread = threading.Thread(target=self._run, args=(begin,), name=f"poll-{self._name}", daemon=True)
            self._thread.start()

    def _run(self, cursor: Any) -> None:
        error: BaseException | None = None
        try:
            self._fetch_pages(cursor)
        except BaseException as raised:  # `poll` raises the exception again
            error = raised
        with self._changed:
            self._error = error
            self._ended = True
        self._wake()

    def _fetch_pages(self, cursor: Any) -> None:
        while True:
            page = self._next_page(cursor)
            if page is None:
                return
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._waiting is None)
                if self._closed:
                    return
                self._waiting = page
            self._wake()
            if self._waited(self._every_s):
                return
            cursor = page.next_cursor

    def _next_page(self, cursor: Any) -> _Page | None:
        try:
            costs = self._limits.costs(cursor)
            given = self._fetched(cursor, costs)
            if given is None:
                return None
            if not isinstance(given, tuple) or len(given) != 2:
                raise TypeError(f"it gave {type(given).__name__}: return (rows, next cursor), or None at the end")
            rows: list[Row] = []
            self._writer.take(given[0], rows)  # copies: a function may yield the same dict
            self._limits.settle(costs, self._limits.spent((rows, given[1])))
            kept = self._kept(given[1])
        except BarrierRuntimeError:
            raise
        except Exception as error:
            function = f"{function_name(self._fetch)} (cursor {cursor!r})"
            raise user_error(error, function=function, operator=self._name, subtask=0, remedy=_REMEDY) from error
        return _Page(self._writer.batch(rows) if rows else None, cursor, kept)

    def _kept(self, cursor: Any) -> Any:
        """Returns the cursor that a restored job gets. Raises `InvalidJob` unless it equals `cursor`."""
        try:
            kept = _CURSOR.decode(msgspec.json.encode(cursor))
        except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
            raise self._unkept(cursor, f"JSON cannot hold it ({error})") from error
        if kept != cursor:
            raise self._unkept(cursor, f"a restarted job would get {cut(repr(kept))}, of type {type(kept).__name__}")
        return kept

    def _unkept(self, cursor: Any, reason: str) -> InvalidJob:
        return InvalidJob(
            f"{function_name(self._fetch)} of source {self._name!r} returned the next cursor {cut(repr(cursor))}, of "
            f"type {type(cursor).__name__}: checkpoints store cursors as JSON, and {reason}. Return a number or text "
            "(or lists and dicts of these), such as int(cursor) or moment.isoformat(), and convert it at the next call"
        )

    def _fetched(self, cursor: Any, costs: Sequence[int]) -> tuple[Iterable[AnyRow], Any] | None:
        failed = 0
        while True:
            while not self._limits.ready(now_ns := time.monotonic_ns(), costs):
                if self._waited(min((self._limits.due_ns(costs) - now_ns) / 1e9, threading.TIMEOUT_MAX)):
                    return None
            self._limits.take(costs)
            try:
                return self._fetch(cursor)
            except Exception as error:
                failed += 1
                if self._retry is None or not self._retry.wants(error, failed):
                    raise
                log.warning(
                    "source %r: call %d with cursor %r raised %s: %s; calling again",
                    *(self._name, failed, cursor, type(error).__name__, error),
                )
            if self._waited(self._retry.pause_s(failed)):
                return None

    def _waited(self, seconds: float) -> bool:
        """Returns whether the reader was closed meanwhile."""
        with self._changed:
            return self._changed.wait_for(lambda: self._closed, seconds)


def _nothing() -> None:
    """Used until `wake_by`."""
