"""The table of errors in docs/side-outputs.md is the schema."""

import re
from pathlib import Path

from barrier_runtime.operators.outputs.side_outputs import ERROR_SCHEMA

DOCUMENT = Path(__file__).resolve().parents[4] / "docs" / "side-outputs.md"


def test_the_table_has_the_columns_of_errors() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (text|timestamp) \|", text, re.MULTILINE)
    kinds = {"string": "text", "timestamp[ms, tz=UTC]": "timestamp"}
    assert rows == [(field.name, kinds[str(field.type)]) for field in ERROR_SCHEMA]
