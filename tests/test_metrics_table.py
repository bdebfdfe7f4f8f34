"""The table of metrics (`coordinator/metric_table.py`): files made from the table are current, counting code refers to
rows, and each row is counted somewhere. A new metric needs no change here.
"""

import ast
import sys
from collections import Counter as Tally
from functools import cache
from pathlib import Path
from typing import get_type_hints

import msgspec
import pytest

sys.path.insert(0, str(Path(__file__).parent))  # metrics_table

from metrics_table import DOCUMENT, ROOT, document

from barrier_runtime.coordinator import metric_table
from barrier_runtime.coordinator.metric_table import METRICS, Counter, Gauge, Histogram, Metric
from barrier_runtime.coordinator.status.figure_table import FIGURES, Figure
from barrier_runtime.coordinator.status.status import CheckpointsStatus, CheckpointStatus, JobStatus
from tests.parsed import walk

ROWS = {name: row for name, row in vars(metric_table).items() if isinstance(row, Metric)}
KINDS = {"count": Counter, "gauge": Gauge, "latency": Histogram}  # method of `MetricGroup` -> type of the row
NO_METRICS = {
    "checkpoint",
    "token",
    "triggered_ms",
    "records",
}  # they identify a checkpoint and the place of its barrier


@cache
def product() -> tuple[tuple[str, ast.Name | ast.Call], ...]:
    """Every name and call in the product's sources that mention metrics, without the table itself."""
    sources = {
        str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
        for package in ("barrier_runtime", "coordinator")
        for path in sorted((ROOT / package).rglob("*.py"))
        if path.name != "metric_table.py"
    }
    return tuple(
        (place, node)
        for place, text in sources.items()
        if "metric" in text
        for node in walk(ast.parse(text))
        if isinstance(node, ast.Name | ast.Call)
    )


def test_what_is_written_from_the_table_is_current() -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == document(), "run: make tables"


def test_readme_leads_to_the_table() -> None:
    assert "(docs/metrics.md)" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_a_row_is_called_as_its_metric_and_no_name_is_taken_twice() -> None:
    assert {name: row.name.upper() for name, row in ROWS.items()} == {name: name for name in ROWS}
    assert [name for name, times in Tally(metric.name for metric in METRICS).items() if times > 1] == []
    assert {metric.name for metric in METRICS} == {metric.name for metric in ROWS.values()}


def test_each_row_of_operators_and_slots_is_named_where_it_is_counted() -> None:
    named = {node.id for _, node in product() if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    assert sorted(ROWS.keys() - named) == [], "nothing counts these: drop the rows"


def test_what_counts_names_a_row_of_the_table_and_of_its_kind() -> None:
    counting = [
        (place, node.func.attr, ast.unparse(node.args[0]))
        for place, node in product()
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in KINDS
        if ast.unparse(node.func.value).split(".")[-1] == "metrics"
    ]
    assert len(counting) >= 10
    wrong = [(place, name) for place, method, name in counting if not isinstance(ROWS.get(name), KINDS[method])]
    assert wrong == []


@pytest.mark.parametrize("figure", [each for each in FIGURES if each.place], ids=lambda figure: figure.place)
def test_the_place_of_a_figure_of_the_job_leads_to_a_number_in_the_status(figure: Figure) -> None:
    kind: type = JobStatus
    for part in figure.place.split("."):
        kind = get_type_hints(kind)[part]
        kind = getattr(kind, "__args__", (kind,))[0]  # of `CheckpointStatus | None`
    assert kind in (int, float)


def test_every_number_of_the_checkpoints_is_a_metric() -> None:
    numbers = {
        f"{place}.{field.name}"
        for place, kind in (("checkpoints", CheckpointsStatus), ("checkpoints.last_completed", CheckpointStatus))
        for field in msgspec.structs.fields(kind)
        if field.type in (int, float, int | None) and field.name not in NO_METRICS
    }
    assert numbers - {figure.place for figure in FIGURES} == set()
