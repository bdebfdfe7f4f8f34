"""The figures of all engines as a Markdown table, ready for the README. Pure.

A row per measured figure, "-" for an engine without it. Medians over the rounds, and from three rounds on their 95 %
intervals in brackets (`intervals`). A row of latencies ends with the used cores. Flink's column is Java's DataStream
for the keyed count and the interval join, and SQL for the others.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

from benchmarks.engines import ENGINES
from benchmarks.report.drawing import short, words
from benchmarks.report.growth import growth_markdown
from benchmarks.report.intervals import told
from benchmarks.report.nexmark_table import nexmark_markdown
from benchmarks.report.summary import Cell, Row, cells, cores_of, in_cores, share_kept
from benchmarks.report.target_table import targets_markdown
from benchmarks.spec import CheckpointSize, Percentiles, Results, RunResult

_COLUMNS = {engine: known.column for engine, known in ENGINES.items() if known.column is not None}
_INTERVALS = "In brackets: 95 % interval of the median over the rounds, where there are three or more."
_NONE, _FAILED = "-", "failed"

Line = tuple[str, Mapping[str, str]]  # the figure, and its text per engine


def markdown(results: Results) -> str:
    """The table of a machine and date; both are in the last line."""
    lines = [*_latency(results), *_throughput(results), *_rates(results), *_recovery(results)]
    lines += [*_sizes(results), *_overhead(results)]
    head = ["figure", *_COLUMNS.values()]
    rows = [[figure, *(found.get(engine, _NONE) for engine in _COLUMNS)] for figure, found in lines]
    table = [head, ["---"] * len(head), *rows]
    facts = results.machine
    where = f"{facts.get('cores', '?')} cores, {facts.get('processor', '?')}, {facts.get('memory', '?')}"
    from_ = f"{results.started}, commit {facts.get('commit', '?')}, `{results.command}`"
    text = "\n".join(f"| {' | '.join(row)} |" for row in table) + f"\n\n{_INTERVALS}\n\n{where}; {from_}\n"
    return "\n".join(
        filter(None, [text, nexmark_markdown(results), targets_markdown(results), growth_markdown(results)])
    )


def _latency(results: Results) -> Iterator[Line]:
    for measure, of in (("latency", _processed), ("visible", _visible)):
        for cell, rows in cells(results).items():
            if cell.measure == measure:
                kind = "processed" if measure == "latency" else "visible"
                through = " through Kafka" if cell.source == "kafka" else ""
                yield (
                    f"{_named(cell)}, {cell.rate:,.0f} events/s{through}, checkpoints every "
                    f"{cell.interval_ms:,} ms: {kind} p50 / p99 / p99.9, ms; cores",
                    {row.engine: _percentiles(row, of) for row in rows},
                )


def _processed(run: RunResult) -> Percentiles | None:
    return run.processed


def _visible(run: RunResult) -> Percentiles | None:
    return run.visible


def _percentiles(row: Row, of: Callable[[RunResult], Percentiles | None]) -> str:
    found = [percentiles for run in row.runs if (percentiles := of(run)) is not None]
    if not found:
        return _FAILED
    latency = " / ".join(str(told(getattr(one, name) for one in found)) for name in ("p50", "p99", "p999"))
    text = f"{latency}; {told((cores_of(run) for run in row.runs), in_cores) or _NONE}"
    return text if all(run.held for run in row.runs) else f"{text} (rate not held)"


def _throughput(results: Results) -> Iterator[Line]:
    for cell, rows in cells(results).items():
        if cell.measure == "throughput":
            yield (
                f"{_named(cell)}, from Parquet: rows/s, steady (whole query)",
                {row.engine: _both(row) for row in rows},
            )


def _both(row: Row) -> str:
    whole = told((run.rows_per_s for run in row.runs), short)
    steady = told((run.rows_per_s_steady for run in row.runs), short)
    return f"{steady or _NONE} ({whole})" if whole is not None else _FAILED


def _rates(results: Results) -> Iterator[Line]:
    for workload, keys in dict.fromkeys((held.workload, held.keys) for held in results.rates):
        same = [held for held in results.rates if (held.workload, held.keys) == (workload, keys)]
        engines = dict.fromkeys(held.engine for held in same)
        middle = {e: str(told((held.rate for held in same if held.engine == e), short)) for e in engines}
        yield f"{words(workload)}, {short(keys)} keys: highest rate held, events/s", middle


def _recovery(results: Results) -> Iterator[Line]:
    for victim in dict.fromkeys(kill.victim for kill in results.recoveries):
        kills = [kill for kill in results.recoveries if kill.victim == victim]
        back = [kill.caught_up_ms for kill in kills if kill.caught_up_ms is not None]
        first = told((kill.first_due_ms for kill in kills), _whole)
        yield (
            f"SIGKILL of a {victim} under {kills[0].rate:,.0f} events/s: first new output / caught up, ms "
            f"(median of {len(kills)})",
            {"ours": f"{first} / {told(back, _whole) or _NONE}"},
        )


def _sizes(results: Results) -> Iterator[Line]:
    good = [size for size in results.sizes if size.checkpoints is not None]
    for keys, changed, storage in dict.fromkeys((size.keys, size.changed, size.storage) for size in good):
        same = [size for size in good if (size.keys, size.changed, size.storage) == (keys, changed, storage)]
        name = f"{short(keys)} keys of 100 B, {short(changed)} changed per s, checkpoints to {storage}"
        yield f"{name}: uploaded / changed bytes", _ours(same, lambda size: size.uploaded_by_changed)
        yield (
            f"{name}: duration p50, ms",
            _ours(same, lambda size: size.checkpoints.p50_ms if size.checkpoints else None),
        )
        yield f"{name}: longest output gap around one, ms", _ours(same, lambda size: size.checkpoint_gap_ms)


def _ours(sizes: Sequence[CheckpointSize], of: Callable[[CheckpointSize], float | None]) -> Mapping[str, str]:
    found = told(of(size) for size in sizes)
    return {"ours": found} if found is not None else {}


def _overhead(results: Results) -> Iterator[Line]:
    cost = [one for one in results.grid if one.interval_ms]
    for keys, parallelism, interval in dict.fromkeys((c.keys, c.parallelism, c.interval_ms) for c in cost):
        same = [c for c in cost if (c.keys, c.parallelism, c.interval_ms) == (keys, parallelism, interval)]
        shares = [share for one in same if (share := share_kept(one, results.grid)) is not None]
        if shares:
            yield (
                f"keyed count, {short(keys)} keys, parallelism {parallelism}, checkpoints every {interval:,} ms: "
                "throughput lost",
                {"ours": f"{told(((1 - share) * 100 for share in shares), lambda lost: f'{lost:.1f}')} %"},
            )


def _whole(value: float) -> str:
    return f"{value:,.0f}"


def _named(cell: Cell) -> str:
    return f"{words(cell.workload)}, {short(cell.keys)} keys"
