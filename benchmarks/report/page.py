"""The HTML page: pictures as data, then all figures as tables, then machine and commands.

Pure except for reading the pictures' files.
"""

import base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from pathlib import Path

from benchmarks.report.summary import NAMES, Cell, Row, cells, cores_of, figure, number, shown
from benchmarks.spec import CheckpointFigures, Percentiles, Results, RunResult

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1100px; margin: 2em auto; padding: 0 1em; color: #222; }
h1 { font-size: 1.6em; } h2 { font-size: 1.25em; margin-top: 2.2em; } h3 { font-size: 1em; margin-bottom: .3em; }
img { max-width: 100%; } figure { margin: 1em 0; }
table { border-collapse: collapse; font-size: 13px; display: block; overflow-x: auto; }
th, td { padding: .25em .7em; text-align: right; border-bottom: 1px solid #e3e3e3; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } tr.ours td { font-weight: 600; }
.note { color: #666; font-size: 13px; } code { font-size: 13px; }
"""
_CAPTIONS = {
    "latency-over-time": "Latency over time",
    "latency-cdf": "Distribution of processed latency",
    "visible-cdf": "Distribution of visible latency",
    "latency-by-rate": "Latency by rate",
    "latency-by-cores": "Latency and the cores it took",
    "growth": "What growth of rate, keys and parallelism costs",
    "throughput": "Throughput",
    "highest-rate": "Highest rate held",
    "recovery": "Recovery",
    "checkpoint-cost": "What checkpoints cost",
    "checkpoint-size": "Checkpoints by size of state and rate of change",
}
_HOW = (
    "Latency counts from the moment an event was <em>due</em>, not from when it was read. "
    "<em>Processed</em>: until the row left the last operator, stamped in the engine's own process. <em>Visible</em>: "
    "until a reader of the target topic that wants committed rows only could see it; Spark's Kafka sink is at least "
    "once, so its rows are visible before they are safe. A micro-batch gives one row per key and batch, whose latency "
    "counts from the key's last event of the batch. <em>Steady</em> rows per second: what a large input had "
    "more than a small one, rows by seconds, so that start and end of the query fall out. Figures are medians over the "
    "rounds, in brackets lowest and highest; engines took turns. Cores, CPU and memory are those of all processes of "
    "the engine, its generator and its measuring sink included (memory that processes share counts in each), without "
    "broker and feeder."
)


def page(results: Results, pictures: Mapping[str, Path]) -> str:
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><title>barrier-runtime benchmarks</title>",
        f"<style>{_STYLE}</style>",
        "<h1>barrier-runtime: benchmarks</h1>",
        f"<p class=note>{escape(results.started)}, {escape(results.machine.get('cores', '?'))} cores, "
        f"commit {escape(results.machine.get('commit', '?'))}</p><p>{_HOW}</p>",
        *(_picture(name, path) for name, path in pictures.items()),
        *_latency_tables(results, "latency", "Processed latency, ms", lambda run: run.processed),
        *_latency_tables(results, "visible", "Visible latency, ms", lambda run: run.visible),
        _throughput_table(results),
        _rates_table(results),
        _recovery_table(results),
        _cost_table(results),
        _size_table(results),
        _failures(results),
        _machine(results),
    ]
    return "\n".join(part for part in parts if part)


def _picture(name: str, path: Path) -> str:
    data = base64.b64encode(path.read_bytes()).decode()
    caption = escape(_CAPTIONS[name])
    return f'<h2>{caption}</h2><figure><img alt="{caption}" src="data:image/png;base64,{data}"></figure>'


def _table(head: Sequence[str], rows: Iterable[tuple[str, Sequence[str]]]) -> str:
    """`rows`: (class, cells); texts are escaped here."""
    top = "".join(f"<th>{escape(name)}" for name in head)
    body = "".join(f"<tr class={kind or 'peer'}>" + "".join(f"<td>{escape(c)}" for c in row) for kind, row in rows)
    return f"<table><tr>{top}{body}</table>"


def _latency_tables(
    results: Results, measure: str, title: str, of: Callable[[RunResult], Percentiles | None]
) -> list[str]:
    found = {cell: rows for cell, rows in cells(results).items() if cell.measure == measure}
    if not found:
        return []
    head = ["", "rounds", "p50", "p90", "p99", "p99.9", "max", "held", "cores", "CPU s per M rows"]
    head += [
        "peak MB",
        "longest gap",
        "gap at checkpoint",
        "checkpoints",
        "checkpoint p50",
        "bytes each",
        "feeder late by",
    ]
    tables = [f"<h2>{escape(title)}</h2>"]
    for cell, rows in found.items():
        lines = [(row.engine, _latency_row(row, of)) for row in rows if row.runs]
        tables.append(f"<h3>{escape(_described(cell))}</h3>{_table(head, lines)}")
    return tables


def _latency_row(row: Row, of: Callable[[RunResult], Percentiles | None]) -> list[str]:
    def at(name: str) -> str:
        return shown(row.figure(lambda run: getattr(of(run), name, None)))

    def checkpoint(name: str) -> str:
        return shown(row.figure(lambda run: getattr(run.checkpoints, name, None)))

    held = sum(bool(run.held) for run in row.runs)
    return [
        NAMES[row.engine],
        str(len(row.runs)),
        *(at(name) for name in ("p50", "p90", "p99", "p999", "max")),
        "yes" if held == len(row.runs) else f"{held} of {len(row.runs)}",
        shown(row.figure(cores_of)),
        shown(row.figure(lambda run: run.cpu_s_per_million)),
        shown(row.figure(lambda run: run.peak_mb), 4),
        shown(row.figure(lambda run: run.gap_ms)),
        shown(row.figure(lambda run: run.checkpoint_gap_ms)),
        *(checkpoint(name) for name in ("count", "p50_ms", "bytes")),
        shown(row.figure(lambda run: run.feeder_late_ms)),
    ]


def _throughput_table(results: Results) -> str:
    found = {cell: rows for cell, rows in cells(results).items() if cell.measure == "throughput"}
    if not found:
        return ""
    head = ["", "rounds", "steady rows/s", "whole query, rows/s", "rows", "CPU s per M rows", "peak MB"]
    tables = ["<h2>Throughput from Parquet</h2>"]
    for cell, rows in found.items():
        lines = [
            (
                row.engine,
                [
                    NAMES[row.engine],
                    str(len(row.runs)),
                    shown(row.figure(lambda run: run.rows_per_s_steady)),
                    shown(row.figure(lambda run: run.rows_per_s)),
                    shown(row.figure(lambda run: run.bounded[-1].rows if run.bounded else None)),
                    shown(row.figure(lambda run: run.cpu_s_per_million)),
                    shown(row.figure(lambda run: run.peak_mb), 4),
                ],
            )
            for row in rows
            if row.runs
        ]
        tables.append(f"<h3>{escape(_described(cell))}</h3>{_table(head, lines)}")
    return "".join(tables)


def _rates_table(results: Results) -> str:
    if not results.rates:
        return ""
    groups = dict.fromkeys((held.workload, held.keys, held.engine) for held in results.rates)
    lines = []
    for workload, keys, engine in groups:
        rates = [
            held.rate for held in results.rates if (held.workload, held.keys, held.engine) == (workload, keys, engine)
        ]
        lines.append((engine, [NAMES[engine], workload, number(keys), str(len(rates)), shown(figure(rates))]))
    return f"<h2>Highest rate held, rows/s</h2>{_table(['', 'workload', 'keys', 'rounds', 'rate'], lines)}"


def _recovery_table(results: Results) -> str:
    if not results.recoveries:
        return ""
    lines = []
    for victim in dict.fromkeys(found.victim for found in results.recoveries):
        kills = [found for found in results.recoveries if found.victim == victim]
        lines.append(
            (
                "",
                [
                    f"{victim}, {kills[0].rate:,.0f} rows/s",
                    str(len(kills)),
                    shown(figure(kill.first_output_ms for kill in kills)),
                    shown(figure(kill.first_due_ms for kill in kills)),
                    shown(figure(kill.caught_up_ms for kill in kills)),
                    shown(figure(kill.next_checkpoint_ms for kill in kills)),
                ],
            )
        )
    head = ["SIGKILL of", "kills", "first output", "first row due after it", "caught up", "next checkpoint"]
    return f"<h2>Recovery, ms from the kill</h2>{_table(head, lines)}"


def _cost_table(results: Results) -> str:
    if not results.grid:
        return ""
    lines = []
    for keys, parallelism, interval in dict.fromkeys((c.keys, c.parallelism, c.interval_ms) for c in results.grid):
        same = [c for c in results.grid if (c.keys, c.parallelism, c.interval_ms) == (keys, parallelism, interval)]
        name = f"every {interval / 1000:g} s" if interval else "none but the last"
        lines.append(
            (
                "",
                [
                    name,
                    number(keys),
                    str(parallelism),
                    str(len(same)),
                    shown(figure(cost.rows_per_s for cost in same)),
                    shown(figure(cost.checkpoints.p50_ms if cost.checkpoints else None for cost in same)),
                ],
            )
        )
    head = ["checkpoints", "keys", "parallelism", "rounds", "rows/s", "duration p50, ms"]
    return f"<h2>Cost of checkpointing</h2>{_table(head, lines)}"


def _size_table(results: Results) -> str:
    if not results.sizes:
        return ""
    lines = []
    for key in dict.fromkeys((s.keys, s.changed, s.storage, s.interval_ms) for s in results.sizes):
        same = [s for s in results.sizes if (s.keys, s.changed, s.storage, s.interval_ms) == key and not s.error]
        figures = [size.checkpoints for size in same if size.checkpoints is not None]
        lines.append(
            (
                "",
                [
                    f"{number(key[0])} keys, {number(key[1])} changed per s, {key[2]}",
                    str(len(same)),
                    *(
                        shown(figure(_of(c, name) for c in figures))
                        for name in ("full_bytes", "p50_ms", "max_ms", "bytes", "mean_bytes")
                    ),
                    shown(figure(size.uploaded_by_changed for size in same)),
                    shown(figure(c.requests for c in figures)),
                    shown(figure(size.processed.p99 if size.processed else None for size in same)),
                    shown(figure(size.checkpoint_gap_ms for size in same)),
                    _phases(figures),
                ],
            )
        )
    head = ["state of 100 bytes per key", "rounds", "bytes in all", "p50, ms", "max, ms", "uploaded, p50", "mean"]
    head += ["mean / changed bytes", "requests", "processed p99, ms", "longest gap, ms", "phases (medians, ms)"]
    return f"<h2>Checkpoints by size of state and rate of change</h2>{_table(head, lines)}"


def _of(figures: CheckpointFigures, name: str) -> float | None:
    value = getattr(figures, name)
    return float(value) if value is not None else None


def _phases(figures: Sequence[CheckpointFigures]) -> str:
    names = dict.fromkeys(name for one in figures for name in one.phases)
    middle = {name: figure(one.phases.get(name) for one in figures) for name in names}
    return ", ".join(f"{name} {number(found.median)}" for name, found in middle.items() if found is not None)


def _failures(results: Results) -> str:
    lines = [(engine, [NAMES.get(engine, engine), "left out", reason]) for engine, reason in results.left_out.items()]
    lines += [
        (row.engine, [NAMES[row.engine], f"{row.failed} of {_described(cell)}", row.error.splitlines()[0][:300]])
        for cell, rows in cells(results).items()
        for row in rows
        if row.failed
    ]
    return f"<h2>What did not run</h2>{_table(['', 'what', 'why'], lines)}" if lines else ""


def _machine(results: Results) -> str:
    lines = [("", [name, value]) for name, value in results.machine.items()]
    versions = {run.engine: run.version for run in results.runs if run.version}
    lines += [("", [NAMES[engine], version]) for engine, version in versions.items()]
    settings = {run.engine: run.settings for run in results.runs if run.settings}
    lines += [
        ("", [f"{NAMES[engine]}: {name}", value])
        for engine, all_of in settings.items()
        for name, value in all_of.items()
    ]
    commands = "".join(f"<li><code>{escape(command)}</code>" for command in results.command.split("; "))
    return f"<h2>Machine, versions, settings, commands</h2>{_table(['', ''], lines)}<ul>{commands}</ul>"


def _described(cell: Cell) -> str:
    pace = f"{cell.rate:,.0f} rows/s from {cell.source}" if cell.rate else "as fast as it goes"
    return (
        f"{cell.workload}, {cell.keys:,} keys, {pace}, parallelism {cell.parallelism}, checkpoints every "
        f"{cell.interval_ms / 1000:g} s"
    )
