"""One Spark session for all tests that can share it; starting a JVM is the slowest thing here. Workers of pytest-xdist
begin with the long tests, and end with short ones."""

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
    """A worker that begins a test of two minutes when the others have none left keeps `make test` waiting, with the
    cores idle. `long(seconds)` need not be right: it says which tests are to begin first."""
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
    session.sparkContext.setLogLevel("OFF")  # the kills are ours; their Java stacks only hide what matters
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def no_process_left_behind() -> Iterator[None]:
    """Whatever a test starts is gone when it ends (the shared session's own processes aside)."""
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    yield
    left = [
        process
        for process in psutil.Process().children(recursive=True)
        if process.pid not in before
        and any("barrier_runtime.coordinator.server.daemon" in part for part in _command(process))
    ]
    _, left = psutil.wait_procs(left, timeout=60)  # it may just be on its way
    assert left == []


def _command(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.NoSuchProcess:
        return []
