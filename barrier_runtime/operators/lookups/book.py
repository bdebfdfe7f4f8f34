"""Pure state machine of a lookup, without I/O: decides about rows and requests.

A row has a number, in order of arrival, and a key; rows of the same key share a request. A row *waits* while `capacity`
rows are *under way*. A row *finishes* once the result is known and, if ordered, all earlier rows have finished.

A request is an attempt, ended by a reply, error or timeout; later replies and errors are counted as late. `Retry`
repeats a failed attempt as another request.

Watermarks stand between rows. Unordered rows finish in any order, but not before an earlier watermark. `reached` is a
watermark only once all earlier rows are finished.
"""

import heapq
import itertools
from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from barrier_runtime.data.elements import WATERMARK_MIN
from barrier_runtime.operators.lookups.replies import Cache, KeptReplies
from barrier_runtime.operators.rate_limit import CallLimits, RateLimit
from barrier_runtime.operators.retry import Retry

AT_ONCE = 4_096  # keys of replies that a call finishes: some milliseconds of the loop
_UNKNOWN = object()
_SECOND_NS = 1_000_000_000


@dataclass(frozen=True)
class BookSettings:
    """`capacity`: rows under way. `most_keys`: per request.
    `linger_s`: longest wait of a key for further keys. `most_requests`: parallel. `timeout_s`: of one attempt.
    `limits`: of all subtasks."""

    capacity: int
    most_keys: int
    most_requests: int
    linger_s: float
    timeout_s: float
    ordered: bool = False
    retry: Retry | None = None
    cache: Cache | None = None
    limits: tuple[RateLimit, ...] = ()


@dataclass(frozen=True)
class Request:
    id: int
    keys: tuple[Hashable, ...]


@dataclass(slots=True, eq=False)
class Failed:
    """`error`: of the last of `attempts`."""

    error: Exception
    attempts: int
    is_transient: bool


class NoReply(TimeoutError):
    """A request timed out."""


@dataclass
class Effects:
    """Result of `advance`.
    `finished`: parts, each with the watermark reached before it; these watermarks rise. A row is (number, result): the
    reply, None without data, or `Failed`.
    """

    send: list[Request] = field(default_factory=list)
    give_up: list[int] = field(default_factory=list)
    finished: list[tuple[int, list[tuple[int, Any]]]] = field(default_factory=list)


@dataclass
class Counts:
    """Counts since the operator was opened.
    `cache_hits` and `misses` (no data) are rows, the others requests.
    """

    requests: int = 0
    cache_hits: int = 0
    misses: int = 0
    timeouts: int = 0
    retries: int = 0
    late: int = 0  # replies and errors of requests that had ended


class _Section:
    """Rows between two watermarks. `left`: number of unfinished rows.
    `ready`: finished rows that wait for earlier sections. `watermark` follows the rows; None: not yet arrived."""

    __slots__ = ("left", "ready", "watermark")

    def __init__(self) -> None:
        self.left = 0
        self.ready: list[tuple[int, Any]] = []
        self.watermark: int | None = None


class _Key:
    __slots__ = ("failed", "key", "rows", "since_s")

    def __init__(self, key: Hashable, since_s: float) -> None:
        self.key = key
        self.since_s = since_s
        self.failed = 0
        self.rows: list[tuple[int, _Section]] = []


class Book:
    """Pending rows and requests of a subtask. Times: seconds of a steady clock.
    A key of None is not requested.
    """

    def __init__(self, settings: BookSettings) -> None:
        self._settings = settings
        self._limits: CallLimits | None = None
        self._priced: tuple[_Key, int, tuple[int, ...]] | None = None  # next request: first key, keys, costs
        self._costs: dict[int, tuple[int, ...]] = {}  # of the open requests
        self.share_limits()
        self._cache = KeptReplies(settings.cache) if settings.cache is not None else None
        self.counts = Counts()
        self.reached = WATERMARK_MIN  # the last watermark before which all rows are finished
        self.finished = 0
        self._rows = 0  # rows added: the number of the next row
        self._under_way = 0
        self._waiting: deque[tuple[int, Sequence[Any], _Section]] = deque()
        self._skip = 0  # of the first of `_waiting`: rows already under way
        self._sections: deque[_Section] = deque([_Section()])
        self._in_order: dict[int, tuple[Any, _Section]] = {}  # ordered: results that wait for earlier rows
        self._asked: dict[Hashable, _Key] = {}
        self._fresh: deque[_Key] = deque()
        self._again: deque[Sequence[_Key]] = deque()
        self._later: list[tuple[float, int, Sequence[_Key]]] = []  # heap: time of the repetition
        self._open: dict[int, deque[_Key]] = {}
        self._replies: deque[tuple[deque[_Key], deque[Any]]] = deque()
        self._deadlines: deque[tuple[float, int]] = deque()
        self._ids = itertools.count(1)
        self._finished: list[tuple[int, list[tuple[int, Any]]]] = []  # returned by the next `advance`

    @property
    def has_room(self) -> bool:
        return not self._waiting and self._under_way < self._settings.capacity

    @property
    def held(self) -> int:
        return self._rows - self.finished

    @property
    def requests(self) -> int:
        return len(self._open)

    @property
    def more(self) -> bool:
        return bool(self._replies)

    def add(self, keys: Sequence[Any]) -> None:
        if keys:
            section = self._sections[-1]
            section.left += len(keys)
            self._waiting.append((self._rows, keys, section))
            self._rows += len(keys)

    def watermark(self, watermark_ms: int) -> None:
        last = self._sections[-1]
        if last.left:
            last.watermark = watermark_ms
            self._sections.append(_Section())
        elif len(self._sections) == 1:
            self.reached = max(self.reached, watermark_ms)
        else:
            before = self._sections[-2]
            assert before.watermark is not None
            before.watermark = max(before.watermark, watermark_ms)

    def replied(
        self, request: int, results: Sequence[Any], now_s: float, spent: Sequence[int | None] | None = None
    ) -> None:
        """Finishes the first `AT_ONCE` keys of a reply; `advance` finishes the others.
        `results`: by key of the request; an exception fails only that key. A deque is emptied. `spent`: by limit.
        """
        keys = self._ended(request, spent)
        if keys is None:
            self.counts.late += 1
            return
        is_next = not self._replies
        taken = results if isinstance(results, deque) else deque(results)
        self._replies.append((keys, taken))
        if is_next:
            self._finish_part(now_s)

    def _finish_part(self, now_s: float) -> None:
        all_keys, all_results = self._replies[0]
        count = min(AT_ONCE, len(all_keys))
        keys: list[_Key] = [all_keys.popleft() for _ in range(count)]
        results: Sequence[Any] = [all_results.popleft() for _ in range(count)]
        if not all_keys:
            self._replies.popleft()
        if any(issubclass(kind, Exception) for kind in set(map(type, results))):
            keys, results = self._without_failed(keys, results, now_s)
        if self._cache is not None:
            for key, result in zip(keys, results, strict=True):
                self._cache.put(key.key, result, now_s)
        self._finish_keys(keys, results)

    def _without_failed(
        self, keys: list[_Key], results: Sequence[Any], now_s: float
    ) -> tuple[list[_Key], Sequence[Any]]:
        failed: dict[int, tuple[Exception, list[_Key]]] = {}
        for key, result in zip(keys, results, strict=True):
            if isinstance(result, Exception):
                failed.setdefault(id(type(result)), (result, []))[1].append(key)
        for error, of_error in failed.values():
            self._fail(of_error, error, now_s)
        kept = [not isinstance(result, Exception) for result in results]
        return list(itertools.compress(keys, kept)), list(itertools.compress(results, kept))

    def _ended(self, request: int, spent: Sequence[int | None] | None = None) -> deque[_Key] | None:
        costs = self._costs.pop(request, None)
        if self._limits is not None and costs is not None and spent is not None:
            self._limits.settle(costs, spent)
        return self._open.pop(request, None)

    def failed(self, request: int, error: Exception, now_s: float) -> None:
        keys = self._ended(request)
        if keys is None:
            self.counts.late += 1
            return
        self._fail(keys, error, now_s)

    def advance(self, now_s: float) -> Effects:
        effects = Effects()
        if self._replies and not self._finished:
            self._finish_part(now_s)
        self._time_out(now_s, effects)
        while True:
            self._put_under_way(now_s)
            self._send(now_s, effects)
            if not self._finished:
                return effects
            effects.finished += self._finished
            self._finished = []

    def next_due_s(self) -> float | None:
        """When to call `advance` at the latest."""
        while self._deadlines and self._deadlines[0][1] not in self._open:
            self._deadlines.popleft()
        due = [self._deadlines[0][0]] if self._deadlines else []
        if len(self._open) < self._settings.most_requests:
            wanted = self._next_request_s()
            if wanted is not None:
                due.append(wanted)
        return min(due, default=None)

    def _next_request_s(self) -> float | None:
        wanted = []
        if self._again:
            wanted.append(0.0)
        if self._fresh:
            is_full = len(self._fresh) >= self._settings.most_keys
            wanted.append(0.0 if is_full else self._fresh[0].since_s + self._settings.linger_s)
        if self._later:
            wanted.append(self._later[0][0])
        if not wanted or self._limits is None:
            return min(wanted, default=None)
        costs = None if self._priced is None else self._priced[2]
        return max(min(wanted), self._limits.due_ns(costs) / _SECOND_NS)

    def _may_request(self, keys: Sequence[_Key], now_s: float) -> bool:
        return self._limits is None or self._limits.ready(round(now_s * _SECOND_NS), self._price(self._limits, keys))

    def _price(self, limits: CallLimits, keys: Sequence[_Key]) -> tuple[int, ...]:
        """A waiting request is priced again only if keys have come."""
        priced = self._priced
        if priced is None or priced[0] is not keys[0] or priced[1] != len(keys):
            priced = self._priced = keys[0], len(keys), limits.costs([each.key for each in keys])
        return priced[2]

    def share_limits(self, name: str = "", subtask: int = 0, subtasks: int = 1) -> None:
        """Called before the first row."""
        if self._settings.limits:
            self._limits = CallLimits(self._settings.limits, name, subtask, subtasks)

    def _put_under_way(self, now_s: float) -> None:
        asked, fresh, cache = self._asked, self._fresh, self._cache
        while self._waiting and self._under_way < self._settings.capacity:
            first, keys, section = self._waiting[0]
            begin = self._skip
            end = min(len(keys), begin + self._settings.capacity - self._under_way)
            self._under_way += end - begin
            for at in range(begin, end):
                key = keys[at]
                if key is None:
                    self._finish(first + at, section, None)
                    continue
                waiting = asked.get(key)
                if waiting is None:
                    if cache is not None:
                        known = cache.get(key, now_s, _UNKNOWN)
                        if known is not _UNKNOWN:
                            self.counts.cache_hits += 1
                            self._finish(first + at, section, known)
                            continue
                    waiting = asked[key] = _Key(key, now_s)
                    fresh.append(waiting)
                waiting.rows.append((first + at, section))
            if end == len(keys):
                self._waiting.popleft()
                self._skip = 0
            else:
                self._skip = end

    def _send(self, now_s: float, effects: Effects) -> None:
        most_keys = self._settings.most_keys
        while self._later and self._later[0][0] <= now_s:
            self._again.append(heapq.heappop(self._later)[2])
        while self._again and len(self._open) < self._settings.most_requests:
            if not self._may_request(self._again[0], now_s):
                return  # before requests that cost less
            self.counts.retries += 1
            self._request(deque(self._again.popleft()), now_s, effects)
        fresh = self._fresh
        while fresh and len(self._open) < self._settings.most_requests:
            if len(fresh) < most_keys and fresh[0].since_s + self._settings.linger_s > now_s:
                return
            keys = deque(itertools.islice(fresh, most_keys))
            if not self._may_request(keys, now_s):
                return
            for _ in keys:
                fresh.popleft()
            self._request(keys, now_s, effects)

    def _request(self, keys: deque[_Key], now_s: float, effects: Effects) -> None:
        request = Request(next(self._ids), tuple(each.key for each in keys))
        self._open[request.id] = keys
        self._deadlines.append((now_s + self._settings.timeout_s, request.id))
        self.counts.requests += 1
        if self._limits is not None:
            self._costs[request.id] = costs = self._price(self._limits, keys)
            self._limits.take(costs)
            self._priced = None
        effects.send.append(request)

    def _time_out(self, now_s: float, effects: Effects) -> None:
        while self._deadlines and self._deadlines[0][0] <= now_s:
            _, request = self._deadlines.popleft()
            keys = self._ended(request)
            if keys is not None:
                self.counts.timeouts += 1
                effects.give_up.append(request)
                self._fail(keys, NoReply(f"no reply within {self._settings.timeout_s:g} s"), now_s)

    def _fail(self, keys: Sequence[_Key], error: Exception, now_s: float) -> None:
        """Repeats or fails keys, which have failed equally often."""
        retry = self._settings.retry
        for each in keys:
            each.failed += 1
        failed = keys[0].failed
        if retry is not None and retry.wants(error, failed):
            heapq.heappush(self._later, (now_s + retry.pause_s(failed), next(self._ids), keys))
            return
        is_transient = isinstance(error, NoReply) or (retry is not None and isinstance(error, retry.on))
        self._finish_keys(keys, [Failed(error, failed, is_transient)] * len(keys))

    def _finish_keys(self, keys: Sequence[_Key], results: Sequence[Any]) -> None:
        asked, first, now = self._asked, self._sections[0], []
        is_ordered = self._settings.ordered
        for key, result in zip(keys, results, strict=True):
            del asked[key.key]
            for number, section in key.rows:
                if is_ordered:
                    self._finish(number, section, result)
                elif section is first:
                    now.append((number, result))
                else:
                    section.ready.append((number, result))
        if not is_ordered:
            missed = itertools.compress(keys, [result is None for result in results])
            self.counts.misses += sum(len(key.rows) for key in missed)
            self._hand_out(now, first)

    def _finish(self, number: int, section: _Section, result: Any) -> None:
        if result is None:
            self.counts.misses += 1
        if self._settings.ordered:
            self._in_order[number] = result, section
            while (ready := self._in_order.pop(self.finished, None)) is not None:
                self._hand_out([(self.finished, ready[0])], ready[1])
        elif section is self._sections[0]:
            self._hand_out([(number, result)], section)
        else:
            section.ready.append((number, result))

    def _hand_out(self, rows: list[tuple[int, Any]], section: _Section) -> None:
        self._emit(rows, section)
        while not self._sections[0].left and (reached := self._sections[0].watermark) is not None:
            self._sections.popleft()
            self.reached = max(self.reached, reached)
            first = self._sections[0]
            ready, first.ready = first.ready, []
            self._emit(ready, first)

    def _emit(self, rows: list[tuple[int, Any]], section: _Section) -> None:
        if self._finished and self._finished[-1][0] == self.reached:
            self._finished[-1][1].extend(rows)
        elif rows:
            self._finished.append((self.reached, rows))
        self.finished += len(rows)
        self._under_way -= len(rows)
        section.left -= len(rows)
