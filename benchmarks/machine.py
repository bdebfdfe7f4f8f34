"""Where a figure was measured: printed with every benchmark, so that it can be told from another machine's."""

import os
import platform
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path


def describe() -> str:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    versions = ", ".join(f"{name} {version(name)}" for name in ("pyspark", "pyarrow", "rocksdict", "numpy"))
    return (
        f"{time.strftime('%Y-%m-%d %H:%M')}, commit {commit.stdout.strip() or 'unknown'}, {os.cpu_count()} cores, "
        f"{platform.system()} {platform.release()}, Python {platform.python_version()}, {versions}\n"
        f"command: python -m benchmarks.{Path(sys.argv[0]).stem} {' '.join(sys.argv[1:])}".rstrip()
    )
