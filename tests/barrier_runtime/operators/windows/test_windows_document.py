"""The tables of docs/windows.md name every kind of window and of early results."""

import re
from pathlib import Path

import barrier_runtime

DOCUMENT = Path(__file__).resolve().parents[4] / "docs" / "windows.md"


def test_every_kind_of_window_and_of_early_results_is_in_a_table() -> None:
    public = {
        name
        for name, module in barrier_runtime._HOME.items()
        if module.removeprefix("barrier_runtime.operators.windows.") in ("assigners", "calendar", "triggers")
    }
    rows = [line for line in DOCUMENT.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    assert {re.search(r"`(\w+)\(", row).group(1) for row in rows} == public  # type: ignore[union-attr]
