"""docs/windows.md: its table names every kind of window there is."""

import re
from pathlib import Path

import barrier_runtime

DOCUMENT = Path(__file__).resolve().parents[4] / "docs" / "windows.md"


def test_every_kind_of_window_is_in_the_table() -> None:
    public = {
        name
        for name, module in barrier_runtime._HOME.items()
        if module == "barrier_runtime.operators.windows.assigners"
    }
    rows = [line for line in DOCUMENT.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    assert {re.search(r"`(\w+)\(", row).group(1) for row in rows} == public  # type: ignore[union-attr]
