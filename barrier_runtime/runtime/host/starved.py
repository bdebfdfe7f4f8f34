"""For how long this thread was ready to run and got no processor. Linux tells it; elsewhere it is 0."""

_FILE = "/proc/thread-self/schedstat"  # nanoseconds on a processor, nanoseconds waiting for one, times on one


def starved_s() -> float:
    """Seconds since the thread began. Costs about 10 microseconds: not for each batch."""
    try:
        with open(_FILE) as told:
            return int(told.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):  # no Linux, or one that was built without it
        return 0.0
