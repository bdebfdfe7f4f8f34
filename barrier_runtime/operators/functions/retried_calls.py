"""`on_error=Retry(…)` of functions of one row, or of a batch: the call is repeated at once, in the slot's own time, and
what still fails then is trouble of the outside world, which the job's `restart=` deals with.

The slot stands still for the pauses, so they are short (`LONGEST_S`); what waits longer belongs into a `lookup`, whose
rows wait without holding up others. Functions with state are not repeated: what the call had written would be written
twice.
"""

import time
from collections.abc import Callable
from typing import Any

from barrier_runtime.data.rows import taken_value
from barrier_runtime.operators.retry import Retry
from barrier_runtime.operators.user_code import function_name, said
from barrier_runtime.state.errors import BarrierRuntimeError, InvalidJob, Unavailable

LONGEST_S = 1.0  # of all pauses of one row


def check_pauses(retry: Retry, where: str) -> None:
    """Raises `InvalidJob` where a row might hold up its slot for too long."""
    pauses_s = 0.0
    for failed in range(1, retry.times + 1):
        pauses_s += retry.pause_s(failed)
        if pauses_s > LONGEST_S:
            raise InvalidJob(
                f"{where}: the pauses of {retry!r} are {pauses_s:g} s and more for one row, in which its slot stands "
                f"still: keep them within {LONGEST_S:g} s, or take lookup(…, retry=…), where rows wait beside others"
            )


class RetriedCall:
    """A user's function of a row (or a batch: `what` it is), called again for what `retry` names, with the row as it
    came. `all_rows`: it gives rows one by one, which are taken together, so that none goes out of a call that fails."""

    def __init__(
        self,
        function: Callable[[Any], Any],
        retry: Retry,
        all_rows: bool,
        sleep: Callable[[float], None] = time.sleep,
        what: str = "row",
    ) -> None:
        self.__qualname__ = function_name(function)[:-2]
        self._function = function
        self._retry = retry
        self._all_rows = all_rows
        self._sleep = sleep
        self._what = what

    def __call__(self, row: Any) -> Any:
        """Raises `Unavailable` when the last repetition has failed, and at once what `retry` does not name."""
        failed, as_it_came = 0, taken_value(row) if type(row) is dict else row
        while True:
            try:
                result = self._function(row)
                return list(result) if self._all_rows and type(result) is not list else result
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
            if type(row) is dict:
                row = taken_value(as_it_came)
            self._sleep(self._retry.pause_s(failed))
