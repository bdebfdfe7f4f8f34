"""The death of another slot is logged in a line without a stack, unless stacks are enabled. Other errors keep
theirs.
"""

import logging
import sys

import pytest

from barrier_runtime.runtime.network.channels import PeerLost
from barrier_runtime.runtime.slot import PEER_LOST
from barrier_runtime.spark.stage import _last_words
from barrier_runtime.spark.task import without_expected_stacks, without_lost_peers
from barrier_runtime.state.errors import Unavailable


def told(error: Exception) -> str:
    """Returns the text that a handler with the filter writes for `error`."""
    try:
        raise error
    except Exception:
        record = logging.LogRecord("barrier_runtime.slot", logging.WARNING, "", 0, "it broke", (), sys.exc_info())
    assert without_expected_stacks(record)
    return logging.Formatter().format(record)


@pytest.mark.parametrize("error", [PeerLost("the data connection with slot 1 broke"), Unavailable("slot 0 leaves")])
def test_what_is_heard_when_another_process_dies_is_a_line(error: Exception) -> None:
    assert told(error) == "it broke"
    assert _last_words(0, error, verbose=False) == f"barrier-runtime: slot 0 begins again: {error}"
    assert "Traceback" not in _last_words(0, error, verbose=False)
    assert type(error).__name__ in _last_words(0, error, verbose=True)


@pytest.mark.parametrize("error", [ValueError("a bug"), ConnectionError("of a user's own client")])
def test_other_errors_keep_their_stacks(error: Exception) -> None:
    assert "Traceback" in told(error)
    assert type(error).__name__ in _last_words(0, error, verbose=False)


@pytest.mark.parametrize("lost", [True, False])
def test_that_a_peer_was_lost_is_left_out_for_people(lost: bool) -> None:
    """`Slot.failed` marks each failure that is a lost peer; a repeated message has no stack."""
    record = logging.LogRecord("barrier_runtime.slot", logging.WARNING, "", 0, "it broke", (), None)
    vars(record)[PEER_LOST] = lost
    assert without_lost_peers(record) is not lost
    assert without_lost_peers(logging.LogRecord("user", logging.WARNING, "", 0, "of a user", (), None))
