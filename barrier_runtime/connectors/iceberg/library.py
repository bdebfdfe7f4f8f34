"""Whether pyiceberg is there. The public classes are imported without it, as `from barrier_runtime import *` must
be: modules that need it are loaded when a table is opened, behind this check.
"""

from barrier_runtime.state.errors import InvalidJob


def need_pyiceberg(where: str, who: str) -> None:
    """Raises `InvalidJob` that says how to get it."""
    try:
        import pyiceberg  # noqa: F401
    except ImportError as error:
        raise InvalidJob(
            f"{where}: {who} needs pyiceberg: pip install 'barrier-runtime[iceberg]' on every machine"
        ) from error
