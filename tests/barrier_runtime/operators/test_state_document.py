"""The programs of docs/state.md print what stands below them."""

import contextlib
import io
import re
from pathlib import Path
from typing import Any

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "state.md"
BLOCKS = re.compile(r"```python\n(.*?)```\n(?:```\n(.*?)```\n)?", re.DOTALL)


def test_every_program_prints_what_the_page_says() -> None:
    programs = BLOCKS.findall(DOCUMENT.read_text(encoding="utf-8"))
    assert len([said for _, said in programs if said]) == 7, "one of each kind, one that expires, and a test"
    names: dict[str, Any] = {}
    for code, said in programs:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, str(DOCUMENT), "exec"), names)
        assert printed.getvalue() == said
