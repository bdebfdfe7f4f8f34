"""The judges of jobs in event time, and of a queue's messages, are judged: each reports the rows that break its rule,
and is silent about those that come close to it.

Every row is shown to all judges of its kind of job, so one that accuses the innocent fails here as one that is deaf.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from checkers import Checker, MessagesOnce
from event_checkers import EVENT_CHECKERS, FiresOnce, SeenOnce, WatermarksMove, WholeSessions, WholeWindows
from events import EventRow, EventTimes, EventWorkload
from facts import Facts
from test_checkers import Bank
from workload import Row, Workload

from barrier_runtime.connectors.files.sink.sink import JsonlSink
from barrier_runtime.coordinator.log.records import Finish
from barrier_runtime.state.store.paths import Paths

IN_ORDER = EventTimes(
    splits=2,
    count=24,
    start_ms=1_000_000,
    period_ms=100,
    bounded=True,
    window_ms=400,
    bound_ms=0,
    disorder_ms=0,
    idle_ms=None,
    pause_at=None,
    pause_ms=0,
    gap_ms=250,
    within_ms=None,
    text_keys=False,
)
LATE = replace(IN_ORDER, disorder_ms=500)  # more than the source says: some events are late
ONE_SPLIT = replace(IN_ORDER, splits=1)


def sink() -> JsonlSink:
    return JsonlSink("sim://target")


class Shown:
    """What readers see of one job in event time."""

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

    def finish(self) -> "Shown":
        """The job says that it has read all."""
        record = Finish(put_id="a-1", parent_sha256="", token=1, writer="host", wall_ms=0, outcome="finished")
        for judge in self.judges.values():
            judge.on_record(1, record)
        return self

    # ---- true rows

    def windows(self) -> list[EventRow]:
        found = self.workload.windows().items()
        return [self.window(key, start, events) for (key, start), events in sorted(found)]

    def window(self, key: int, start: int, events: Sequence[tuple[int, int]]) -> EventRow:
        return EventRow(key=key, start=start, n=len(events), mask=sum(self.times.bit(*event) for event in events))

    def large_window(self) -> tuple[EventRow, list[tuple[int, int]]]:
        """One of several events, and these."""
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

    def long_session(self) -> EventRow:
        return max((each for each in self.sessions() if self._is_first(each)), key=lambda each: each.n)

    def _is_first(self, row: EventRow) -> bool:
        return not any(self.times.key(row.split, seq) == row.key for seq in range(row.first))

    def ids(self) -> list[EventRow]:
        rows: dict[int, EventRow] = {}
        for split in range(self.times.splits):
            for seq in range(self.times.count):
                rows.setdefault(self.times.id(split, seq), self.id_row(split, seq))
        return list(rows.values())

    def id_row(self, split: int, seq: int) -> EventRow:
        return EventRow(split, first=seq, id=self.times.id(split, seq))

    def repeated(self) -> tuple[EventRow, EventRow]:
        """The first event with its id, and the next one with the same."""
        times = self.times
        for seq in range(times.count):
            for later in range(seq + 1, times.count):
                if times.id(0, later) == times.id(0, seq):
                    return self.id_row(0, seq), self.id_row(0, later)
        raise AssertionError("no id is repeated")


def changed(row: EventRow, **fields: int) -> EventRow:
    return msgspec.structs.replace(row, **fields)


# ---------------------------------------------------------------- what breaks a rule

BREAKS: list[tuple[type[Checker], str, Callable[[], Shown]]] = []
KEEPS: list[tuple[type[Checker], Callable[[], Shown]]] = []


def breaks(judge: type[Checker], what: str) -> Callable[[Callable[[], Shown]], Callable[[], Shown]]:
    """`judge` says `what` of it, and no other judge speaks."""

    def register(shown: Callable[[], Shown]) -> Callable[[], Shown]:
        BREAKS.append((judge, what, shown))
        return shown

    return register


def keeps(judge: type[Checker]) -> Callable[[Callable[[], Shown]], Callable[[], Shown]]:
    def register(shown: Callable[[], Shown]) -> Callable[[], Shown]:
        KEEPS.append((judge, shown))
        return shown

    return register


@breaks(FiresOnce, "fired twice")
def a_window_that_comes_back() -> Shown:
    shown = Shown("windows")
    return shown.show(*shown.windows(), shown.windows()[0]).finish()


@keeps(FiresOnce)
def windows_of_other_keys_and_times() -> Shown:
    shown = Shown("windows")
    return shown.show(*shown.windows()).finish()


@breaks(WholeWindows, "counts what does not belong to it")
def a_window_with_an_event_of_another_key() -> Shown:
    shown = Shown("windows")
    row, events = shown.large_window()
    other = next(e for key in range(3) if key != row.key for e in shown.workload.events_of(key, row.start))
    return shown.show(shown.window(row.key, row.start, [*events, other]))


@breaks(WholeWindows, "or twice")
def a_window_that_counts_an_event_twice() -> Shown:
    shown = Shown("windows")
    row, _ = shown.large_window()
    return shown.show(changed(row, n=row.n + 1))


@breaks(WholeWindows, "which were not late")
def a_window_that_lacks_an_event() -> Shown:
    shown = Shown("windows")
    row, events = shown.large_window()
    return shown.show(shown.window(row.key, row.start, events[1:]))


@breaks(WholeWindows, "which were not late")
def a_window_that_never_fires() -> Shown:
    shown = Shown("windows")
    return shown.show(*shown.windows()[1:]).finish()


@keeps(WholeWindows)
def windows_that_lack_late_events_only() -> Shown:
    shown = Shown("windows", LATE)
    lacking = 0
    for row in shown.windows():
        last_ms = row.start + LATE.window_ms - 1
        events = shown.workload.events_of(row.key, row.start)
        in_time = [event for event in events if not shown.workload.may_be_late(*event, last_ms)]
        lacking += len(events) - len(in_time)
        if in_time:
            shown.show(shown.window(row.key, row.start, in_time))
    assert lacking, "nothing was late"
    return shown.finish()


@breaks(WholeSessions, "a session should begin with event")
def a_session_that_begins_too_late() -> Shown:
    shown = Shown("sessions")
    row = shown.long_session()
    following = next(s for s in range(row.first + 1, 99) if shown.times.key(row.split, s) == row.key)
    return shown.show(changed(row, first=following, n=row.n - 1))


@breaks(WholeSessions, "a session should begin with event")
def a_session_that_comes_again() -> Shown:
    shown = Shown("sessions")
    return shown.show(shown.long_session(), shown.long_session())


@breaks(WholeSessions, "events of the key between its first and its last")
def a_session_that_counts_an_event_twice() -> Shown:
    shown = Shown("sessions")
    row = shown.long_session()
    return shown.show(changed(row, n=row.n + 1))


@breaks(WholeSessions, "ended by a timer that was deleted")
def a_session_that_an_earlier_timer_ends() -> Shown:
    shown = Shown("sessions")
    row = shown.long_session()
    return shown.show(changed(row, start=row.start - shown.times.period_ms))


@breaks(WholeSessions, "ended before the watermark was there")
def a_session_that_is_cut() -> Shown:
    shown = Shown("sessions")
    row = shown.long_session()
    timer = shown.times.at_ms(row.split, row.first) + shown.times.gap_ms
    return shown.show(changed(row, n=1, last=row.first, start=timer))


@breaks(WholeSessions, "is in no session")
def a_session_that_never_ends() -> Shown:
    shown = Shown("sessions")
    return shown.show(*shown.sessions()[:-1]).finish()


@keeps(WholeSessions)
def sessions_cut_at_their_gaps() -> Shown:
    shown = Shown("sessions")
    return shown.show(*shown.sessions()).finish()


@breaks(SeenOnce, "has another id than its event")
def an_event_that_passes_under_another_id() -> Shown:
    shown = Shown("unique")
    return shown.show(changed(shown.id_row(0, 0), id=77))


@breaks(SeenOnce, "passed after event")
def an_event_that_passes_again() -> Shown:
    shown = Shown("unique")
    return shown.show(shown.id_row(0, 0), shown.id_row(0, 0))


@breaks(SeenOnce, "cannot be forgotten yet")
def an_id_that_passes_twice_though_ids_are_remembered_for_ever() -> Shown:
    return _repeated(Shown("unique"))


@breaks(SeenOnce, "cannot be forgotten yet")
def an_id_that_is_forgotten_too_early() -> Shown:
    return _repeated(Shown("unique", replace(ONE_SPLIT, within_ms=3_600_000)))


def _repeated(shown: Shown) -> Shown:
    return shown.show(*shown.repeated())


@breaks(SeenOnce, "did not pass")
def an_id_that_never_passes() -> Shown:
    shown = Shown("unique")
    return shown.show(*shown.ids()[1:]).finish()


@keeps(SeenOnce)
def an_id_that_is_forgotten_when_its_time_is_over() -> Shown:
    return _repeated(Shown("unique", replace(ONE_SPLIT, within_ms=100)))


@keeps(SeenOnce)
def each_id_once() -> Shown:
    shown = Shown("unique")
    return shown.show(*shown.ids()).finish()


@breaks(WatermarksMove, "event time is 1000000, though 90 s of calm passed since 1000001")
def event_time_that_stands_still() -> Shown:
    shown = Shown("windows")
    shown.show(shown.windows()[0])
    shown.judges[WatermarksMove].judge(IN_ORDER.start_ms + 1, 90, "running")
    return shown


@keeps(WatermarksMove)
def event_time_that_goes_on() -> Shown:
    shown = Shown("windows")
    shown.show(*shown.windows())
    shown.judges[WatermarksMove].judge(IN_ORDER.start_ms + 1, 90, "running")
    return shown


# ---------------------------------------------------------------- and what is said of it


@pytest.mark.parametrize(("judge", "what", "shown"), BREAKS, ids=lambda each: getattr(each, "__name__", None))
def test_rows_that_break_a_rule_are_reported_by_its_judge(
    judge: type[Checker], what: str, shown: Callable[[], Shown]
) -> None:
    """The judge of the broken rule speaks, and no other."""
    reports = shown().reports
    assert any(what in said for _, said in reports), reports
    assert {name for name, _ in reports} == {judge.__name__}


@pytest.mark.parametrize(("judge", "shown"), KEEPS, ids=lambda each: getattr(each, "__name__", None))
def test_rows_that_keep_all_rules_are_reported_by_nobody(judge: type[Checker], shown: Callable[[], Shown]) -> None:
    assert shown().reports == []


@pytest.mark.parametrize("judge", EVENT_CHECKERS)
def test_every_judge_of_event_time_is_shown_to_speak_and_to_be_silent(judge: type[Checker]) -> None:
    assert judge in {each for each, _, _ in BREAKS}
    assert judge in {each for each, _ in KEEPS}


# ---------------------------------------------------------------- messages of a queue


def messages(count: int) -> tuple[MessagesOnce, list[Row], list[tuple[str, str]]]:
    """A judge, the rows of all messages, and what it has said."""
    reports: list[tuple[str, str]] = []
    workload = Workload("one-shuffle", 1, count, 0, 1, False, sink, sink)
    judge = MessagesOnce(Facts(Paths("bank")), workload, lambda judge, what: reports.append((judge, what)))
    return judge, Bank(workload).read("a", 0, 0, count), reports


def test_a_message_that_comes_out_twice_is_reported() -> None:
    judge, rows, reports = messages(3)
    judge.on_visible("out", 0, (), [*rows, rows[2]])
    assert [name for name, _ in reports] == ["MessagesOnce"]
    assert "shows message 1 again" in reports[0][1]


def test_a_message_that_was_acknowledged_and_did_not_come_out_is_reported() -> None:
    judge, rows, reports = messages(3)
    judge.on_visible("out", 0, (), rows[:3])
    judge.judge(3, [0, 1], "running")
    assert reports == [("MessagesOnce", "messages [1, 2] did not come out, of which [1] were acknowledged: running")]


def test_messages_that_come_out_once_are_reported_by_nobody() -> None:
    judge, rows, reports = messages(3)
    judge.on_visible("out", 0, (), rows)
    judge.judge(3, [0, 1, 2], "running")
    assert reports == []
