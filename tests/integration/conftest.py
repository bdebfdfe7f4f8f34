"""A Spark session shared by all tests that can share; JVM starts are the slowest part of these tests. Workers of
pytest-xdist begin with long tests and end with short tests.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.integration.dealing import dealt

sys.path.insert(0, str(Path(__file__).parent))  # the workers import `harness` too


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Orders the tests: long tests first.

    If a worker began a test of two minutes when the other workers have no tests left, `make test` would wait with idle
    cores. `long(seconds)` need not be exact: the mark only decides which tests begin first.
    """
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if workers > 1:
        items[:] = dealt(items, _seconds, workers)


def _seconds(item: pytest.Item) -> float:
    long = item.get_closest_marker("long")
    return 0.0 if long is None else float(long.args[0])


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    from barrier_runtime.spark.session import make_session

    session = make_session("integration-tests", "local[4]", {"spark.python.task.killTimeout": "1s"})
    session.sparkContext.setLogLevel("OFF")  # the kills are ours; their Java stacks only hide the cause
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def no_process_left_behind() -> Iterator[None]:
    """Checks that all processes of a test have ended (the shared session's processes aside)."""
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    yield
    left = [
        process
        for process in psutil.Process().children(recursive=True)
        if process.pid not in before
        and any("barrier_runtime.coordinator.server.daemon" in part for part in _command(process))
    ]
    _, left = psutil.wait_procs(left, timeout=60)  # the process may be exiting
    assert left == []


def _command(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.NoSuchProcess:
        return []
