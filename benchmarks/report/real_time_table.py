"""The real-time table as Markdown: a row per engine and guarantee, a column per workload and rate. Pure."""

import re
from collections.abc import Sequence

from benchmarks.engines import ENGINES
from benchmarks.report.intervals import told
from benchmarks.report.summary import cores_of, in_cores
from benchmarks.spec import KillCount, Results, RunResult

_REFUSED = re.compile(r"InvalidJob: (.*)")
_NOTE = (
    "`append`: from the time when the input record was due until the broker appended the output record. `visible`: "
    "until a `read_committed` reader could see the record. Milliseconds, p50 / p99; then the cores of the engine.\n"
)


def real_time_markdown(results: Results) -> str:
    """Empty without runs."""
    latency = _latency(results.real_time) if results.real_time else ""
    return "\n".join(filter(None, [latency, _kills(results.kill_counts) if results.kill_counts else ""]))


def _latency(runs: Sequence[RunResult]) -> str:
    cells = list(dict.fromkeys((run.workload, run.rate) for run in runs))
    kinds = list(dict.fromkeys((run.engine, run.guarantee) for run in runs))
    notes: list[str] = []
    rows = []
    for engine, guarantee in kinds:
        own = [run for run in runs if (run.engine, run.guarantee) == (engine, guarantee)]
        found = [_cell([run for run in own if (run.workload, run.rate) == cell], notes) for cell in cells]
        rows.append([ENGINES[engine].title, guarantee.replace("_", " "), *found])
    head = ["engine", "guarantee", *(f"{workload}, {rate:,.0f}/s" for workload, rate in cells)]
    return _table(head, rows) + "\n" + _NOTE + "".join(f"\n- {note}" for note in notes)


def _cell(runs: Sequence[RunResult], notes: list[str]) -> str:
    good = [run for run in runs if run.error is None and run.visible is not None and run.appended is not None]
    if not good:
        errors = [run for run in runs if run.error is not None]
        if not errors:
            return "-"
        refused = _REFUSED.search(errors[0].error or "")
        reason = refused[1] if refused else (errors[0].error or "").splitlines()[0]
        notes.append(f"{ENGINES[errors[0].engine].title}, {errors[0].guarantee}, {errors[0].workload}: {reason}")
        return "refused" if refused else "failed"
    parts = []
    for name in ("appended", "visible"):
        found = [getattr(run, name) for run in good]
        parts.append(" / ".join(str(told(getattr(one, at) for one in found)) for at in ("p50", "p99")))
    text = f"append {parts[0]}; visible {parts[1]}; {told((cores_of(run) for run in good), in_cores) or '-'}"
    return text if all(run.held for run in good) else f"{text} (rate not held)"


def _kills(counts: Sequence[KillCount]) -> str:
    head = ["engine", "guarantee", "workload", "kills", "rows fed", "lost", "doubled", "gap after a kill, s"]
    rows = [
        [
            ENGINES[one.engine].title,
            one.guarantee.replace("_", " "),
            one.workload,
            str(one.kills),
            f"{one.fed:,}",
            *(
                ["failed", one.error.splitlines()[0], ""]
                if one.error is not None
                else [f"{one.lost:,}", f"{one.doubled:,}", ", ".join(f"{gap / 1000:.1f}" for gap in one.gaps_ms)]
            ),
        ]
        for one in counts
    ]
    return _table(head, rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows]) + "\n"
