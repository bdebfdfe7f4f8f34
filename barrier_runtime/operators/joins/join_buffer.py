"""Held rows of a join side, in few runs of growing size, so rows move rarely.

Merges leave some three runs per power of four, oldest first. Design: docs/design/joins-and-lookups.md.

`KeyNumbers` gives each key with held rows a small number, shared by both sides. The number is free once all rows of the
key are released.
"""

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from barrier_runtime.data.grouping import group_rows
from barrier_runtime.data.keys import KeyCodec
from barrier_runtime.operators.joins.stored_runs import RowRun
from barrier_runtime.state.keys.distinct_ints import distinct_ints
from barrier_runtime.state.keys.row_index import IntKeys, TupleKeys, tuple_keys

Ints: TypeAlias = npt.NDArray[np.int64]

_MERGED = 4
_MERGED_BYTES = 128 << 20
_MOST_ROWS = 65_536
_MOST_BYTES = 16 << 20


class KeyNumbers:
    def __init__(self, fields: int) -> None:
        self._keys: IntKeys | TupleKeys = IntKeys(fields)
        self._rows = np.zeros(1_024, np.int64)

    def __len__(self) -> int:
        return len(self._keys)

    def hold(self, codec: KeyCodec, keys: list[pa.Array]) -> Ints:
        ints = codec.int64(keys)
        if ints is not None and isinstance(self._keys, IntKeys):
            numbers = self._placed(np.array(ints, np.int64))
        else:
            self._keys = tuple_keys(self._keys)
            groups = group_rows(keys)
            numbers = self._placed(groups.keys)[groups.of_row]
        np.add.at(self._rows, numbers, 1)
        return numbers

    def release(self, numbers: Ints) -> None:
        np.subtract.at(self._rows, numbers, 1)
        free = numbers[self._rows[numbers] == 0]
        if len(free):
            self._keys.remove(distinct_ints(free))

    def _placed(self, keys: Any) -> Ints:
        numbers, made = self._keys.place(keys)
        if len(made) and self._keys.numbers.limit > len(self._rows):
            extended = np.zeros(max(self._keys.numbers.limit, 2 * len(self._rows)), np.int64)
            extended[: len(self._rows)] = self._rows
            self._rows = extended
        return numbers


class JoinBuffer:
    def __init__(self, numbers: KeyNumbers) -> None:
        self._numbers = numbers
        self.runs: list[RowRun] = []
        self._checked_before = -(2**63)  # `passed` with pointer 1 has returned all earlier rows
        self._swept = True

    def __len__(self) -> int:
        return sum(len(run) - run.dead for run in self.runs)

    @property
    def row_bytes(self) -> float:
        return max((run.row_bytes for run in self.runs), default=0.0)

    def add(self, run: RowRun, most_bytes: int = _MERGED_BYTES) -> None:
        """`most_bytes`: limit of a run that is still merged with others."""
        self.runs.append(run)
        level, most_bytes = _level(run), min(most_bytes, _MERGED_BYTES)
        merged = 0
        for older in reversed(self.runs):
            if _level(older) > level or older.bytes > most_bytes:
                break
            merged += 1
        if merged >= _MERGED:
            parts = self.runs[-merged:]
            del self.runs[-merged:]
            self._replace(parts)

    def passed(self, before: int, pointer: int = 0) -> Iterator[tuple[RowRun, Ints]]:
        """Yields living rows before time `before` not yet returned, as positions of runs in time order."""
        if pointer == 1:
            self._checked_before = max(self._checked_before, before)
        for run in self.runs:
            positions = run.passed(before, pointer)
            if len(positions) and run.dead:
                positions = run.living(positions)
            if len(positions):
                yield run, positions

    def remove_passed(self, before: int) -> tuple[pa.RecordBatch, Ints, Ints, npt.NDArray[np.bool_]] | None:
        """Removes and returns rows before time `before`, in time order; None: no rows.
        The result: rows, key numbers, times, whether matched. Call `sweep` afterwards."""
        parts = list(self.passed(before))
        for run, positions in parts:
            run.kill(positions)
        if not parts:
            return None
        self._swept = False
        rows = pa.concat_batches([run.take(positions) for run, positions in parts])
        keys, times, matched = (
            np.concatenate(columns)
            for columns in zip(
                *[(run.keys[at], run.times[at], run.matched[run.at[at]]) for run, at in parts], strict=True
            )
        )
        if len(parts) > 1:
            order = np.argsort(times, kind="stable")
            rows, keys, times, matched = rows.take(pa.array(order)), keys[order], times[order], matched[order]
        return rows, keys, times, matched

    def drop_passed(self, before: int) -> None:
        """Removes rows before time `before`. Call `sweep` afterwards."""
        for run, positions in self.passed(before):
            self.kill(run, positions)

    def kill(self, run: RowRun, positions: Ints) -> None:
        """Removes `positions` (alive, each once). Call `sweep` afterwards."""
        run.kill(positions)
        self._swept = False

    def sweep(self) -> None:
        """Frees the memory of dead rows, in runs where more than half of the rows are dead."""
        if self._swept:
            return
        self._swept = True
        runs, self.runs = self.runs, []
        for run in runs:
            if 2 * run.dead <= len(run):
                self.runs.append(run)
            else:
                self._replace([run])

    def _replace(self, parts: list[RowRun]) -> None:
        if any(run.dead < len(run) for run in parts):
            run = RowRun.merged(parts)
            run.skip(self._checked_before, 1)
            self.runs.append(run)
        for part in parts:
            if part.dead:
                self._numbers.release(part.keys[~part.alive[part.at]])


def rows_at_once(*row_bytes: float) -> int:
    return max(1, min(_MOST_ROWS, int(_MOST_BYTES / max(1.0, sum(row_bytes)))))


def _level(run: RowRun) -> int:
    return len(run).bit_length() // 2
