"""`python -m benchmarks flink-setup`: a side environment with apache-flink, and the jars and classes.

The project's environment does not change. The side environment is in the user's cache (about 1 GB), for all clones.
"""

import subprocess
import sys

from benchmarks.engines.java_build import FLINK_VERSION, classes, connectors, flink_home, flink_jars
from examples.servers.base import ServerError


def set_up() -> str:
    """Returns the parts that exist now. Raises `ServerError` with the remedy."""
    home = flink_home()
    done = home.parent / "_DONE"
    if not done.exists():
        for command in (
            [sys.executable, "-m", "venv", "--clear", str(home)],
            [
                str(home / "bin/pip"),
                "install",
                "--quiet",
                "--disable-pip-version-check",
                f"apache-flink=={FLINK_VERSION}",
            ],
        ):
            if subprocess.run(command, check=False).returncode != 0:
                raise ServerError(
                    f"{' '.join(command)} failed (Python {sys.version_info.major}.{sys.version_info.minor}): "
                    f"apache-flink {FLINK_VERSION} needs Python 3.9 to 3.12 and PyPI"
                )
        done.touch()
    classes("flink")
    return (
        f"Flink {FLINK_VERSION} in {home}: {len(flink_jars())} jars of its own, {len(connectors('flink'))} connectors"
    )


def missing() -> str | None:
    """Reason why Flink cannot run here, or None."""
    try:
        flink_jars()
        classes("flink")
    except ServerError as error:
        return str(error)
    return None
