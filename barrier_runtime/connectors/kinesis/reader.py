"""Reader of a shard, and the thread that fetches a bounded number of bytes ahead and wakes the slot.

| state    | does                                    | goes on                                                      |
|----------|-----------------------------------------|--------------------------------------------------------------|
| locating | asks for a place after the last record  | fetching                                                     |
| fetching | asks for records                        | full; nothing is left: resting; the shard's end: ended       |
| full     | waits until less than the limit is held | fetching                                                     |
| resting  | waits for `every`                       | fetching                                                     |
| waiting  | backs off: throttled, or no answer      | previous state; no answer for long: ended, with an error     |
| ended    | the reader takes the held rows          |                                                              |

An expired iterator leads to locating again; nothing is fetched twice. `close` ends every state, after a running
request.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import dropwhile
from time import monotonic_ns
from typing import TypeVar

import msgspec
import pyarrow as pa

from barrier_runtime.connectors.kinesis.client import (
    POSITION,
    IteratorExpired,
    KinesisClient,
    KinesisPosition,
    KinesisRecord,
    KinesisSplit,
    ShardAnswer,
    Throttled,
    shown_time,
)
from barrier_runtime.connectors.source import Polled
from barrier_runtime.state.errors import InvalidJob, Unavailable

HELD_BYTES = 16 << 20  # an answer of up to 10 MB may exceed it
GIVE_UP_S = 60.0  # without an answer; then the job's restart= decides
RETENTION_S = 600.0  # until the retention is asked again
_FIRST_WAIT_S = 0.2
_LONGEST_WAIT_S = 5.0
_SHORTEST_RETENTION_MS = 24 * 3_600_000
_MARGIN_MS = 600_000
_MINUTE_MS = 60_000

T = TypeVar("T")


@dataclass
class ShardRows:
    """`at_ns`: arrival on the monotonic clock. `complete_ms`: of a `KinesisPosition` after all rows."""

    rows: pa.RecordBatch | None
    records: Sequence[KinesisRecord]
    at_ns: int
    complete_ms: int


class ShardFetcher:
    """Fetches a shard. `convert` makes rows in the thread; raises `InvalidJob` for a bad record."""

    def __init__(
        self,
        client: KinesisClient,
        split: KinesisSplit,
        begin: KinesisPosition,
        convert: Callable[[str, Sequence[KinesisRecord]], pa.RecordBatch],
        every_s: float,
        wake: Callable[[], None],
    ) -> None:
        self._client = client
        self._split = split
        self._begin = begin
        self._convert = convert
        self._every_s = every_s
        self._wake = wake
        self._changed = threading.Condition()
        self._held: deque[ShardRows] = deque()
        self._held_bytes = 0
        self._error: BaseException | None = None
        self._ended = False
        self._closed = False
        self._retention: tuple[float, int] | None = None  # time of the answer, and the retention
        self._left_horizon = False
        threading.Thread(target=self._run, name=f"kinesis-{split.shard}", daemon=True).start()

    def take(self) -> ShardRows | None:
        with self._changed:
            if self._held:
                chunk = self._held.popleft()
                self._held_bytes -= _size(chunk)
                self._changed.notify_all()
                return chunk
            if self._error is not None:
                raise self._error
            return None

    @property
    def over(self) -> bool:
        with self._changed:
            return self._ended and not self._held and self._error is None

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    # ------------------------------------------------------------ the thread

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            self._check_retained()
            self._fetch()
        except BaseException as raised:  # `take` raises the exception again
            error = raised
        with self._changed:
            self._error = error
            self._ended = True
        self._wake()

    def _check_retained(self) -> None:
        complete_ms = self._begin.complete_ms
        now_ms = time.time_ns() // 1_000_000
        if complete_ms is not None and now_ms - complete_ms >= _SHORTEST_RETENTION_MS:
            self._refuse_older(complete_ms, now_ms)

    def _check_not_overtaken(self, read_to_ms: int) -> None:
        """Kinesis passes over records that expired before they were read, without a word.

        A shard read from its oldest record is checked once its rows were `_MARGIN_MS` younger than the oldest.
        """
        now_ms = time.time_ns() // 1_000_000
        late_ms = now_ms - read_to_ms
        if late_ms < _SHORTEST_RETENTION_MS - _MARGIN_MS:
            self._left_horizon = True
        elif self._left_horizon:
            self._refuse_older(read_to_ms, now_ms)
        elif (retention_ms := self._retention_ms()) is not None:
            self._left_horizon = late_ms < retention_ms - _MARGIN_MS

    def _refuse_older(self, read_to_ms: int, now_ms: int) -> None:
        retention_ms = self._retention_ms()
        if retention_ms is not None and now_ms - read_to_ms > retention_ms:
            raise InvalidJob(
                f"shard {self._split.shard!r} of stream {self._client.stream!r} was read to {shown_time(read_to_ms)}, "
                f"and the stream retains {retention_ms // 3_600_000} hours: records behind that may be gone. Bring "
                "them back by another way, and start without state (restore='none'). If the job was too slow, raise "
                "the stream's retention, or parallelism="
            )

    def _retention_ms(self) -> int | None:
        if self._retention is None or time.monotonic() - self._retention[0] > RETENTION_S:
            found = self._answered(self._client.retention_ms)
            self._retention = None if found is None else (time.monotonic(), found)
        return None if self._retention is None else self._retention[1]

    def _fetch(self) -> None:
        after, iterator = self._begin.after, None
        while not self._closed:
            if iterator is None:
                iterator = self._answered(partial(self._client.iterator, self._split, after))
                if iterator is None:
                    return
            try:
                fetched = self._answered(partial(self._client.records, iterator))
            except IteratorExpired:
                iterator = None
                continue
            if fetched is None:
                return
            records, last = self._wanted(fetched, after)
            read_to_ms = time.time_ns() // 1_000_000 - fetched.behind_ms
            self._hand_over(records, read_to_ms)
            after = records[-1].sequence if records else after
            iterator = fetched.iterator
            if last or iterator is None:
                return
            if not self._may_go_on(rest=fetched.behind_ms == 0):
                return
            self._check_not_overtaken(read_to_ms)

    def _wanted(self, fetched: ShardAnswer, after: str | None) -> tuple[Sequence[KinesisRecord], bool]:
        records, begin, until = fetched.records, self._split.from_ms, self._split.until_ms
        if begin is not None and after is None:  # older releases of boto3 send whole seconds
            records = list(dropwhile(lambda record: record.arrived_ms < begin, records))
        if until is None:
            return records, False
        for index, record in enumerate(records):
            if record.arrived_ms > until:
                return records[:index], True
        return records, fetched.behind_ms == 0

    def _hand_over(self, records: Sequence[KinesisRecord], read_to_ms: int) -> None:
        complete_ms = read_to_ms // _MINUTE_MS * _MINUTE_MS
        rows = self._convert(self._split.shard, records) if records else None
        chunk = ShardRows(rows, records, time.monotonic_ns(), complete_ms)
        with self._changed:
            if self._held and not records and self._held[-1].rows is None:
                self._held[-1] = chunk
            else:
                self._held.append(chunk)
            self._held_bytes += _size(chunk)
        if records:
            self._wake()

    def _may_go_on(self, *, rest: bool) -> bool:
        """Waits for room, and at the newest record also for `every`. Returns False after `close`."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._held_bytes < HELD_BYTES)
            if rest:
                self._changed.wait_for(lambda: self._closed, self._every_s)
            return not self._closed

    def _answered(self, ask: Callable[[], T]) -> T | None:
        """Retries, endlessly if throttled; None after `close`."""
        wait_s, trouble_since = _FIRST_WAIT_S, time.monotonic()
        while True:
            try:
                return ask()
            except Unavailable as error:
                if not isinstance(error, Throttled) and time.monotonic() - trouble_since > GIVE_UP_S:
                    raise
            with self._changed:
                if self._changed.wait_for(lambda: self._closed, wait_s):
                    return None
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)


def _size(chunk: ShardRows) -> int:
    return sum([len(record.data) for record in chunk.records])


_LOOK_NS = 1_000_000_000  # between polls without a wake-up


class KinesisReader:
    def __init__(
        self,
        client: KinesisClient,
        split: KinesisSplit,
        convert: Callable[[str, Sequence[KinesisRecord]], pa.RecordBatch],
        every_s: float,
    ) -> None:
        self._make_fetcher = partial(ShardFetcher, client, split)
        self._convert = convert
        self._every_s = every_s
        self._fetcher: ShardFetcher | None = None
        self._chunk: ShardRows | None = None
        self._taken = 0
        self._position = KinesisPosition()
        self._wake: Callable[[], None] = _nothing
        self._due_ns: int | None = None

    @property
    def finished(self) -> bool:
        return self._chunk is None and self._fetcher is not None and self._fetcher.over

    def wake_by(self, wake: Callable[[], None]) -> None:
        self._wake = wake

    def prepare(self) -> None:
        if self._fetcher is None:
            self._fetcher = self._make_fetcher(self._position, self._convert, self._every_s, self._wake)

    def poll(self, max_rows: int, now_ns: int) -> Polled | None:
        self.prepare()
        assert self._fetcher is not None
        self._due_ns = None
        while self._chunk is None or self._chunk.rows is None:
            self._chunk = self._fetcher.take()
            self._taken = 0
            if self._chunk is None:
                self._due_ns = now_ns + _LOOK_NS
                return None
            if self._chunk.rows is None:
                self._position = msgspec.structs.replace(self._position, complete_ms=self._chunk.complete_ms)
        chunk = self._chunk
        assert chunk.rows is not None
        rows = chunk.rows.slice(self._taken, max_rows)
        self._taken += rows.num_rows
        after = chunk.records[self._taken - 1].sequence
        if self._taken < chunk.rows.num_rows:
            self._position = msgspec.structs.replace(self._position, after=after)
        else:
            self._position = KinesisPosition(after, chunk.complete_ms)
            self._chunk = None
        return Polled(rows, now_ns - (monotonic_ns() - chunk.at_ns))

    def next_due_ns(self) -> int | None:
        return self._due_ns

    def position(self) -> bytes:
        return msgspec.json.encode(self._position)

    def seek(self, position: bytes) -> None:
        self._position = POSITION.decode(position)

    def close(self) -> None:
        """Does not wait for a running request."""
        if self._fetcher is not None:
            self._fetcher.close()


def _nothing() -> None:
    """Used until `wake_by`."""
