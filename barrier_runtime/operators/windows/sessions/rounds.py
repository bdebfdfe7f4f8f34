"""Rows that join sessions, for many *components* (see `assignment`) side by side, where order matters.

A row that touches neither of the nearest earlier arrivals in time begins a session; a row that touches two sessions
joins both, and the earlier session stays. Neighbours are found backwards: all rows are linked by time, and the last
arrivals removed first. Then each round adds the next row of every component. No row may be late here, no session over.
"""

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
    """`components`: of rows, rising; rows of a component are in order of arrival.
    `of_opened`: component of each open session."""
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
