"""Spark session of a job; checks of Java and of the workers' Python.

A slot must be replaced alone and at once, hence `SETTINGS`.
"""

import os
import re
import shutil
import subprocess
import sys
from typing import Any

from barrier_runtime.connectors.memory.batch_function import BatchQueue
from barrier_runtime.connectors.sink_bases.write_ahead import DecidedBatch
from barrier_runtime.spark.deaths import SILENT
from barrier_runtime.state.errors import InvalidJob, Unavailable, missing_extra

NEEDED = 17
_REMEDY = (
    f"Spark needs Java {NEEDED} or newer: install it (Debian/Ubuntu: apt-get install openjdk-17-jre-headless; "
    "macOS: brew install openjdk@17) or point JAVA_HOME at it"
)


OLDEST = (3, 5)
_NEWEST_PYTHON_OF_3_5 = (3, 11)


def check_release(subject: str, needed: tuple[int, int] = OLDEST) -> tuple[int, int]:
    """Major and minor version of PySpark. Raises `InvalidJob` for older releases."""
    from pyspark import __version__ as found

    refused, release = refusal(subject, found, needed, sys.version_info[:2])
    if refused:
        raise InvalidJob(refused)
    return release


def refusal(subject: str, found: str, needed: tuple[int, int], python: tuple[int, int]) -> tuple[str, tuple[int, int]]:
    major, minor = (int(part) for part in found.split(".")[:2])
    least = f"{needed[0]}.{needed[1]}"
    if (major, minor) < needed:
        return (
            f"{subject}: PySpark {found} is installed, {least} or newer is needed: pip install 'pyspark>={least},<5'",
            (major, minor),
        )
    if (major, minor) < (4, 0) and python > _NEWEST_PYTHON_OF_3_5:
        return (
            f"{subject}: PySpark {found} runs on Python 3.11 or older, this is Python {python[0]}.{python[1]}: use "
            "Python 3.11, or pip install 'pyspark>=4.0,<5'",
            (major, minor),
        )
    return "", (major, minor)


def check_java() -> int:
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if java is None or not os.path.exists(java):
        place = f"JAVA_HOME={home} has no bin/java" if home else "there is no java on the PATH"
        raise InvalidJob(f"{place}. {_REMEDY}")
    try:
        printed = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InvalidJob(f"{java} cannot be run ({error}). {_REMEDY}") from error
    found = re.search(r'version "(\d+)(?:\.(\d+))?', printed.stderr + printed.stdout)
    if found is None:
        raise InvalidJob(f"{java} does not tell its version. {_REMEDY}")
    major = int(found.group(1))
    if major == 1 and found.group(2):
        major = int(found.group(2))
    if major < NEEDED:
        raise InvalidJob(f"{java} is version {major}. {_REMEDY}")
    return major


def check_worker_python(program: str, path: str) -> None:
    """Raises `InvalidJob` if Spark's workers cannot import this package.

    `program`: Spark's `pythonExec`. `path`: PYTHONPATH of the workers.
    """
    found = shutil.which(program)
    if found == sys.executable:
        return
    remedy = f"set PYSPARK_PYTHON={sys.executable} before the session is made, or install barrier-runtime there"
    if found is None:
        raise InvalidJob(f"Spark's workers would run {program}, which is not there: {remedy}")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (path, os.environ.get("PYTHONPATH"))))}
    command = [found, "-c", "import barrier_runtime.spark.task, barrier_runtime.coordinator.wire.sealing"]
    try:
        tried = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InvalidJob(f"Spark's workers would run {found}, which cannot be run ({error}): {remedy}") from error
    if tried.returncode != 0:
        said = (tried.stderr.strip().splitlines() or ["it ended without a word"])[-1]
        raise InvalidJob(f"Spark's workers run {found}, which cannot import barrier_runtime ({said}): {remedy}")


class DataFrames:
    """Makes DataFrames of decided batches. Rows keep the order of a subtask's file, as far as Spark does."""

    def __init__(self, spark: Any) -> None:
        self._spark = spark

    def __call__(self, queue: BatchQueue, batch: DecidedBatch) -> Any:
        files = queue.local_files(batch)
        if files is not None:
            return self._spark.read.parquet(*files)
        table = queue.read(batch)
        if check_release("for_each_batch") >= (4, 0):
            return self._spark.createDataFrame(table)
        from pyspark.sql.pandas.types import from_arrow_schema

        return self._spark.createDataFrame(table.to_pylist(), from_arrow_schema(table.schema))


def check_free_core(spark: Any, parallelism: int) -> None:
    """Raises `InvalidJob` if slots would occupy every core: `for_each_batch` would wait for ever."""
    per_task = int(spark.sparkContext.getConf().get("spark.task.cpus", "1"))
    cores, needed = local_cores(spark), (parallelism + 1) * per_task
    if cores is not None and cores < needed:
        raise InvalidJob(
            f"for_each_batch needs a core beside the {parallelism} slots, which keep theirs for the whole job, and the "
            f"Spark master has {cores}: use a smaller parallelism or local[{needed}]"
        )


MAX_TASK_FAILURES = 1_000_000
STORE = "BARRIER_RUNTIME_STORE"  # scheme of the checkpoints' URL, in the workers' environment
_FORWARDED = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_REGION", "AWS_DEFAULT_REGION")  # never credentials
_LOCAL = re.compile(r"local(?:\[(\d+|\*)(?:\s*,\s*\d+)?\])?")
_NOISY_LOGGERS = (
    "org.apache.spark.executor.Executor",
    "org.apache.spark.scheduler.TaskSetManager",
    "org.apache.spark.scheduler.TaskSchedulerImpl",
    "org.apache.spark.api.python.PythonRunner",
)
SETTINGS = {
    "spark.task.maxFailures": str(MAX_TASK_FAILURES),
    "spark.speculation": "false",
    "spark.dynamicAllocation.enabled": "false",
    "spark.locality.wait": "0",
    "spark.python.worker.reuse": "false",
    "spark.task.reaper.enabled": "true",
    "spark.task.reaper.killTimeout": "-1",
    "spark.excludeOnFailure.enabled": "false",
    "spark.python.daemon.module": "barrier_runtime.spark.worker_daemon",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
_OF_CLUSTERS = {  # a lost executor is noticed after 20 to 25 s; its tasks start again on free cores
    "spark.executor.heartbeatInterval": "2s",
    "spark.storage.blockManagerHeartbeatTimeoutMs": "20s",
    "spark.network.timeoutInterval": "5s",
    "spark.executor.heartbeat.maxFailures": "300",  # of an executor without its driver: ten minutes, as by default
    "spark.decommission.enabled": "true",  # slots move off an executor whose end is announced
}


def settings_of(master: str) -> dict[str, str]:
    """A stalled process of a local master must not lose its only executor."""
    return SETTINGS if _LOCAL.fullmatch(master.strip()) else {**SETTINGS, **_OF_CLUSTERS}


def local_master(master: str) -> str:
    """Adds the number of allowed failures: in `local[4]` a task may fail only once."""
    match = _LOCAL.fullmatch(master.strip())
    if match is None:
        return master
    return f"local[{match.group(1) or '1'},{MAX_TASK_FAILURES}]"


def make_session(job: str, master: str, extra: dict[str, str], checkpoints: str = "") -> Any:
    """Raises `InvalidJob` without Java or pyspark, or if another context is live.

    `checkpoints`: URL of the job's store, whose client the worker daemon imports.
    """
    check_java()
    try:
        from pyspark import SparkContext
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise missing_extra("Spark", "spark", error) from None
    if SparkContext._active_spark_context is not None:
        raise InvalidJob(
            "a SparkContext is already running in this process: pass it as spark=your_session (its settings are "
            "checked), or stop it first"
        )
    check_release(f"job {job}")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(f"barrier-runtime {job}").master(local_master(master))
    importable = os.pathsep.join(dict.fromkeys(entry for entry in sys.path if entry and os.path.isdir(entry)))
    environment = {
        "spark.executorEnv.PYTHONPATH": importable,
        f"spark.executorEnv.{STORE}": checkpoints.partition("://")[0] if "://" in checkpoints else "",
    }
    if _LOCAL.fullmatch(master.strip()) and sys.stderr is not None and sys.stderr.isatty():
        environment[f"spark.executorEnv.{SILENT}"] = "1"  # a worker's line would spoil the progress display
    for key, value in {**settings_of(master), **environment, **extra}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    _quieten(spark)
    return spark


def _quieten(spark: Any) -> None:
    """Spark's loggers would print two Java stacks for each replaced slot."""
    log4j = spark.sparkContext._jvm.org.apache.logging.log4j
    for name in _NOISY_LOGGERS:
        log4j.core.config.Configurator.setLevel(name, log4j.Level.OFF)


def check_session(spark: Any, parallelism: int, spare_slots: int = 0) -> None:
    check_release("this Spark session")
    conf = spark.sparkContext.getConf()
    problems = []
    if conf.get("spark.dynamicAllocation.enabled", "false").strip().lower() == "true":
        problems.append("spark.dynamicAllocation.enabled is true: executors would be taken away; set it to false")
    if conf.get("spark.speculation", "false").strip().lower() == "true":
        problems.append("spark.speculation is true: a second attempt of a slot would fence the first; set it to false")
    if problems:
        raise InvalidJob("this Spark session cannot run slots: " + "; ".join(problems))
    if _LOCAL.fullmatch(spark.sparkContext.master):
        check_worker_python(spark.sparkContext.pythonExec, conf.get("spark.executorEnv.PYTHONPATH", ""))
    cores = local_cores(spark)
    per_task = int(conf.get("spark.task.cpus", "1"))
    needed = (parallelism + spare_slots) * per_task
    if cores is not None and cores < needed:
        spares = f" with spare_slots={spare_slots}" if spare_slots else ""
        raise InvalidJob(
            f"parallelism {parallelism}{spares} needs {needed} cores at once, and the Spark master "
            f"local[{cores}] has {cores}: use a smaller parallelism or local[{needed}]"
        )


def forwarded_environment() -> dict[str, str]:
    return {name: os.environ[name] for name in _FORWARDED if name in os.environ}


def jvm_trouble(spark: Any) -> Unavailable | None:
    """Error if the JVM, which this process must have started, has ended; else None."""
    process = getattr(spark.sparkContext._gateway, "proc", None)
    if process is None or process.poll() is None:
        return None
    return Unavailable(
        f"Spark's JVM, process {process.pid}, ended with exit code {process.returncode}: see its output (out of "
        "memory?) and start the program again; it goes on from the latest checkpoint"
    )


def stop_session(spark: Any) -> None:
    if jvm_trouble(spark) is None:
        spark.stop()


def local_cores(spark: Any) -> int | None:
    """Cores of a local master, which Spark's default parallelism need not be; None: another master."""
    local = _LOCAL.fullmatch(spark.sparkContext.master.strip())
    if local is None:
        return None
    if local.group(1) == "*":
        return int(spark.sparkContext._jvm.java.lang.Runtime.getRuntime().availableProcessors())
    return int(local.group(1) or 1)
