"""The table of docs/aggregates.md names every aggregate."""

import inspect
import re
from pathlib import Path

import barrier_runtime
from barrier_runtime.operators.aggregation import functions
from barrier_runtime.operators.aggregation.functions import Aggregate

DOCUMENT = Path(__file__).resolve().parents[4] / "docs" / "aggregates.md"
AGGREGATES = {
    name
    for name, function in inspect.getmembers(functions, inspect.isfunction)
    if inspect.signature(function).return_annotation is Aggregate
}


def test_every_public_aggregate_is_in_the_table_and_nothing_else() -> None:
    rows = [line for line in DOCUMENT.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`(\w+)\(", row.split("|")[1])}
    assert len(AGGREGATES) == 23
    assert named == AGGREGATES
    assert set(barrier_runtime.__all__) >= AGGREGATES
