"""Value of a group's row: the first, the last, or that with a column's smallest or greatest value.

Compared values become ranks, each group's below those of earlier groups, so a running minimum finds all rows that
replace the row picked before.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from barrier_runtime.operators.aggregation.batch_values import BatchValues, Left, RowByRow, RunningOrder, carried
from barrier_runtime.operators.aggregation.state_columns import (
    Columns,
    Initial,
    Ints,
    Values,
    Words,
    from_words,
    initial_word,
    order_words,
    word_dtypes,
)
from barrier_runtime.state.columns.wide_columns import is_wide, to_binary

Rule = Literal["first", "last", "min", "max"]
Positions: TypeAlias = npt.NDArray[np.intp]

_NOTHING, _VALUE, _NULL = 0, 1, 2
_ROOM = 1 << 62


@dataclass(frozen=True)
class Pick(RowByRow):
    """`by`: the compared column (rules min and max). `known`: ignore nulls of `column`."""

    rule: Rule
    column: str
    kind: pa.DataType
    by: str | None = None
    by_kind: pa.DataType | None = None
    known: bool = False

    @property
    def name(self) -> str:
        return self._part("")

    def storage(self) -> dict[str, tuple[str, Initial]]:
        columns: dict[str, tuple[str, Initial]] = {self._part("has"): ("int8", _NOTHING)}
        for name, dtype in zip(self._value_names, word_dtypes(self.kind), strict=True):
            columns[name] = dtype, initial_word(dtype)
        if self._compares_another:
            assert self.by_kind is not None
            for name, dtype in zip(self._by_names, word_dtypes(self.by_kind), strict=True):
                columns[name] = dtype, initial_word(dtype)
        return columns

    def after(self, before: Columns, rows: RunningOrder, batch: BatchValues, left: Left) -> dict[str, Values]:
        has, groups = before[self._part("has")], rows.groups()
        latest = self._latest(before, rows, groups, batch)
        valid = batch.valid(self.column)
        given = np.full(len(groups), _VALUE, np.int8)
        if valid is not None:
            given[~valid[rows.order]] = _NULL
        after = {self._part("has"): carried(latest, groups, has, given)}
        taken = dict(zip(self._value_names, batch.words(self.column), strict=True))
        if self._compares_another:
            assert self.by is not None
            taken |= zip(self._by_names, batch.words(self.by), strict=True)
        for name, values in taken.items():
            after[name] = carried(latest, groups, before[name], values[rows.order])
        return after

    def merged(self, before: Columns, later: Columns, left: Left) -> Columns:
        has = self._part("has")
        theirs = later[has] != _NOTHING
        if self.rule == "first":
            theirs &= before[has] == _NOTHING
        elif self.rule != "last":
            names = self._by_names if self._compares_another else self._value_names
            ours = order_words(tuple(before[name] for name in names))
            others = order_words(tuple(later[name] for name in names))
            ranks, held_ranks, _ = _ranks(others, ours, self.rule == "max")
            theirs &= (before[has] == _NOTHING) | (ranks < held_ranks)
        return {name: np.where(theirs, later[name], before[name]) for name in self.storage()}

    def result(self, accumulators: Columns) -> pa.Array:
        absent = accumulators[self._part("has")] != _VALUE
        words = tuple(accumulators[name] for name in self._value_names)
        return from_words(words, self.kind, absent if absent.any() else None)

    def _part(self, part: str) -> str:
        kind = f"{'arg_' if self._compares_another else ''}{self.rule}{'_known' if self.known else ''}"
        of = f"{self.column!r} by {self.by!r}" if self._compares_another else self.column
        return f"{kind}{'.' if part else ''}{part}:{of}"

    @property
    def _compares_another(self) -> bool:
        return self.by is not None and self.by != self.column

    @property
    def _value_names(self) -> list[str]:
        return [self._part(part) for part in _parts("", self.kind)]

    @property
    def _by_names(self) -> list[str]:
        assert self.by_kind is not None
        return [self._part(part) for part in _parts("by", self.by_kind)]

    def _latest(self, before: Columns, rows: RunningOrder, groups: Positions, batch: BatchValues) -> Positions:
        """Returns for each row the row picked so far.
        Picks by the same column and with the same state share the search."""
        if not self._compares_another:
            return rows.latest(self._replacing(before, rows, groups, batch))
        held = [before[name] for name in (self._part("has"), *self._by_names)]
        found = batch.latest.get((self.rule, self.by))
        if found is None or found[0] is not rows or not all(map(np.array_equal, found[1], held)):
            latest = rows.latest(self._replacing(before, rows, groups, batch))
            found = batch.latest[self.rule, self.by] = rows, held, latest
        return found[2]

    def _replacing(self, before: Columns, rows: RunningOrder, groups: Positions, batch: BatchValues) -> Positions:
        counts = batch.valid(self.by or self.column) if self.known or self.by else None
        positions = np.arange(len(groups)) if counts is None else np.flatnonzero(counts[rows.order])
        if self.rule == "last" or not len(positions):
            return positions
        its_group = groups[positions]
        nothing = before[self._part("has")][its_group] == _NOTHING
        if self.rule == "first":
            firsts: Positions = positions[nothing & (np.diff(its_group, prepend=-1) != 0)]
            return firsts
        assert self.by is not None
        held = order_words(
            tuple(before[name] for name in (self._by_names if self._compares_another else self._value_names))
        )
        new = order_words(tuple(word[rows.order[positions]] for word in batch.words(self.by)))
        ranks, held_ranks, most = _ranks(new, held, self.rule == "max")
        falling = ranks + (len(held_ranks) - 1 - its_group) * (most + 1)
        lowest = np.minimum.accumulate(falling)
        lower = np.ones(len(positions), np.bool_)
        np.less(falling[1:], lowest[:-1], out=lower[1:])
        replacing: Positions = positions[lower & (nothing | (ranks < held_ranks[its_group]))]
        return replacing


def _parts(of: str, kind: pa.DataType) -> list[str]:
    if len(word_dtypes(kind)) == 1:
        return [of]
    return [f"{of}.{half}" if of else half for half in ("low", "high")]


def _ranks(new: Words, held: Words, greatest_first: bool) -> tuple[Ints, Ints, int]:
    """Returns ranks of `new` and `held` from 0, and the greatest rank.
    Leaves room for as many groups as `held` has.
    """
    joined = [np.concatenate(both) for both in zip(new, held, strict=True)]
    if is_wide(joined[0].dtype):
        joined = [pc.rank(to_binary(joined[0]), tiebreaker="dense").to_numpy().astype(np.int64)]
    if len(joined) == 1:
        lowest, highest = int(joined[0].min()), int(joined[0].max())
        if (highest - lowest + 1) * len(held[0]) < _ROOM:
            most = highest - lowest
            ranks = highest - joined[0] if greatest_first else joined[0] - lowest
            return ranks[: len(new[0])], ranks[len(new[0]) :], most
    order = np.lexsort(joined[::-1])
    changes = np.zeros(len(order), np.bool_)
    for word in joined:
        ordered = word[order]
        changes[1:] |= ordered[1:] != ordered[:-1]
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.cumsum(changes)
    most = int(ranks[order[-1]])
    if greatest_first:
        ranks = most - ranks
    return ranks[: len(new[0])], ranks[len(new[0]) :], most
