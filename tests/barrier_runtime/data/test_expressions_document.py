"""The program of docs/expressions.md prints what stands below it, and its list of functions is the code's."""

import contextlib
import io
import re
from pathlib import Path

from barrier_runtime.data.sql_expressions import known_functions

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "expressions.md"


def test_the_program_prints_what_the_page_says() -> None:
    ((code, said),) = re.findall(r"```python\n(.*?)```\n```\n(.*?)```\n", DOCUMENT.read_text("utf-8"), re.DOTALL)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, str(DOCUMENT), "exec"), {})
    assert printed.getvalue() == said


def test_the_functions_are_those_that_there_are() -> None:
    (listed,) = re.findall(r"^- the functions (.*?)\.$", DOCUMENT.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    assert re.findall(r"`(\w+)`", listed) == known_functions()
