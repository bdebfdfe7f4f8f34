"""An older pyspark beside the one of the environment, for tests of jars that have no build for the newest Spark: a
folder to be put before `sys.path`, fetched once a machine. `pyproject.toml` allows all of pyspark 4."""

import contextlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from examples.servers.maven import machine_cache

VERSION = "4.1.4"


def older_spark() -> Path:
    cache = machine_cache()
    kept = cache / f"pyspark-{VERSION}"
    if not kept.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache, prefix="pyspark-") as work:
            install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-compile"]
            wanted = ["--target", f"{work}/packages", f"pyspark=={VERSION}"]
            subprocess.run([sys.executable, *install, *wanted], check=True)
            with contextlib.suppress(OSError):  # another process was first
                os.rename(f"{work}/packages", kept)
    return kept
