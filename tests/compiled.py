"""Compiles the tests below the given paths if none is compiled yet, as in a fresh clone: otherwise each of pytest's
workers would rewrite and compile all tests at the same time.
"""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

_FIRST = Path(importlib.util.cache_from_source(str(Path(__file__).with_name("conftest.py"))))  # always compiled


def main(paths: list[str]) -> int:
    if not _FIRST.with_name(f"{_FIRST.stem}-pytest-{pytest.__version__}.pyc").exists():
        command = [sys.executable, "-m", "pytest", "--collect-only", "--quiet", "--no-summary", *paths]
        subprocess.run(command, stdout=subprocess.DEVNULL, check=False)  # the tests' run reports faults
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
