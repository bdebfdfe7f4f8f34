"""`on_error=Retry(…)`: a failed call is repeated at once; a call that keeps failing is an outage.
The job's `restart=` handles outages.

The slot waits during the pauses, so these are short (`check_pauses`); longer waits belong into a `lookup`, whose rows
do not hold up others. Before a repetition, changes of the failed call to state, timers, emitted rows and metrics are
undone (`state/values/undo`); attributes of the user's object are not.
"""

import time
from collections.abc import Callable
from typing import Any

from barrier_runtime.data.rows import taken_value
from barrier_runtime.operators.retry import Retry
from barrier_runtime.operators.user_code import function_name, said
from barrier_runtime.state.errors import BarrierRuntimeError, Unavailable
from barrier_runtime.state.values.undo import Undoable


class RetriedCall:
    """A user's function of a row (or batch: `what`), repeated for the errors that `retry` names.
    Each repetition gets the row as it arrived. `all_rows`: yielded rows are collected, so a failed call emits none.
    `undo`: undoes changes of the function."""

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
        """`said`: name of the function in messages."""
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
                        f"{self.__qualname__}() raised {type(error).__name__}: {said(error)}, {failed} times for "
                        f"one {self._what}: the job goes on from its last checkpoint, as restart= says; look at what "
                        "it asks"
                    ) from error
            if undo is not None:
                undo.put_back()
            given = _as_it_is(as_it_came)
            self._sleep(self._retry.pause_s(failed))


def _as_it_is(given: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns copies of the arguments, since a call may change a row."""
    return tuple([taken_value(each) if type(each) is dict else each for each in given])


def _taken(result: Any) -> Any:
    """Returns all rows of a generator, each as it was when yielded."""
    if result is None or type(result) in (dict, list):
        return result
    return [taken_value(row) if type(row) is dict else row for row in result]
