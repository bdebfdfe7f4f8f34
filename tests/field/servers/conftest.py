"""The servers that `tests/ends` starts."""

from tests.ends.conftest import *  # noqa: F403
