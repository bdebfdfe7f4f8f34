"""docs/aggregates.md: its program prints what it says, and its table names every aggregate there is."""

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import barrier_runtime
from barrier_runtime.operators.aggregation import functions
from barrier_runtime.operators.aggregation.functions import Aggregate

DOCUMENT = Path(__file__).resolve().parents[4] / "docs" / "aggregates.md"
AGGREGATES = {
    name
    for name, function in inspect.getmembers(functions, inspect.isfunction)
    if inspect.signature(function).return_annotation is Aggregate
}


@pytest.mark.slow
def test_the_program_prints_what_the_document_says(tmp_path: Path) -> None:
    found = re.search(
        r"```python\n# orders.py\n(.*?)```\nIt prints\n```\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL
    )
    assert found is not None
    program, printed = found.groups()
    (tmp_path / "orders.py").write_text(program, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "orders.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == sorted(printed.splitlines())


def test_every_public_aggregate_is_in_the_table_and_nothing_else() -> None:
    rows = [line for line in DOCUMENT.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`(\w+)\(", row.split("|")[1])}
    assert len(AGGREGATES) == 15
    assert named == AGGREGATES
    assert set(barrier_runtime.__all__) >= AGGREGATES
