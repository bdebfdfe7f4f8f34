"""Whether pyiceberg is there. The public classes are imported without it, as `from barrier_runtime import *` must
be: modules that need it are loaded when a table is opened, behind this check.
"""

from importlib.util import find_spec

from barrier_runtime.state.errors import missing_extra


def need_pyiceberg(where: str, who: str) -> None:
    """Raises `InvalidJob` that says how to get it."""
    try:
        import pyiceberg  # noqa: F401
    except ImportError as error:
        raise missing_extra(f"{where}: {who}", "iceberg", error) from None


def need_core(who: str) -> None:
    """Raises `InvalidJob` unless the library is there that computes partitions by days, buckets and the like."""
    if find_spec("pyiceberg_core") is None:
        missing = ModuleNotFoundError("No module named 'pyiceberg_core'", name="pyiceberg_core")
        raise missing_extra(who, "iceberg", missing)
