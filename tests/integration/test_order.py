"""In which order the tests of this folder begin; see its conftest."""

import subprocess
import sys
from pathlib import Path

TESTS = """
import pytest

@pytest.mark.spark
def test_usual(): pass

def test_pure(): pass

@pytest.mark.spark
@pytest.mark.timeout(900)
def test_long(): pass

@pytest.mark.spark
@pytest.mark.timeout(1_200)
def test_longest(): pass
"""


def test_those_that_may_last_longest_begin_first(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\ntimeout = 600\nmarkers = spark: starts Spark\n")
    (tmp_path / "conftest.py").write_text(Path(__file__).with_name("conftest.py").read_text())
    (tmp_path / "test_it.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    names = [line.partition("::")[2] for line in done.stdout.splitlines() if "::" in line]
    assert names == ["test_longest", "test_long", "test_usual", "test_pure"]
