"""The tables of docs/time.md name the properties of timers."""

import re
from pathlib import Path

import pytest

from barrier_runtime.operators.keyed.timers import Timers
from barrier_runtime.operators.keyed.wall_timers import WallTimers

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "time.md"


@pytest.mark.parametrize(("name", "kind", "count"), [("wall_timers", WallTimers, 5), ("timers", Timers, 3)])
def test_the_table_names_what_there_is(name: str, kind: type, count: int) -> None:
    named = re.findall(rf"^\| `ctx\.{name}\.(\w+)", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(named) == count
    assert [each for each in named if not hasattr(kind, each)] == []
