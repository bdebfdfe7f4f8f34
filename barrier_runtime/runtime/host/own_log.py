"""Last log records of this process.

Records are noted without a handler, so a program's `logging` stays unchanged.
"""

import contextlib
import logging
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator

from barrier_runtime.state.texts import masked_within

MOST_RECORDS = 500
MOST_CHARACTERS = 4_000  # of a record; a longer record loses the middle


class OwnLog:
    def __init__(self, most: int = MOST_RECORDS) -> None:
        self._records: deque[str] = deque(maxlen=most)
        self._users = 0
        self._changing = threading.Lock()
        self._noting: Callable[..., None] | None = None
        self._before = logging.Logger.callHandlers

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Notes records meanwhile. The first of several users begins without records of earlier jobs."""
        with self._changing:
            self._users += 1
            if self._users == 1:
                self._records.clear()
                self._begin()
        try:
            yield
        finally:
            with self._changing:
                self._users -= 1
                if not self._users:
                    self._end()

    def _begin(self) -> None:
        if self._noting is not None:
            return
        before = self._before = logging.Logger.callHandlers

        def noting(logger: logging.Logger, record: logging.LogRecord) -> None:
            self._note(record)
            before(logger, record)

        self._noting = noting
        logging.Logger.callHandlers = noting  # type: ignore[method-assign, assignment]

    def _end(self) -> None:
        """Leaves `callHandlers` if the user's program replaced it by a function that calls `noting`."""
        if logging.Logger.callHandlers is self._noting:
            logging.Logger.callHandlers = self._before  # type: ignore[method-assign]
            self._noting = None

    def lines(self) -> list[str]:
        return list(self._records)

    def _note(self, record: logging.LogRecord) -> None:
        if self._users and record.name:  # a record without a name was not made for logging
            self._records.append(_or_error(lambda: _line(record), "(a record"))


def _line(record: logging.LogRecord) -> str:
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(record.created))
    message = _or_error(record.getMessage, "(a message that")
    text = f"{at}.{int(record.msecs):03d}Z {record.levelname} {record.name}: {message}"
    if record.exc_info and record.exc_info[0] is not None:
        exception = record.exc_info
        raised = _or_error(lambda: "".join(traceback.format_exception(*exception)).rstrip(), "(exc_info that")
        text = f"{text}\n{raised}"
    return text if len(text) <= MOST_CHARACTERS else masked_within(text, MOST_CHARACTERS)


def _or_error(text: Callable[[], str], who: str) -> str:
    """Text, or the name of the error: notes never fail a logging call."""
    try:
        return text()
    except Exception as error:
        return f"{who} raises {type(error).__name__})"


OWN_LOG = OwnLog()
