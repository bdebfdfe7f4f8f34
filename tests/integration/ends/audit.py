"""Checks the rows a reader saw at an end against the truth. Pure: observations in, figures out.

The truth is a numbered stream: row i has the value i and belongs to key `i % keys`; a running count per key equals the
row's number within the key, `i // keys + 1`. `flow.rate(…, keys=keys)` makes such rows; a test that feeds a topic or a
queue writes the rows itself.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from tests.integration.chaos.verdict import Figures, Rows, SinkAudit, Truth


class Audit(Protocol):
    """Judges the observations of one reader. `rows`: number of source rows that the last observation covers."""

    figures: Figures

    def observe(self, where: str, seen: Any) -> None: ...

    @property
    def rows(self) -> int: ...


@dataclass(frozen=True)
class Seen:
    """Result of one look at an appending target, in the reader's order.

    `whole`: all rows of the target (a table, a folder); otherwise the new rows since the reader's last look (a topic).
    """

    value: Sequence[int]
    n: Sequence[int] | None = None  # running count per key, if the job computes a count
    whole: bool = True


class Numbers:
    """Judges targets to which rows are added. After each observation, all rows seen so far have to be

    - with `together=False`: of each key the rows 0 … m-1, each once (m differs: each subtask shows its rows by itself),
    - with `together=True`: of each of the source's `splits` (row i is of split `i % splits`) the rows 0 … m-1, each
      once, whatever their keys: a checkpoint becomes visible as a whole.

    A visible row stays visible. `ordered`: the reader sees the rows of a key in their order (otherwise in any order).
    """

    def __init__(self, keys: int, *, together: bool = False, splits: int = 2, ordered: bool = True) -> None:
        self._keys = keys
        self._ordered = ordered
        self._audit = SinkAudit(Truth(splits if together else keys, keys, groups=1))
        self._times_seen = np.zeros(0, dtype=np.int64)
        self.figures = self._audit.figures

    @property
    def rows(self) -> int:
        """Number of distinct rows seen."""
        return int(np.count_nonzero(self._times_seen))

    def observe(self, where: str, seen: Seen) -> None:
        values = np.asarray(seen.value, dtype=np.int64)
        counts = values // self._keys + 1 if seen.n is None else np.asarray(seen.n, dtype=np.int64)
        room = max(int(values.max(initial=-1)) + 1, len(self._times_seen))
        before = np.pad(self._times_seen, (0, room - len(self._times_seen)))
        now = np.bincount(values, minlength=room)
        if seen.whole:
            vanished = np.flatnonzero(now < before)
            if len(vanished):
                self._audit.torn(where, f"{len(vanished)} rows that were seen vanished; first {vanished[0]}")
            self._times_seen = now
            fresh = _beyond(values, before)
            values, counts = values[fresh], counts[fresh]
        else:
            self._times_seen = before + now
        if not self._ordered:
            order = np.argsort(values, kind="stable")
            values, counts = values[order], counts[order]
        self._audit.observe(where, Rows(values, values % self._keys, counts, np.zeros(len(values), dtype=np.int64)))


def _beyond(values: np.ndarray, before: np.ndarray) -> np.ndarray:
    """Indices of the values that occur more often now than before: of each value the last occurrences."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    occurrence = np.arange(len(ordered)) - np.searchsorted(ordered, ordered)
    return np.sort(order[occurrence >= before[ordered]])


class Latest:
    """Judges targets with one row per key, which the job overwrites: key -> (value, running count), all keys at every
    look.

    Each count has to fit the row's value; no key may go back or vanish; with `together` all rows show one vector of
    source positions (`keys` a multiple of `splits`).
    """

    def __init__(self, keys: int, *, together: bool = False, splits: int = 2) -> None:
        self._keys = keys
        self._splits = splits if together else 0
        self._reached: dict[int, int] = {}
        self.figures = Figures()

    @property
    def rows(self) -> int:
        return sum(value // self._keys + 1 for value in self._reached.values())

    def observe(self, where: str, seen: Mapping[int, tuple[int, int]]) -> None:
        figures = self.figures
        wrong: list[str] = []
        for key in self._reached.keys() - seen.keys():
            wrong.append(f"key {key} vanished")
        for key, (value, count) in seen.items():
            if value % self._keys != key:
                wrong.append(f"key {key} has value {value} of another key")
            if count != value // self._keys + 1:
                wrong.append(f"key {key}: value {value} has count {count}, right is {value // self._keys + 1}")
                figures.wrong_state += 1
            if value < self._reached.get(key, -1):
                wrong.append(f"key {key} went back from {self._reached[key]} to {value}")
                figures.out_of_order += 1
            self._reached[key] = value
        if self._splits:
            wrong += self._apart(seen)
        figures.rows = self.rows
        figures.observations += 1
        figures.wrong_observations += bool(wrong)
        for each in wrong:
            figures.example(f"{where}: {each}")

    def _apart(self, seen: Mapping[int, tuple[int, int]]) -> list[str]:
        """Keys whose row disagrees with the most advanced key of the same split."""
        reached = [-1] * self._splits
        for value, _ in seen.values():
            reached[value % self._splits] = max(reached[value % self._splits], value)
        found = []
        for key in range(self._keys):
            furthest = reached[key % self._splits]
            right = furthest - (furthest - key) % self._keys
            shown = seen[key][0] if key in seen else None
            if shown != (right if right >= 0 else None):
                found.append(f"key {key} shows {shown}, its split has reached {furthest}: {right} is right")
        return found
