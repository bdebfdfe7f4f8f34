"""Growth curves: the selected runs, and the figures on each curve."""

from pathlib import Path

import matplotlib.pyplot as plt
import msgspec
import numpy as np
import pytest

from benchmarks.growth import GrowthSizes, runs
from benchmarks.report import write_report
from benchmarks.report.growth import curves, growth_by_cores, growth_markdown
from benchmarks.spec import Results, RunResult, RunSpec, decoded, encoded
from benchmarks.stamps import percentiles

SIZES = GrowthSizes(
    rates=(1_000, 50_000), keys=(10_000, 1_000_000), parallelism=(2, 4), rounds=2, at_rate=50_000, at_keys=10_000
)
CELLS = [(1_000, 10_000, 2), (50_000, 10_000, 2), (50_000, 1_000_000, 2), (50_000, 10_000, 4)]


def measured(spec: RunSpec, p50_ms: float = 1.0, **changes: object) -> RunResult:
    latency_ns = (np.linspace(0.5, 1.5, 101) * p50_ms * 1e6).astype(np.int64)
    same = {name: getattr(spec, name) for name in RunResult.__struct_fields__ if name in RunSpec.__struct_fields__}
    run = RunResult(
        **same, version="1", started="", cores=spec.rate / 100_000, held=True, processed=percentiles(latency_ns)
    )
    return msgspec.structs.replace(run, **changes)


def results(engines: tuple[str, ...] = ("ours", "flink")) -> Results:
    return Results(growth=[measured(spec) for spec in runs(SIZES, engines)])


def test_one_thing_grows_at_a_time_and_what_is_on_several_curves_is_measured_once() -> None:
    of_a_round = [(spec.rate, spec.keys, spec.parallelism) for spec in runs(SIZES, ["ours"]) if spec.round == 0]
    assert of_a_round == CELLS


def test_engines_take_turns_and_each_round_begins_with_another() -> None:
    order = [(spec.round, spec.engine) for spec in runs(SIZES, ["ours", "flink"])]
    assert order == [(0, "ours"), (0, "flink")] * 4 + [(1, "flink"), (1, "ours")] * 4
    assert list(runs(SIZES, [])) == []


def test_a_curve_has_what_differs_in_nothing_else_from_small_to_large() -> None:
    found = {curve.grows: curve for curve in curves(results())}
    assert list(found) == ["rate", "keys", "parallelism"]
    assert [cell.rate for cell in found["rate"].cells] == [1_000, 50_000]
    assert [cell.keys for cell in found["keys"].cells] == [10_000, 1_000_000]
    assert [cell.parallelism for cell in found["parallelism"].cells] == [2, 4]
    assert found["keys"].same == "50,000 events/s, parallelism 2"


def test_what_has_one_value_is_no_curve() -> None:
    alone = Results(growth=[run for run in results().growth if run.parallelism == 2 and run.keys == 10_000])
    assert [curve.grows for curve in curves(alone)] == ["rate"]
    assert growth_markdown(Results()) == ""
    assert growth_by_cores(Results()) is None


def test_tables_have_a_row_per_value_and_say_what_failed_or_was_not_held() -> None:
    kept = [spec for spec in runs(SIZES, ["ours", "flink"]) if spec.round == 0]
    growth = [measured(spec, held=spec.keys < 1_000_000) for spec in kept if spec.parallelism == 2]
    growth += [
        measured(spec, processed=None, error="broke") if spec.engine == "flink" else measured(spec, 2.0)
        for spec in kept
        if spec.parallelism == 4
    ]
    lines = [line.strip("| ").split(" | ") for line in growth_markdown(Results(growth=growth)).splitlines()]
    assert ["keys", "barrier-runtime", "Flink"] in lines
    assert ["1,000", "1 / 1.49; 0.01", "1 / 1.49; 0.01"] in lines
    assert ["1,000,000", *["1 / 1.49; 0.50 (rate not held)"] * 2] in lines
    assert ["4", "2 / 2.98; 0.50", "failed"] in lines


@pytest.mark.slow
def test_the_picture_has_a_panel_per_curve_and_each_line_its_ends(tmp_path: Path) -> None:
    stored = decoded(encoded(results()))
    canvas = growth_by_cores(stored)
    assert canvas is not None
    assert [axes.get_title(loc="left") for axes in canvas.axes] == ["More events/s", "More keys", "More subtasks"]
    texts = [text.get_text() for text in canvas.axes[0].texts]
    assert texts.count("1k") == texts.count("50k") == 2  # engines
    plt.close(canvas)
    assert tmp_path / "growth.png" in write_report(stored, tmp_path)
    assert "What growth of rate" in (tmp_path / "report.html").read_text()
