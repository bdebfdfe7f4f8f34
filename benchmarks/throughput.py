"""Rows per second of a bounded input, measured alike for all engines.

Engines differ in the end of their start-up, so no start-up is cut off. Each figure is from two runs, over the first
files of an input and over all files. *Steady* is the additional rows of the second run divided by the additional
seconds: start, planning, first batch, last checkpoint and end are in both runs and cancel out. The whole query's rate
over the large input is reported too.
"""

from pathlib import Path

import msgspec

from benchmarks.inputs import file_rows, with_input
from benchmarks.runner import run
from benchmarks.spec import BoundedRun, RunResult, RunSpec

_FEW_FILES = 2  # a file per subtask, and a single micro-batch
_LONGEST_S = 40.0
_SHORTEST_S = 0.2  # a smaller difference is noise
_ENOUGH_S = 3.0  # a difference from this on is used; below, a larger input is tried


def throughput(spec: RunSpec, inputs: Path) -> RunResult:
    """Both runs as a single result; a slow engine gets a smaller large input, `spec.rows` at most."""
    small = _one(spec, _FEW_FILES * file_rows(spec), inputs)
    if not small.bounded:
        return small
    rows = largest(spec.rows, small.bounded[0])
    large = _one(spec, rows, inputs)
    while large.bounded and rows * 2 <= spec.rows and large.bounded[0].seconds - small.bounded[0].seconds < _ENOUGH_S:
        rows *= 2
        large = _one(spec, rows, inputs)
    return of_both(small, large)


def throughput_of_all(spec: RunSpec, inputs: Path) -> RunResult:
    """Both runs over all of `spec.rows`, however long, for figures that are compared with each other."""
    small = _one(spec, min(_FEW_FILES * file_rows(spec), spec.rows), inputs)
    return of_both(small, _one(spec, spec.rows, inputs)) if small.bounded else small


def of_both(small: RunResult, large: RunResult) -> RunResult:
    """The large run with the figures of both runs."""
    if not large.bounded:
        return large
    pair = [small.bounded[0], large.bounded[0]]
    return msgspec.structs.replace(
        large, bounded=pair, rows_per_s_steady=steady(*pair), core_us_per_row=core_us_per_row(*pair)
    )


def largest(rows: int, small: BoundedRun) -> int:
    """`rows` halved until they take 40 s at most at the rate of `small`, but at least twice `small`."""
    while rows >= small.rows * 4 and rows / small.rows * small.seconds > _LONGEST_S:
        rows //= 2
    return rows


def steady(small: BoundedRun, large: BoundedRun) -> float | None:
    """None if the large input took hardly longer than the small input."""
    more_s = large.seconds - small.seconds
    return round((large.rows - small.rows) / more_s) if more_s >= _SHORTEST_S else None


def core_us_per_row(small: BoundedRun, large: BoundedRun) -> float | None:
    """Microseconds of a core per additional row of the large input.

    None if no processor time was stored, or the large input's is not more."""
    if small.cpu_s is None or large.cpu_s is None or large.cpu_s <= small.cpu_s or large.rows <= small.rows:
        return None
    return round((large.cpu_s - small.cpu_s) / (large.rows - small.rows) * 1e6, 3)


def _one(spec: RunSpec, rows: int, inputs: Path) -> RunResult:
    found = run(with_input(msgspec.structs.replace(spec, rows=rows), inputs, file_rows(spec)), None)
    return msgspec.structs.replace(found, rows=spec.rows)
