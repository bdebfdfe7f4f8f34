"""Writes `docs/metrics.md` from the tables `coordinator/metric_table.py` and `coordinator/status/figure_table.py`.

Run this file after a change of a table (`make tables`); `tests/test_metrics_table.py` fails when the page is stale.
"""

from pathlib import Path

from barrier_runtime.coordinator.metric_table import METRICS, Metric
from barrier_runtime.coordinator.status.figure_table import EXPOSED, FIGURES, PER_JOB, PER_OPERATOR, PER_SLOT, Figure

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "docs" / "metrics.md"

_HEAD = """# Metrics of a job

Written by `tests/metrics_table.py` from `coordinator/metric_table.py` and `coordinator/status/figure_table.py`.

Slots send their metrics with every heartbeat, latencies with every fourth. The job's status has all metrics
(`JobHandle.status()`, or `GET /jobs/<name>` of the coordinator). A *counter* only rises; counters of operators and
slots restart at 0 with the slot's process, or with each generation. A *gauge* is the current value. A *histogram*
counts rows by latency.
"""

_GROUPS = {
    "Of an operator": (
        "operator",
        "In `slots[…].metrics`, as `<operator>.<name>`, once there is something to count; latencies of all slots\n"
        "together in `latency` and `latency_last_minute`, as `<operator>:<name>`. A slot runs one subtask of every\n"
        "operator. Counters and gauges of a keyed function (`ctx.metrics.counter(name).inc()`,\n"
        "`.gauge(name).set(value)`) are in the same place, as `<operator>.user_<name>`; a row that is processed again\n"
        "after a failure counts again. Histograms of the function (`ctx.metrics.histogram(name).record(value)`) are\n"
        "with the latencies, as `<operator>:user_<name>`, with their number, median, 99th percentile and maximum.",
    ),
    "Of a slot": (
        "slot",
        "In `slots[…].metrics`. The status also has `records` and `watermark_ms` of all slots together.",
    ),
}

_EXPOSED = f"""## For Prometheus

`GET /metrics` of the coordinator, with the bearer token, from `coordinator/status/figure_table.py`. Each job has at
most {PER_JOB} series, {PER_OPERATOR} per operator and {PER_SLOT} per slot; ended jobs are exported for an hour.
A dashboard for Grafana and alert rules are in `examples/monitoring/`.
"""


def document() -> str:
    lines = [_HEAD]
    for title, (of, says) in _GROUPS.items():
        lines += [f"## {title}", "", says, ""]
        lines += ["| metric | kind | unit | labels | over slots | |", "|---|---|---|---|---|---|"]
        lines += [_row(metric) for metric in METRICS if metric.of == of]
        lines.append("")
    lines += ["## Of the job", "", "The name is the path of the value in the status.", ""]
    lines += ["| metric | kind | unit | |", "|---|---|---|---|"]
    lines += [f"| `{each.place}` | {each.kind} | {each.unit} | {each.help} |" for each in FIGURES if each.place]
    lines += ["", _EXPOSED, "| metric | kind | labels | |", "|---|---|---|---|"]
    lines += [_exposed(figure) for figure in EXPOSED]
    return "\n".join(lines) + "\n"


def _exposed(figure: Figure) -> str:
    labels = ", ".join(("job", *figure.labels))
    return f"| `{figure.exposed}` | {figure.kind} | {labels} | {figure.help} |"


def _row(metric: Metric) -> str:
    merged = "merged" if metric.kind == "histogram" else metric.over_slots
    labels = ", ".join(metric.labels)
    return f"| `{metric.name}` | {metric.kind} | {metric.unit} | {labels} | {merged} | {metric.help} |"


if __name__ == "__main__":
    DOCUMENT.write_text(document(), encoding="utf-8")
    print(f"{DOCUMENT.relative_to(ROOT)}: {len(METRICS)} metrics")
