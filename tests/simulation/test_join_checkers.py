"""Tests of the checkers of joins: a table of visible rows and verdicts, as in `test_event_checkers`.

Every row is reported to all checkers of joins."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import msgspec
from event_checkers import WatermarksMove
from events import EventTimes
from facts import Facts
from join_checkers import JOIN_CHECKERS
from joins import JOINED, Event, Joined, JoinRow, JoinWorkload, id_of
from judged import IN_ORDER as ALL_IN_ORDER
from judged import Case, Table, check, each_case, untold

from barrier_runtime.connectors.files.sink.sink import JsonlSink
from barrier_runtime.coordinator.log.records import Finish
from barrier_runtime.state.store.paths import Paths

IN_ORDER = replace(ALL_IN_ORDER, count=16)
LATE = replace(IN_ORDER, count=40, disorder_ms=500)  # more than the source's bound: some events are late
FULL = Joined("interval", "full", -200, 300)
INNER, LEFT, SEMI, ANTI = (replace(FULL, how=how) for how in ("inner", "left", "semi", "anti"))
WINDOWS = Joined("window", "full")
AS_OF = Joined("as-of", "left", tolerance_ms=500)
TABLE_JOIN = Joined("table", "left")


def reading(*reads: tuple[int, int, int]) -> "Shown":
    """Reads splits: (split, first event, end)."""
    shown = Shown(FULL, replace(IN_ORDER, max_drift_ms=IN_ORDER.period_ms))
    for read in reads:
        shown.workload.reading(*read)
    return shown


class Shown:
    """Visible rows of one job with a join, and its checkers."""

    def __init__(self, joined: Joined, times: EventTimes = IN_ORDER) -> None:
        def sink() -> JsonlSink:
            return JsonlSink("sim://target")

        self.workload = JoinWorkload(joined, times, lambda: 0, sink, sink, unaligned=False)
        self.reports: list[tuple[str, str]] = []
        self.judges: dict[type, Any] = {
            make: make(Facts(Paths("bank")), self.workload, lambda judge, what: self.reports.append((judge, what)))  # type: ignore[arg-type]
            for make in JOIN_CHECKERS
        }

    def show(self, rows: Sequence[JoinRow], late: Sequence[Event] = ()) -> "Shown":
        for judge in self.judges.values():
            judge.on_visible("out", 0, (), rows)
            judge.on_visible("side", 0, (), [late_row(event) for event in late])
        return self

    def finish(self) -> "Shown":
        record = Finish(put_id="a-1", parent_sha256="", token=1, writer="host", wall_ms=0, outcome="finished")
        for judge in self.judges.values():
            judge.on_record(1, record)
        return self

    def calm(self) -> "Shown":
        self.judges[WatermarksMove].judge(self.workload.times.start_ms + 600, 90, "running")
        return self

    # ---- correct rows

    def late(self) -> list[Event]:
        """Returns the events that may be late in all their windows."""
        work = self.workload
        found = [e for e in work.events() if not any(work.certain(e, start) for start in work.starts(e))]
        assert found, "nothing was late"
        return found

    def rows(self, gone: Sequence[Event] = ()) -> list[JoinRow]:
        work, how = self.workload, self.workload.joined.how
        rows: list[JoinRow] = []
        for event in (each for each in work.events() if each not in gone):
            for start in work.starts(event):
                there = [each for each in work.partners(event, start) if each not in gone]
                rows += self._rows_of(event, start, there, how)
        return rows

    def _rows_of(self, event: Event, start: int, there: list[Event], how: str) -> Iterator[JoinRow]:
        is_left = event[0] % 2 == 0
        if how in ("semi", "anti"):
            if is_left and bool(there) == (how == "semi"):
                yield row_of(event, None, start or self.workload.at_ms(event))
        elif self.workload.joined.versioned:
            if is_left:
                newest = max(there, key=self.workload.at_ms, default=None)
                if newest is not None and self.workload.deletes(newest):
                    newest = None
                yield row_of(event, newest, self.workload.at_ms(event))
        elif is_left and there:
            for right in there:
                yield row_of(event, right, start or max(self.workload.at_ms(event), self.workload.at_ms(right)))
        elif not there and self.workload.joined.keeps[0 if is_left else 1]:
            left, right = (event, None) if is_left else (None, event)
            yield row_of(left, right, start or self.workload.at_ms(event))


def row_of(left: Event | None, right: Event | None, start: int) -> JoinRow:
    return JoinRow(id_of(left), id_of(right), start, start)


def late_row(event: Event) -> JoinRow:
    return JoinRow(left=id_of(event)) if event[0] % 2 == 0 else JoinRow(right=id_of(event))


def shown(
    joined: Joined, rows: Callable[[Shown], Sequence[JoinRow]] = Shown.rows, times: EventTimes = IN_ORDER
) -> Shown:
    made = Shown(joined, times)
    return made.show(rows(made))


def all_but_late(joined: Joined) -> Shown:
    made = Shown(joined, LATE)
    return made.show(made.rows(made.late()), made.late()).finish()


# ---------------------------------------------------------------- spoiled rows


def a_pair(made: Shown) -> JoinRow:
    return next(row for row in made.rows() if row.left >= 0 and row.right >= 0)


def of_another_key(made: Shown) -> list[JoinRow]:
    row, times = a_pair(made), made.workload.times
    right = next((1, seq) for seq in range(times.count) if times.key(1, seq) != times.key(0, row.left))
    return [msgspec.structs.replace(row, right=id_of(right))]


def left_alone(made: Shown) -> list[JoinRow]:
    """Returns the first left event with a partner, alone."""
    return [msgspec.structs.replace(a_pair(made), right=-1)]


def with_and_without(made: Shown) -> list[JoinRow]:
    """Returns a left event both with a partner and alone; all its partners may have been late."""
    work = made.workload
    for row in made.rows():
        left, right = row.events
        if left is not None and right is not None and not any(map(work.certain, work.partners(left))):
            return [row, msgspec.structs.replace(row, right=-1)]
    raise AssertionError("each event has a partner in time")


def older_versions(made: Shown) -> list[JoinRow]:
    rows = []
    for row in made.rows():
        left = row.events[0]
        older = [] if left is None else sorted(made.workload.partners(left), key=made.workload.at_ms)[:-1]
        rows += [msgspec.structs.replace(row, right=id_of(older[-1]))] if older else []
    assert rows, "no event has two versions"
    return rows[:1]


def joined_with_a_delete(made: Shown) -> list[JoinRow]:
    work = made.workload
    pairs = ((left, right) for left in work.events() for right in work.partners(left) if work.deletes(right))
    left, right = max(pairs, key=lambda pair: work.at_ms(pair[1]))
    return [row_of(left, right, work.at_ms(left))]


def before_it_was_deleted(made: Shown) -> list[JoinRow]:
    work = made.workload
    for left in work.events():
        versions = sorted(work.partners(left), key=work.at_ms) if left[0] == 0 else []
        if len(versions) > 1 and work.deletes(versions[-1]) and not work.deletes(versions[-2]):
            return [row_of(left, versions[-2], work.at_ms(left))]
    raise AssertionError("no event comes after a delete")


def some_late_and_joined(made: Shown) -> Shown:
    late = set(made.late())
    row = next(row for row in made.rows() if not late.isdisjoint(row.events) and None not in row.events)
    return made.show([row], [next(each for each in row.events if each in late)])  # type: ignore[misc]


# ---------------------------------------------------------------- the table

TABLE: Table = {
    "RowsBelong": (
        Case("a pair of two keys", lambda: shown(FULL, of_another_key), "do not belong together"),
        Case("a pair again", lambda: shown(FULL, lambda s: [a_pair(s)] * 2), "comes again"),
        Case(
            "a pair of a window that it is not in",
            lambda: shown(WINDOWS, lambda s: [msgspec.structs.replace(a_pair(s), start=a_pair(s).start - 400)]),
            "do not belong together",
        ),
        Case(
            "alone out of an inner join",
            lambda: shown(INNER, lambda s: [row_of(event, None, 0) for event in lonely(s)[:1]]),
            "no event of a inner join comes out so",
        ),
        Case(
            "a right event alone out of a left join",
            lambda: shown(LEFT, lambda s: [row_of(None, event, 0) for event in lonely(s, 1)[:1]]),
            "no event of a left join comes out so",
        ),
        Case(
            "two versions of one event",
            lambda: shown(AS_OF, lambda s: [*s.rows(), *with_a_tie(s)]),
            "comes again",
            also=("NewestVersion",),
        ),
        Case("all pairs of windows", lambda: shown(WINDOWS).finish()),
        Case("all pairs", lambda: shown(INNER).finish()),
        Case("what deletes a key", lambda: shown(TABLE_JOIN, joined_with_a_delete), "do not belong together"),
    ),
    "AloneForGood": (
        Case("with partners in time", lambda: shown(LEFT, left_alone), "belong to it and were in time"),
        Case(
            "anti, with a partner",
            lambda: shown(ANTI, lambda s: Shown(SEMI).rows()[:1]),
            "belong to it and were in time",
        ),
        Case(
            "semi, without a partner",
            lambda: shown(SEMI, lambda s: [row_of(event, None, 0) for event in lonely(s)[:1]]),
            "the left event has no partner",
        ),
        Case(
            "as well as in a pair",
            lambda: shown(FULL, with_and_without, LATE),
            "came out alone as well as with a partner",
        ),
        Case("without partners", lambda: shown(FULL).finish()),
        Case("not in the table, which has it", lambda: shown(TABLE_JOIN, left_alone), "belong to it and were in time"),
        Case("deleted, or not there yet", lambda: shown(TABLE_JOIN).finish()),
        Case("partners were late", lambda: all_but_late(FULL)),
        Case("a left event has a partner, and comes once", lambda: shown(SEMI).finish()),
        Case("a left event has none", lambda: shown(ANTI).finish()),
    ),
    "NewestVersion": (
        Case("an older one", lambda: shown(AS_OF, older_versions), "are newer, and were in time"),
        Case("the newest that is there", lambda: shown(AS_OF).finish()),
        Case("the newest that was in time", lambda: all_but_late(AS_OF)),
        Case("the newest of a table that was in time", lambda: all_but_late(TABLE_JOIN)),
        Case("a row that was deleted", lambda: shown(TABLE_JOIN, before_it_was_deleted), "are newer, and were in time"),
    ),
    "LateIsLate": (
        Case("in time", lambda: Shown(FULL).show([], [(0, 0)]), "was in time"),
        Case("late twice", lambda: again_late(Shown(FULL, LATE)), "is late again"),
        Case("late, and joined", lambda: some_late_and_joined(Shown(FULL, LATE)), "was late, and is joined"),
        Case("each late event once", lambda: all_but_late(WINDOWS)),
    ),
    "NothingLacks": (
        Case("a pair", lambda: shown(INNER, lambda s: s.rows()[1:]).finish(), "which belong to it"),
        Case(
            "an event without a partner",
            lambda: shown(FULL, lambda s: [row for row in s.rows() if row.right >= 0]).finish(),
            "is neither joined, nor alone, nor late",
        ),
        Case(
            "a row of a semi join",
            lambda: shown(SEMI, lambda s: s.rows()[1:]).finish(),
            "come out of the semi",
        ),
        Case(
            "a row of an anti join",
            lambda: shown(ANTI, lambda s: s.rows()[1:]).finish(),
            "come out of the anti",
        ),
        Case(
            "a left event of an as-of join",
            lambda: shown(AS_OF, lambda s: s.rows()[1:]).finish(),
            "does not come out of the left",
        ),
        Case("a late event", lambda: without_a_late_one(Shown(FULL, LATE)), "nor alone, nor late"),
        Case("all but what is late", lambda: all_but_late(INNER)),
        Case("all versions", lambda: shown(replace(AS_OF, exact=False)).finish()),
    ),
    "WatermarksMove": (
        Case("event time stands still", lambda: shown(FULL, lambda s: s.rows()[:1]).calm(), "event time is"),
        Case("event time goes on", lambda: shown(FULL).calm()),
    ),
    "NoneRunsAhead": (
        Case(
            "the right side is ahead",
            lambda: reading((0, 0, 1), (1, 0, 4), (1, 4, 5)),
            "split 1 was read at 4 though it was",
            once=True,
        ),
        Case("both sides keep step", lambda: reading((0, 0, 2), (1, 0, 2), (0, 2, 4), (1, 2, 4))),
    ),
}


def lonely(made: Shown, side: int = 0) -> list[Event]:
    return [e for e in made.workload.events() if e[0] == side and not list(made.workload.partners(e))]


def with_a_tie(made: Shown) -> list[JoinRow]:
    """Returns left events with the version before the newest."""
    return older_versions(made)


def again_late(made: Shown) -> Shown:
    return made.show([], [made.late()[0]] * 2)


def without_a_late_one(made: Shown) -> Shown:
    return made.show(made.rows(made.late()), made.late()[1:]).finish()


@each_case(TABLE)
def test_who_breaks_a_rule_is_told_and_nobody_else(judge: str, case: Case) -> None:
    check(judge, case)


def test_every_judge_is_shown_to_speak_and_to_be_silent() -> None:
    assert untold(TABLE, {each.__name__ for each in JOIN_CHECKERS}) == []


def test_a_job_shows_joined_and_late_rows_in_two_sinks() -> None:
    assert Shown(FULL).workload.sinks == {"out": JOINED, "side": "late"}
