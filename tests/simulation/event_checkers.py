"""Checkers of jobs in event time. The oracle is plain arithmetic on event numbers (see `events`).

Only events for which `EventWorkload.may_be_late` is true may be missing."""

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise, product
from typing import Any

from checkers import Checker, Report
from events import (
    COUNT_ROWS,
    COUNT_SLIDE,
    COUNTED,
    EXPIRING,
    FOR_EVER_MS,
    KEYS,
    WALL_TIMERS,
    WALL_WINDOWS,
    EventRow,
    EventWorkload,
    looks_at_the_unread,
    sum_of_places,
)
from facts import Decision, Facts

from barrier_runtime.coordinator.log.records import Fence, Finish, Record


class TimedChecker(Checker):
    """Base class for jobs in event time, which are checked at their end, also after a drain.

    The results of a drained job end where the sources ended."""

    workload: Any

    def __init__(self, facts: Facts, workload: Any, report: Report) -> None:
        super().__init__(facts, workload, report)
        self._finished = False
        self._drained_by = ""  # run id in the last decision; "": not drained
        self._reads_on = False  # another run continues the drained job: windows may fire once more

    def on_visible(self, sink: str, checkpoint: int, committables: Sequence[bytes], rows: Sequence[Any]) -> None:
        if not self._reads_on:
            self.shown(self.workload.sinks[sink], rows)

    def shown(self, what: str, rows: Sequence[Any]) -> None:
        """A sink of kind `what` shows `rows`."""

    def all_there(self) -> None:
        """The job has read all input and is finished."""

    def on_decision(self, decision: Decision) -> None:
        before, self._drained_by = self._drained_by, decision.manifest.drained_by
        if self._drained_by and not before:
            self.workload = self.workload.drained(decision.positions)

    def on_record(self, position: int, record: Record) -> None:
        if isinstance(record, Fence) and self._drained_by not in ("", record.spec.run_id):
            self._reads_on = True
        if isinstance(record, Finish) and record.outcome == "finished" and not self._finished:
            self._finished = True
            if not self._reads_on:
                self.all_there()


class EventChecker(TimedChecker):
    workload: EventWorkload
    shows = ""  # kind of rows that this class checks

    def shown(self, what: str, rows: Sequence[Any]) -> None:
        if what == self.shows:
            for row in rows:
                self.row(row)

    def row(self, row: EventRow) -> None: ...

    @property
    def is_shown(self) -> bool:
        return self.shows in self.workload.sinks.values()

    def on_record(self, position: int, record: Record) -> None:
        if self.is_shown:
            super().on_record(position, record)


class FiresOnce(EventChecker):
    """A window fires once per key, over all restores and parallelisms.

    With an allowed lateness each update is emitted once and has exactly an event more than the previous update."""

    shows = "windows"

    def __init__(self, facts: Facts, workload: Any, report: Report) -> None:
        super().__init__(facts, workload, report)
        self._fired: dict[tuple[int, int, int], EventRow] = {}

    def row(self, row: EventRow) -> None:
        before = self._fired.setdefault((row.key, row.start, row.update), row)
        if before is not row:
            self.wrong(f"window {row.start} of key {row.key} fired twice: {before}, and then {row}")

    def all_there(self) -> None:
        for (key, start, update), row in self._fired.items():
            before = self._fired.get((key, start, update - 1))
            if update and (before is None or row.n != before.n + 1 or before.mask & ~row.mask):
                self.wrong(f"update {update} of window {start} of key {key} is not one event more than {before}: {row}")


class WholeWindows(EventChecker):
    """A window holds each event of its key and time once and lacks only late events; no window is lost."""

    shows = "windows"

    def __init__(self, facts: Facts, workload: Any, report: Report) -> None:
        super().__init__(facts, workload, report)
        self._fired: dict[tuple[int, int], EventRow] = {}  # the latest update

    def row(self, row: EventRow) -> None:
        times = self.workload.times
        known = self._fired.setdefault((row.key, row.start), row)
        if row.update > known.update:
            self._fired[row.key, row.start] = row
        events = self.workload.events_of(row.key, row.start)
        true = sum(times.bit(*event) for event in events)
        if row.mask & ~true or row.mask.bit_count() != row.n:
            self.wrong(f"{row} counts what does not belong to it, or twice: its events are {events}")
        self._judge_missing(row, [event for event in events if not row.mask & times.bit(*event)])

    def _judge_missing(self, window: EventRow, events: Sequence[tuple[int, int]], kept_ms: int = 0) -> None:
        last_ms = window.start + self.workload.times.window_ms - 1 + kept_ms
        lost = [event for event in events if not self.workload.may_be_late(*event, last_ms)]
        if lost:
            self.wrong(f"{window} lacks events (split, number) {lost}, which were not late")

    def all_there(self) -> None:
        for (key, start), events in self.workload.windows().items():
            window = self._fired.get((key, start), EventRow(key=key, start=start))
            missing = [event for event in events if not window.mask & self.workload.times.bit(*event)]
            self._judge_missing(window, missing, self.workload.times.lateness_ms)


class WholeSessions(EventChecker):
    """The sessions of a key are its events in order.

    A session ends by the timer of its last event, and only if the watermark may have passed that timer. If no other
    split or subtask can have held the watermark back, the session must end there. So cleared state stays cleared, and a
    timer that is not deleted fires once, before the event that proves it due."""

    shows = "sessions"

    def __init__(self, facts: Facts, workload: Any, report: Report) -> None:
        super().__init__(facts, workload, report)
        self._next: dict[tuple[int, int], int] = defaultdict(int)  # by (split, key): first event that is in no session

    def _event(self, split: int, key: int, seq: int) -> int | None:
        times = self.workload.times
        while times.exists(split, seq):
            if times.key(split, seq) == key:
                return seq
            seq += 1
        return None

    def row(self, row: EventRow) -> None:
        times = self.workload.times
        expected = self._event(row.split, row.key, self._next[row.split, row.key])
        if row.first != expected or row.n < 1 or row.last < row.first:
            self.wrong(f"{row}: a session should begin with event {expected}")
            return
        number = sum(times.key(row.split, seq) == row.key for seq in range(row.first, row.last + 1))
        if number != row.n or times.key(row.split, row.last) != row.key:
            self.wrong(f"{row}: there are {number} events of the key between its first and its last")
        if row.start != times.at_ms(row.split, row.last) + times.gap_ms:
            self.wrong(f"{row} ended by a timer that was deleted: its last event sets another one")
        before = row.first
        while times.splits == 1 and not times.twice and before < row.last:
            event = self._event(row.split, row.key, before + 1)
            assert event is not None
            due_ms = times.at_ms(row.split, before) + times.gap_ms
            if self.workload.has_come(row.split, event, due_ms):
                self.wrong(f"{row} goes on with event {event}, before which the timer of event {before} was due")
            before = event
        self._next[row.split, row.key] = row.last + 1
        following = self._event(row.split, row.key, row.last + 1)
        if following is not None and not self.workload.may_be_late(row.split, following, row.start):
            self.wrong(f"{row} ended before the watermark was there: event {following} belongs to it")

    def all_there(self) -> None:
        times = self.workload.times
        for split in range(times.splits):
            for key in {times.key(split, seq) for seq in range(times.number(split))}:
                lost = self._event(split, key, self._next[split, key])
                if lost is not None:
                    self.wrong(f"event {lost} of split {split} and key {key} is in no session")


class WholeGaps(EventChecker):
    """A session window holds all events of its key between its first and last; others are further away than the gap.

    Checked where no event may have been behind the watermark. Each event in time is in a session."""

    shows = "gaps"

    def __init__(self, facts: Facts, workload: Any, report: Report) -> None:
        super().__init__(facts, workload, report)
        self._sessions: dict[int, list[EventRow]] = defaultdict(list)  # by key
        self._told: dict[tuple[int, int], EventRow] = {}  # latest update by (key, start), if sessions have updates

    def row(self, row: EventRow) -> None:
        times = self.workload.times
        if not times.gap_lateness_ms and not times.gap_early_rows:
            self._judge(row)
            return
        known = self._told.setdefault((row.key, row.start), row)
        if row.update > known.update:
            self._told[row.key, row.start] = row
        elif known is not row and row.update == known.update:
            self.wrong(f"update {row.update} of the session of key {row.key} from {row.start} came twice")
        if row.retracted and (row.n or not row.update):
            self.wrong(f"{row} takes back what was not told, or has rows")
        if row.n > len(self.workload.between(row.key, row.start, row.last)):
            self.wrong(f"{row} has more than its events")

    def _judge(self, row: EventRow) -> None:
        times, gap_ms = self.workload.times, self.workload.times.window_gap_ms
        self._sessions[row.key].append(row)
        around = self.workload.between(row.key, row.start - gap_ms, row.last + gap_ms)
        at = sorted(times.at_ms(*event) for event in around)
        if any(self.workload.may_be_behind(*event) for event in around):
            if row.n > len(at):
                self.wrong(f"{row} counts more than its events, {around}")
        elif at[:1] != [row.start] or at[-1:] != [row.last]:
            self.wrong(f"{row} should have taken in what is within the gap: {around} are at {at}")
        elif row.n != len(at) or row.mask != sum(seq for _, seq in around):
            self.wrong(f"{row} does not hold its events, {around}, once each")
        elif any(later - before > gap_ms for before, later in pairwise(at)):
            self.wrong(f"{row} goes over a gap: its events are at {at}")

    def all_there(self) -> None:
        times = self.workload.times
        for row in self._told.values():
            if not row.retracted:
                self._judge(row)
        for key in range(KEYS):
            events = self.workload.between(key, 0, times.start_ms + FOR_EVER_MS)
            sessions = self._sessions[key]
            behind = [event for event in events if self.workload.may_be_behind(*event)]
            counted = sum(row.n for row in sessions)
            if not len(events) - len(behind) <= counted <= len(events):
                self.wrong(f"sessions of key {key} count {counted} of {len(events)} events; behind may be {behind}")
            for event in events:
                at_ms = times.at_ms(*event)
                if event not in behind and not any(row.start <= at_ms <= row.last for row in sessions):
                    self.wrong(f"event {event} of key {key}, at {at_ms}, is in no session")


class CountedInOrder(EventChecker):
    """A count window fires after every `COUNT_SLIDE` events of its key and holds the last `COUNT_ROWS`."""

    shows = COUNTED

    def __init__(self, facts: Facts, workload: Any, report: Report) -> None:
        super().__init__(facts, workload, report)
        self._counted: dict[tuple[int, int], int] = defaultdict(int)  # events in windows, by (split, key)

    def row(self, row: EventRow) -> None:
        self._counted[row.split, row.key] += COUNT_SLIDE
        events = self._events(row.split, row.key, self._counted[row.split, row.key])
        its = events[max(0, len(events) - COUNT_ROWS) :]
        if len(events) < self._counted[row.split, row.key]:
            self.wrong(f"{row}: its key has {len(events)} events")
        elif (row.n, row.mask, row.first, row.last) != (len(its), sum(its), its[0], its[-1]):
            self.wrong(f"{row} should have the events {its}")

    def _events(self, split: int, key: int, most: int) -> list[int]:
        times, found, seq = self.workload.times, [], 0
        while times.exists(split, seq) and len(found) < most:
            if times.key(split, seq) == key:
                found.append(seq)
            seq += 1
        return found

    def all_there(self) -> None:
        times = self.workload.times
        for split, key in product(range(times.splits), range(KEYS)):
            there = len(self._events(split, key, times.number(split)))
            if there - self._counted[split, key] >= COUNT_SLIDE:
                self.wrong(f"of {there} events of split {split} and key {key} {self._counted[split, key]} were counted")


class SeenOnce(EventChecker):
    """The first event of each id passes; a repeated id passes only if the watermark may have advanced by `within`."""

    shows = "unique"

    def __init__(self, facts: Facts, workload: Any, report: Report) -> None:
        super().__init__(facts, workload, report)
        self._passed: dict[int, list[int]] = defaultdict(list)  # numbers of the events, by id

    def row(self, row: EventRow) -> None:
        times = self.workload.times
        passed = self._passed[row.id]
        if row.id != times.id(row.split, row.first):
            self.wrong(f"{row} has another id than its event")
        elif passed and row.first <= passed[-1]:
            self.wrong(f"{row} passed after event {passed[-1]} with the same id")
        elif passed and not self._may_be_forgotten(row.split, passed[-1], row.first):
            self.wrong(f"{row} passed though event {passed[-1]} with its id had, and cannot be forgotten yet")
        passed.append(row.first)

    def _may_be_forgotten(self, split: int, before: int, seq: int) -> bool:
        times = self.workload.times
        if times.within_ms is None:
            return False
        if times.splits > 1 or self.workload.unaligned or self.workload.was_idle(split, seq):
            return True  # the watermark may have stalled at first, as for rows in flight, and jumped later
        earlier = self.workload.greatest_ms(split, max(0, before - times.batch_rows))
        return self.workload.greatest_ms(split, seq) - earlier >= times.within_ms

    def all_there(self) -> None:
        times = self.workload.times
        for split in range(times.splits):
            first: dict[int, int] = {}
            for seq in range(times.number(split)):
                first.setdefault(times.id(split, seq), seq)
            lost = [seq for id, seq in first.items() if self._passed[id][:1] != [seq]]
            if lost:
                self.wrong(f"the first events with their ids, {lost[:5]} of split {split}, did not pass")


class ExpiresInTime(EventChecker):
    """State with a TTL holds exactly the entries written (or read, for `seen`) less than the TTL ago.

    The age counts to the time in the row's `start`: the event time, or later if the watermark may have passed it."""

    shows = EXPIRING

    def __init__(self, facts: Facts, workload: Any, report: Report) -> None:
        super().__init__(facts, workload, report)
        self._held: dict[tuple[int, int], _Held] = defaultdict(_Held)

    def row(self, row: EventRow) -> None:
        times, held = self.workload.times, self._held[row.split, row.key]
        expected = next(
            (seq for seq in range(held.next, times.number(row.split)) if times.key(row.split, seq) == row.key),
            held.next,
        )
        if times.all_come and row.first != expected:
            self.wrong(f"{row}: the next event of its key is {expected}")
        held.next = row.first + 1
        at_ms = times.at_ms(row.split, row.first)
        if row.start < at_ms or (row.start > at_ms and not self.workload.may_be_late(row.split, row.first, row.start)):
            self.wrong(f"{row} is judged at {row.start}, but its event is of {at_ms} and not late")
        seen = held.seen_by(row, times.gap_ms)
        if (row.n, row.last, row.mask, row.update) != seen:
            self.wrong(f"{row}: the state at {row.start} is (n, last, mask, update) = {seen}")

    def all_there(self) -> None:
        times = self.workload.times
        for split in range(times.splits):
            for seq in range(times.number(split)):
                if seq >= self._held[split, times.key(split, seq)].next:
                    self.wrong(f"event {seq} of split {split} did not come")


class _Held:
    """Expected state of a key, with the times of its entries."""

    def __init__(self) -> None:
        self.next = 0  # number of the next event
        self._n = (0, 0)
        self._recent: list[tuple[int, int]] = []
        self._seen: dict[int, int] = {}

    def seen_by(self, row: EventRow, ttl_ms: int) -> tuple[int, int, int, int]:
        """Returns (n, last, mask, update) of an event's row, and adds the event."""
        now_ms, seq = row.start, row.first
        written_ms, n = self._n
        n = n + 1 if written_ms + ttl_ms > now_ms else 1
        self._n = max(written_ms, now_ms), n
        recent = [each for ms, each in self._recent if ms + ttl_ms > now_ms]
        unread = sum_of_places(recent) if looks_at_the_unread(seq) else 0
        live = [each for each, ms in self._seen.items() if ms + ttl_ms > now_ms]
        self._seen |= {each: max(self._seen[each], now_ms) for each in live}
        self._recent.append((now_ms, seq))
        self._seen[seq] = now_ms
        return n, sum(recent), sum(live), unread


class WallTimersFireOnce(EventChecker):
    """A wall-clock timer fires once, at or after its time and after its event, and never once deleted.

    Timers of a key fire in order. Timers that are not due when the input ends may never fire."""

    shows = WALL_TIMERS

    def __init__(self, facts: Facts, workload: Any, report: Report) -> None:
        super().__init__(facts, workload, report)
        self._set: dict[tuple[int, int], int] = {}  # (split, number of the event) -> due time of its timer
        self._fired: set[tuple[int, int]] = set()
        self._deleted: set[tuple[int, int]] = set()
        self._last: dict[tuple[int, int], int] = {}  # by (split, key): due time of the last timer that fired

    def row(self, row: EventRow) -> None:
        event = row.split, row.first
        if row.n == 0:
            if event in self._set or row.key != self.workload.times.key(*event):
                self.wrong(f"{row}: the event came already, or has another key")
            self._set[event] = row.start
            if row.id >= 0:
                self._judge_deleted(row)
        elif event in self._fired or row.first < 0:
            self.wrong(f"{row}: the timer fired twice")
        elif self._set.get(event) != row.start or event in self._deleted:
            self.wrong(f"{row}: nobody has set this timer, or it was deleted")
        else:
            self._judge_fired(row)

    def _judge_deleted(self, row: EventRow) -> None:
        deleted = row.split, row.id
        if deleted not in self._set or deleted in self._fired:
            self.wrong(f"{row}: the timer that it deleted had fired")
        self._deleted.add(deleted)

    def _judge_fired(self, row: EventRow) -> None:
        self._fired.add((row.split, row.first))
        if row.last < row.start or (row.mask < row.start and not self.workload.times.clocks_jump):
            self.wrong(f"{row}: the timer fired before its time")
        if self._last.get((row.split, row.key), 0) > row.start:
            self.wrong(f"{row}: a later timer of the key fired before")
        self._last[row.split, row.key] = row.start

    def waiting(self, until_ms: int) -> list[tuple[int, int]]:
        """Returns the events with timers due by `until_ms` that have not fired."""
        gone = self._fired | self._deleted
        return [event for event, due_ms in self._set.items() if due_ms <= until_ms and event not in gone]

    def judge(self, until_ms: int, calm_s: float, state: str) -> None:
        """Checks liveness after `calm_s` seconds of calm since the world's clock read `until_ms`."""
        if self.waiting(until_ms):
            self.wrong(f"timers of {self.waiting(until_ms)[:5]} did not fire in {calm_s} s of calm: {state}")

    def all_there(self) -> None:
        times = self.workload.times
        events = ((split, seq) for split in range(times.splits) for seq in range(times.number(split)))
        lost = [each for each in events if each not in self._set]
        if lost:
            self.wrong(f"the events {lost[:5]} did not come")


class WholeWallWindows(EventChecker):
    """Windows by the wall clock hold each event as often as windows overlap, and are emitted whole, once, in order.

    The order counts per key. No window is emitted before its end, unless all input had arrived. No window holds an
    event that arrived after the window's end."""

    shows = WALL_WINDOWS

    def __init__(self, facts: Facts, workload: Any, report: Report) -> None:
        super().__init__(facts, workload, report)
        times = self.workload.times
        self._gap_ms = times.window_gap_ms if times.gaps_of_wall_clock else None
        slide_ms = times.slide_ms or times.window_ms
        self._per_event = 1 if self._gap_ms is not None else times.window_ms // slide_ms
        self._windows: dict[tuple[int, int, int], set[int]] = defaultdict(set)  # by (split, key, start): event numbers
        self._of_event: dict[tuple[int, int], list[int]] = defaultdict(list)  # by (split, number): starts of windows
        self._newest: dict[tuple[int, int], tuple[int, int]] = {}  # by (split, key): start and end
        self._all_came_ms = max(times.due_ms(split, times.count - 1) for split in range(times.splits))

    def shown(self, what: str, rows: Sequence[Any]) -> None:
        super().shown(what, rows)
        for row in rows if what == self.shows else ():
            held = self._windows[row.split, row.key, row.start]
            if len(held) != row.n:
                self.wrong(f"{row} has {row.n} events, of which these came: {held}")

    def row(self, row: EventRow) -> None:
        times, event, its_key = self.workload.times, (row.split, row.first), (row.split, row.key)
        held = self._windows[row.split, row.key, row.start]
        starts = self._of_event[event]
        if row.key != times.key(*event) or row.start in starts:
            self.wrong(f"{row}: its event has another key, or was in that window already")
        starts.append(row.start)
        if len(starts) > self._per_event:
            self.wrong(f"{row}: its event is in the windows {starts}, one too many")
        self._judge_order(row, self._newest.get(its_key, (-1, -1)), bool(held))
        held.add(row.first)
        self._newest[its_key] = (row.start, row.last)
        self._judge_times(row, times.due_ms(*event))

    def _judge_order(self, row: EventRow, newest: tuple[int, int], known: bool) -> None:
        if (row.start, row.last) == newest:
            return
        if known:
            self.wrong(f"{row}: the window was told already")
        elif row.start <= newest[1 if self._gap_ms is not None else 0]:
            self.wrong(f"{row}: a later window of its key, {newest}, was told before")

    def _judge_times(self, row: EventRow, came_ms: int) -> None:
        times = self.workload.times
        size_ms = row.last - row.start
        if size_ms < self._gap_ms if self._gap_ms is not None else size_ms != times.window_ms:
            self.wrong(f"{row} is of {size_ms} ms")
        elif not times.clocks_jump and row.last <= came_ms:
            self.wrong(f"{row}: its event came at {came_ms}, when the window was over")
        elif not times.clocks_jump and row.mask < row.last and not self._all_came(row.mask):
            self.wrong(f"{row} was told before it was over")

    def _all_came(self, now_ms: int) -> bool:
        times = self.workload.times
        return times.ends is not None or (times.bounded and now_ms >= self._all_came_ms)

    def waiting(self, until_ms: int) -> list[tuple[int, int]]:
        """Returns the events that arrived by `until_ms` and are in too few emitted windows."""
        times = self.workload.times
        events = ((split, seq) for split in range(times.splits) for seq in range(times.number(split)))
        return [
            event
            for event in events
            if times.exists(*event)
            and times.due_ms(*event) <= until_ms
            and len(self._of_event[event]) < self._per_event
        ]

    def judge(self, until_ms: int, calm_s: float, state: str) -> None:
        """Checks liveness after `calm_s` seconds of calm since the world's clock read `until_ms`."""
        if self.waiting(until_ms):
            self.wrong(f"windows of {self.waiting(until_ms)[:5]} were not told in {calm_s} s of calm: {state}")

    def all_there(self) -> None:
        times = self.workload.times
        for event in ((split, seq) for split in range(times.splits) for seq in range(times.number(split))):
            if len(self._of_event[event]) != self._per_event:
                self.wrong(f"event {event} is in the windows {self._of_event[event]}, of {self._per_event}")


class WatermarksMove(EventChecker):
    """Liveness: event time advances, also past a silent split. The world calls `judge` once all is calm."""

    shows = "windows"

    def __init__(self, facts: Facts, workload: Any, report: Report) -> None:
        super().__init__(facts, workload, report)
        self.reached_ms = 0

    def on_visible(self, sink: str, checkpoint: int, committables: Sequence[bytes], rows: Sequence[Any]) -> None:
        if self.workload.sinks[sink] != "unique":
            self.reached_ms = max([self.reached_ms, *(max(row.start, row.last) for row in rows)])

    def judge(self, since_ms: int, calm_s: float, state: str) -> None:
        """Checks liveness after `calm_s` seconds of calm since the world's clock read `since_ms`."""
        if self.reached_ms < since_ms:
            self.wrong(f"event time is {self.reached_ms}, though {calm_s} s of calm passed since {since_ms}: {state}")


class NoneRunsAhead(EventChecker):
    """With `max_drift` no split is read that is further ahead of the slowest split, nor while another has had no row.

    The progress of a split is the furthest read of any process, also of a replaced process that still runs: no process
    has heard of more progress than that."""

    def __init__(self, facts: Facts, workload: Any, report: Report) -> None:
        super().__init__(facts, workload, report)
        self._ends = [0] * self.workload.times.splits  # number of events of each split that were ever read
        self.workload.watches.append(self.read)

    def read(self, split: int, first: int, end: int) -> None:
        drift_ms, slowest = self.workload.times.max_drift_ms, self._slowest(split)
        if drift_ms is not None and first and slowest is not None:
            ahead_ms = self._greatest_ms(split, first) - self._greatest_ms(slowest, self._ends[slowest])
            if not self._ends[slowest]:
                self.wrong(f"split {split} was read at {first} though split {slowest} has had no row")
            elif ahead_ms > drift_ms:
                self.wrong(f"split {split} was read at {first} though it was {ahead_ms} ms ahead of split {slowest}")
        self._ends[split] = max(self._ends[split], end)

    def _slowest(self, split: int) -> int | None:
        count = self.workload.times.count
        others = [(self._greatest_ms(at, end), at) for at, end in enumerate(self._ends) if at != split and end < count]
        return min(others)[1] if others else None

    def _greatest_ms(self, split: int, events: int) -> int:
        """Returns the greatest event time of the first `events` events; before all times if there are none."""
        times = self.workload.times
        return max((times.at_ms(split, seq) for seq in range(events)), default=-FOR_EVER_MS)


EVENT_CHECKERS: tuple[type[Checker], ...] = (
    FiresOnce,
    WholeWindows,
    WholeGaps,
    WholeSessions,
    CountedInOrder,
    SeenOnce,
    ExpiresInTime,
    WallTimersFireOnce,
    WholeWallWindows,
    WatermarksMove,
    NoneRunsAhead,
)
