"""Effect and cost of `latency_target` as a Markdown table: a row per target, a column per rate. Pure."""

from collections.abc import Sequence

from benchmarks.report.intervals import told
from benchmarks.report.summary import cores_of, in_cores
from benchmarks.spec import Results, RunResult

_FAILED, _NONE = "failed", "-"


def targets_markdown(results: Results) -> str:
    """Tables of `latency-targets`, each for the same keys, parallelism and checkpoints; empty without runs."""
    groups: dict[str, list[RunResult]] = {}
    for run in results.targets:
        groups.setdefault(_named(run), []).append(run)
    return "\n".join(f"{name}:\n\n{_table(runs)}" for name, runs in groups.items())


def _table(runs: Sequence[RunResult]) -> str:
    rates = sorted({run.rate for run in runs})
    targets = sorted({run.latency_target_ms for run in runs if run.latency_target_ms is not None})
    head = ["`latency_target`, ms", *(f"{rate:,.0f}/s" for rate in rates)]
    rows = [
        [
            f"{target:g}",
            *(
                latency_and_cores([run for run in runs if (run.latency_target_ms, run.rate) == (target, rate)])
                for rate in rates
            ),
        ]
        for target in targets
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows]) + "\n"


def latency_and_cores(runs: Sequence[RunResult]) -> str:
    """`p50 / p99; cores`, with intervals."""
    good = [run for run in runs if run.processed is not None and run.error is None]
    if not good:
        return _FAILED if runs else _NONE
    latency = " / ".join(str(told(getattr(run.processed, name) for run in good)) for name in ("p50", "p99"))
    text = f"{latency}; {told((cores_of(run) for run in good), in_cores) or _NONE}"
    return text if all(run.held for run in good) else f"{text} (rate not held)"


def _named(run: RunResult) -> str:
    return (
        f"{run.engine}, {run.workload.replace('-', ' ')}, {run.keys:,} keys, parallelism {run.parallelism}, "
        f"checkpoints every {run.interval_ms:,} ms: processed p50 / p99, ms; cores"
    )
