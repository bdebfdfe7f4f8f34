"""PySpark's worker daemon with our imports done before it forks: a replaced slot starts without importing anything.

Named in `spark.python.daemon.module`. Threads that libraries start at import do not survive a fork; the ones imported
here (numpy, pyarrow) install fork handlers of their own, and nothing runs on threads before the fork.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pyarrow
import pyarrow.compute
import pyarrow.parquet
import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

import state.rocksdb_kv  # noqa: F401

pyarrow.array([0])  # where pandas is installed, pyarrow imports it at its first conversion: 0.4 s of a slot's loop

if __name__ == "__main__":
    manager()
