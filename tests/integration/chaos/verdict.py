"""Checks a reader's observations against the truth. Pure: rows in the order of the files in, figures out.

A `SinkAudit` per sink is fed with the observations in order. An observation is right if all rows seen so far form one
vector of source positions: of each split the numbers 0 … n-1, each once. Separate counts are

- lost: missing numbers below the highest number seen of a split,
- duplicated: rows whose number was seen before,
- out_of_order: rows of a key after a later row of the same key,
- wrong_state: rows whose count or sum differs from the result of exactly the rows before,
- torn: files that differ from their commit record, or that changed after they were seen.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

_EXAMPLES = 20


@dataclass(frozen=True)
class Truth:
    splits: int
    keys: int
    groups: int


@dataclass(frozen=True)
class Rows:
    """Columns of equal length, in the order of the files. `group`, `m` and `total` only of the grouped sink."""

    value: np.ndarray
    key: np.ndarray
    n: np.ndarray
    due_ns: np.ndarray
    group: np.ndarray | None = None
    m: np.ndarray | None = None
    total: np.ndarray | None = None

    @staticmethod
    def joined(parts: Sequence["Rows"]) -> "Rows":
        def column(name: str) -> np.ndarray | None:
            columns = [getattr(part, name) for part in parts]
            return None if any(each is None for each in columns) else np.concatenate(columns)

        return Rows(*(column(name) for name in Rows.__dataclass_fields__))  # type: ignore[arg-type]


@dataclass
class Figures:
    """Findings of an audit. `wrong_observations`: how many of the `observations` were not one vector of source
    positions.
    """

    rows: int = 0
    observations: int = 0
    wrong_observations: int = 0
    lost: int = 0
    duplicated: int = 0
    out_of_order: int = 0
    wrong_state: int = 0
    torn: int = 0
    examples: list[str] = field(default_factory=list)

    @property
    def right(self) -> bool:
        wrong = (self.wrong_observations, self.lost, self.duplicated, self.out_of_order, self.wrong_state, self.torn)
        return not any(wrong)

    def example(self, text: str) -> None:
        if len(self.examples) < _EXAMPLES:
            self.examples.append(text)


def told(figures: Figures) -> str:
    """The faults, in words and numbers; "" if everything is right."""
    counted = {"lost": figures.lost, "twice": figures.duplicated, "late": figures.out_of_order, "torn": figures.torn}
    counted |= {"state": figures.wrong_state, "wrong": figures.wrong_observations}
    return ", ".join(f"{what} {count}" for what, count in counted.items() if count)


class SinkAudit:
    def __init__(self, truth: Truth) -> None:
        self._truth = truth
        self.figures = Figures()
        self._frontier = [0] * truth.splits  # every number below was seen
        self._ahead: list[set[int]] = [set() for _ in range(truth.splits)]  # numbers seen above a missing number
        self._due_ns = [0] * truth.splits  # greatest time at which a row seen was due
        self._key_reached = np.full(truth.keys, -1, dtype=np.int64)  # greatest value seen of each key
        self._group_m = np.zeros(truth.groups, dtype=np.int64)
        self._group_total = np.zeros(truth.groups, dtype=np.int64)

    @property
    def positions(self) -> tuple[int, ...]:
        return tuple(self._frontier)

    @property
    def due_ns(self) -> int:
        """Every split has been seen up to the rows that were due at this time."""
        return min(self._due_ns)

    def torn(self, where: str, why: str) -> None:
        self.figures.torn += 1
        self.figures.example(f"{where}: torn: {why}")

    def observe(self, where: str, rows: Rows) -> None:
        """`rows` became visible at once; `where` names them in examples."""
        figures = self.figures
        figures.observations += 1
        figures.rows += len(rows.value)
        duplicated_before = figures.duplicated
        again = self._positions(where, rows)
        self._order(where, rows, again)
        self._counts(where, rows)
        if rows.m is not None:
            self._groups(where, rows)
        holes = self._holes()
        if holes:
            figures.example(f"{where}: {holes} numbers missing below the highest seen; first {self._first_missing()}")
        figures.lost = holes
        figures.wrong_observations += bool(holes) or figures.duplicated > duplicated_before

    # ------------------------------------------------------------ each check

    def _positions(self, where: str, rows: Rows) -> np.ndarray:
        """Note the numbers seen. Gives a mask of the rows that were seen before."""
        again = np.zeros(len(rows.value), dtype=bool)
        splits, numbers = rows.value % self._truth.splits, rows.value // self._truth.splits
        for split in range(self._truth.splits):
            mine = np.flatnonzero(splits == split)
            if not len(mine):
                continue
            self._due_ns[split] = max(self._due_ns[split], int(rows.due_ns[mine].max()))
            ordered = np.sort(numbers[mine])
            start = self._frontier[split]
            if not self._ahead[split] and np.array_equal(ordered, np.arange(start, start + len(mine))):
                self._frontier[split] = start + len(mine)
                continue
            for index in mine.tolist():
                if not self._see(split, int(numbers[index])):
                    again[index] = True
                    self.figures.duplicated += 1
                    self.figures.example(f"{where}: value {rows.value[index]} was seen before")
        return again

    def _see(self, split: int, number: int) -> bool:
        ahead = self._ahead[split]
        if number < self._frontier[split] or number in ahead:
            return False
        ahead.add(number)
        while self._frontier[split] in ahead:
            ahead.remove(self._frontier[split])
            self._frontier[split] += 1
        return True

    def _holes(self) -> int:
        return sum(
            max(ahead) + 1 - start - len(ahead)
            for start, ahead in zip(self._frontier, self._ahead, strict=True)
            if ahead
        )

    def _first_missing(self) -> int:
        splits = self._truth.splits
        return min(start * splits + split for split, start in enumerate(self._frontier) if self._ahead[split])

    def _order(self, where: str, rows: Rows, again: np.ndarray) -> None:
        keys, values = rows.key[~again], rows.value[~again]
        for index in _by(keys):
            mine = values[index]
            key = int(keys[index[0]])
            reached = np.maximum.accumulate(np.concatenate(([self._key_reached[key]], mine)))
            late = np.flatnonzero(mine < reached[:-1])
            if len(late):
                self.figures.out_of_order += len(late)
                self.figures.example(f"{where}: key {key}: value {mine[late[0]]} comes after {reached[late[0]]}")
            self._key_reached[key] = reached[-1]

    def _counts(self, where: str, rows: Rows) -> None:
        wrong = np.flatnonzero(rows.n != rows.value // self._truth.keys + 1)
        if len(wrong):
            self.figures.wrong_state += len(wrong)
            at = wrong[0]
            self.figures.example(
                f"{where}: value {rows.value[at]} has n {rows.n[at]}, "
                f"right is {rows.value[at] // self._truth.keys + 1} ({len(wrong)} such rows)"
            )

    def _groups(self, where: str, rows: Rows) -> None:
        assert rows.group is not None
        assert rows.m is not None
        assert rows.total is not None
        for index in _by(rows.group):
            group = int(rows.group[index[0]])
            m, total, value = rows.m[index], rows.total[index], rows.value[index]
            counts_before = np.concatenate(([self._group_m[group]], m[:-1]))
            totals_before = np.concatenate(([self._group_total[group]], total[:-1]))
            wrong = np.flatnonzero((m != counts_before + 1) | (total != totals_before + value))
            if len(wrong):
                self.figures.wrong_state += len(wrong)
                at = wrong[0]
                self.figures.example(
                    f"{where}: group {group}: value {value[at]} has m {m[at]} and total {total[at]} after "
                    f"m {counts_before[at]} and total {totals_before[at]}"
                )
            self._group_m[group], self._group_total[group] = m[-1], total[-1]


def _by(labels: np.ndarray) -> list[np.ndarray]:
    """Indices of each label's rows, in their order."""
    if not len(labels):
        return []
    order = np.argsort(labels, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(labels[order])) + 1)
