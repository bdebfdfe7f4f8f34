"""One Spark session for all tests that can share it; starting a JVM is the slowest thing here."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

sys.path.insert(0, str(Path(__file__).parent))  # the workers import `harness` too


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
