"""JSON log of daemons and slots, an object per line."""

import logging
import time
from typing import Any

import msgspec

from barrier_runtime.state.texts import masked_text

FIELDS = (
    "job",
    "generation",
    "slot",
    "checkpoint",
    "operator",
)  # of a record, by `extra=`; missing fields are left out


class JsonLines(logging.Formatter):
    """`known`: fields of every line, such as the writing slot."""

    def __init__(self, known: dict[str, Any] | None = None) -> None:
        super().__init__()
        self._known = known or {}

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            **self._known,
        }
        line.update((name, vars(record)[name]) for name in FIELDS if vars(record).get(name) is not None)
        line["message"] = record.getMessage()
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


class Masked(logging.Formatter):
    """Masks secrets in another formatter's lines, which may contain texts of libraries or rows."""

    def __init__(self, lines: logging.Formatter) -> None:
        super().__init__()
        self._lines = lines

    def format(self, record: logging.LogRecord) -> str:
        return masked_text(self._lines.format(record))
