"""Checks that pyiceberg is installed, before modules that need it are imported."""

from importlib.util import find_spec

from barrier_runtime.state.errors import missing_extra


def need_pyiceberg(where: str, who: str) -> None:
    try:
        import pyiceberg  # noqa: F401
    except ImportError as error:
        raise missing_extra(f"{where}: {who}", "iceberg", error) from None


def need_core(who: str) -> None:
    if find_spec("pyiceberg_core") is None:
        missing = ModuleNotFoundError("No module named 'pyiceberg_core'", name="pyiceberg_core")
        raise missing_extra(who, "iceberg", missing)
