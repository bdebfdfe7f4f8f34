"""The functions listed in docs/expressions.md are exactly the existing ones."""

import re
from pathlib import Path

from barrier_runtime.data.sql.expression import known_functions

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "expressions.md"


def test_the_functions_are_those_that_there_are() -> None:
    (table,) = re.findall(r"^\| functions of \|.*?\n\n", DOCUMENT.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    assert sorted(re.findall(r"`(\w+)`", table)) == known_functions()
