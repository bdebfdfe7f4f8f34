"""Round trip of results.json, combined rounds, and the report made of a stored file."""

from pathlib import Path

import matplotlib.pyplot as plt
import msgspec
import numpy as np
import pytest

from benchmarks.latency_targets import TargetSizes
from benchmarks.latency_targets import runs as target_runs
from benchmarks.report import write_report
from benchmarks.report.drawing import SIZE
from benchmarks.report.intervals import interval95, told
from benchmarks.report.latency_pictures import mark
from benchmarks.report.load_pictures import latency_by_cores
from benchmarks.report.page import page
from benchmarks.report.summary import Figure, cells, cores_of, figure, number, shown
from benchmarks.report.table import markdown
from benchmarks.report.target_table import targets_markdown
from benchmarks.spec import (
    CheckpointCost,
    CheckpointFigures,
    CheckpointSize,
    RateHeld,
    Recovery,
    Results,
    RunResult,
    RunSpec,
    decoded,
    encoded,
)
from benchmarks.stamps import Checkpoint, Stamps, checkpoint_figures, percentiles, timeline

S = 10**9
CORES = {"ours": 1.25, "spark-tuned": 1.5, "flink": 0.4}
POWERS = {"ours": 0.6, "spark-tuned": 300.0, "flink": 0.8}


def result(engine: str, number: int, rate: float = 10_000.0, measure: str = "latency") -> RunResult:
    """A run of 5 s whose latency is spread around the engine's own."""
    chance = np.random.default_rng(number)
    due = np.arange(5_000, dtype=np.int64) * (S // 1_000)
    stamps = Stamps(due, due + (chance.lognormal(np.log(POWERS[engine]), 0.6, 5_000) * 1e6).astype(np.int64))
    checkpoints = [
        Checkpoint(at_ns=second * S, duration_ms=40.0 + number, phases={"commit": 3.0}) for second in range(5)
    ]
    found = percentiles(stamps.latency_ns)
    return RunResult(
        engine=engine,
        version="1",
        workload="keyed-count",
        measure=measure,  # type: ignore[arg-type]
        source="generator",
        sink="measure",
        round=number,
        rate=rate,
        rows=0,
        keys=10_000,
        parallelism=2,
        interval_ms=1_000,
        seconds=5.0,
        started="2026-01-01 00:00:00",
        held=True,
        processed=found if measure == "latency" else None,
        visible=found if measure == "visible" else None,
        cpu_s_per_million=12.5,
        cpu_s=CORES[engine] * 5.0,
        cores=CORES[engine],
        peak_mb=500.0,
        gap_ms=20.0,
        checkpoint_gap_ms=15.0,
        checkpoints=checkpoint_figures(checkpoints),
        checkpoint_times_s=[0.0, 1.0, 2.0, 3.0, 4.0],
        timeline=timeline(stamps, 0),
    )


def bounded(engine: str, rows_per_s: float) -> RunResult:
    return msgspec.structs.replace(
        result(engine, 0, 0.0, "throughput"), rows=1_000_000, rows_per_s=rows_per_s, rows_per_s_steady=rows_per_s * 1.2
    )


def changing(rows_per_s: float, found: CheckpointFigures | None) -> CheckpointSize:
    return CheckpointSize(
        keys=1_000_000,
        changed=rows_per_s,
        changed_bytes=rows_per_s * 100,
        uploaded_by_changed=2.4,
        interval_ms=1_000,
        storage="file",
        round=0,
        checkpoints=found,
        processed=result("ours", 0).processed,
        gap_ms=9.0,
        checkpoint_gap_ms=9.0,
    )


@pytest.fixture(scope="module")
def results() -> Results:
    runs = [result(engine, number, rate) for number in (0, 1, 2) for rate in (1_000.0, 10_000.0) for engine in POWERS]
    runs += [result(engine, 0, 1_000.0, "visible") for engine in POWERS]
    runs += [bounded("ours", 3e6), bounded("flink", 1e6)]
    runs.append(
        msgspec.structs.replace(result("flink", 3), error="broke <b>down</b>", processed=None, held=None, timeline=[])
    )
    kill = Recovery(
        victim="slot",
        rate=10_000.0,
        keys=10_000,
        first_output_ms=600.0,
        first_due_ms=700.0,
        caught_up_ms=900.0,
        next_checkpoint_ms=1_500.0,
        timeline=[(-0.1, 1_000), (0.7, 8_000), (0.8, 1_000)],
    )
    costs = [
        CheckpointCost(
            interval_ms=interval, keys=10_000, parallelism=2, round=0, rows_per_s=rows, checkpoints=runs[0].checkpoints
        )
        for interval, rows in ((0, 5e6), (1_000, 4.9e6), (200, 4.5e6))
    ]
    some = checkpoint_figures([Checkpoint(at_ns=0, duration_ms=70.0, bytes=1_100_000, full_bytes=100_000_000)], 8.0)
    return Results(
        machine={"cores": "2"},
        command="python -m benchmarks all",
        runs=runs,
        rates=[
            RateHeld(
                engine="ours",
                workload="keyed-count",
                keys=10_000,
                source="generator",
                round=0,
                rate=400_000.0,
                tried=[(400_000.0, True), (450_000.0, False)],
            )
        ],
        recoveries=[kill, kill],
        grid=costs,
        sizes=[changing(10_000.0, some), changing(100_000.0, some)],
        left_out={"pyflink": "Flink is not set up"},
    )


@pytest.mark.slow
def test_results_come_back_from_their_file_as_they_were(results: Results) -> None:
    assert decoded(encoded(results)) == results


def test_a_results_file_with_a_wrong_field_is_refused(results: Results) -> None:
    broken = encoded(results).replace(b'"rate": 1000.0', b'"rate": "fast"', 1)
    with pytest.raises(msgspec.ValidationError, match="rate"):
        decoded(broken)


def test_a_spec_travels_to_the_engine_as_it_is() -> None:
    spec = RunSpec(engine="ours", workload="q3", measure="throughput", source="parquet", sink="discard", rows=5)
    assert msgspec.json.decode(msgspec.json.encode(spec), type=RunSpec) == spec


def test_rounds_are_put_together_by_their_median_and_no_good_one_is_left_out(results: Results) -> None:
    cell, rows = next((cell, rows) for cell, rows in cells(results).items() if cell.rate == 10_000)
    assert (cell.workload, cell.measure) == ("keyed-count", "latency")
    assert [(row.engine, len(row.runs), row.failed) for row in rows] == [
        ("ours", 3, 0),
        ("spark-tuned", 3, 0),
        ("flink", 3, 1),
    ]
    assert rows[0].figure(lambda run: float(run.round)) == Figure(1.0, 0.0, 2.0)
    assert rows[0].figure(lambda run: run.rows_per_s) is None


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.00123, "0.00123"), (1.2345, "1.23"), (123.4, "123"), (98_765.0, "98,765"), (1_234_567, "1,234,567")],
)
def test_numbers_have_three_digits_and_thousands_apart(value: float, text: str) -> None:
    assert number(value) == text


def test_a_spread_is_shown_where_there_is_one() -> None:
    assert shown(figure([1.0, 3.0, 2.0])) == "2 (1 to 3)"
    assert shown(figure([2.0, None])) == "2"
    assert shown(figure([None])) == "-"


@pytest.mark.slow
def test_the_report_of_a_stored_file_has_every_picture_and_needs_nothing_beside_it(
    results: Results, tmp_path: Path
) -> None:
    stored = tmp_path / "results.json"
    stored.write_bytes(encoded(results))
    written = {path.name for path in write_report(decoded(stored.read_bytes()), tmp_path)}
    assert written == {
        "report.html",
        "table.md",
        *(
            f"{name}.png"
            for name in (
                "latency-over-time",
                "latency-cdf",
                "visible-cdf",
                "latency-by-rate",
                "latency-by-cores",
                "throughput",
                "highest-rate",
                "recovery",
                "checkpoint-cost",
                "checkpoint-size",
            )
        ),
    }
    text = (tmp_path / "report.html").read_text()
    assert text.count('src="data:image/png;base64,') == 10
    assert 'src="http' not in text
    assert "<b>down" not in text
    for said in (
        "barrier-runtime",
        "Spark micro-batch, tuned",
        "Flink is not set up",
        "broke &lt;b&gt;down",
        "1,100,000",
    ):
        assert said in text


def test_a_report_without_results_says_where_it_was_made() -> None:
    assert "<td>cores<td>2" in page(Results(machine={"cores": "2"}, command="python -m benchmarks report"), {})


@pytest.mark.slow
def test_pictures_of_an_earlier_report_go_and_other_files_stay(results: Results, tmp_path: Path) -> None:
    for name in ("latency-cdf.png", "throughput.png", "mine.png"):
        (tmp_path / name).touch()
    write_report(Results(runs=[run for run in results.runs if run.measure == "throughput"]), tmp_path)
    assert {path.name for path in tmp_path.glob("*.png")} == {"throughput.png", "mine.png"}
    assert (tmp_path / "throughput.png").stat().st_size > 0


def test_the_table_has_a_row_per_figure_and_a_dash_where_an_engine_was_not_measured(results: Results) -> None:
    lines = markdown(results).splitlines()
    assert lines[0] == "| figure | ours | spark-tuned | real-time | flink | flink-sql | pyflink | jet | bytewax |"
    rows = {line.split(" | ")[0].strip("| "): line.strip("| ").split(" | ")[1:] for line in lines[2 : lines.index("")]}
    assert all(len(found) == 8 for found in rows.values())
    counted = "keyed count, 10k keys"
    latency = rows[f"{counted}, 10,000 events/s, checkpoints every 1,000 ms: processed p50 / p99 / p99.9, ms; cores"]
    same = [one for one in results.runs if (one.engine, one.rate) == ("ours", 10_000)]
    medians = [one.processed.p50 for one in same if one.processed is not None]
    interval = interval95(medians)
    assert interval is not None
    assert latency[0].split(" / ")[0] == f"{number(sorted(medians)[1])} [{number(interval[0])}, {number(interval[1])}]"
    assert [found.split("; ")[1] for found in latency[:2]] == ["1.25 [1.25, 1.25]", "1.50 [1.50, 1.50]"]
    assert latency[2] == latency[4] == latency[5] == latency[6] == "-"
    single = rows[f"{counted}, 1,000 events/s, checkpoints every 1,000 ms: visible p50 / p99 / p99.9, ms; cores"]
    assert single[0].endswith("; 1.25")
    rates = rows[f"{counted}, from Parquet: rows/s, steady (whole query)"]
    assert rates[:4] == ["3.6M (3M)", "-", "-", "1.2M (1M)"]
    kill = "SIGKILL of a slot under 10,000 events/s: first new output / caught up, ms (median of 2)"
    assert rows[kill][0] == "700 / 900"
    state = "1M keys of 100 B, 10k changed per s, checkpoints to file"
    assert rows[f"{state}: uploaded / changed bytes"][0] == "2.4"
    assert rows[f"{state}: longest output gap around one, ms"][0] == "9"
    cost = f"{counted}, parallelism 2, checkpoints every 1,000 ms: throughput lost"
    assert rows[cost][0] == "2.0 %"


def test_a_rate_that_was_not_held_and_a_run_that_failed_are_said_in_the_table(results: Results) -> None:
    lost = msgspec.structs.replace(result("ours", 7, 500_000.0), held=False)
    broken = msgspec.structs.replace(result("flink", 7, 500_000.0), error="broke", processed=None, held=None)
    assert "rate not held" not in markdown(results)
    row = markdown(Results(runs=[lost, broken])).splitlines()[2].strip("| ").split(" | ")
    assert row[1].endswith("(rate not held)")
    assert row[4] == "failed"


def test_files_of_before_have_no_cores_and_get_them_from_the_processor_seconds() -> None:
    stored = msgspec.json.decode(encoded(Results(runs=[result("ours", 0), bounded("ours", 3e6)])))
    for run in stored["runs"]:
        del run["cores"], run["latency_target_ms"]
    del stored["targets"]
    old = decoded(msgspec.json.encode(stored))
    assert [run.cores for run in old.runs] == [None, None]
    assert [cores_of(run) for run in old.runs] == [1.25, None]  # how long the whole query took is not in `seconds`
    assert "; 1.25 |" in markdown(old)
    del stored["runs"][0]["cpu_s"]
    assert "; - |" in markdown(decoded(msgspec.json.encode(stored)))


def test_latency_is_drawn_against_cores_at_each_rate_and_not_at_all_without_cores(results: Results) -> None:
    canvas = latency_by_cores(results)
    assert canvas is not None
    assert [axes.get_title(loc="left") for axes in canvas.axes] == ["1,000 events/s", "10,000 events/s"]
    drawn = {line.get_xdata()[0] for line in canvas.axes[0].lines}
    assert drawn == set(CORES.values())
    plt.close(canvas)
    unknown = [msgspec.structs.replace(run, cores=None, cpu_s=None) for run in results.runs]
    assert latency_by_cores(Results(runs=unknown)) is None


def target(target_ms: float, rate: float, number: int, **changes: object) -> RunResult:
    return msgspec.structs.replace(result("ours", number, rate), latency_target_ms=target_ms, **changes)


@pytest.mark.slow
def test_the_table_of_latency_targets_has_a_row_per_target_and_a_column_per_rate() -> None:
    runs = [target(ms, rate, number) for ms in (10.0, 0.0) for rate in (10_000.0, 1_000.0) for number in (0, 1, 2)]
    runs += [target(0.25, 1_000.0, 0, held=False), target(0.25, 10_000.0, 0, processed=None, error="broke")]
    table = targets_markdown(Results(targets=runs))
    assert "keyed count, 10,000 keys, parallelism 2, checkpoints every 1,000 ms" in table
    lines = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("|")]
    assert lines[0] == ["`latency_target`, ms", "1,000/s", "10,000/s"]
    assert [line[0] for line in lines[2:]] == ["0", "0.25", "10"]
    p50 = told(run.processed.p50 for run in runs[:3] if run.processed is not None)
    assert lines[2][1].split(" / ")[0] == p50
    assert lines[2][1].endswith("; 1.25 [1.25, 1.25]")
    assert lines[3][1].endswith("; 1.25 (rate not held)")
    assert lines[3][2] == "failed"
    assert table in markdown(Results(targets=runs))
    assert targets_markdown(Results()) == ""


def test_targets_take_turns_and_each_round_begins_with_another() -> None:
    sizes = TargetSizes(targets_ms=(0, 1, 4), rates=(1_000, 10_000), rounds=2)
    order = [(spec.round, spec.rate, spec.latency_target_ms) for spec in target_runs(sizes)]
    assert len(order) == 12
    assert [target_ms for *_, target_ms in order[:3]] == [0, 1, 4]
    assert [target_ms for *_, target_ms in order[6:9]] == [1, 4, 0]
    assert {spec.engine for spec in target_runs(sizes)} == {"ours"}


@pytest.mark.slow
def test_no_label_of_a_latency_lies_under_the_dot_of_another_engine() -> None:
    shares = np.linspace(0, 1, 10_001)
    medians = {"ours": 0.748, "spark-tuned": 344.0, "flink": 0.721, "flink-sql": 0.737}
    tails = {"ours": 4.98, "spark-tuned": 650.0, "flink": 26.6, "flink-sql": 39.1}
    canvas, axes = plt.subplots(figsize=SIZE)
    axes.set_xscale("log")
    axes.set_ylim(0, 5)
    curves = {
        engine: (
            np.exp(np.interp(shares, [0, 0.5, 0.99, 1], np.log([low / 9, low, tails[engine], tails[engine] * 2]))),
            shares,
        )
        for engine, low in medians.items()
    }
    mark(axes, curves)
    canvas.canvas.draw()
    dots = [axes.transData.transform((line.get_xdata()[0], line.get_ydata()[0])) for line in axes.lines]
    labels = {text.get_text(): text.get_window_extent() for text in axes.texts}
    plt.close(canvas)
    assert {"26.6 ms", "39.1 ms"} <= labels.keys()
    covered = [name for name, box in labels.items() for x, y in dots if box.contains(x, y)]
    assert covered == []
