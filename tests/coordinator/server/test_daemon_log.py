"""The log of a daemon: what jobs report is written without what looks like a secret."""

import json
import logging

import pytest

from barrier_runtime.coordinator.json_lines import JsonLines, Masked

SECRETS = ("AccountKey=hunter2secret==;x", "loader --password hunter2secret", '{"sasl.password": "hunter2secret"}')


def record(text: str) -> logging.LogRecord:
    return logging.LogRecord(
        "barrier_runtime.job", logging.WARNING, __file__, 1, "job %s failed: %s", ("j", text), None
    )


@pytest.mark.parametrize("secret", SECRETS)
def test_a_log_masks_what_looks_like_a_secret(secret: str) -> None:
    assert "hunter2secret" not in Masked(logging.Formatter("%(message)s")).format(record(secret))
    line = Masked(JsonLines()).format(record(secret))
    assert "hunter2secret" not in line
    assert json.loads(line)["message"].startswith("job j failed: ")
