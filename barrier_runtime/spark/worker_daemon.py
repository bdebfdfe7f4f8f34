"""PySpark's worker daemon, which imports our modules before forking.

Threads that libraries start at import do not survive a fork; numpy and pyarrow install fork handlers.
"""

import faulthandler
import gc
import importlib
import os
import pkgutil
import sys
import zipimport

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# By name, so that no tool takes the imports for unused. Preloading saves a dead worker's replacement about 0.7 s.
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
    """Imports `_PRELOADED` and all operators."""
    operators = importlib.import_module("barrier_runtime.operators")
    below = pkgutil.walk_packages(operators.__path__, f"{operators.__name__}.")
    for name in (*_PRELOADED, *(module.name for module in below)):
        importlib.import_module(name)
    import pyarrow

    from barrier_runtime.coordinator.own_versions import own_versions
    from barrier_runtime.spark.session import STORE

    if os.environ.get(STORE) in ("s3", "s3a"):
        _preload_s3()
    own_versions()
    pyarrow.array([0])  # imports pandas, if installed: 0.4 s of a slot's loop


def _preload_s3() -> None:
    """Connects nowhere."""
    from barrier_runtime.state.errors import InvalidJob

    try:
        for name in ("obstore.store", "barrier_runtime.state.store.s3.by_obstore"):
            importlib.import_module(name)
        importlib.import_module("barrier_runtime.state.store.s3.aws").read_descriptions()
    except (ImportError, InvalidJob):
        return


def forget_archives() -> None:
    """Removes the finders of zip archives, which saves 0.4 s of a slot's start.

    Every worker begins with `importlib.invalidate_caches`, after which each finder would read the archive's directory
    again.
    """
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimport.zipimporter):
            del sys.path_importer_cache[path]


def keep_from_collector() -> None:
    """Freezes imported objects: a collection would copy a worker's pages."""
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    from pyspark.daemon import manager

    from barrier_runtime.spark import deaths

    faulthandler.enable()
    preload()
    forget_archives()
    keep_from_collector()
    deaths.watch()
    manager()
