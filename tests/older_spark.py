"""An older pyspark besides the environment's, for tests of jars that have no build for the newest Spark: a folder to
put before `sys.path`, fetched once per machine. `pyproject.toml` allows all of pyspark 4.
"""

import subprocess
import sys
from pathlib import Path

from examples.servers.maven import fetched_once

VERSION = "4.1.4"


def older_spark() -> Path:
    def fetch(work: Path) -> None:
        install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-compile"]
        wanted = ["--target", f"{work}/fetched", f"pyspark=={VERSION}"]
        subprocess.run([sys.executable, *install, *wanted], check=True)

    return fetched_once(f"pyspark-{VERSION}", fetch)
