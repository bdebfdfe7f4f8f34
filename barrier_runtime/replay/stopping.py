"""Stops a replay at the user's function, with Python's debugger, for each row that is looked at."""

import pdb
from collections.abc import Callable, Sequence
from types import CodeType
from typing import Any

from barrier_runtime.operators.base import Operator
from barrier_runtime.replay.observing import Coming, DebuggerQuit
from barrier_runtime.state_tables.masking import masked

_FUNCTIONS = ("_call", "_function")  # where operators keep what the user wrote


class Stops:
    """`debugger`: one with streams of its own; None: on this terminal. `redact`: columns that are hidden in what is
    said of a row; the debugger itself shows all."""

    def __init__(self, debugger: pdb.Pdb | None = None, redact: Sequence[str] = ()) -> None:
        self._debugger = debugger or pdb.Pdb(nosigint=True, readrc=False)
        self._redact = redact
        self._quit = False
        self._set_quit, self._debugger.set_quit = self._debugger.set_quit, self._quits  # type: ignore[method-assign]

    def call(self, operator: Operator, coming: Coming, work: Callable[[], None]) -> None:
        """Call `work`, and stop at the first line of the user's function, or where there is none at its own. Raises
        `DebuggerQuit` when the user leaves the debugger, whatever the operator makes of it."""
        debugger = self._debugger
        debugger.message(f"row {coming.number}: {masked(coming.row, self._redact)}")
        debugger.message(f"state: {masked(coming.before, self._redact)}")
        code = code_of(operator)
        debugger.reset()
        if code is not None:
            debugger.clear_all_breaks()
            debugger.set_break(code.co_filename, code.co_firstlineno, funcname=code.co_name)
            debugger.rcLines = ["continue"]  # from our code to the user's
        try:
            debugger.runcall(work)
        finally:
            if self._quit:
                raise DebuggerQuit("the debugger was left") from None

    def _quits(self) -> None:
        self._quit = True
        self._set_quit()


def code_of(operator: Operator) -> CodeType | None:
    """Of the function that the user wrote for this operator."""
    for name in _FUNCTIONS:
        code = _code(getattr(operator, name, None))
        if code is not None:
            return code
    return None


def _code(function: Any) -> CodeType | None:
    """Also of a function inside one of ours, which guards it or retries."""
    for _ in range(10):
        code = getattr(function, "__code__", None)
        cells = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
        inner = [each for each in cells if callable(each)]
        if code is None or "barrier_runtime" not in str(getattr(function, "__module__", "")) or not inner:
            return code
        function = next((each for each in inner if hasattr(each, "__code__")), None)
    return None
