"""Tests pass on a machine ten times slower or faster: this rule searches for known patterns that break that."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.parsed import walk

ROOT = Path(__file__).resolve().parents[2]
_WRITTEN_AT = ("st_mtime", "st_mtime_ns", "modified_ms")
_MENTIONED = re.compile("|".join(_WRITTEN_AT))
_DEADLINE = re.compile(r"\bdeadline = time\.monotonic\(\) \+ (\d+(?:\.\d+)?)$", re.MULTILINE)
_WAIT = re.compile(r"(?:\bwait_for\([\w.]+(?:\(\))?, |\bassert \S+\.(?:wait|join|drain)\()(\d+(?:\.\d+)?)\)")
_TIMEOUT_S = 30  # minimum time before a test gives up waiting for a condition


def texts() -> Iterator[tuple[str, str]]:
    for file in sorted((ROOT / "tests").rglob("*.py")):
        yield str(file.relative_to(ROOT)), file.read_text()


def orders_by_time_of_writing(text: str) -> Iterator[int]:
    """Lines of `max(files, key=lambda file: file.stat().st_mtime)`, and of the same with `min`, `sorted` and `sort`."""
    for node in walk(ast.parse(text)) if _MENTIONED.search(text) else ():
        if isinstance(node, ast.Call):
            keys = [keyword.value for keyword in node.keywords if keyword.arg == "key"]
            parts = [part for key in keys for part in ast.walk(key)]
            if any(isinstance(part, ast.Attribute) and part.attr in _WRITTEN_AT for part in parts):
                yield node.lineno


def early_deadlines(text: str) -> list[str]:
    waits = (found for each in (_DEADLINE, _WAIT) for found in each.finditer(text))
    return [found[0] for found in waits if float(found[1]) < _TIMEOUT_S]


def test_no_test_takes_the_file_written_last_for_the_newest_one() -> None:
    """Times are equal within a tick, and go back with the clock. `tests/newest_checkpoint.py` asks the log."""
    assert [(file, line) for file, text in texts() for line in orders_by_time_of_writing(text)] == []


def test_no_test_gives_up_waiting_where_a_slow_machine_would_still_get_there() -> None:
    assert [(file, line) for file, text in texts() for line in early_deadlines(text)] == []


def test_both_are_seen_where_they_are() -> None:
    assert list(orders_by_time_of_writing("max(files, key=lambda file: file.stat().st_mtime_ns)")) == [1]
    assert list(orders_by_time_of_writing("files.sort(key=lambda info: (info.modified_ms, info.key))")) == [1]
    early = "deadline = time.monotonic() + " + "20"
    assert early_deadlines(early) == [early]
    assert early_deadlines("deadline = time.monotonic() + " + "120") == []
    for early in ("wait_for(running, " + "20)", "assert ready.wait(" + "5)"):
        assert early_deadlines(early) == [early]
    assert early_deadlines("wait_for(running, 60)\nassert ready.wait(30)\nassert not ready.wait(" + "0.1)") == []
