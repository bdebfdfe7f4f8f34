"""Releases of PySpark besides the environment's: folders to put before `sys.path`, fetched once per machine."""

import subprocess
import sys
import tarfile
from pathlib import Path

from examples.servers.maven import fetched_once

VERSION = "4.1.4"  # for jars that have no build for the newest Spark
_MOVED = {  # folders of the source distribution -> of the package, as its setup.py installs them
    "pyspark": "pyspark",
    "lib": "pyspark/python/lib",
    "deps/bin": "pyspark/bin",
    "deps/jars": "pyspark/jars",
    "deps/sbin": "pyspark/sbin",
}


def older_spark(version: str = VERSION) -> Path:
    return fetched_once(f"pyspark-{version}", lambda work: _fetch(version, work))


def _fetch(version: str, work: Path) -> None:
    """Unpacks the source distribution: to build a wheel would compress 400 MB and unpack them again."""
    wanted = ["--no-deps", "--no-binary", ":all:", "--dest", f"{work}", f"pyspark=={version}"]
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-cache-dir"]
    subprocess.run([*pip, *wanted], check=True)
    (archive,) = work.glob("pyspark-*.tar.gz")
    with tarfile.open(archive) as packed:
        for member in packed:
            inner = member.name.partition("/")[2]
            folder = next((each for each in _MOVED if inner.startswith(f"{each}/")), None)
            if folder is not None:
                member.name = f"fetched/{_MOVED[folder]}{inner.removeprefix(folder)}"
                packed.extract(member, work)
