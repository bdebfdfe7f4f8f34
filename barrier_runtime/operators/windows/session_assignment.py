"""Which session each row of a batch belongs to. Pure arithmetic on milliseconds since the epoch.

The result is that of taking the rows one by one, as they come: a row belongs to the open session of its key that it
touches, joins the two that it touches, or begins one. Nearly always that can be told for a whole batch at once: rows
and open sessions, sorted by key and time, are cut where nothing follows within the gap, and when each row of such a
*component* touches what came of it before, the component is one session. The others are taken row by row: rows that
join sessions, rows behind the watermark.

Where two sessions become one, the order in which rows were added to either must not be lost (a sum of floats has other
bits in another order). So a session that others are merged into is on a higher *level*, and what is added to sessions
of one level comes after the merges of that level, and before those of the next.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from barrier_runtime.data.elements import WATERMARK_MIN
from barrier_runtime.data.grouping import order_of_ints, stable_order

Ints: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]

LATE = -1
_ROOM = 1 << 62  # for times of all components one behind the other


@dataclass
class Sessions:
    """Sessions of some keys: of each the number of its key, its first and its last time. At most one touches another
    one, by a row."""

    keys: Ints
    first_ms: Ints
    last_ms: Ints

    def __len__(self) -> int:
        return len(self.keys)


@dataclass
class AssignedSessions:
    """`sessions`: those that were open, in their order, then those that the batch begins. `merged`: which of them have
    become part of another. `of_row`: per row the session that it was added to, LATE for late rows. `levels`: of rows,
    None when all are 0. `merges`: (level, the session that stays, the one that is merged into it), by level.

    `end`: rows from there on are not assigned. By the event time of that row a session is over that has to go first;
    then nothing else here counts."""

    sessions: Sessions
    merged: Mask
    of_row: Ints
    levels: Ints | None
    merges: list[tuple[int, int, int]]
    end: int
    rows: Ints | None = None  # which ones of the batch `of_row` is about; None: all


def assign_sessions(
    keys: Ints, times_ms: Ints, watermarks: int | Ints, opened: Sessions, gap_ms: int
) -> AssignedSessions:
    """`keys`: a number per row, below 2**32. `watermarks`: event time at each row. `opened`: sessions that are not
    over, of these keys; those that no row can reach may be left out."""
    rows, known = len(keys), len(opened)
    item_keys = np.concatenate([keys, opened.keys])
    starts = np.concatenate([times_ms, opened.first_ms])
    order = order_of_ints([item_keys, starts])
    item_keys, starts = item_keys[order], starts[order]
    new_key = np.diff(item_keys, prepend=item_keys[0] - 1) != 0
    cuts = new_key.copy()
    cuts[1:] |= starts[1:] > _reach(order, new_key, starts, rows, opened.last_ms)[:-1] + gap_ms
    component = np.empty(rows + known, np.int64)
    component[order] = np.cumsum(cuts) - 1
    of_row, of_opened = component[:rows], component[rows:]
    components = int(component.max()) + 1

    its_opened = np.full(components, -1, np.int64)
    its_opened[of_opened] = np.arange(known)
    together = _are_one(of_row, times_ms, watermarks, its_opened, opened, gap_ms)
    together &= np.bincount(of_opened, minlength=components) <= 1
    together[of_opened[np.bincount(of_row, minlength=components)[of_opened] == 0]] = True  # no rows for them

    first_ms, last_ms = opened.first_ms.copy(), opened.last_ms.copy()
    begun = np.flatnonzero(together & (its_opened < 0))
    session = its_opened
    session[begun] = known + np.arange(len(begun))
    sessions = Sessions(
        np.concatenate([opened.keys, np.zeros(len(begun), np.int64)]),
        np.concatenate([first_ms, np.full(len(begun), np.iinfo(np.int64).max)]),
        np.concatenate([last_ms, np.full(len(begun), WATERMARK_MIN)]),
    )
    easy = together[of_row]
    assigned = np.where(easy, session[of_row], LATE)
    if easy.any():
        _stretch(sessions, assigned[easy], keys[easy], times_ms[easy])
    done = AssignedSessions(sessions, np.zeros(len(sessions), np.bool_), assigned, None, [], rows)
    if not easy.all():
        hard = np.flatnonzero(~easy)
        hard = hard[stable_order(of_row[hard])]
        hard_opened = np.flatnonzero(~together[of_opened])
        hard_opened = hard_opened[order_of_ints([of_opened[hard_opened], opened.first_ms[hard_opened]])]
        _OneByOne(done, known, gap_ms).take(
            hard, of_row[hard], keys, times_ms, watermarks, hard_opened, of_opened[hard_opened]
        )
    return done


def _reach(order: npt.NDArray[np.intp], new_key: Mask, starts: Ints, rows: int, opened_last: Ints) -> Ints:
    """Per item, in order, the last time of it and all items of its key before it. Open sessions are apart, so of these
    the latest reaches farthest."""
    if not len(opened_last):
        return starts
    positions = np.arange(len(order))
    latest = np.maximum.accumulate(np.where(order >= rows, positions, -1))
    of_key = np.maximum.accumulate(np.where(new_key, positions, 0))
    there = latest >= of_key
    last = opened_last[np.maximum(order[np.maximum(latest, 0)] - rows, 0)]
    return np.where(there, np.maximum(starts, last), starts)


def _are_one(
    of_row: Ints, times_ms: Ints, watermarks: int | Ints, its_opened: Ints, opened: Sessions, gap_ms: int
) -> Mask:
    """Per component whether its rows, as they come, all belong to one session that is never over, which `its_opened` is
    or the first row begins."""
    components = len(its_opened)
    order = stable_order(of_row)
    its, times = of_row[order], times_ms[order]
    firsts = np.flatnonzero(np.diff(its, prepend=-1))
    base = int(times.min())
    span = int(times.max()) - base + 1
    together = np.zeros(components, np.bool_)
    if span * components >= _ROOM:
        return together
    offset = times - base
    high = np.maximum.accumulate(offset + its * span) - its * span + base
    falling = (components - 1 - its) * span
    low = np.minimum.accumulate(offset + falling) - falling + base
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
    together[its[firsts]] = np.logical_and.reduceat(fits, firsts)
    return together


def _stretch(sessions: Sessions, of_row: Ints, keys: Ints, times_ms: Ints) -> None:
    sessions.keys[of_row] = keys
    np.minimum.at(sessions.first_ms, of_row, times_ms)
    np.maximum.at(sessions.last_ms, of_row, times_ms)


class _OneByOne:
    """Rows that are taken one by one, component after component."""

    def __init__(self, done: AssignedSessions, known: int, gap_ms: int) -> None:
        self._done = done
        self._gap_ms = gap_ms
        self._known = known
        self._count = len(done.sessions)
        self._keys: list[int] = []  # of sessions begun here
        self._spans: dict[int, tuple[int, int]] = {}  # of all sessions met here
        self._merged: list[int] = []
        self._merges: list[tuple[int, int, int]] = []

    def take(
        self,
        rows: Ints,
        of_row: Ints,
        keys: Ints,
        times_ms: Ints,
        watermarks: int | Ints,
        opened: Ints,
        of_opened: Ints,
    ) -> None:
        """`rows`: their numbers, by component (`of_row`), and in each as they come. `opened`: by component and time."""
        done = self._done
        levels = np.zeros(len(done.of_row), np.int64)
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
        self._finish(levels)

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
                self._merged.append(goes)
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

    def _finish(self, levels: Ints) -> None:
        done, sessions = self._done, self._done.sessions
        more = np.zeros(len(self._keys), np.int64)
        sessions.keys = np.concatenate([sessions.keys, np.array(self._keys, np.int64)])
        sessions.first_ms = np.concatenate([sessions.first_ms, more])
        sessions.last_ms = np.concatenate([sessions.last_ms, more])
        numbers = np.fromiter(self._spans, np.int64, len(self._spans))
        if len(numbers):
            spans = np.array(list(self._spans.values()), np.int64)
            sessions.first_ms[numbers], sessions.last_ms[numbers] = spans[:, 0], spans[:, 1]
        done.merged = np.zeros(len(sessions), np.bool_)
        done.merged[self._merged] = True
        if self._merges:
            done.levels = levels
            done.merges = sorted(self._merges)
