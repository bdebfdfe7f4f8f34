"""`Retry`: how often and when a failed call of a user's function is repeated."""

import datetime
from dataclasses import dataclass

from barrier_runtime.data.schemas import Duration, as_duration
from barrier_runtime.state.errors import InvalidJob

_LONGEST_S = 60.0  # of one pause
LONGEST_S = 1.0  # of all pauses of a row together, if its slot waits meanwhile


@dataclass(frozen=True)
class Retry:
    """A call that raises one of `on` is repeated, at most `times` times.

    >>> Retry(3, backoff=timedelta(milliseconds=200), on=(ConnectionError, TimeoutError))

    `backoff` is the pause before the first repetition; each further pause is twice as long, up to a minute. Raises
    `InvalidJob` for `times` below 1, a negative pause, and an `on` that is not a tuple of exception types.
    """

    times: int
    backoff: Duration = datetime.timedelta(milliseconds=100)
    on: tuple[type[Exception], ...] = (Exception,)

    def __post_init__(self) -> None:
        if type(self.times) is not int or self.times < 1:
            raise InvalidJob(f"Retry({self.times!r}): give the number of repetitions, 1 or more")
        backoff = as_duration(self.backoff, "backoff of a Retry")
        if backoff < datetime.timedelta():
            raise InvalidJob(f"Retry backoff {backoff!r}: give a timedelta that is not negative")
        object.__setattr__(self, "backoff", backoff)
        types = self.on
        if not isinstance(types, tuple) or not types or not all(map(_is_exception, types)):
            raise InvalidJob(f"Retry on={types!r}: give a tuple of exception types, as in on=(ConnectionError,)")

    def wants(self, error: Exception, failed: int) -> bool:
        """Returns whether to repeat a call that failed `failed` times, the last time with `error`."""
        return failed <= self.times and isinstance(error, self.on)

    def pause_s(self, failed: int) -> float:
        """Returns the pause in seconds after `failed` (1 or more) failures."""
        return min(_LONGEST_S, as_duration(self.backoff, "backoff").total_seconds() * 2.0 ** min(failed - 1, 30))


def _is_exception(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, Exception)


def check_pauses(retry: Retry, where: str) -> None:
    """Raises `InvalidJob` if the pauses of a row can hold up its slot for more than `LONGEST_S`."""
    pauses_s = 0.0
    for failed in range(1, retry.times + 1):
        pauses_s += retry.pause_s(failed)
        if pauses_s > LONGEST_S:
            raise InvalidJob(
                f"{where}: the pauses of {retry!r} are {pauses_s:g} s and more for one row, in which its slot stands "
                f"still: keep them within {LONGEST_S:g} s, or take lookup(…, retry=…), where rows wait beside others"
            )
