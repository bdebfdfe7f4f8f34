"""The table of backlogs as Markdown: a row per input and work, a column per engine. Pure."""

from collections.abc import Sequence

from benchmarks.backlog_rows import records, wide_records
from benchmarks.backlog_workloads import WIDE
from benchmarks.engines import ENGINES
from benchmarks.report.intervals import told
from benchmarks.spec import Results, RunResult
from benchmarks.workloads import workload

_INPUTS = {"kafka": "Kafka", "jsonl": "JSON lines", "csv": "CSV", "parquet": "Parquet"}
_NOTE = (
    "Rows per second / microseconds of processor time per row, of all processes of the engine. Both are the additional "
    "rows of a run over all rows, compared with a run over a tenth of the rows, so start and end cancel out.\n"
)


def backlog_markdown(results: Results) -> str:
    """Empty without runs."""
    runs = results.backlogs
    if not runs:
        return ""
    engines = list(dict.fromkeys(run.engine for run in runs))
    cells = list(dict.fromkeys((run.source, run.workload, run.rows) for run in runs))
    notes: list[str] = []
    rows = [
        [_named(source, work, count), *(_cell(_of(runs, engine, source, work, count), notes) for engine in engines)]
        for source, work, count in cells
    ]
    head = ["input, work", *(ENGINES[engine].title for engine in engines)]
    table = "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows])
    return f"{table}\n\n{_NOTE}" + "".join(f"\n- {note}" for note in notes)


def _of(runs: Sequence[RunResult], engine: str, source: str, work: str, rows: int) -> list[RunResult]:
    wanted = (engine, source, work, rows)
    return [run for run in runs if (run.engine, run.source, run.workload, run.rows) == wanted]


def _named(source: str, work: str, rows: int) -> str:
    (record,) = wide_records(0, 1) if work == WIDE.name else records(0, 1)
    size = f", JSON of {len(record):,} bytes" if source == "kafka" else ""
    return f"{_INPUTS[source]}, {rows:,} rows{size}: {workload(work).question}"


def _cell(runs: Sequence[RunResult], notes: list[str]) -> str:
    good = [run for run in runs if run.error is None]
    if not good:
        if not runs:
            return "-"
        notes.append(f"{ENGINES[runs[0].engine].title}, {runs[0].workload}: {(runs[0].error or '').splitlines()[0]}")
        return "failed"
    rate = told((run.rows_per_s_steady for run in good), _whole) or "too quick"
    cost = told((run.core_us_per_row for run in good), _microseconds) or "-"
    return f"{rate} / {cost}"


def _whole(value: float) -> str:
    return f"{value:,.0f}"


def _microseconds(value: float) -> str:
    return f"{value:.2f}"
