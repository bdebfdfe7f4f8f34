"""Users' exceptions as shown: own frames, operator, subtask, key and record.
Errors that this project raises on purpose pass unchanged.
"""

import difflib
import signal
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from barrier_runtime.data.rows import preview
from barrier_runtime.state.errors import BarrierRuntimeError, InvalidJob, UserCodeError, WrongUse
from barrier_runtime.state.outside_errors import text_of
from barrier_runtime.state.texts import counted, shortened

_OURS = (
    str(Path(__file__).resolve().parent.parent),
    "<frozen importlib.",
)
_NOTHING = object()
_REMEDY = "\n  Fix the function, or make it accept this record; then start the job again."


def user_error(
    error: Exception,
    *,
    function: str,
    operator: str,
    subtask: int,
    key: Any = _NOTHING,
    batch: pa.RecordBatch | None = None,
    row: int | None = None,
    remedy: str = _REMEDY,
) -> Exception:
    """Returns `error`, raised in `function` of `operator`, as the error to raise to the user.
    The message shows row `row` of `batch`, or the size of the batch. A wrong use of the API keeps the message and gains
    the place. Errors that the function did not cause (storage, fencing) are returned unchanged.
    """
    if isinstance(error, UserCodeError) or (
        isinstance(error, BarrierRuntimeError) and not isinstance(error, InvalidJob)
    ):
        return error
    if not_awaited := _not_awaited(error):
        error = InvalidJob(not_awaited)
    if wrong := isinstance(error, InvalidJob):
        message = f"{error}\n  in {function} of operator {operator!r}, subtask {subtask}"
    else:
        told = f"{type(error).__name__}: {said(error)}"
        message = f"{function} of operator {operator!r}, subtask {subtask}, raised {told}"
    if key is not _NOTHING:
        message += f"\n  key: {shortened(repr(key))}"
    if batch is not None and row is not None:
        message += f"\n  record: {preview(batch, row)}"
    elif batch is not None:
        message += f"\n  batch: {counted(batch.num_rows, 'row')} of {', '.join(batch.schema.names)}"
        if batch.num_rows:
            message += f"\n  its first record: {preview(batch, 0)}"
    found = WrongUse(message, _user_frames(error)) if wrong else UserCodeError(message + remedy, user_traceback(error))
    found.raised_in = operator
    if key is not _NOTHING:
        found.key = (key,)
    return found


def _not_awaited(error: Exception) -> str:
    """Message for a coroutine or async generator in place of rows; else ""."""
    if not isinstance(error, TypeError) or not str(error).startswith(
        ("'coroutine' object", "'async_generator' object")
    ):
        return ""
    frames = traceback.extract_tb(error.__traceback__)
    if frames and not frames[-1].filename.startswith(_OURS):
        return ""
    return (
        f"it gave {'a coroutine' if 'coroutine' in str(error) else 'an async generator'}, and nobody awaits it here: "
        'give rows; what asks another system belongs in lookup("name", function, key=…), which runs coroutines'
    )


def came_by_signal(error: BaseException) -> bool:
    """Returns whether the program's signal handler raised `error`."""
    handlers = {getattr(signal.getsignal(number), "__code__", None) for number in (signal.SIGTERM, signal.SIGINT)}
    return any(frame.f_code in handlers for frame, _ in traceback.walk_tb(error.__traceback__))


def stray_error(error: BaseException) -> UserCodeError:
    """Error for an exception that passes `except Exception`, such as a client's CancelledError."""
    return UserCodeError(
        f"a function raised {type(error).__name__}: {said(error)}, which is no Exception, so nobody knows at which "
        "record\n  Catch it in the function and raise an Exception; then start the job again.",
        user_traceback(error),
    )


def add_position(error: UserCodeError, position: str) -> None:
    _add(error, "position", position)


def add_replay(error: UserCodeError, command: str) -> None:
    _add(error, "to see it again", command)


def _add(error: UserCodeError, what: str, told: str) -> None:
    if told:
        message = str(error.args[0])
        body = message.removesuffix(_REMEDY)
        error.args = (f"{body}\n  {what}: {told}{message[len(body) :]}",)


class Hinting:
    """Base of objects given to users' functions, with hints for missing attributes."""

    __slots__ = ()

    def said_instead(self, name: str) -> str:
        """Hint for an attribute that does not exist."""
        raise NotImplementedError


def said(error: BaseException) -> str:
    """Message of a user's exception, even if its `__str__` raises."""
    if isinstance(error, AttributeError) and issubclass(type(error.obj), Hinting):
        asked: Any = error.obj
        return str(asked.said_instead(error.name))
    return text_of(error)


def user_traceback(error: BaseException) -> str:
    summary = traceback.TracebackException.from_exception(error)
    seen: traceback.TracebackException | None = summary
    for _ in range(100):
        if seen is None:
            break
        own = [frame for frame in seen.stack if not frame.filename.startswith(_OURS)]
        seen.stack = traceback.StackSummary.from_list(own)
        seen = seen.__cause__ or seen.__context__
    return "".join(summary.format())


def _user_frames(error: BaseException) -> str:
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(_OURS)]
    return "".join(["Traceback (most recent call last):\n", *traceback.format_list(frames)]) if frames else ""


def from_users_frame(error: BaseException) -> BaseException:
    """Starts the traceback of `error` at the first frame outside this package."""
    frame = error.__traceback__
    while frame is not None and frame.tb_frame.f_code.co_filename.startswith(_OURS):
        frame = frame.tb_next
    return error if frame is None else error.with_traceback(frame)


def open_function(target: Any, context: Any, failed: Callable[[Exception, Any], Exception]) -> None:
    function = getattr(target, "open", None)
    if callable(function):
        try:
            function(context)
        except Exception as error:
            raise failed(error, function) from error


def close_function(target: Any, failed: Callable[[Exception, Any], Exception]) -> None:
    function = getattr(target, "close", None)
    if callable(function):
        try:
            function()
        except Exception as error:
            raise failed(error, function) from error


def function_name(function: Any) -> str:
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    return f"{name}()"


_SIMPLE = (bool, int, float, str, bytes)
_ABSENT = object()


class WatchedAttributes:
    """Detects attributes of a user's object that change during processing.
    All keys share such attributes; restarts lose the values.
    """

    def __init__(self, target: Any, where: str) -> None:
        self._target = target
        self._where = where
        self._seen = _plain_attributes(target)
        self._warned = False

    def look(self) -> None:
        if self._warned:
            return
        now = _plain_attributes(self._target)
        changed = [name for name, seen in now.items() if self._seen.get(name, _ABSENT) != seen]
        if changed:
            self._warned = True
            warnings.warn(
                f"{self._where}: {changed[0]!r} of {type(self._target).__name__} changed while rows were processed, "
                "and is not state: all keys of a subtask share it, and no checkpoint has it. Make it a ValueState if "
                "it must last",
                stacklevel=3,
            )


def _plain_attributes(target: Any) -> dict[str, Any]:
    attributes = vars(target).items() if hasattr(target, "__dict__") else ()
    return {
        name: repr(value) if type(value) is float else value if type(value) in _SIMPLE else len(value)
        for name, value in attributes
        if type(value) in (*_SIMPLE, list, dict, set)
    }


KEYED = frozenset({"key", "state", "timers", "wall_timers"})  # absent in functions without key
_TIMERS = "timers of event time are ctx.timers: register(ms) and delete(ms)"
_WALL_TIMERS = "timers by the wall clock are ctx.wall_timers: after(timedelta(seconds=5)), register(ms) and delete(ms)"
_OUTPUT = "yield the row (or return it) for the main output; ctx.emit(name, row) is for side outputs"
_HINTS = {
    **dict.fromkeys(
        ("register_timer", "register_event_time_timer", "delete_timer", "delete_event_time_timer"), _TIMERS
    ),
    **dict.fromkeys(("timer_service", "set_timer", "registerTimer", "deleteTimer", "timer"), _TIMERS),
    **dict.fromkeys(("register_processing_time_timer", "delete_processing_time_timer", "after"), _WALL_TIMERS),
    **dict.fromkeys(("output", "collect", "out", "send"), _OUTPUT),
    **dict.fromkeys(("side_output", "side"), "ctx.emit(name, row) gives a row to a side output"),
    **dict.fromkeys(("current_key", "get_current_key"), "the key is ctx.key"),
    **dict.fromkeys(("current_watermark", "get_watermark"), "event time is ctx.watermark"),
    **dict.fromkeys(("get_state", "getValueState"), "states are attributes of the class, or ctx.state.<name>"),
    **dict.fromkeys(
        ("counter", "gauge", "histogram"),
        "metrics are ctx.metrics: counter(name).inc(), gauge(name).set(value) and histogram(name).record(value)",
    ),
}


class Context(Hinting):
    """Base of each `ctx`; `__slots__` lists all attributes.
    `said` adds a hint for a missing attribute: `__getattr__` would slow down all attributes.
    """

    __slots__ = ()

    def said_instead(self, name: str) -> str:
        return no_attribute(name, self.__slots__)


def no_attribute(name: str, known: Sequence[str]) -> str:
    meant = difflib.get_close_matches(name, known, 1)
    hint = _HINTS.get(name) or (f"is ctx.{meant[0]} meant?" if meant else f"it has {', '.join(sorted(known))}")
    return f"ctx has no {name!r}: {hint}"
