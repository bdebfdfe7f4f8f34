"""The sink of docs/writing-a-sink.md is certified, and fails certification without the table of committed batches."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "writing-a-sink.md"


def examples() -> dict[str, str]:
    """Code blocks by the file name in their first line."""
    blocks = re.findall(r"```python\n# (\S+)\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    return dict(blocks)


def certified(folder: Path, files: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    for name, text in files.items():
        (folder / name).write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", "test_sqlite_sink.py"]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # those of our tests, which cost a second
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=300, check=False, env=environment
    )


def test_the_example_is_certified(tmp_path: Path) -> None:
    done = certified(tmp_path, examples())
    assert done.returncode == 0, done.stdout
    assert "StagedSqliteSink: exactly once held in" in done.stdout


def test_without_the_memory_of_what_was_committed_it_fails_as_the_document_says(tmp_path: Path) -> None:
    files = examples()
    remembers = """\
            if db.execute("select 1 from committed where batch = ?", batch).fetchone():
                return
"""
    assert remembers in files["sqlite_sink.py"]
    files["sqlite_sink.py"] = files["sqlite_sink.py"].replace(remembers, "")
    done = certified(tmp_path, files)
    assert done.returncode == 1
    said = "StagedSqliteSink is not certified: lost: open and recover of subtask 0 raised Corrupt"
    assert said in done.stdout
    assert said in DOCUMENT.read_text(encoding="utf-8")
    assert "was decided and is not staged" in done.stdout
