"""Fixtures that start a real server when it is first asked for. What is not installed fails, with the remedy."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Literal, TypeVar

import pytest

Running = TypeVar("Running")


def server_fixture(
    start: Callable[[], AbstractContextManager[Running]], *, scope: Literal["session", "function"]
) -> Any:
    """One server per `scope`, under the name that the fixture is given in its conftest."""

    def server() -> Iterator[Running]:
        with start() as running:
            yield running

    return pytest.fixture(scope=scope)(server)
