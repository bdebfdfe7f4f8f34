"""Which session each row of a batch belongs to. Pure arithmetic on milliseconds since the epoch.

The result is that of taking the rows one by one, as they come: a row belongs to the open session of its key that it
touches, joins the two that it touches, or begins one. Nearly always that can be told for a whole batch at once: rows,
sorted by key and time, are cut into *runs* where nothing follows within the gap; runs and open sessions, sorted in the
same way, are cut into *components*. Which components are one session each:

    rows are added up     a component is one session when
    in any order          none of its rows is late, and none of its sessions over by the event time of its last row
    as they come          each row touches what came of the component before, which is not over
The others are taken row by row: those with rows behind the watermark; and where order matters, rows that join sessions.

Where two sessions become one, the order in which rows were added to either must not be lost if it matters (a sum of
floats has other bits in another order). So a session that others are merged into is on a higher *level*, and what is
added to sessions of one level comes after the merges of that level, and before those of the next.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from barrier_runtime.data.grouping import order_of_ints, running_most, stable_order
from barrier_runtime.operators.windows.sessions.rounds import join_in_rounds

Ints: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]

LATE = -1
_FEW = 16  # components; beside fewer of their size rows are faster taken one by one


@dataclass
class Spans:
    """Spans of some keys: of each the number of its key, its first and its last time. At most one touches another
    one, by a row."""

    keys: Ints
    first_ms: Ints
    last_ms: Ints

    def __len__(self) -> int:
        return len(self.keys)


@dataclass
class BatchRuns:
    """Rows in the order of key and time (`order`), cut where nothing follows within the gap. `starts`: where each run
    begins there, `spans`: what sessions they are among themselves."""

    order: npt.NDArray[np.intp]
    starts: Ints
    lengths: Ints
    spans: Spans

    def earliest(self) -> tuple[Ints, Ints]:
        """The keys, rising, and the earliest time of each."""
        firsts = np.flatnonzero(np.diff(self.spans.keys, prepend=-1))
        return self.spans.keys[firsts], self.spans.first_ms[firsts]

    def by_row(self, of_run: Ints) -> Ints:
        """One number per row, of one per run."""
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
    """`sessions`: those that were open, in their order, then those that the batch begins. `merged`: which of them have
    become part of another. `of_row`: per row the session that it was added to, LATE for late rows. `merges`: a row
    (level, the session that stays, the one that is merged into it) each, by level. `levels`: of rows.

    Without `levels` rows and merges may come in any order, and a session stays that is not merged itself.

    `end`: rows from there on are not assigned. By the event time of that row a session is over that has to go first;
    then nothing else here counts."""

    sessions: Spans
    merged: Mask
    of_row: Ints
    merges: Ints
    levels: Ints | None
    end: int
    by_time: Ints | None = None  # sessions that are not merged, by key and time; None: not known
    rows: Ints | None = None  # which ones of the batch `of_row` is about; None: all

    def begin(self, keys: Ints, first_ms: Ints, last_ms: Ints) -> Ints:
        """More sessions; gives their numbers."""
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
    """`runs`: of the rows. `watermarks`: event time at each row. `opened`: sessions that are not over, of these keys;
    those that no row can reach may be left out. `any_order`: it does not matter in which order rows are added to a
    session, and sessions merged."""
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

    session = np.full(len(begins), -1, np.int64)  # of each component; the earliest of those that were open
    by_time = order[order >= count][::-1] - count
    session[of_opened[by_time]] = by_time
    still_ms = np.minimum.reduceat(np.where(order < count, firsts, lasts), begins) + gap_ms
    in_time = still_ms > _reached(runs, of_run, watermarks, len(begins))
    together = in_time if any_order else np.zeros(len(begins), np.bool_)
    if not together.all():
        alone = np.bincount(of_opened, minlength=len(begins)) <= 1
        one = alone & _are_one(runs.by_row(of_run), times_ms, watermarks, session, opened, gap_ms)
        together = together | one | (np.bincount(of_run, minlength=len(begins)) == 0)  # or no rows are for them

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
    """Those of `components` that are faster taken in rounds, which have some rows each. `size`: in rows."""
    sizes = np.sort(size[components])
    most = sizes[-_FEW] if len(sizes) >= _FEW else 0
    return components & (size <= most)


def _rows_of(components: Mask, of_row: Ints, of_opened: Ints, opened: Spans) -> tuple[Ints, Ints, Ints, Ints]:
    """Of some components: the rows, by component and as they came, the component of each, the open sessions by
    component and time, and the component of each."""
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
    """Gives the session that each of `rows` is part of in the end."""
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
    """`known`: how many sessions were open. `levels`: of rows, if order matters."""
    if not len(done.merges):
        return
    if levels is None:
        _flatten(done, known)
    else:
        done.levels = levels
        done.merges = done.merges[np.argsort(done.merges[:, 0], kind="stable")]


def _flatten(done: AssignedSessions, known: int) -> None:
    """Rows are added to sessions that stay, and these take in all others that had rows before."""
    part_of = np.arange(len(done.sessions))
    part_of[done.merges[:, 2]] = done.merges[:, 1]
    while (further := part_of[part_of] != part_of).any():
        part_of[further] = part_of[part_of[further]]
    done.merges = done.merges[done.merges[:, 2] < known]
    done.merges[:, 1] = part_of[done.merges[:, 2]]
    added = done.of_row != LATE
    done.of_row[added] = part_of[done.of_row[added]]


def _reached(runs: BatchRuns, of_run: Ints, watermarks: int | Ints, components: int) -> int | Ints:
    """Event time at the last row of each component."""
    if isinstance(watermarks, int):
        return watermarks
    reached = np.full(components, np.iinfo(np.int64).min)
    np.maximum.at(reached, of_run, np.maximum.reduceat(watermarks[runs.order], runs.starts))
    return reached


def _are_one(
    of_row: Ints, times_ms: Ints, watermarks: int | Ints, its_opened: Ints, opened: Spans, gap_ms: int
) -> Mask:
    """Per component whether its rows, as they come, all belong to one session that is never over, which `its_opened` is
    or the first row begins."""
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
    # what the session is before each row
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
    """Rows that are taken one by one, component after component."""

    def __init__(self, done: AssignedSessions, gap_ms: int) -> None:
        self._done = done
        self._gap_ms = gap_ms
        self._count = len(done.sessions)
        self._keys: list[int] = []  # of sessions begun here
        self._spans: dict[int, tuple[int, int]] = {}  # of all sessions met here
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
        """`rows`: their numbers, by component (`of_row`), and in each as they come. `opened`: by component and time."""
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
            at = bisect_right(firsts, time) - 1  # the session that begins before, if it touches
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
