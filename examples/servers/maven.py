"""Jars from Maven Central, fetched once a machine, and the program that runs them."""

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

from examples.servers.base import ServerError, find_program, run_as


def machine_cache() -> Path:
    """For what is fetched once a machine, whatever clone asks for it."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "barrier-runtime"


def maven_jars(pom: Path, name: str) -> Path:
    """The directory with all that `pom` depends on. `name`: of the directory, with the version."""
    cache = machine_cache()
    kept = cache / name
    if kept.exists():
        return kept
    maven = find_program("mvn", "maven")
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix="jars-") as work:
        shutil.copy(pom, Path(work, "pom.xml"))
        run_as("", [maven, "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={work}/jars"], Path(work))
        with contextlib.suppress(OSError):  # another process was first
            os.rename(f"{work}/jars", kept)
    if not kept.exists():
        raise ServerError(f"Maven put no jars into {kept}")
    return kept


def java_program() -> str:
    home = os.environ.get("JAVA_HOME")
    return f"{home}/bin/java" if home else find_program("java", "openjdk-17-jre-headless")
