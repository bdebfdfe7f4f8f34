"""The programs of docs/side-outputs.md print what stands below them, and its table of errors is the schema."""

import contextlib
import io
import re
from pathlib import Path
from typing import Any

from barrier_runtime.operators.failures import ERROR_SCHEMA

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "side-outputs.md"
BLOCKS = re.compile(r"```python\n(.*?)```\n(?:```\n(.*?)```\n)?", re.DOTALL)


def test_every_program_prints_what_the_page_says() -> None:
    programs = BLOCKS.findall(DOCUMENT.read_text(encoding="utf-8"))
    assert len([said for _, said in programs if said]) == 4, "emit, split, on_error, and a test"
    names: dict[str, Any] = {}
    for code, said in programs:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, str(DOCUMENT), "exec"), names)
        assert printed.getvalue() == said


def test_the_table_has_the_columns_of_errors() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (text|timestamp) \|", text, re.MULTILINE)
    kinds = {"string": "text", "timestamp[ms, tz=UTC]": "timestamp"}
    assert rows == [(field.name, kinds[str(field.type)]) for field in ERROR_SCHEMA]
