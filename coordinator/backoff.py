"""Pause before a call to the store is retried. One curve for all of the coordinator's calls."""

_FIRST_S = 0.02
_LONGEST_S = 1.0


def backoff_s(attempt: int) -> float:
    """Returns seconds to wait after failed attempt number `attempt`: doubling, at most a second."""
    return min(_LONGEST_S, _FIRST_S * 2.0 ** min(attempt, 16))
