"""Nexmark compared with Flink SQL as a Markdown table, our worst queries first. Pure."""

import statistics
from collections.abc import Callable, Iterable, Sequence

from benchmarks.report.drawing import short
from benchmarks.report.intervals import told
from benchmarks.spec import Answer, Results, RunResult
from benchmarks.workloads import names

_US, _THEM = "ours", "flink"
_NONE, _FAILED = "-", "failed"
_AIM_RATE, _AIM_CORE = 3.0, 0.5
_HEAD = ("query", "rows/s: ours", "flink", "ratio", "core-µs/event: ours", "flink", "ratio", "answer: ours", "flink")


def nexmark_markdown(results: Results) -> str:
    """Table of the runs of `nexmark`; empty if not both engines have run.

    A ratio is ours divided by Flink's, of the medians."""
    queries = [name for name in names("nexmark") if all(_runs(results, name, engine) for engine in (_US, _THEM))]
    if not queries:
        return ""
    lost = sorted(queries, key=lambda name: _ratio(results, name, _rate) or 0.0)
    rows = [_row(results, name) for name in lost]
    table = "\n".join(f"| {' | '.join(row)} |" for row in [_HEAD, ["---"] * len(_HEAD), *rows])
    return f"{_told(results, lost)}\n\n{table}\n"


def _told(results: Results, queries: Sequence[str]) -> str:
    rate = {name: _ratio(results, name, _rate) for name in queries}
    core = {name: _ratio(results, name, _core) for name in queries}
    slower = [name for name, ratio in rate.items() if ratio is not None and ratio < 1]
    dearer = [name for name, ratio in core.items() if ratio is not None and ratio > 1]
    below = [name for name, ratio in rate.items() if ratio is not None and 1 <= ratio < _AIM_RATE]
    above = [name for name, ratio in core.items() if ratio is not None and _AIM_CORE < ratio <= 1]
    unknown = [name for name in queries if rate[name] is None or core[name] is None]
    return (
        f"Slower than Flink SQL: {_named(slower)}. More core-seconds per event: {_named(dearer)}. Faster, but not "
        f"{_AIM_RATE:g} times: {_named(below)}. Fewer core-seconds, but not half: {_named(above)}. Without one of the "
        f"ratios: {_named(unknown)}."
    )


def _named(queries: Sequence[str]) -> str:
    return ", ".join(queries) or "none"


def _row(results: Results, name: str) -> list[str]:
    cells = [name]
    for of, text in ((_rate, short), (_core, _microseconds)):
        cells += [_figure(_runs(results, name, engine), of, text) for engine in (_US, _THEM)]
        ratio = _ratio(results, name, of)
        cells.append(_NONE if ratio is None else f"{ratio:.2f}")
    return [*cells, *(_answer(results.answers, name, engine) for engine in (_US, _THEM))]


def _runs(results: Results, name: str, engine: str) -> list[RunResult]:
    return [run for run in results.runs if (run.workload, run.engine, run.measure) == (name, engine, "throughput")]


def _rate(run: RunResult) -> float | None:
    return run.rows_per_s_steady


def _core(run: RunResult) -> float | None:
    return run.core_us_per_row


def _microseconds(value: float) -> str:
    return f"{value:.2f}"


def _figure(runs: Iterable[RunResult], of: Callable[[RunResult], float | None], text: Callable[[float], str]) -> str:
    good = [run for run in runs if run.error is None]
    return told((of(run) for run in good), text) or (_NONE if good else _FAILED)


def _ratio(results: Results, name: str, of: Callable[[RunResult], float | None]) -> float | None:
    found = [[of(run) for run in _runs(results, name, engine)] for engine in (_US, _THEM)]
    ours, theirs = ([value for value in values if value is not None] for values in found)
    return statistics.median(ours) / statistics.median(theirs) if ours and theirs else None


def _answer(answers: Sequence[Answer], name: str, engine: str) -> str:
    """The last answer of the query."""
    found = [answer for answer in answers if (answer.workload, answer.engine) == (name, engine)]
    if not found:
        return _NONE
    return f"{'same' if found[-1].same else 'DIFFERS'}, {short(found[-1].events)}"
