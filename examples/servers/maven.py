"""Files fetched once per machine, mostly jars from Maven Central, and the program that runs them."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from examples.servers.base import ServerError, find_program, run_as


def machine_cache() -> Path:
    """Folder for files fetched once per machine, shared by all clones."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "barrier-runtime"


def fetched_once(name: str, fetch: Callable[[Path], None]) -> Path:
    """Directory `name` of the machine's cache, filled by `fetch` if missing.

    `fetch` gets a directory to work in, and makes `fetched` there."""
    cache = machine_cache()
    kept = cache / name
    if kept.exists():
        return kept
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix="fetching-") as work:
        fetch(Path(work))
        with contextlib.suppress(OSError):  # another process was first
            os.rename(f"{work}/fetched", kept)
    if not kept.exists():
        raise ServerError(f"nothing was fetched into {kept}")
    return kept


def maven_jars(pom: Path, name: str) -> Path:
    """Directory with all dependencies of `pom`. `name`: of the directory, with the version."""

    def fetch(work: Path) -> None:
        shutil.copy(pom, work / "pom.xml")
        maven = find_program("mvn", "maven")
        run_as("", [maven, "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={work}/fetched"], work)

    return fetched_once(name, fetch)


def java_program() -> str:
    home = os.environ.get("JAVA_HOME")
    return f"{home}/bin/java" if home else find_program("java", "openjdk-17-jre-headless")
