"""Do the workers of a local master find this package? Asked before slots are started: they would fail for ever."""

import os
import shutil
import subprocess
import sys

from barrier_runtime.state.errors import InvalidJob


def check_worker_python(program: str, path: str) -> None:
    """`program`: Spark's `pythonExec`. `path`: the PYTHONPATH that Spark gives to its workers. Raises `InvalidJob`."""
    found = shutil.which(program)
    if found == sys.executable:
        return
    remedy = f"set PYSPARK_PYTHON={sys.executable} before the session is made, or install barrier-runtime there"
    if found is None:
        raise InvalidJob(f"Spark's workers would run {program}, which is not there: {remedy}")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (path, os.environ.get("PYTHONPATH"))))}
    command = [found, "-c", "import barrier_runtime.spark.task"]  # and with it the packages that a slot needs
    tried = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)
    if tried.returncode != 0:
        said = (tried.stderr.strip().splitlines() or ["it ended without a word"])[-1]
        raise InvalidJob(f"Spark's workers run {found}, which cannot import barrier_runtime ({said}): {remedy}")
