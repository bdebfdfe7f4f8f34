"""Jars and classes for the engines on the JVM: connectors by Maven, our classes by javac.

Connectors are fetched once into the user's cache. Classes go below build/ and are compiled again if a source is newer.
Raises `ServerError` with the remedy if Maven or a JDK is missing.
"""

import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Literal

from examples.servers.base import ServerError, find_program, run_as

HERE = Path(__file__).with_name("java")
FLINK_VERSION = "2.3.0"

Family = Literal["spark", "spark-tables", "flink", "flink-s3", "flink-tables", "jet", "kafka-streams"]


def cache() -> Path:
    found = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "barrier-runtime"
    found.mkdir(parents=True, exist_ok=True)
    return found


def connectors(family: Family) -> list[Path]:
    """Jars of the family's POM."""
    pom = HERE / f"{family}.xml"
    versions = "-".join(re.findall(r"<version>(\d[^<]*)</version>", pom.read_text()))
    kept = cache() / f"bench-{family}-{versions}"
    if not kept.exists():
        maven = find_program("mvn", "maven")
        with tempfile.TemporaryDirectory(dir=cache(), prefix="bench-") as work:
            shutil.copy(pom, Path(work, "pom.xml"))
            command = [maven, "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=jars"]
            try:
                run_as("", command, Path(work))
            except ServerError as error:
                raise ServerError(
                    f"the jars of {pom} are not there: {' '.join(command)} failed. See that Maven reaches Maven "
                    f"Central or a mirror (~/.m2/settings.xml), then run this again, or put the jars into {kept}. "
                    f"{error}"
                ) from None
            Path(work, "jars").rename(kept)
    return sorted(kept.glob("*.jar"))


def spark_jars() -> Path:
    import pyspark

    return Path(pyspark.__file__).parent / "jars"


def flink_home() -> Path:
    """The side environment of `python -m benchmarks flink-setup`."""
    return cache() / f"flink-{FLINK_VERSION}" / "venv"


def flink_jars() -> list[Path]:
    """Jars of the apache-flink wheel. Raises `ServerError` if Flink is not set up."""
    found = [
        path for folder in ("lib", "opt") for path in flink_home().glob(f"lib/*/site-packages/pyflink/{folder}/*.jar")
    ]
    if not found:
        raise ServerError("Flink is not set up: python -m benchmarks flink-setup")
    return sorted(path for path in found if "sql-client" not in path.name)


def _of_family(family: Family) -> list[Path]:
    return flink_jars() if family == "flink" else connectors(family)


def classes(family: Family) -> Path:
    """Folder of our classes, compiled first if older than their sources."""
    folder = Path("build/bench/classes", family).resolve()
    sources = [*HERE.glob("shared/*.java"), *HERE.glob(f"{family}/*.java")]
    stamp = folder / "_DONE"
    if stamp.exists() and stamp.stat().st_mtime >= max(source.stat().st_mtime for source in sources):
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    jars = [f"{spark_jars()}/*"] if family == "spark" else list(map(str, _of_family(family)))
    javac = find_program("javac", "openjdk-17-jdk-headless")
    run_as("", [javac, "-nowarn", "-d", str(folder), "-cp", os.pathsep.join(jars), *map(str, sources)], folder)
    stamp.touch()
    return folder
