"""PySpark's worker daemon with our imports done before it forks: a replaced slot starts without importing anything.

Named in `spark.python.daemon.module`. Threads that libraries start at import do not survive a fork; the ones imported
here (numpy, pyarrow) install fork handlers of their own, and nothing runs on threads before the fork.
"""

import faulthandler
import gc
import importlib
import os
import pkgutil
import sys
import zipimport

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# By name, so that no tool takes them for unused. Together about 0.7 s that a replacement does not spend.
_PRELOADED = (
    "pyarrow.compute",
    "pyarrow.parquet",
    "pyarrow.acero",
    "rocksdict",
    "uvloop",
    "pyspark.worker",
    "barrier_runtime.api.connected",
    "barrier_runtime.api.dataflow",
    "barrier_runtime.api.windowed",
    "barrier_runtime.connectors.files.sink.sink",
    "barrier_runtime.connectors.files.source.csv",
    "barrier_runtime.connectors.files.source.jsonl",
    "barrier_runtime.connectors.files.source.parquet",
    "barrier_runtime.connectors.memory.iterator",
    "barrier_runtime.connectors.memory.rate",
    "barrier_runtime.runtime.sinks.operator",
    "barrier_runtime.runtime.slot",
    "barrier_runtime.spark.stage",
)


def preload() -> None:
    """A flow imports operators when it uses them, so all of them are imported here."""
    operators = importlib.import_module("barrier_runtime.operators")
    below = pkgutil.walk_packages(operators.__path__, f"{operators.__name__}.")
    for name in (*_PRELOADED, *(module.name for module in below)):
        importlib.import_module(name)
    import pyarrow

    from barrier_runtime.spark.session import STORE

    if os.environ.get(STORE) in ("s3", "s3a"):
        _preload_s3()
    pyarrow.array([0])  # where pandas is installed, pyarrow imports it at its first conversion: 0.4 s of a slot's loop


def _preload_s3() -> None:
    """Imports both clients and reads boto3's descriptions of S3: 0.35 s of processor time. Makes no connection."""
    from barrier_runtime.state.errors import InvalidJob

    try:
        for name in ("obstore.store", "barrier_runtime.state.store.s3.by_obstore"):
            importlib.import_module(name)
        importlib.import_module("barrier_runtime.state.store.s3.aws").read_descriptions()
    except (ImportError, InvalidJob):  # the slot meets the same trouble, and reports it with the remedy
        return


def forget_archives() -> None:
    """pyspark is imported from an archive, by a finder for each of its folders. Every worker begins with
    `importlib.invalidate_caches`, and each such finder then reads the whole directory of the archive anew: 0.4 s of a
    slot's start. A finder that is wanted again is made again, from the directory that is in memory."""
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimport.zipimporter):
            del sys.path_importer_cache[path]


def keep_from_collector() -> None:
    """What is imported lives for ever. A worker that walks it copies its pages, and takes 0.1 s for it."""
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    from pyspark.daemon import manager

    from barrier_runtime.spark import deaths

    faulthandler.enable()  # the workers inherit it
    preload()
    forget_archives()
    keep_from_collector()
    deaths.watch()
    manager()
