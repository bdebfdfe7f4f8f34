"""`Retry`: how often and when a failed call of a user's function is repeated, and the repeated call.

The slot waits during the pauses; longer outages are for the job's `restart=`. Before a repetition, the failed call's
changes of state, timers, emitted rows and metrics are undone (`state/values/undo`), not those of the user's object.
"""

import datetime
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from barrier_runtime.data.argument_types import kinds_checked
from barrier_runtime.data.row_class import is_instance
from barrier_runtime.data.rows import taken_value
from barrier_runtime.data.schemas import Duration, as_duration
from barrier_runtime.operators.user_code import function_name, said
from barrier_runtime.state.errors import BarrierRuntimeError, InvalidJob, Unavailable
from barrier_runtime.state.texts import counted
from barrier_runtime.state.values.undo import Undoable

_LONGEST_S = 60.0  # of one pause
LONGEST_S = 1.0  # of all pauses of a row together, if its slot waits meanwhile


@kinds_checked
@dataclass(frozen=True)
class Retry:
    """A call that raises one of `on` is repeated, at most `times` times.

    >>> Retry(3, backoff=timedelta(milliseconds=200), on=(ConnectionError, TimeoutError))

    `backoff`: pause before the first repetition; each further pause is twice as long, up to a minute. Raises
    `InvalidJob` for `times` below 1, a negative pause, or an `on` without exception types.
    """

    times: int
    backoff: Duration = datetime.timedelta(milliseconds=100)
    on: tuple[type[Exception], ...] | type[Exception] = (Exception,)

    def __post_init__(self) -> None:
        if type(self.times) is not int or self.times < 1:
            raise InvalidJob(f"Retry({self.times!r}): give the number of repetitions, 1 or more")
        backoff = as_duration(self.backoff, "backoff of a Retry")
        if backoff < datetime.timedelta():
            raise InvalidJob(f"Retry backoff {backoff!r}: give a timedelta that is not negative")
        object.__setattr__(self, "backoff", backoff)
        types = (self.on,) if isinstance(self.on, type) else self.on
        object.__setattr__(self, "on", types)
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
    pauses_s = 0.0
    for failed in range(1, retry.times + 1):
        pauses_s += retry.pause_s(failed)
        if pauses_s > LONGEST_S:
            raise InvalidJob(
                f"{where}: the pauses of {retry!r} are {pauses_s:g} s and more for one row, in which its slot stands "
                f"still: keep them within {LONGEST_S:g} s, or take lookup(…, retry=…), where rows wait beside others"
            )


class RetriedCall:
    """A user's function of a row (or batch: `what`), repeated for the errors that `retry` names.
    `all_rows`: a failed call emits no yielded row.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        retry: Retry,
        all_rows: bool,
        sleep: Callable[[float], None] = time.sleep,
        what: str = "row",
        undo: Undoable | None = None,
        said: str | None = None,
    ) -> None:
        self.__qualname__ = (said or function_name(function))[:-2]
        self._function = function
        self._retry = retry
        self._all_rows = all_rows
        self._sleep = sleep
        self._what = what
        self._undo = undo

    def __call__(self, *given: Any) -> Any:
        """Raises `Unavailable` after the last repetition failed; raises other errors at once."""
        failed, as_it_came, undo = 0, _as_it_is(given), self._undo
        while True:
            if undo is not None:
                undo.begin()
            try:
                result = self._function(*given)
                return _taken(result) if self._all_rows else result
            except BarrierRuntimeError:
                raise
            except Exception as error:
                failed += 1
                if not isinstance(error, self._retry.on):
                    raise
                if not self._retry.wants(error, failed):
                    raise Unavailable(
                        f"{self.__qualname__}() raised {type(error).__name__}: {said(error)}, "
                        f"{counted(failed, 'time')} for "
                        f"one {self._what}: the job goes on from its last checkpoint, as restart= says; look at what "
                        "it asks"
                    ) from error
            if undo is not None:
                undo.put_back()
            given = _as_it_is(as_it_came)
            self._sleep(self._retry.pause_s(failed))


def _as_it_is(given: tuple[Any, ...]) -> tuple[Any, ...]:
    """Copies the arguments, since a call may change a row."""
    return tuple([taken_value(each) if type(each) is dict or is_instance(each) else each for each in given])


def _taken(result: Any) -> Any:
    """All rows of a generator, each as it was when yielded."""
    if result is None or type(result) in (dict, list) or is_instance(result):
        return result
    return [taken_value(row) if type(row) is dict or is_instance(row) else row for row in result]
