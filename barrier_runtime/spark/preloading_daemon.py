"""PySpark's worker daemon with our imports done before it forks: a replaced slot starts without importing anything.

Named in `spark.python.daemon.module`. Threads that libraries start at import do not survive a fork; the ones imported
here (numpy, pyarrow) install fork handlers of their own, and nothing is computed before the fork.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pyarrow
import pyarrow.compute
import pyarrow.parquet  # noqa: F401
import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

import state.rocksdb_kv  # noqa: F401

if __name__ == "__main__":
    manager()
