"""Tests of the checkers of event time and of queue messages: a table of visible rows and verdicts.

Every row is reported to all checkers of its kind of job (`judged`).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import msgspec
from checkers import Checker, MessagesOnce
from event_checkers import EVENT_CHECKERS, WallTimersFireOnce, WatermarksMove, WholeWallWindows
from events import (
    COUNT_ROWS,
    COUNT_SLIDE,
    COUNTED,
    EXPIRING,
    KEYS,
    WALL_TIMERS,
    WALL_WINDOWS,
    EventRow,
    EventTimes,
    EventWorkload,
    looks_at_the_unread,
    sum_of_places,
)
from facts import Decision, Facts
from histories import Bank, History
from judged import IN_ORDER, Case, Table, Told, check, each_case, untold
from workload import Workload

from barrier_runtime.connectors.files.sink.sink import JsonlSink
from barrier_runtime.coordinator.log.records import Finish
from barrier_runtime.coordinator.wire.messages import CheckpointOptions, JobSpec
from barrier_runtime.state.store.paths import Paths

LATE = replace(IN_ORDER, disorder_ms=500)  # more than the source's bound: some events are late
WAITING = replace(LATE, lateness_ms=1_000)
TOLD_AGAIN = replace(LATE, gap_lateness_ms=1_000)
SLIDING = replace(IN_ORDER, slide_ms=100)
BY_GAPS = replace(IN_ORDER, gaps_of_wall_clock=True, window_gap_ms=100)
ONE_SPLIT = replace(IN_ORDER, splits=1)


def sink() -> JsonlSink:
    return JsonlSink("sim://target")


def reading(*reads: tuple[int, int, int], drift_ms: int | None = 200) -> "Shown":
    """Reads splits: (split, first event, end)."""
    shown = Shown("windows", replace(IN_ORDER, max_drift_ms=drift_ms))
    for read in reads:
        shown.workload.reading(*read)
    return shown


class Shown:
    """Visible rows of one job in event time, and its checkers."""

    def __init__(self, graph: str, times: EventTimes = IN_ORDER) -> None:
        self.times = times
        self.workload = EventWorkload(graph, times, lambda: 0, sink, sink, unaligned=False)
        self.reports: list[tuple[str, str]] = []
        self.judges: dict[type[Checker], Any] = {
            make: make(Facts(Paths("bank")), self.workload, lambda judge, what: self.reports.append((judge, what)))  # type: ignore[arg-type]
            for make in EVENT_CHECKERS
        }

    def show(self, *rows: EventRow) -> "Shown":
        for judge in self.judges.values():
            judge.on_visible("out", 0, (), rows)
        return self

    def calm(self) -> "Shown":
        """Reports 90 s without faults, in which event time has to advance."""
        self.judges[WatermarksMove].judge(self.times.start_ms + 1, 90, "running")
        return self

    def drained(self, *read: int) -> "Shown":
        """Drains the job by run-1, after `read` events of each split."""
        history = History(splits=len(read)).fence()
        positions = {("a", split): rows for split, rows in enumerate(read)}
        self._tell(history.decide(1, positions=positions, drained="run-1").facts.decisions[-1])
        self.workload = self.workload.drained(positions)
        return self

    def _tell(self, decision: Decision) -> None:
        for judge in self.judges.values():
            judge.on_decision(decision)

    def started_again(self) -> "Shown":
        record = History().fence(says={"spec": JobSpec("bank", "run-2", "test", 1, 16, (), CheckpointOptions())})
        for judge in self.judges.values():
            judge.on_record(2, record.facts.records[-1])
        return self

    def finish(self) -> "Shown":
        record = Finish(put_id="a-1", parent_sha256="", token=1, writer="host", wall_ms=0, outcome="finished")
        for judge in self.judges.values():
            judge.on_record(1, record)
        return self

    def waited(self) -> "Shown":
        """Reports 90 s without faults, after the last timer and the end of the last window."""
        for judge in (WallTimersFireOnce, WholeWallWindows):
            if self.judges[judge].is_shown:
                self.judges[judge].judge(self.times.start_ms + 60_000, 90, "running")
        return self

    # ---- correct rows

    def windows(self) -> list[EventRow]:
        found = self.workload.windows().items()
        return [self.window(key, start, events) for (key, start), events in sorted(found)]

    def window(self, key: int, start: int, events: Sequence[tuple[int, int]]) -> EventRow:
        return EventRow(key=key, start=start, n=len(events), mask=sum(self.times.bit(*event) for event in events))

    def large_window(self) -> tuple[EventRow, list[tuple[int, int]]]:
        """Returns the window with the most events, and these events."""
        row = max(self.windows(), key=lambda each: each.n)
        return row, self.workload.events_of(row.key, row.start)

    def sessions(self) -> list[EventRow]:
        times, found = self.times, []
        for split in range(times.splits):
            for key in range(3):
                of_key = [seq for seq in range(times.count) if times.key(split, seq) == key]
                first = 0
                for at, seq in enumerate(of_key):
                    timer = times.at_ms(split, seq) + times.gap_ms
                    if at + 1 == len(of_key) or times.at_ms(split, of_key[at + 1]) > timer:
                        found.append(EventRow(split, key, timer, at + 1 - first, first=of_key[first], last=seq))
                        first = at + 1
        return found

    def gaps(self) -> list[EventRow]:
        times, found = self.times, []
        for key in range(3):
            events = sorted(self.workload.between(key, 0, 2**60), key=lambda event: times.at_ms(*event))
            while events:
                at = [times.at_ms(*event) for event in events]
                end = next((i for i in range(1, len(at)) if at[i] - at[i - 1] > times.window_gap_ms), len(at))
                mask = sum(seq for _, seq in events[:end])
                found.append(EventRow(key=key, start=at[0], last=at[end - 1], n=end, mask=mask))
                events = events[end:]
        return found

    def told_gaps(self) -> list[EventRow]:
        """Returns each session first with one event, then complete.

        The first session also appears under a wrong start, which is retracted."""
        found = []
        for number, row in enumerate(self.gaps()):
            alone = changed(row, n=1, last=row.start, mask=0)
            found += [alone, changed(row, update=1)]
            if not number:
                wrong = changed(alone, start=row.last)
                found += [changed(wrong, last=row.last), changed(wrong, n=0, last=-1, update=1, retracted=1)]
        return found

    def of_counts(self) -> list[EventRow]:
        times, found = self.times, []
        for split in range(times.splits):
            for key in range(3):
                its = [seq for seq in range(times.count) if times.key(split, seq) == key]
                for end in range(COUNT_SLIDE, len(its) + 1, COUNT_SLIDE):
                    window = its[max(0, end - COUNT_ROWS) : end]
                    row = EventRow(split, key, n=len(window), mask=sum(window), first=window[0], last=window[-1])
                    found.append(row)
        return found

    def large_gap(self) -> EventRow:
        return max(self.gaps(), key=lambda each: each.n)

    def long_session(self) -> EventRow:
        return max((each for each in self.sessions() if self._is_first(each)), key=lambda each: each.n)

    def _is_first(self, row: EventRow) -> bool:
        return not any(self.times.key(row.split, seq) == row.key for seq in range(row.first))

    def timers(self) -> list[tuple[EventRow, EventRow]]:
        """Returns, for each event, the row that sets a timer and the row of the timer that fires."""
        times, found = self.times, []
        for split in range(times.splits):
            for seq in range(times.count):
                due_ms = times.due_ms(split, seq) + times.gap_ms
                row = EventRow(split, times.key(split, seq), due_ms, first=seq)
                found.append((row, changed(row, n=1, last=due_ms + 1, mask=due_ms + 1)))
        return found

    def wall_windows(self) -> list[EventRow]:
        """Returns a row per window and event: each event arrives when due, each window is emitted at its end."""
        times, found = self.times, []
        size_ms, slide_ms = times.window_ms, times.slide_ms or times.window_ms
        for split, key in product(range(times.splits), range(KEYS)):
            its = [seq for seq in range(times.count) if times.key(split, seq) == key]
            at = {seq: times.due_ms(split, seq) for seq in its}
            spans: dict[tuple[int, int], list[int]] = {}
            if times.gaps_of_wall_clock:
                for seq in its:
                    last = next(reversed(spans), (0, -1))
                    start = last[0] if at[seq] <= last[1] else at[seq]
                    spans[start, at[seq] + times.window_gap_ms] = [*(spans.pop(last) if start == last[0] else ()), seq]
            else:
                starts = sorted(
                    {at[seq] // slide_ms * slide_ms - back for seq in its for back in range(0, size_ms, slide_ms)}
                )
                spans = {(s, s + size_ms): [seq for seq in its if s <= at[seq] < s + size_ms] for s in starts}
            for (start, end), events in spans.items():
                rows = [EventRow(split, key, start, len(events), end, seq, end) for seq in events]
                found += rows
        return found

    def ids(self) -> list[EventRow]:
        rows: dict[int, EventRow] = {}
        for split in range(self.times.splits):
            for seq in range(self.times.count):
                rows.setdefault(self.times.id(split, seq), self.id_row(split, seq))
        return list(rows.values())

    def id_row(self, split: int, seq: int) -> EventRow:
        return EventRow(split, first=seq, id=self.times.id(split, seq))

    def expiring(self) -> list[EventRow]:
        """Returns the expected rows, computed from all earlier events of the key: times rise in these jobs."""
        times, found = self.times, []
        for split in range(times.splits):
            for seq in range(times.count):
                key, at_ms = times.key(split, seq), times.at_ms(split, seq)
                of_key = [each for each in range(seq + 1) if times.key(split, each) == key]
                ages = [at_ms - times.at_ms(split, each) for each in of_key]
                gaps = [ages[at] - ages[at + 1] for at in range(len(ages) - 1)]
                last_gap = max((at for at, gap in enumerate(gaps) if gap >= times.gap_ms), default=-1)
                young = [each for each, age in zip(of_key[:-1], ages[:-1], strict=True) if age < times.gap_ms]
                looked_at = of_key[last_gap + 1 : -1]
                unread = sum_of_places(young) if looks_at_the_unread(seq) else 0
                n = len(of_key) - last_gap - 1
                row = EventRow(split, key, at_ms, n, sum(looked_at), seq, sum(young), update=unread)
                found.append(row)
        return found

    def counted(self) -> EventRow:
        """Returns the first row that counts another event of its key."""
        return next(each for each in self.expiring() if each.n == 2 and each.last)

    def before(self, row: EventRow) -> list[EventRow]:
        return [
            each
            for each in self.expiring()
            if (each.split, each.key) == (row.split, row.key) and each.first < row.first
        ]

    def repeated(self) -> tuple[EventRow, EventRow]:
        """Returns the rows of two events with the same id."""
        times = self.times
        for seq in range(times.count):
            for later in range(seq + 1, times.count):
                if times.id(0, later) == times.id(0, seq):
                    return self.id_row(0, seq), self.id_row(0, later)
        raise AssertionError("no id is repeated")


def shown(graph: str, rows: Callable[[Shown], Sequence[EventRow]], times: EventTimes = IN_ORDER) -> Shown:
    made = Shown(graph, times)
    return made.show(*rows(made))


def changed(row: EventRow, **fields: int) -> EventRow:
    return msgspec.structs.replace(row, **fields)


# ---------------------------------------------------------------- spoiled rows


def with_an_event_of_another_key(made: Shown) -> list[EventRow]:
    row, events = made.large_window()
    other = next(e for key in range(3) if key != row.key for e in made.workload.events_of(key, row.start))
    return [made.window(row.key, row.start, [*events, other])]


def one_more(row: EventRow) -> list[EventRow]:
    return [changed(row, n=row.n + 1)]


def lacking_one(made: Shown) -> list[EventRow]:
    row, events = made.large_window()
    return [made.window(row.key, row.start, events[1:])]


def lacking_late_events(made: Shown) -> list[EventRow]:
    found, lacking = [], 0
    for row in made.windows():
        last_ms = row.start + made.times.window_ms - 1
        events = made.workload.events_of(row.key, row.start)
        in_time = [event for event in events if not made.workload.may_be_late(*event, last_ms)]
        lacking += len(events) - len(in_time)
        found += [made.window(row.key, row.start, in_time)] if in_time else []
    assert lacking, "nothing was late"
    return found


def one_by_one(made: Shown) -> list[EventRow]:
    """Returns each window first with its events in time, at least one, then again with each further event."""
    rows = []
    for (key, start), events in made.workload.windows().items():
        last_ms = start + made.times.window_ms - 1
        in_order = sorted(events, key=lambda event: made.workload.may_be_late(*event, last_ms))
        late = sum(made.workload.may_be_late(*event, last_ms) for event in events)
        first = max(1, len(events) - late)
        rows += [
            changed(made.window(key, start, in_order[:n]), update=n - first) for n in range(first, len(events) + 1)
        ]
    assert len(rows) > len(made.workload.windows()), "nothing was late"
    return rows


def sessions_as_one(shows: Shown) -> list[EventRow]:
    first = shows.long_session()
    second = next(row for row in shows.sessions() if (row.split, row.key) == (first.split, first.key) and row != first)
    return [changed(second, first=first.first, n=first.n + second.n)]


def two_as_one(made: Shown) -> list[EventRow]:
    before, after = (row for row in made.gaps()[:2])
    assert before.key == after.key
    mask, n = before.mask + after.mask, before.n + after.n
    return [changed(before, last=after.last, mask=mask, n=n)]


def begun_too_late(made: Shown) -> list[EventRow]:
    row = made.long_session()
    following = next(s for s in range(row.first + 1, 99) if made.times.key(row.split, s) == row.key)
    return [changed(row, first=following, n=row.n - 1)]


def ended_by_an_earlier_timer(made: Shown) -> list[EventRow]:
    row = made.long_session()
    return [changed(row, start=row.start - made.times.period_ms)]


def with_a_change(made: Shown, **fields: int) -> list[EventRow]:
    row = made.counted()
    return [*made.before(row), changed(row, **fields)]


def cut(made: Shown) -> list[EventRow]:
    row = made.long_session()
    timer = made.times.at_ms(row.split, row.first) + made.times.gap_ms
    return [changed(row, n=1, last=row.first, start=timer)]


def one_timer(made: Shown, **fields: int) -> list[EventRow]:
    """Returns the rows of one timer, with wrong fields when the timer fires."""
    row, fired = made.timers()[0]
    return [row, changed(fired, **fields)]


def one_deleted(made: Shown, fires: bool, before: bool = False) -> list[EventRow]:
    """Deletes a key's first timer with the second; the first fires before, after the deletion, or not at all."""
    (first, fired), *others = made.timers()
    second = next(row for row, _ in others if (row.split, row.key) == (first.split, first.key))
    deleting = changed(second, id=first.first)
    return [first, *([fired] if before else []), deleting, *([fired] if fires else [])]


def in_another_order(made: Shown) -> list[EventRow]:
    (first, fired), *others = made.timers()
    second = next(both for both in others if (both[0].split, both[0].key) == (first.split, first.key))
    return [first, *second, fired]


def a_window(made: Shown) -> list[EventRow]:
    row = next(each for each in made.wall_windows() if each.n > 1)
    return [
        each for each in made.wall_windows() if (each.split, each.key, each.start) == (row.split, row.key, row.start)
    ]


def without_a_window(made: Shown) -> list[EventRow]:
    its = a_window(made)
    return [each for each in made.wall_windows() if each not in its]


def in_another_window(made: Shown, later_ms: int) -> list[EventRow]:
    its = a_window(made)
    return [*its, *(changed(row, start=row.start + later_ms, last=row.last + later_ms, mask=2**50) for row in its)]


def of_another_key(made: Shown) -> list[EventRow]:
    return [changed(row, key=(row.key + 1) % KEYS) for row in a_window(made)]


def in_falling_order(made: Shown) -> list[EventRow]:
    return made.wall_windows()[::-1]


def in_two_parts(made: Shown) -> list[EventRow]:
    first, *rest = a_window(made)
    later = [
        row
        for row in made.wall_windows()
        if (row.split, row.key) == (first.split, first.key) and row.start > first.start
    ]
    return [first, *later, *rest]


def told_at(made: Shown, **moved: int) -> list[EventRow]:
    """Returns a window with fields increased by `moved`."""
    rows = a_window(made)
    return [changed(row, **{name: getattr(row, name) + by for name, by in moved.items()}) for row in rows]


def told_at_the_end(made: Shown) -> list[EventRow]:
    """Returns all windows; those open at the last event are emitted at that event."""
    came_ms = max(made.times.due_ms(split, made.times.count - 1) for split in range(made.times.splits))
    return [changed(row, mask=min(row.mask, came_ms)) for row in made.wall_windows()]


def messages(*at: int, acknowledged: Sequence[int] | None = None) -> Told:
    """Shows the rows at these positions, of three messages with two rows each.

    With `acknowledged`, the checker then judges the acknowledged messages."""
    reports: list[tuple[str, str]] = []
    workload = Workload("one-shuffle", 1, 3, 0, 1, False, sink, sink)
    judge = MessagesOnce(Facts(Paths("bank")), workload, lambda judge, what: reports.append((judge, what)))
    rows = Bank(workload).read("a", 0, 0, 3)
    judge.on_visible("out", 0, (), [rows[each] for each in at])
    if acknowledged is not None:
        judge.judge(3, acknowledged, "running")
    return Told(reports)


# ---------------------------------------------------------------- the table

TABLE: Table = {
    "FiresOnce": (
        Case(
            "a window comes back",
            lambda: shown("windows", lambda s: [*s.windows(), s.windows()[0]]).finish(),
            "fired twice",
        ),
        Case(
            "an update without the one before",
            lambda: shown("windows", lambda s: [changed(row, update=1) for row in s.windows()]).finish(),
            "is not one event more than None",
        ),
        Case("other keys and times", lambda: shown("windows", Shown.windows).finish()),
        Case("updates of a window", lambda: shown("windows", one_by_one, WAITING).finish()),
    ),
    "WholeWindows": (
        Case(
            "an event of another key",
            lambda: shown("windows", with_an_event_of_another_key),
            "counts what does not belong to it",
        ),
        Case("an event twice", lambda: shown("windows", lambda s: one_more(s.large_window()[0])), "or twice"),
        Case("an event is lacking", lambda: shown("windows", lacking_one), "which were not late"),
        Case(
            "a window never fires", lambda: shown("windows", lambda s: s.windows()[1:]).finish(), "which were not late"
        ),
        Case("late events are lacking", lambda: shown("windows", lacking_late_events, LATE).finish()),
    ),
    "WholeGaps": (
        Case(
            "an event of a session is lacking",
            lambda: shown("gaps", lambda s: [changed(s.large_gap(), n=s.large_gap().n - 1)]),
            "does not hold its events",
        ),
        Case("an event twice", lambda: shown("gaps", lambda s: one_more(s.large_gap())), "does not hold its events"),
        Case(
            "a session that should have been joined",
            lambda: shown("gaps", lambda s: [changed(s.large_gap(), last=s.large_gap().start, n=1)]),
            "should have taken in what is within the gap",
        ),
        Case(
            "two sessions as one",
            lambda: shown("gaps", two_as_one, replace(IN_ORDER, window_gap_ms=150)),
            "goes over a gap",
        ),
        Case("a session never ends", lambda: shown("gaps", lambda s: s.gaps()[1:]).finish(), "is in no session"),
        Case("more than there is", lambda: shown("gaps", lambda s: [changed(s.large_gap(), n=99)], LATE), "more than"),
        Case("cut at their gaps", lambda: shown("gaps", Shown.gaps).finish()),
        Case("told again", lambda: shown("gaps", Shown.told_gaps, TOLD_AGAIN).finish()),
        Case(
            "told twice",
            lambda: shown("gaps", lambda s: s.told_gaps()[:1] + s.told_gaps()[:1], TOLD_AGAIN),
            "came twice",
        ),
        Case(
            "what is no session any more is not taken back",
            lambda: shown("gaps", lambda s: [row for row in s.told_gaps() if not row.retracted], TOLD_AGAIN).finish(),
            "should have taken in what is within the gap",
        ),
        Case(
            "taken back with rows",
            lambda: shown("gaps", lambda s: [changed(row, n=1) for row in s.told_gaps() if row.retracted], TOLD_AGAIN),
            "takes back what was not told, or has rows",
        ),
        Case(
            "told again with more than there is",
            lambda: shown("gaps", lambda s: [changed(row, n=99) for row in s.told_gaps()[:1]], TOLD_AGAIN),
            "has more than its events",
        ),
        Case(
            "the last update never comes",
            lambda: shown("gaps", lambda s: [row for row in s.told_gaps() if not row.update], TOLD_AGAIN).finish(),
            "in no session",
        ),
    ),
    "CountedInOrder": (
        Case("every two events, of the last six", lambda: shown(COUNTED, Shown.of_counts).finish()),
        Case("one is lacking", lambda: shown(COUNTED, lambda s: s.of_counts()[1:]), "should have the events"),
        Case("twice", lambda: shown(COUNTED, lambda s: [s.of_counts()[0]] * 2), "should have the events"),
        Case("the last is lacking", lambda: shown(COUNTED, lambda s: s.of_counts()[:-1]).finish(), "were counted"),
        Case(
            "of more than there are",
            lambda: shown(COUNTED, lambda s: s.of_counts() + s.of_counts()[-1:]),
            "its key has",
            once=True,
        ),
    ),
    "WholeSessions": (
        Case("begun too late", lambda: shown("sessions", begun_too_late), "a session should begin with event"),
        Case(
            "a session twice",
            lambda: shown("sessions", lambda s: [s.long_session()] * 2),
            "a session should begin with event",
        ),
        Case(
            "an event twice",
            lambda: shown("sessions", lambda s: one_more(s.long_session())),
            "events of the key between its first and its last",
        ),
        Case("an earlier timer", lambda: shown("sessions", ended_by_an_earlier_timer), "a timer that was deleted"),
        Case("a session is cut", lambda: shown("sessions", cut), "ended before the watermark was there"),
        Case(
            "a row before the timer that it proves due",
            lambda: shown("sessions", sessions_as_one, ONE_SPLIT),
            "before which the timer of event",
        ),
        Case("held back by another split", lambda: shown("sessions", sessions_as_one)),
        Case("cut at their gaps, one split", lambda: shown("sessions", Shown.sessions, ONE_SPLIT).finish()),
        Case(
            "a session never ends", lambda: shown("sessions", lambda s: s.sessions()[:-1]).finish(), "is in no session"
        ),
        Case("cut at their gaps", lambda: shown("sessions", Shown.sessions).finish()),
    ),
    "SeenOnce": (
        Case(
            "another id",
            lambda: shown("unique", lambda s: [changed(s.id_row(0, 0), id=77)]),
            "has another id than its event",
        ),
        Case("an event again", lambda: shown("unique", lambda s: [s.id_row(0, 0)] * 2), "passed after event"),
        Case("remembered for ever", lambda: shown("unique", Shown.repeated), "cannot be forgotten yet"),
        Case(
            "forgotten too early",
            lambda: shown("unique", Shown.repeated, replace(ONE_SPLIT, within_ms=3_600_000)),
            "cannot be forgotten yet",
        ),
        Case("an id never passes", lambda: shown("unique", lambda s: s.ids()[1:]).finish(), "did not pass"),
        Case("its time is over", lambda: shown("unique", Shown.repeated, replace(ONE_SPLIT, within_ms=100))),
        Case("each id once", lambda: shown("unique", Shown.ids).finish()),
    ),
    "ExpiresInTime": (
        Case("each as it is", lambda: shown(EXPIRING, Shown.expiring).finish()),
        Case(
            "an expired value",
            lambda: shown(EXPIRING, lambda s: [changed(each, n=each.n + 1) for each in s.expiring()[:1]]),
            "the state at",
            once=True,
        ),
        Case(
            "a value is lost",
            lambda: shown(EXPIRING, lambda s: with_a_change(s, n=1)),
            "the state at",
        ),
        Case("an element is lost", lambda: shown(EXPIRING, lambda s: with_a_change(s, last=0)), "the state at"),
        Case("an entry is lost", lambda: shown(EXPIRING, lambda s: with_a_change(s, mask=0)), "the state at"),
        Case(
            "an element of a list that is seldom looked at is lost",
            lambda: shown(EXPIRING, lambda s: with_a_change(s, update=-1)),
            "the state at",
        ),
        Case(
            "judged too late",
            lambda: shown(EXPIRING, lambda s: [changed(s.expiring()[0], start=s.expiring()[0].start + 1)]),
            "is judged at",
            once=True,
        ),
        Case("a row again", lambda: shown(EXPIRING, lambda s: [s.expiring()[0]] * 2), "the next event of its key is"),
        Case("an event never comes", lambda: shown(EXPIRING, lambda s: s.expiring()[:-1]).finish(), "did not come"),
    ),
    "WallTimersFireOnce": (
        Case("a timer twice", lambda: shown(WALL_TIMERS, lambda s: [*s.timers()[0], s.timers()[0][1]]), "fired twice"),
        Case("a timer of no event", lambda: shown(WALL_TIMERS, lambda s: one_timer(s, first=-1)), "fired twice"),
        Case("nobody set it", lambda: shown(WALL_TIMERS, lambda s: s.timers()[0][1:]), "nobody has set this timer"),
        Case("another time", lambda: shown(WALL_TIMERS, lambda s: one_timer(s, start=7)), "nobody has set this timer"),
        Case("a deleted one", lambda: shown(WALL_TIMERS, lambda s: one_deleted(s, True)), "or it was deleted"),
        Case(
            "fired and deleted",
            lambda: shown(WALL_TIMERS, lambda s: one_deleted(s, False, before=True)),
            "the timer that it deleted had fired",
        ),
        Case("early by its clock", lambda: shown(WALL_TIMERS, lambda s: one_timer(s, last=5)), "before its time"),
        Case("early by the world's", lambda: shown(WALL_TIMERS, lambda s: one_timer(s, mask=5)), "before its time"),
        Case("out of order", lambda: shown(WALL_TIMERS, in_another_order), "a later timer of the key fired before"),
        Case(
            "an event again",
            lambda: shown(WALL_TIMERS, lambda s: [s.timers()[0][0]] * 2),
            "the event came already",
        ),
        Case(
            "an event never comes",
            lambda: shown(WALL_TIMERS, lambda s: [row for both in s.timers()[1:] for row in both]).finish(),
            "did not come",
        ),
        Case(
            "a timer never fires",
            lambda: shown(WALL_TIMERS, lambda s: [row for row, _ in s.timers()]).waited(),
            "did not fire in 90 s of calm",
        ),
        Case(
            "the world's clock says otherwise",
            lambda: shown(WALL_TIMERS, lambda s: one_timer(s, mask=5), replace(IN_ORDER, clocks_jump=True)),
        ),
        Case("deleted, and silent", lambda: shown(WALL_TIMERS, lambda s: one_deleted(s, False))),
        Case(
            "all fire once",
            lambda: shown(WALL_TIMERS, lambda s: [row for both in s.timers() for row in both]).waited().finish(),
        ),
        Case(
            "not due when the input ends", lambda: shown(WALL_TIMERS, lambda s: [row for row, _ in s.timers()]).finish()
        ),
    ),
    "WholeWallWindows": (
        Case("each in its window", lambda: shown(WALL_WINDOWS, Shown.wall_windows).waited().finish()),
        Case("in all its windows", lambda: shown(WALL_WINDOWS, Shown.wall_windows, SLIDING).waited().finish()),
        Case("sessions", lambda: shown(WALL_WINDOWS, Shown.wall_windows, BY_GAPS).waited().finish()),
        Case(
            "told again",
            lambda: shown(WALL_WINDOWS, lambda s: [*s.wall_windows(), s.wall_windows()[0]]),
            "was in that window already",
        ),
        Case("an event is in no window", lambda: shown(WALL_WINDOWS, without_a_window).finish(), "of 1"),
        Case("an event waits", lambda: shown(WALL_WINDOWS, without_a_window).waited(), "not told in 90 s of calm"),
        Case(
            "an event is in one window fewer",
            lambda: shown(WALL_WINDOWS, without_a_window, SLIDING).finish(),
            "of 4",
        ),
        Case("in two windows", lambda: shown(WALL_WINDOWS, lambda s: in_another_window(s, 400)), "one too many"),
        Case("an event is missing", lambda: shown(WALL_WINDOWS, lambda s: a_window(s)[1:]), "of which these came"),
        Case("of another key", lambda: shown(WALL_WINDOWS, of_another_key), "has another key"),
        Case("an older one later", lambda: shown(WALL_WINDOWS, in_falling_order), "a later window of its key"),
        Case("in two parts", lambda: shown(WALL_WINDOWS, in_two_parts), "the window was told already"),
        Case("too long", lambda: shown(WALL_WINDOWS, lambda s: told_at(s, last=1)), "is of 401 ms"),
        Case("too short", lambda: shown(WALL_WINDOWS, lambda s: told_at(s, last=-150), BY_GAPS), "is of 50 ms"),
        Case("came after its end", lambda: shown(WALL_WINDOWS, lambda s: told_at(s, start=-400, last=-400)), "came at"),
        Case("told early", lambda: shown(WALL_WINDOWS, lambda s: told_at(s, mask=-1)), "before it was over"),
        Case(
            "told early by a clock that was set",
            lambda: shown(WALL_WINDOWS, lambda s: told_at(s, mask=-1), replace(IN_ORDER, clocks_jump=True)),
        ),
        Case("told when all input was there", lambda: shown(WALL_WINDOWS, told_at_the_end).finish()),
    ),
    "WatermarksMove": (
        Case(
            "event time stands still",
            lambda: shown("windows", lambda s: s.windows()[:1]).calm(),
            "event time is 1000000, though 90 s of calm passed since 1000001",
        ),
        Case("event time goes on", lambda: shown("windows", Shown.windows).calm()),
    ),
    "NoneRunsAhead": (
        Case(
            "two events further than the slowest and one more",
            lambda: reading((0, 0, 2), (1, 0, 5), (1, 5, 6)),
            "split 1 was read at 5 though it was 300 ms ahead of split 0",
            once=True,
        ),
        Case(
            "another split has had no row",
            lambda: reading((1, 0, 1), (1, 1, 2)),
            "split 1 was read at 1 though split 0 has had no row",
            once=True,
        ),
        Case("as far as the drift", lambda: reading((0, 0, 2), (1, 0, 4), (1, 4, 5))),
        Case("read again after a restore", lambda: reading((0, 0, 9), (1, 0, 9), (0, 1, 2), (1, 1, 9))),
        Case("the slowest has ended", lambda: reading((0, 0, 24), (1, 0, 1), (1, 1, 24))),
        Case("a job without drift", lambda: reading((1, 0, 1), (1, 1, 24), drift_ms=None)),
    ),
    "MessagesOnce": (
        Case("a message twice", lambda: messages(*range(6), 2), "shows message 1 again", once=True),
        Case(
            "acknowledged, and it did not come out",
            lambda: messages(0, 1, 2, acknowledged=[0, 1]),
            "messages [1, 2] did not come out, of which [1] were acknowledged: running",
            once=True,
        ),
        Case("all come out once", lambda: messages(*range(6), acknowledged=[0, 1, 2])),
    ),
}


@each_case(TABLE)
def test_who_breaks_a_rule_is_told_and_nobody_else(judge: str, case: Case) -> None:
    check(judge, case)


def test_every_judge_is_shown_to_speak_and_to_be_silent() -> None:
    assert untold(TABLE, {each.__name__ for each in (*EVENT_CHECKERS, MessagesOnce)}) == []


UNENDING = replace(IN_ORDER, bounded=False)


def test_windows_of_a_drained_job_hold_what_it_had_read_and_have_all_fired() -> None:
    shown = Shown("windows", UNENDING).drained(7, 3)
    rows = shown.windows()
    assert sum(row.n for row in rows) == 10
    assert shown.show(*rows).finish().reports == []
    lacking = Shown("windows", UNENDING).drained(7, 3).show(*rows[1:]).finish()
    assert {judge for judge, _ in lacking.reports} == {"WholeWindows"}


def test_a_window_of_a_drained_job_has_nothing_that_was_read_later() -> None:
    row, _ = Shown("windows").large_window()
    shown = Shown("windows", UNENDING).drained(0, 0).show(row)
    assert {judge for judge, _ in shown.reports} == {"WholeWindows"}


def test_another_run_of_a_drained_job_may_tell_windows_once_more() -> None:
    shown = Shown("windows", UNENDING).drained(7, 3)
    rows = shown.windows()
    assert shown.show(*rows).started_again().show(*rows).finish().reports == []
