"""Exact sums and means of decimals: integers of 128 bits, in two words.

Sum and value have at most 38 digits, so a sum that leaves 128 bits wraps to more than 38 digits, which a check of every
sum finds.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from barrier_runtime.data.grouping import greatest_magnitude
from barrier_runtime.operators.aggregation.batch_values import (
    BatchValues,
    Left,
    RowByRow,
    RunningOrder,
    running_integers,
)
from barrier_runtime.operators.aggregation.state_columns import Columns, Initial, Ints, Values, decimals

_DIGITS = 38
_HALF = np.int64(0xFFFFFFFF)
_WORD = 1 << 64
_ONE_WORD = 1 << 62


@dataclass(frozen=True)
class DecimalSum(RowByRow):
    column: str
    kind: pa.DataType

    @property
    def name(self) -> str:
        return f"sum.low:{self.column}"

    @property
    def type(self) -> pa.DataType:
        return pa.decimal128(min(self.kind.precision + 10, _DIGITS), self.kind.scale)

    @property
    def mean_type(self) -> pa.DataType:
        """Four digits more than the column's, all after the point."""
        return pa.decimal128(min(self.kind.precision + 4, _DIGITS), min(self.kind.scale + 4, _DIGITS))

    def storage(self) -> dict[str, tuple[str, Initial]]:
        return {f"sum.low:{self.column}": ("int64", 0), f"sum.high:{self.column}": ("int64", 0)}

    def after(self, before: Columns, rows: RunningOrder, batch: BatchValues, left: Left) -> dict[str, Values]:
        low, high = (word[rows.order] for word in batch.words(self.column))
        held_low, held_high = (before[name] for name in self.storage())
        if _is_one_word(low, high) and _is_one_word(held_low, held_high):
            most = greatest_magnitude(low) * len(low) + greatest_magnitude(held_low)
        else:
            most = 1 << 127
        limit = 10**self.type.precision
        if most < _ONE_WORD:
            low = running_integers(low, held_low, rows)
            high = low >> 63
        else:
            low, high = _running_sums(low, high, held_low, held_high, rows)
        if most >= limit:
            beyond = _beyond(low, high, limit)
            if beyond.any():
                raise left(self.column, rows.row_id_at(np.argmax(beyond)))
        return {f"sum.low:{self.column}": low, f"sum.high:{self.column}": high}

    def merged(self, before: Columns, later: Columns, left: Left) -> Columns:
        low, high = self.storage()
        sums = [
            ours + theirs
            for ours, theirs in zip(
                _integers(before[low], before[high]), _integers(later[low], later[high]), strict=True
            )
        ]
        limit = 10**self.type.precision
        for entry, total in enumerate(sums):
            if not -limit < total < limit:
                raise left(self.column, entry)
        return dict(zip((low, high), _two_words(sums), strict=True))

    def sum(self, accumulators: Columns, counted: Ints) -> pa.Array:
        low, high = (accumulators[name] for name in self.storage())
        return decimals(low, high, self.type, _absent(counted))

    def mean(self, accumulators: Columns, counted: Ints, left: Left) -> pa.Array:
        """Rounds half up, away from 0. `left` gets the entry of a mean without room."""
        low, high = (accumulators[name] for name in self.storage())
        shift = 10 ** (self.mean_type.scale - self.kind.scale)
        divisor = np.maximum(counted, 1)
        if _is_one_word(low, high) and 2 * (greatest_magnitude(low) * shift + greatest_magnitude(divisor)) < _ONE_WORD:
            magnitude = (2 * np.abs(low) * shift + divisor) // (2 * divisor)
            found = np.where(low < 0, -magnitude, magnitude)
            return decimals(found, found >> 63, self.mean_type, _absent(counted))
        limit = 10**self.mean_type.precision
        means = []
        for row, (total, divided_by) in enumerate(zip(_integers(low, high), divisor.tolist(), strict=True)):
            magnitude = (2 * abs(total) * shift + divided_by) // (2 * divided_by)
            if magnitude >= limit:
                raise left(self.column, row, "mean")
            means.append(-magnitude if total < 0 else magnitude)
        low, high = _two_words(means)
        return decimals(low, high, self.mean_type, _absent(counted))


def _absent(counted: Ints) -> npt.NDArray[np.bool_] | None:
    absent: npt.NDArray[np.bool_] = counted == 0
    return absent if absent.any() else None


def _is_one_word(low: Ints, high: Ints) -> bool:
    return bool((high == low >> 63).all())


def _running_sums(low: Ints, high: Ints, held_low: Ints, held_high: Ints, rows: RunningOrder) -> tuple[Ints, Ints]:
    summed = []
    carry = np.zeros(1, np.int64)
    for values, held in ((low, held_low), (high, held_high)):
        for bits in (0, 32):
            total = running_integers(values >> bits & _HALF, held >> bits & _HALF, rows) + carry
            summed.append(total & _HALF)
            carry = total >> 32
    return summed[0] | summed[1] << 32, summed[2] | summed[3] << 32


def _beyond(low: Ints, high: Ints, limit: int) -> npt.NDArray[np.bool_]:
    unsigned = low.view(np.uint64)
    beyond = np.zeros(len(low), np.bool_)
    for bound, above in ((limit - 1, True), (1 - limit, False)):
        bound_high, bound_low = bound >> 64, np.uint64(bound % _WORD)
        if above:
            beyond |= (high > bound_high) | ((high == bound_high) & (unsigned > bound_low))
        else:
            beyond |= (high < bound_high) | ((high == bound_high) & (unsigned < bound_low))
    return beyond


def _integers(low: Ints, high: Ints) -> list[int]:
    return [(above << 64) + below for below, above in zip(low.view(np.uint64).tolist(), high.tolist(), strict=True)]


def _two_words(values: list[int]) -> tuple[Ints, Ints]:
    low = np.array([value % _WORD for value in values], np.uint64).view(np.int64)
    return low, np.array([value >> 64 for value in values], np.int64)
