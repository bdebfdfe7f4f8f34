"""The start of Spark's JVMs in tests: many JVMs run, each for seconds, so their start dominates the cost.

The JVMs compile lightly, collect with one thread, and load their classes from an archive of a JVM that has run a job
before (class data sharing): together half of the processor time. `python -m tests.spark_jvm` makes the archive, below
build/, if there is none for this Java and this pyspark; without the archive tests are only slower.
"""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

LIGHT = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
_BUILD = Path(__file__).resolve().parents[1] / "build"


def archive() -> Path | None:
    """Path of the archive for this Java and this pyspark, existing or not; None without Java or pyspark."""
    home = os.environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else shutil.which("java")
    pyspark = importlib.util.find_spec("pyspark")
    if java is None or not Path(java).exists() or pyspark is None or pyspark.origin is None:
        return None
    places = [Path(java).resolve(), Path(pyspark.origin)]
    known = "\n".join(f"{place} {place.stat().st_mtime_ns}" for place in places)
    return _BUILD / f"spark-{hashlib.sha256(known.encode()).hexdigest()[:12]}.jsa"


def submit_options() -> str:
    """Options for SPARK_SUBMIT_OPTS. The JVM silently ignores an archive that does not match (another class path)."""
    made = archive()
    return LIGHT if made is None or not made.exists() else f"{LIGHT} -XX:SharedArchiveFile={made} -Xlog:cds=off"


def main() -> int:
    wanted = archive()
    if wanted is None or wanted.exists():
        return 0
    wanted.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=wanted.parent) as work:
        classes, made = Path(work, "classes"), Path(work, "archive")
        os.environ["SPARK_SUBMIT_OPTS"] = f"{LIGHT} -XX:DumpLoadedClassList={classes}"
        java, class_path = _run_a_job()
        command = [java, "-Xshare:dump", "-XX:+UseSerialGC", "-Xlog:cds=off", f"-XX:SharedClassListFile={classes}"]
        done = subprocess.run(
            [*command, f"-XX:SharedArchiveFile={made}", "-cp", class_path], capture_output=True, text=True
        )
        if done.returncode != 0 or not made.exists():
            print(f"no archive of Spark's classes, tests take longer: {done.stderr[-500:]}", file=sys.stderr)
            return 0
        made.replace(wanted)
    return 0


def _run_a_job() -> tuple[str, str]:
    """Runs a job of a Python task on a JVM that notes the loaded classes. Returns the JVM's `java` and class path."""
    from barrier_runtime.spark.session import make_session

    spark = make_session("class-list", "local[2]", {})
    try:
        assert spark.sparkContext.parallelize([1, 2], 2).mapPartitions(list).collect() == [1, 2]
        known = spark.sparkContext._jvm.java.lang.System.getProperty
        return f"{known('java.home')}/bin/java", known("java.class.path")
    finally:
        spark.stop()


if __name__ == "__main__":
    sys.exit(main())
