"""The end of a process inside a call: between any two lines of a sink's own files.

What a sink must do in one step of its target (show rows and remember that it did) it may have written as two. No point
between calls would tell; a process that dies between these two lines does. Python's trace function counts the lines,
and raises `Crash` before one of them. Connections that are open then are dropped with the sink.
"""

import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from barrier_runtime.sinks.base import TwoPhaseCommitSink


class Crash(BaseException):
    """The process is gone. Not an `Exception`: nothing in it may handle that."""


def own_files(sink: TwoPhaseCommitSink) -> frozenset[str]:
    """Files of the sink's classes; of those in a package, the other modules of that package too."""
    found: set[str] = set()
    for each in type(sink).__mro__:
        module = sys.modules.get(each.__module__)
        file = getattr(module, "__file__", None)
        if file is None or each in (object, TwoPhaseCommitSink):
            continue
        found.add(inspect.getsourcefile(each) or file)
        if module is not None and module.__package__:
            found.update(str(path) for path in Path(file).parent.glob("*.py"))
    return frozenset(found)


class Lines:
    """Counts lines of `files` while watched; raises `Crash` before line number `at` (None: never)."""

    def __init__(self, files: frozenset[str] = frozenset(), at: int | None = None) -> None:
        self.passed = 0
        self._files = files
        self._at = at

    @contextmanager
    def watched(self) -> Iterator[None]:
        if not self._files:
            yield
            return
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            yield
        finally:
            sys.settrace(before)

    def _trace(self, frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_code.co_filename not in self._files:
            return None
        if event == "line":
            self.passed += 1
            if self.passed - 1 == self._at:
                raise Crash(f"{Path(frame.f_code.co_filename).name}, line {frame.f_lineno}")
        return self._trace
