"""Assignment of a batch's rows to sessions, with the result of row by row in order of arrival.

Usually a whole batch is assigned at once: rows sorted by key and time are cut into *runs* where no row follows within
the gap; runs and open sessions likewise into *components*. A component becomes a single session if

- rows may be added in any order, no row is late, and no session is over by the event time of the component's last row;
- or each row, in order of arrival, touches the session of the component's earlier rows, which is not over.

Other components are taken row by row. If order matters (the bits of float sums), a session into which others are merged
is on a higher *level*: rows of a level are added after the merges of the level, and before those of the next.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from barrier_runtime.data.grouping import order_of_ints, running_most, stable_order

Ints: TypeAlias = npt.NDArray[np.int64]


@dataclass
class JoinedRows:
    """Sessions have numbers: the open sessions, then those of the rows `began`.

    `of_row`: session of each row; `levels`: its level then. `merges`: (level, remaining session, merged session).
    `ends`: final session of each session.
    """

    of_row: Ints
    levels: Ints
    merges: Ints
    began: Ints
    ends: Ints


def join_in_rounds(
    components: Ints, times_ms: Ints, of_opened: Ints, first_ms: Ints, last_ms: Ints, gap_ms: int
) -> JoinedRows:
    """Joins the rows of many components side by side, where order matters. No row is late, no session over.

    A row that touches neither of the nearest earlier arrivals in time begins a session; a row that touches two sessions
    joins both, and the earlier session stays. Neighbours are found backwards: all rows are linked by time, and the last
    arrivals removed first. Then each round adds the next row of every component.

    `components`: of rows, rising; rows of a component are in order of arrival.
    `of_opened`: component of each open session.
    """
    rows, known = len(components), len(of_opened)
    its = np.concatenate([of_opened, components])
    firsts = np.concatenate([first_ms, times_ms])
    order = order_of_ints([its, firsts])
    its, firsts = its[order], firsts[order]
    new = np.diff(its, prepend=-1) != 0
    lasts = running_most(np.concatenate([last_ms, times_ms])[order], np.cumsum(new) - 1)
    nobody = len(order)
    left, right = np.arange(-1, nobody), np.arange(1, nobody + 2)
    left[:-1][new] = nobody
    right[:-1][np.roll(new, -1)] = nobody
    place = np.empty(nobody, np.int64)
    place[order] = np.arange(nobody)
    of_opened_places, places = place[:known], place[known:]

    begins = np.flatnonzero(np.diff(components, prepend=-1))
    rank = np.arange(rows) - np.repeat(begins, np.diff(begins, append=rows))
    rounds = np.split(stable_order(rank), np.cumsum(np.bincount(rank))[:-1])
    for next_ones in reversed(rounds):
        at = places[next_ones]
        right[left[at]], left[right[at]] = right[at], left[at]
    left, right = left[places], right[places]

    firsts, lasts = np.append(firsts, 0), np.append(lasts, 0)
    touches_left = (left != nobody) & (times_ms <= lasts[left] + gap_ms)
    touches_right = (right != nobody) & (firsts[right] <= times_ms + gap_ms)
    joins = touches_left & touches_right & (firsts[right] > lasts[left] + gap_ms)
    began = np.flatnonzero(~(touches_left | touches_right))
    beside = np.where(touches_left, left, right)
    beside[began] = places[began]
    session = np.empty(nobody, np.int64)
    session[of_opened_places], session[places[began]] = np.arange(known), known + np.arange(len(began))
    part_of, level = np.arange(known + len(began)), np.zeros(known + len(began), np.int64)
    levels, merges = np.empty(rows, np.int64), [np.empty((0, 3), np.int64)]
    for next_ones in rounds:
        stays = _ends(part_of, session[beside[next_ones]])
        joined = joins[next_ones]
        if joined.any():
            into, goes = stays[joined], _ends(part_of, session[right[next_ones[joined]]])
            part_of[goes] = into
            level[into] = np.maximum(level[into], level[goes]) + 1
            merges.append(np.stack([level[into], into, goes], axis=1))
        session[places[next_ones]], levels[next_ones] = stays, level[stays]
    return JoinedRows(session[places], levels, np.concatenate(merges), began, _ends(part_of, np.arange(len(part_of))))


def _ends(part_of: Ints, sessions: Ints) -> Ints:
    while ((whole := part_of[sessions]) != sessions).any():
        sessions = whole
    return sessions


Mask: TypeAlias = npt.NDArray[np.bool_]

LATE = -1
_FEW = 16  # with fewer components of their size, rows are faster one by one


@dataclass
class Spans:
    """Sessions or runs; `keys` are the numbers of their keys."""

    keys: Ints
    first_ms: Ints
    last_ms: Ints

    def __len__(self) -> int:
        return len(self.keys)


@dataclass
class BatchRuns:
    """Rows by key and time (`order`), cut into runs.
    `starts`: first index of each run; `spans`: the sessions of the rows alone."""

    order: npt.NDArray[np.intp]
    starts: Ints
    lengths: Ints
    spans: Spans

    def earliest(self) -> tuple[Ints, Ints]:
        firsts = np.flatnonzero(np.diff(self.spans.keys, prepend=-1))
        return self.spans.keys[firsts], self.spans.first_ms[firsts]

    def by_row(self, of_run: Ints) -> Ints:
        of_row = np.empty(len(self.order), np.int64)
        of_row[self.order] = np.repeat(of_run, self.lengths)
        return of_row


def runs_of(keys: Ints, times_ms: Ints, gap_ms: int) -> BatchRuns:
    """`keys`: a number per row, below 2**32. At least one row."""
    order = order_of_ints([keys, times_ms])
    keys, times_ms = keys[order], times_ms[order]
    cuts = np.ones(len(keys), np.bool_)
    np.greater(times_ms[1:], times_ms[:-1] + gap_ms, out=cuts[1:])
    cuts[1:] |= keys[1:] != keys[:-1]
    starts = np.flatnonzero(cuts)
    ends = np.append(starts[1:], len(keys))
    return BatchRuns(order, starts, ends - starts, Spans(keys[starts], times_ms[starts], times_ms[ends - 1]))


@dataclass
class AssignedSessions:
    """Result of an assignment.

    `sessions`: the open sessions in order, then those that the batch begins. `of_row`: each row's session, or LATE.
    `merges`: rows of (level, remaining session, merged session), by level. `levels`: of rows; None: rows and merges may
    be applied in any order, and a remaining session is not merged itself. `end`: number of rows if all are assigned.
    Otherwise a session is over by the event time of row `end` and has to be emitted first; the other fields are then
    invalid. `by_time`: remaining sessions by key and time; None: unknown.
    """

    sessions: Spans
    merged: Mask
    of_row: Ints
    merges: Ints
    levels: Ints | None
    end: int
    by_time: Ints | None = None
    rows: Ints | None = None  # rows of the batch that `of_row` covers; None: all

    def begin(self, keys: Ints, first_ms: Ints, last_ms: Ints) -> Ints:
        own, before = self.sessions, len(self.sessions)
        self.sessions = Spans(
            np.concatenate([own.keys, keys]),
            np.concatenate([own.first_ms, first_ms]),
            np.concatenate([own.last_ms, last_ms]),
        )
        self.merged = np.concatenate([self.merged, np.zeros(len(keys), np.bool_)])
        return np.arange(before, len(self.sessions))

    def merge(self, merges: Ints) -> None:
        self.merges = np.concatenate([self.merges, merges])
        self.merged[merges[:, 2]] = True


def assign_sessions(
    runs: BatchRuns,
    keys: Ints,
    times_ms: Ints,
    watermarks: int | Ints,
    opened: Spans,
    gap_ms: int,
    any_order: bool,
) -> AssignedSessions:
    """`watermarks`: event time at each row.
    `opened`: sessions of these keys, not over and within reach of the rows. `any_order`: rows may be added and sessions
    merged in any order."""
    spans, count, known = runs.spans, len(runs.starts), len(opened)
    item_keys = np.concatenate([spans.keys, opened.keys])
    firsts = np.concatenate([spans.first_ms, opened.first_ms])
    lasts = np.concatenate([spans.last_ms, opened.last_ms])
    order = order_of_ints([item_keys, firsts]) if known else np.arange(count)
    item_keys, firsts, lasts = item_keys[order], firsts[order], lasts[order]
    cuts = np.diff(item_keys, prepend=item_keys[0] - 1) != 0
    reach = running_most(lasts, np.cumsum(cuts) - 1)
    cuts[1:] |= firsts[1:] > reach[:-1] + gap_ms
    begins = np.flatnonzero(cuts)
    first_ms, last_ms = firsts[begins], reach[np.append(begins[1:], len(order)) - 1]
    component = np.empty(len(order), np.int64)
    component[order] = np.cumsum(cuts) - 1
    of_run, of_opened = component[:count], component[count:]

    session = np.full(len(begins), -1, np.int64)
    by_time = order[order >= count][::-1] - count
    session[of_opened[by_time]] = by_time
    still_ms = np.minimum.reduceat(np.where(order < count, firsts, lasts), begins) + gap_ms
    in_time = still_ms > _reached(runs, of_run, watermarks, len(begins))
    together = in_time if any_order else np.zeros(len(begins), np.bool_)
    if not together.all():
        alone = np.bincount(of_opened, minlength=len(begins)) <= 1
        one = alone & _are_one(runs.by_row(of_run), times_ms, watermarks, session, opened, gap_ms)
        together = together | one | (np.bincount(of_run, minlength=len(begins)) == 0)

    begun = np.flatnonzero(together & (session < 0))
    session[begun] = known + np.arange(len(begun))
    sessions = Spans(
        np.concatenate([opened.keys, item_keys[begins[begun]]]),
        np.concatenate([opened.first_ms, first_ms[begun]]),
        np.concatenate([opened.last_ms, last_ms[begun]]),
    )
    stays = session[together]
    sessions.first_ms[stays], sessions.last_ms[stays] = first_ms[together], last_ms[together]
    merged = np.zeros(len(sessions), np.bool_)
    merged[:known] = together[of_opened] & (session[of_opened] != np.arange(known))
    gone = np.flatnonzero(merged)
    merges = np.stack([np.zeros_like(gone), session[of_opened[gone]], gone], axis=1)
    of_row = runs.by_row(np.where(together[of_run], session[of_run], LATE))
    done = AssignedSessions(sessions, merged, of_row, merges, None, len(keys), session)
    if not together.all():
        component_of_row, levels = runs.by_row(of_run), np.zeros(len(keys), np.int64)
        size = np.bincount(component_of_row, minlength=len(begins))
        side_by_side = _side_by_side(in_time & ~together, size)
        if side_by_side.any():
            its = _rows_of(side_by_side, component_of_row, of_opened, opened)
            whole, components = _in_rounds(done, levels, *its, keys, times_ms, gap_ms), its[1]
            session[components] = whole
            done.sessions.first_ms[whole], done.sessions.last_ms[whole] = first_ms[components], last_ms[components]
        left = ~(together | side_by_side)
        if left.any():
            done.by_time = None
            its = _rows_of(left, component_of_row, of_opened, opened)
            _OneByOne(done, gap_ms).take(*its, levels, keys, times_ms, watermarks)
        _finish(done, known, None if any_order else levels)
    return done


def _side_by_side(components: Mask, size: Ints) -> Mask:
    sizes = np.sort(size[components])
    most = sizes[-_FEW] if len(sizes) >= _FEW else 0
    return components & (size <= most)


def _rows_of(components: Mask, of_row: Ints, of_opened: Ints, opened: Spans) -> tuple[Ints, Ints, Ints, Ints]:
    """Returns rows, and their components, by component in order of arrival.
    Then open sessions, and their components, by component and time."""
    rows = np.flatnonzero(components[of_row])
    rows = rows[stable_order(of_row[rows])]
    sessions = np.flatnonzero(components[of_opened])
    sessions = sessions[order_of_ints([of_opened[sessions], opened.first_ms[sessions]])]
    return rows, of_row[rows], sessions, of_opened[sessions]


def _in_rounds(
    done: AssignedSessions,
    levels: Ints,
    rows: Ints,
    of_row: Ints,
    opened: Ints,
    of_opened: Ints,
    keys: Ints,
    times_ms: Ints,
    gap_ms: int,
) -> Ints:
    known = done.sessions
    first_ms, last_ms = known.first_ms[opened], known.last_ms[opened]
    joined = join_in_rounds(of_row, times_ms[rows], of_opened, first_ms, last_ms, gap_ms)
    began = rows[joined.began]
    numbers = np.concatenate([opened, done.begin(keys[began], times_ms[began], times_ms[began])])
    done.of_row[rows], levels[rows] = numbers[joined.of_row], joined.levels
    joined.merges[:, 1:] = numbers[joined.merges[:, 1:]]
    done.merge(joined.merges)
    return numbers[joined.ends[joined.of_row]]


def _finish(done: AssignedSessions, known: int, levels: Ints | None) -> None:
    if not len(done.merges):
        return
    if levels is None:
        _flatten(done, known)
    else:
        done.levels = levels
        done.merges = done.merges[np.argsort(done.merges[:, 0], kind="stable")]


def _flatten(done: AssignedSessions, known: int) -> None:
    """Assigns rows to remaining sessions, which merge only sessions that had rows before."""
    part_of = np.arange(len(done.sessions))
    part_of[done.merges[:, 2]] = done.merges[:, 1]
    while (further := part_of[part_of] != part_of).any():
        part_of[further] = part_of[part_of[further]]
    done.merges = done.merges[done.merges[:, 2] < known]
    done.merges[:, 1] = part_of[done.merges[:, 2]]
    added = done.of_row != LATE
    done.of_row[added] = part_of[done.of_row[added]]


def _reached(runs: BatchRuns, of_run: Ints, watermarks: int | Ints, components: int) -> int | Ints:
    if isinstance(watermarks, int):
        return watermarks
    reached = np.full(components, np.iinfo(np.int64).min)
    np.maximum.at(reached, of_run, np.maximum.reduceat(watermarks[runs.order], runs.starts))
    return reached


def _are_one(
    of_row: Ints, times_ms: Ints, watermarks: int | Ints, its_opened: Ints, opened: Spans, gap_ms: int
) -> Mask:
    """Returns per component whether its rows stay in one open session, never over before a row.
    Rows come in order of arrival. `its_opened`: this session; below 0 if the session begins with the first row."""
    order = stable_order(of_row)
    its, times = of_row[order], times_ms[order]
    changes = np.diff(its, prepend=-1) != 0
    firsts, groups = np.flatnonzero(changes), np.cumsum(changes) - 1
    low, high = -running_most(-times, groups), running_most(times, groups)
    if len(opened):
        number = its_opened[its]
        there = number >= 0
        low = np.where(there, np.minimum(low, opened.first_ms[number]), low)
        high = np.where(there, np.maximum(high, opened.last_ms[number]), high)
    low_before, high_before = np.empty_like(low), np.empty_like(high)
    low_before[1:], high_before[1:] = low[:-1], high[:-1]
    low_before[firsts] = high_before[firsts] = times[firsts]
    if len(opened):
        number = its_opened[its[firsts]]
        there = number >= 0
        low_before[firsts[there]] = opened.first_ms[number[there]]
        high_before[firsts[there]] = opened.last_ms[number[there]]
    reached = watermarks if isinstance(watermarks, int) else watermarks[order]
    fits = (times >= low_before - gap_ms) & (times <= high_before + gap_ms) & (high_before + gap_ms > reached)
    together = np.zeros(len(its_opened), np.bool_)
    together[its[firsts]] = np.logical_and.reduceat(fits, firsts)
    return together


class _OneByOne:
    def __init__(self, done: AssignedSessions, gap_ms: int) -> None:
        self._done = done
        self._gap_ms = gap_ms
        self._count = len(done.sessions)
        self._keys: list[int] = []
        self._spans: dict[int, tuple[int, int]] = {}
        self._merges: list[tuple[int, int, int]] = []

    def take(
        self,
        rows: Ints,
        of_row: Ints,
        opened: Ints,
        of_opened: Ints,
        levels: Ints,
        keys: Ints,
        times_ms: Ints,
        watermarks: int | Ints,
    ) -> None:
        """`rows`: by component (`of_row`) in order of arrival. `opened`: by component and time."""
        done = self._done
        firsts = np.flatnonzero(np.diff(of_row, prepend=-1))
        ends = [*firsts[1:].tolist(), len(rows)]
        opened_from = np.searchsorted(of_opened, of_row[firsts]).tolist()
        opened_to = np.searchsorted(of_opened, of_row[firsts], side="right").tolist()
        for first, end, lower, upper in zip(firsts.tolist(), ends, opened_from, opened_to, strict=True):
            its = rows[first:end]
            reached: Sequence[int] = (
                [watermarks] * len(its) if isinstance(watermarks, int) else watermarks[its].tolist()
            )
            sessions, its_levels = self._component(
                its.tolist(), int(keys[its[0]]), times_ms[its].tolist(), reached, opened[lower:upper].tolist()
            )
            done.of_row[its], levels[its] = sessions, its_levels
        more = np.zeros(len(self._keys), np.int64)
        done.begin(np.array(self._keys, np.int64), more, more)
        numbers = np.fromiter(self._spans, np.int64, len(self._spans))
        if len(numbers):
            spans = np.array(list(self._spans.values()), np.int64)
            done.sessions.first_ms[numbers], done.sessions.last_ms[numbers] = spans[:, 0], spans[:, 1]
        if self._merges:
            done.merge(np.array(self._merges, np.int64))

    def _component(
        self, rows: list[int], key: int, times: list[int], reached: Sequence[int], opened: list[int]
    ) -> tuple[list[int], list[int]]:
        gap, known = self._gap_ms, self._done.sessions
        numbers = list(opened)
        firsts = [int(known.first_ms[number]) for number in numbers]
        lasts = [int(known.last_ms[number]) for number in numbers]
        level = dict.fromkeys(numbers, 0)
        of_row, of_level = [LATE] * len(rows), [0] * len(rows)
        for position, (row, time, watermark) in enumerate(zip(rows, times, reached, strict=True)):
            if numbers and lasts[0] + gap <= watermark:
                self._done.end = min(self._done.end, row)
                break
            at = bisect_right(firsts, time) - 1
            before = at >= 0 and time <= lasts[at] + gap
            behind = at + 1 < len(numbers) and firsts[at + 1] <= time + gap and not (before and time <= lasts[at])
            if before and behind:
                stays, goes = numbers[at], numbers.pop(at + 1)
                level[stays] = max(level[stays], level[goes]) + 1
                self._merges.append((level[stays], stays, goes))
                self._spans[goes] = firsts.pop(at + 1), lasts[at + 1]
                lasts[at] = lasts.pop(at + 1)
            elif before:
                lasts[at] = max(lasts[at], time)
            elif behind:
                at += 1
                firsts[at] = time
            elif time + gap <= watermark:
                continue
            else:
                at += 1
                numbers.insert(at, self._count + len(self._keys))
                firsts.insert(at, time)
                lasts.insert(at, time)
                level[numbers[at]] = 0
                self._keys.append(key)
            of_row[position] = numbers[at]
            of_level[position] = level[numbers[at]]
        self._spans.update(zip(numbers, zip(firsts, lasts, strict=True), strict=True))
        return of_row, of_level
