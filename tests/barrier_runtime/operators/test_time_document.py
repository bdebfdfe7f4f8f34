"""The table of docs/time.md names what wall-clock timers have."""

import re
from pathlib import Path

from barrier_runtime.operators.keyed.wall_timers import WallTimers

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "time.md"


def test_the_table_names_what_there_is() -> None:
    named = re.findall(r"^\| `ctx\.wall_timers\.(\w+)", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(named) == 5
    assert [name for name in named if not hasattr(WallTimers, name)] == []
