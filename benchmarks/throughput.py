"""Rows per second of a bounded input, alike for all engines.

Where "start-up" ends is another moment in each engine, so none is cut off. Every figure is of two runs, over the first
files of an input and over all of it. *Steady* is what the second had more, rows by seconds: start, planning, first
batch, last checkpoint and end are in both and fall out. Beside it stands the whole query's rate over the large input.
"""

from pathlib import Path

import msgspec

from benchmarks.inputs import file_rows, with_input
from benchmarks.runner import run
from benchmarks.spec import BoundedRun, RunResult, RunSpec

_FEW_FILES = 2  # one per subtask, and one micro-batch
_LONGEST_S = 40.0
_SHORTEST_S = 0.2  # a difference below that is noise
_ENOUGH_S = 3.0  # one from that on is taken as it is; below, a larger input is tried


def throughput(spec: RunSpec, inputs: Path) -> RunResult:
    """Both runs as one result. An engine that is slow gets a smaller large input; `spec.rows` is the most."""
    small = _one(spec, _FEW_FILES * file_rows(spec), inputs)
    if not small.bounded:
        return small
    rows = largest(spec.rows, small.bounded[0])
    large = _one(spec, rows, inputs)
    while large.bounded and rows * 2 <= spec.rows and large.bounded[0].seconds - small.bounded[0].seconds < _ENOUGH_S:
        rows *= 2
        large = _one(spec, rows, inputs)
    return _told(small, large)


def throughput_of_all(spec: RunSpec, inputs: Path) -> RunResult:
    """The same over all of `spec.rows`, however long that takes: for figures that are set against each other."""
    small = _one(spec, min(_FEW_FILES * file_rows(spec), spec.rows), inputs)
    return _told(small, _one(spec, spec.rows, inputs)) if small.bounded else small


def _told(small: RunResult, large: RunResult) -> RunResult:
    if not large.bounded:
        return large
    pair = [small.bounded[0], large.bounded[0]]
    return msgspec.structs.replace(
        large, bounded=pair, rows_per_s_steady=steady(*pair), core_us_per_row=core_us_per_row(*pair)
    )


def largest(rows: int, small: BoundedRun) -> int:
    """`rows` halved until they take no longer than 40 s at the rate of `small`, but twice `small` at least."""
    while rows >= small.rows * 4 and rows / small.rows * small.seconds > _LONGEST_S:
        rows //= 2
    return rows


def steady(small: BoundedRun, large: BoundedRun) -> float | None:
    """None when the large input took hardly longer than the small one: then it says nothing."""
    more_s = large.seconds - small.seconds
    return round((large.rows - small.rows) / more_s) if more_s >= _SHORTEST_S else None


def core_us_per_row(small: BoundedRun, large: BoundedRun) -> float | None:
    """Microseconds of one core per row that the large input has more than the small one. None where no processor time
    was kept, or that of the large input is not more."""
    if small.cpu_s is None or large.cpu_s is None or large.cpu_s <= small.cpu_s or large.rows <= small.rows:
        return None
    return round((large.cpu_s - small.cpu_s) / (large.rows - small.rows) * 1e6, 3)


def _one(spec: RunSpec, rows: int, inputs: Path) -> RunResult:
    found = run(with_input(msgspec.structs.replace(spec, rows=rows), inputs, file_rows(spec)), None)
    return msgspec.structs.replace(found, rows=spec.rows)
