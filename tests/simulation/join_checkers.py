"""Checkers of joins of two streams.

The oracle is arithmetic on the numbers of events (see `joins`): which events belong together, and which events cannot
have been late."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from checkers import Checker, Report
from event_checkers import NoneRunsAhead, TimedChecker, WatermarksMove
from facts import Facts
from joins import JOINED, Event, JoinRow, JoinWorkload, id_of


class JoinChecker(TimedChecker):
    workload: JoinWorkload

    def shown(self, what: str, rows: Sequence[Any]) -> None:
        for row in rows:
            if what == JOINED:
                self.row(row)
            else:
                self.late(row)

    def row(self, row: JoinRow) -> None: ...

    def late(self, row: JoinRow) -> None: ...


class RowsBelong(JoinChecker):
    """A row has events that belong together, or a single event that the join emits alone. No row is repeated; as-of,
    semi and anti joins emit a left event once."""

    def __init__(self, facts: Facts, workload: Any, report: Report) -> None:
        super().__init__(facts, workload, report)
        self._seen: set[tuple[int, int, int]] = set()

    def row(self, row: JoinRow) -> None:
        joined, place = self.workload.joined, self.workload.place(row)
        left, right = row.events
        alone = joined.keeps[0 if right is None else 1] or (joined.one_sided and right is None)
        if left is not None and right is not None:
            belong = self.workload.belong(left, right, place) and not self.workload.deletes(right)
            if joined.one_sided or not belong:
                self.wrong(f"{row}: these events do not belong together")
        elif not alone or not self._exists(left if right is None else right, 0 if right is None else 1, place):
            self.wrong(f"{row}: no event of a {joined.how} join comes out so")
        once_per_left = joined.versioned or joined.one_sided
        identity = (row.left, -1 if once_per_left else row.right, place)
        if identity in self._seen:
            self.wrong(f"{row} comes again")
        self._seen.add(identity)

    def _exists(self, event: Event | None, side: int, place: int) -> bool:
        if event is None or event[0] % 2 != side or not self.workload.times.exists(*event):
            return False
        return place in self.workload.starts(event)


class AloneForGood(JoinChecker):
    """An event is emitted alone only if all its partners may have been late, and never both alone and with a partner.

    A left event of a semi join has a partner."""

    def __init__(self, facts: Facts, workload: Any, report: Report) -> None:
        super().__init__(facts, workload, report)
        self._alone: set[tuple[int, int]] = set()  # event and place
        self._met: set[tuple[int, int]] = set()

    def row(self, row: JoinRow) -> None:
        joined, place = self.workload.joined, self.workload.place(row)
        left, right = row.events
        event = left if right is None else right
        assert event is not None, "a row of nothing is `RowsBelong`'s business"
        if joined.how == "semi":
            if not any(True for _ in self.workload.partners(event, place)):
                self.wrong(f"{row}: the left event has no partner")
            return
        if left is None or right is None:
            self._alone.add((id_of(event), place))
            if joined.versioned:
                lost = self.workload.surely_has(event)
            else:
                lost = [each for each in self.workload.partners(event, place) if self.workload.certain(each, place)]
            if lost and self.workload.certain(event, place):
                self.wrong(f"{row} has no partner, but {lost} belong to it and were in time")
        else:
            self._met |= {(row.left, place), (row.right, place)}
        for id in (row.left, row.right):
            if (id, place) in self._alone & self._met:
                self.wrong(f"{row}: event {id} came out alone as well as with a partner")


class NewestVersion(JoinChecker):
    """As-of and table joins: no version that was in time is newer than the version in a left event's row."""

    def row(self, row: JoinRow) -> None:
        left, right = row.events
        workload = self.workload
        if not workload.joined.versioned or left is None or right is None:
            return
        its_ms = workload.at_ms(right)
        newer = [each for each in workload.partners(left) if workload.at_ms(each) > its_ms and workload.certain(each)]
        if newer:
            self.wrong(f"{row}: versions {newer} are newer, and were in time")


class LateIsLate(JoinChecker):
    """An event among the late rows may have been late, appears there once, and is not joined."""

    def __init__(self, facts: Facts, workload: Any, report: Report) -> None:
        super().__init__(facts, workload, report)
        self._late: set[int] = set()
        self._joined: set[int] = set()

    def late(self, row: JoinRow) -> None:
        left, right = row.events
        event = left if right is None else right
        assert event is not None, "a late row of nothing cannot be made"
        id = id_of(event)
        if id in self._late:
            self.wrong(f"{row} is late again")
        self._late.add(id)
        if any(self.workload.certain(event, start) for start in self.workload.starts(event)):
            self.wrong(f"{row} was in time, and is given to the late rows")
        self._judge(id)

    def row(self, row: JoinRow) -> None:
        for id in (row.left, row.right):
            if id >= 0:
                self._joined.add(id)
                self._judge(id)

    def _judge(self, id: int) -> None:
        if id in self._late and id in self._joined:
            self.wrong(f"event {id} was late, and is joined")


class NothingLacks(JoinChecker):
    """At the end no row is missing: pairs of events that were in time, events of a side that the join keeps, left
    events of as-of and semi joins with a partner. An event of a kept side is joined, alone or late."""

    def __init__(self, facts: Facts, workload: Any, report: Report) -> None:
        super().__init__(facts, workload, report)
        self._pairs: set[tuple[int, int, int]] = set()
        self._shown: dict[int, set[int]] = defaultdict(set)  # event id -> places
        self._late: set[int] = set()

    def row(self, row: JoinRow) -> None:
        place = self.workload.place(row)
        self._pairs.add((row.left, row.right, place))
        for id in (row.left, row.right):
            self._shown[id].add(place)

    def late(self, row: JoinRow) -> None:
        self._late.add(max(row.left, row.right))

    def all_there(self) -> None:
        for event in self.workload.events():
            id, side = id_of(event), event[0] % 2
            told = id in self._late or self._shown[id] or self.workload.joined.how == "anti"
            if self.workload.joined.keeps[side] and not told:
                self.wrong(f"event {event} is neither joined, nor alone, nor late")
            for start in self.workload.starts(event):
                if self.workload.certain(event, start):
                    self._judge(event, side, start)

    def _judge(self, event: Event, side: int, start: int) -> None:
        """Judges an event that was in time."""
        workload, joined = self.workload, self.workload.joined
        partners = list(workload.partners(event, start))
        certain = [each for each in partners if workload.certain(each, start)]
        if joined.one_sided or joined.versioned:
            has = certain if joined.one_sided or side else workload.surely_has(event)
            wanted = bool(has) if joined.how in ("semi", "inner") else joined.how == "left" or not partners
            if side == 0 and wanted and start not in self._shown[id_of(event)]:
                self.wrong(f"event {event} does not come out of the {joined.how} join; its partners are {partners}")
            return
        if side == 0:
            lost = [each for each in certain if (id_of(event), id_of(each), start) not in self._pairs]
            if lost:
                self.wrong(f"event {event} lacks {lost}, which belong to it")
        if joined.keeps[side] and start not in self._shown[id_of(event)]:
            self.wrong(f"event {event} does not come out of the {joined.how} join; its partners are {partners}")


JOIN_CHECKERS: tuple[type[Checker], ...] = (
    RowsBelong,
    AloneForGood,
    NewestVersion,
    LateIsLate,
    NothingLacks,
    WatermarksMove,
    NoneRunsAhead,
)
