"""One Spark session for all tests that can share it (starting a JVM is the slowest thing here), and their order."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

sys.path.insert(0, str(Path(__file__).parent))  # the workers import `harness` too


def most_s(item: pytest.Item) -> float:
    """How long a test may last, as it says itself: a long one says so, or it would be ended."""
    if item.get_closest_marker("spark") is None:
        return 0.0
    told = item.get_closest_marker("timeout")
    return float(item.config.getini("timeout") if told is None else told.args[0])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest begin first: else one worker goes on with a long one when there is nothing left for the others."""
    here = Path(__file__).parent
    items[:] = sorted(items, key=lambda item: most_s(item) if item.path.is_relative_to(here) else 0.0, reverse=True)


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
