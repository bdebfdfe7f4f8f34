"""Fixtures that start a real server at the first request. A missing server fails the test, with the remedy."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Literal, TypeVar

import pytest

Running = TypeVar("Running")


def server_fixture(
    start: Callable[[], AbstractContextManager[Running]], *, scope: Literal["session", "function"]
) -> Any:
    """A server per `scope`, under the fixture's name in its conftest."""

    def server() -> Iterator[Running]:
        with start() as running:
            yield running

    return pytest.fixture(scope=scope)(server)
