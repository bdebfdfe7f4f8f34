"""Answers of a slot to clients and probes: log records, stacks, preview rows, reachable slots.

Made on a worker thread, bounded, with secrets masked. Errors go to the client and never fail the job.
"""

import asyncio
import contextlib
import json
import linecache
import logging
import math
import sys
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FrameType
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from barrier_runtime.coordinator.wire.messages import MOST_ROWS, AskSlot, Peer, Probe, Probed, SlotAnswer
from barrier_runtime.data.elements import Batch
from barrier_runtime.runtime.error_reports import encodable
from barrier_runtime.runtime.network.wiring import staggered
from barrier_runtime.runtime.resources import SlotResources
from barrier_runtime.runtime.subtask import Subtask
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.texts import MASK, MOST_MASKED, masked_text, masked_within, names_a_secret
from barrier_runtime.state.threads import Threads

MOST_RECORDS = 500
MOST_CHARACTERS = 4_000  # of a record; a longer record loses the middle


class OwnLog:
    """Last log records of this process, noted without a handler: a program's `logging` stays unchanged."""

    def __init__(self, most: int = MOST_RECORDS) -> None:
        self._records: deque[str] = deque(maxlen=most)
        self._users = 0
        self._changing = threading.Lock()
        self._noting: Callable[..., None] | None = None
        self._before = logging.Logger.callHandlers

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Notes records meanwhile. The first of several users begins without records of earlier jobs."""
        with self._changing:
            self._users += 1
            if self._users == 1:
                self._records.clear()
                self._begin()
        try:
            yield
        finally:
            with self._changing:
                self._users -= 1
                if not self._users:
                    self._end()

    def _begin(self) -> None:
        if self._noting is not None:
            return
        before = self._before = logging.Logger.callHandlers

        def noting(logger: logging.Logger, record: logging.LogRecord) -> None:
            self._note(record)
            before(logger, record)

        self._noting = noting
        logging.Logger.callHandlers = noting  # type: ignore[method-assign, assignment]

    def _end(self) -> None:
        """Leaves `callHandlers` if the user's program replaced it by a function that calls `noting`."""
        if logging.Logger.callHandlers is self._noting:
            logging.Logger.callHandlers = self._before  # type: ignore[method-assign]
            self._noting = None

    def lines(self) -> list[str]:
        return list(self._records)

    def _note(self, record: logging.LogRecord) -> None:
        if self._users and record.name:  # a record without a name was not made for logging
            self._records.append(_or_error(lambda: _line(record), "(a record"))


def _line(record: logging.LogRecord) -> str:
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(record.created))
    message = _or_error(record.getMessage, "(a message that")
    text = f"{at}.{int(record.msecs):03d}Z {record.levelname} {record.name}: {message}"
    if record.exc_info and record.exc_info[0] is not None:
        exception = record.exc_info
        raised = _or_error(lambda: "".join(traceback.format_exception(*exception)).rstrip(), "(exc_info that")
        text = f"{text}\n{raised}"
    return text if len(text) <= MOST_CHARACTERS else masked_within(text, MOST_CHARACTERS)


def _or_error(text: Callable[[], str], who: str) -> str:
    """Text, or the name of the error: notes never fail a logging call."""
    try:
        return text()
    except Exception as error:
        return f"{who} raises {type(error).__name__})"


OWN_LOG = OwnLog()


MOST_BYTES = 256 * 1024
_MOST_OF_A_REFUSAL = 1_000  # characters


class Answers:
    def __init__(self, resources: SlotResources, send: Callable[[SlotAnswer], None]) -> None:
        self._res = resources
        self._send = send
        self._loop_thread = threading.get_ident()
        self._previewed = False
        self._under_way: set[asyncio.Task[None]] = set()

    def to(self, order: AskSlot, subtasks: Sequence[Subtask]) -> None:
        task = self._res.loop.create_task(self._answer(order, subtasks))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _answer(self, order: AskSlot, subtasks: Sequence[Subtask]) -> None:
        try:
            if order.subject == "rows":
                lines = await self._rows(order, subtasks)
            else:
                lines = await self._res.workers.run(self._log if order.subject == "log" else self._stacks)
            answer = SlotAnswer(order.number, lines)
        except InvalidJob as error:
            answer = SlotAnswer(order.number, refusal=refusal_of(str(error)))
        except Exception as error:  # of a broken module's source, or of an interpreter that ends
            answer = SlotAnswer(order.number, refusal=refusal_of(f"{type(error).__name__}: {error}"))
        self._send(answer)

    async def _rows(self, order: AskSlot, subtasks: Sequence[Subtask]) -> tuple[str, ...]:
        place = place_of(order.step, subtasks)
        if place is None:
            raise InvalidJob(f"no step {order.step[:100]!r} runs in this slot now: name a step of the graph")
        if self._previewed:
            raise InvalidJob("another preview is under way in this slot: ask again in a moment")
        self._previewed = True
        preview = Preview(*place, order.count, self._res.loop.create_future())
        try:
            await asyncio.wait([preview.full], timeout=LASTS_S)
        finally:
            preview.end()
            self._previewed = False
        lines: tuple[str, ...] = await self._res.workers.run(
            lambda: first_of(rows_as_text(preview.batches, preview.count))
        )
        return lines

    def _log(self) -> tuple[str, ...]:
        newest_first = bounded(reversed(OWN_LOG.lines()))
        return tuple(reversed(newest_first))

    def _stacks(self) -> tuple[str, ...]:
        return bounded(sampled_stacks(self._loop_thread))


def bounded(texts: Iterable[str], most_bytes: int = MOST_BYTES) -> tuple[str, ...]:
    return first_of((masked_within(encodable(text), MOST_MASKED) for text in texts), most_bytes)


def first_of(texts: Iterable[str], most_bytes: int = MOST_BYTES) -> tuple[str, ...]:
    """First texts within `most_bytes`; expects masked secrets."""
    found, left = [], most_bytes
    for text in texts:
        left -= len(text.encode())
        if left < 0:
            break
        found.append(text)
    return tuple(found)


def refusal_of(text: str) -> str:
    return masked_within(encodable(text), _MOST_OF_A_REFUSAL)


# Stacks of all threads; several samples tell waiting from working threads.

SAMPLES = 10
PAUSE_S = 0.02
MOST_FRAMES = 60  # innermost

_Stack: TypeAlias = tuple[tuple[str, int, str], ...]  # file, line, function; outermost first


def sampled_stacks(first: int | None = None, pause: Callable[[float], None] = time.sleep) -> list[str]:
    """A text per distinct stack.

    `first`: id of the thread whose stacks come first. Omits the calling thread. Takes `SAMPLES` times `PAUSE_S`.
    """
    seen: dict[_Stack, Counter[int]] = {}
    for sample in range(SAMPLES):
        if sample:
            pause(PAUSE_S)
        for thread, frame in sys._current_frames().items():
            if thread != threading.get_ident():
                seen.setdefault(_stack(frame), Counter())[thread] += 1
    names = {thread.ident: thread.name for thread in threading.enumerate()}

    def rank(each: tuple[_Stack, Counter[int]]) -> tuple[bool, int]:
        return first not in each[1], -max(each[1].values())

    return [_text(stack, threads, names) for stack, threads in sorted(seen.items(), key=rank)]


def _stack(frame: FrameType | None) -> _Stack:
    found: list[tuple[str, int, str]] = []
    while frame is not None and len(found) < MOST_FRAMES:
        found.append((frame.f_code.co_filename, frame.f_lineno or 0, frame.f_code.co_name))
        frame = frame.f_back
    return tuple(reversed(found))


def _text(stack: _Stack, threads: Counter[int], names: dict[int | None, str]) -> str:
    who = ", ".join(f"{names.get(thread, f'thread {thread}')}: {count}" for thread, count in threads.most_common())
    lines = [f"{who} of {SAMPLES} samples"]
    for file, number, function in stack:
        lines.append(f'  File "{file}", line {number}, in {function}')
        code = linecache.getline(file, number).strip()
        if code:
            lines.append(f"    {code}")
    return "\n".join(lines)


# Preview of rows that a step sends on: few rows, of bounded size, not stored.

LASTS_S = 2.0


class Preview:
    def __init__(self, subtask: Subtask, position: int, count: int, full: "asyncio.Future[None]") -> None:
        self._left = self.count = max(1, min(count, MOST_ROWS))
        self.batches: list[Batch] = []
        self.full = full
        self.end: Callable[[], Any] = subtask.chain.watch(position, self._seen)

    def _seen(self, batch: Batch) -> None:
        if self._left > 0 and batch.count:
            self.batches.append(batch)
            self._left -= batch.count
        if self._left <= 0 and not self.full.done():
            self.full.set_result(None)


def place_of(step: str, subtasks: Sequence[Subtask]) -> tuple[Subtask, int] | None:
    for subtask in subtasks:
        names = [name for name, _ in subtask.chain.operators]
        if subtask.source is not None and subtask.source[0] == step:
            return subtask, 0
        if step in names:
            at = names.index(step)
            ends = at == len(names) - 1 and not subtask.chain.outputs
            return subtask, at if ends else at + 1
    return None


# Rows as JSON for people: secrets masked, long values and wide rows cut.

MOST_OF_A_ROW = 16_000  # characters; further columns are left out
_MOST_CHARACTERS = 300  # of a text
_MOST_MASKED = 1_000  # characters of a text that are masked before the cut
_MOST_BYTES = 4_096  # of a value that is converted as a whole
_MOST_ELEMENTS = 500  # of a list
_NAMES, _VALUES = ("name", "key"), ("value", "val")  # fields of pairs, as of headers or settings


def rows_as_text(batches: Sequence[Batch], count: int) -> Iterator[str]:
    for batch in batches:
        rows = batch.rows.slice(0, count)
        count -= rows.num_rows
        for at in range(rows.num_rows):
            yield json.dumps(_row(rows.slice(at, 1)), ensure_ascii=False)


def _row(rows: pa.RecordBatch) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    left = MOST_OF_A_ROW
    for at, name in enumerate(rows.schema.names):
        value = _field(name, _value(rows.column(at)))
        left -= len(json.dumps({name: value}, ensure_ascii=False))
        if left < 0:
            return {**_pair(shown), "…": f"the row is cut: {rows.num_columns - at:,} more columns"}
        shown[name] = value
    return _pair(shown)


def _value(value: pa.Array) -> Any:
    try:
        if value.nbytes > _MOST_BYTES:
            if not (pa.types.is_string(value.type) or pa.types.is_large_string(value.type)):
                return f"({value.nbytes:,} bytes)"
            value = pc.utf8_slice_codeunits(value, 0, _MOST_MASKED)
        return value[0].as_py()
    except (ValueError, OverflowError, LookupError):  # beyond Python's range, invalid UTF-8, an unknown time zone
        return " ".join(value.to_string().split())[2:-2]


def _field(name: str, value: Any) -> Any:
    return MASK if value is not None and names_a_secret(name) else _masked(value)


def _masked(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return _pair({name: _field(name, each) for name, each in value.items()})
    if isinstance(value, (list, tuple)):
        return _elements(value)
    text = str(value)
    shown = masked_text(text[:_MOST_MASKED])
    return f"{shown[:_MOST_CHARACTERS]}…" if len(shown) > _MOST_CHARACTERS or len(text) > _MOST_MASKED else shown


def _elements(values: Sequence[Any]) -> list[Any]:
    if len(values) == 2 and isinstance(values[0], str) and names_a_secret(values[0]):  # an entry of a map
        return [values[0], None if values[1] is None else MASK]
    more = [f"({len(values) - _MOST_ELEMENTS:,} more elements)"] if len(values) > _MOST_ELEMENTS else []
    return [_masked(each) for each in values[:_MOST_ELEMENTS]] + more


def _pair(fields: dict[str, Any]) -> dict[str, Any]:
    """Masks the value of a pair such as `{"name": "api_key", "value": …}`."""
    if not any(
        name.lower() in _NAMES and isinstance(each, str) and names_a_secret(each) for name, each in fields.items()
    ):
        return fields
    return {name: MASK if name.lower() in _VALUES and each is not None else each for name, each in fields.items()}


# Answers a coordinator's `Probe`: reachable slots, and whether the store can be read.

LIMIT_S = 4.0
_AT_ONCE = 64  # silent slots of a job of that size cost the limit once


async def probed(probe: Probe, slot: int, read_store: Callable[[], object], limit_s: float = LIMIT_S) -> Probed:
    """`read_store` blocks and raises; runs in a thread."""
    turns = asyncio.Semaphore(_AT_ONCE)

    async def limited(peer: Peer) -> str:
        async with turns:
            return await _dialed(peer, limit_s)

    others = staggered(probe.peers, slot)
    dialing = asyncio.gather(*map(limited, others))
    (store, store_ms), errors = await asyncio.gather(_store(read_store, limit_s), dialing)
    unreached = {peer.slot: error for peer, error in zip(others, errors, strict=True) if error}
    return Probed(store, store_ms, unreached)


async def _dialed(peer: Peer, limit_s: float) -> str:
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(peer.host, peer.port), limit_s)
    except asyncio.TimeoutError:
        return f"no answer for {limit_s:g} s"
    except (OSError, ValueError) as error:  # ValueError: a name that no encoding of host names takes
        return str(error)
    writer.close()
    return ""


async def _store(read: Callable[[], object], limit_s: float) -> tuple[str, int]:
    began, error = time.monotonic(), ""
    thread = Threads(1, "barrier-probe")  # the slot's exit does not wait for a store that never answers
    try:
        await asyncio.wait_for(asyncio.wrap_future(thread.submit(read)), limit_s)
    except asyncio.TimeoutError:
        error = f"no answer for {limit_s:g} s"
    except Exception as raised:
        error = f"{type(raised).__name__}: {raised}"
    finally:
        thread.close()
    return error, round((time.monotonic() - began) * 1000)
