"""Outcome of a call for a user's program: a job's result, or an error without our frames.

`plain_errors` removes our frames, except from protocol violations and corrupt files; the logger `barrier_runtime` shows
them at level DEBUG. `__cause__` is the user's exception, if any, from the user's first frame on.
"""

import functools
import inspect
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Literal, Protocol, TypeVar

from barrier_runtime.coordinator.metric_table import ERROR_ROWS, SKIPPED_ROWS
from barrier_runtime.coordinator.status.health import ended_in_words
from barrier_runtime.coordinator.status.statistics import (
    late_rows,
    late_rows_in_words,
    repeated_in_words,
    rows_by_step,
)
from barrier_runtime.coordinator.status.status import JobStatus
from barrier_runtime.data.argument_types import WrongCall, meant_keyword, shown_parameters, wrong_arguments_of
from barrier_runtime.operators.user_code import from_users_frame
from barrier_runtime.state.errors import (
    BarrierRuntimeError,
    Corrupt,
    Fenced,
    InvalidJob,
    ProtocolViolation,
    UserCodeError,
    is_internal,
)
from barrier_runtime.state.texts import counted

_ENOUGH = 300


class JobFailed(BarrierRuntimeError):
    """The job ended in failure; the text ends with the remedy.

    If a function of the user raised, `__cause__` is that exception after `run_local`; on Spark the text begins with the
    traceback. `told` is the whole text.
    """

    def __init__(self, message: str, status: JobStatus | None = None, told: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.told = told or message


@dataclass(frozen=True, repr=False)
class JobResult:
    """`status` is the coordinator's last status."""

    status: JobStatus

    @property
    def records(self) -> int:
        """Rows that the sources have read, each replayed row once."""
        return self.status.records

    @property
    def late_rows(self) -> dict[str, int]:
        """Late rows that steps dropped, by the step's name. `late=True` keeps such rows."""
        return late_rows(self.status)

    @property
    def error_rows(self) -> dict[str, int]:
        """Rows whose function raised, given to the stream of errors (`on_error="side"`), by the step's name."""
        return rows_by_step(self.status, ERROR_ROWS)

    @property
    def skipped_rows(self) -> dict[str, int]:
        """Rows whose function raised, skipped (`on_error="skip"`), by the step's name.

        Of a source with `mode="at_most_once"`: rows passed over after failures.
        """
        return rows_by_step(self.status, SKIPPED_ROWS)

    @property
    def records_after_checkpoint(self) -> int | None:
        """Records read after the last completed checkpoint of this run, at least so many; None: unknown.

        The next run reads these records again, except with `mode="at_most_once"`.
        """
        return self.status.records_after_checkpoint

    def __str__(self) -> str:
        checkpoints = self.status.checkpoints
        last = (
            f", the last is {checkpoints.last_completed.checkpoint}" if checkpoints.last_completed is not None else ""
        )
        late = late_rows_in_words(self.status)
        skipped, errors = sum(self.skipped_rows.values()), sum(self.error_rows.values())
        lacking = f"{counted(skipped, 'row')} skipped, " if skipped else ""
        lacking += f"{counted(errors, 'error row')}, " if errors else ""
        repeated = repeated_in_words(self.status)
        again = "" if self.status.options.get("mode") == "at_most_once" else ": the next run reads them again"
        return (
            f"job {self.status.job} {ended_in_words(self.status.outcome or self.status.phase)}: "
            f"{counted(self.records, 'record')} read, {lacking}{counted(checkpoints.completed, 'checkpoint')} completed"
            f"{last}"
            f"{f'; {repeated}{again}' if repeated else ''}"
            f"{f'; {late} (late=True keeps such rows)' if late else ''}"
        )

    def __repr__(self) -> str:
        return f"<JobResult: {self}>"


class HasPage(Protocol):
    @property
    def url(self) -> str: ...

    def page_link(self, job: str) -> str: ...


def tell_page(client: HasPage, job: str) -> None:
    """Only a terminal gets a link that logs in, since its output is not stored."""
    address = f"{client.url.rstrip('/')}/jobs/{job}"
    if sys.stderr is not None and sys.stderr.isatty():
        # The job runs without a link as well: the daemon has no page, or is away.
        with suppress(BarrierRuntimeError):
            address = client.page_link(job)
    print(f"job {job}: page at {address}", file=sys.stderr)


@contextmanager
def interruption_told(job: str, goes_on: bool) -> Iterator[None]:
    """Ctrl-C shows the state of the job.

    `goes_on`: true if the next run continues from checkpoints.
    """
    try:
        yield
    except KeyboardInterrupt:
        then = "; the next run goes on from there" if goes_on else ""
        raise KeyboardInterrupt(f"job {job} was stopped; what its last checkpoint covers is committed{then}") from None


def how_to_stop(mode: str, drain: bool, savepoint: str | None = None) -> Literal["checkpoint", "drain", "now"]:
    if mode not in ("checkpoint", "now"):
        raise InvalidJob(
            f"stop: mode={mode!r}: use 'checkpoint' (after a last one) or 'now'; drain=True ends the sources first"
        )
    if savepoint is not None and mode == "now":
        raise InvalidJob('stop("now") takes no last checkpoint, so there can be no savepoint: use "checkpoint"')
    if drain and mode == "now":
        raise InvalidJob('stop("now") does not wait for what draining emits: use "checkpoint"')
    return "drain" if drain else "now" if mode == "now" else "checkpoint"


def raise_unless_ended_well(status: JobStatus, troubles: Sequence[BaseException] = ()) -> None:
    """Raises `Fenced` if another run took over the job, and `JobFailed` if the job failed.
    `troubles`: errors that slots of this process raised.
    """
    if status.outcome in ("fenced", "replaced"):
        raise Fenced(status.error or status.reason)
    if status.outcome not in ("finished", "cancelled"):
        told = status.error or status.reason or f"job {status.job} ended as {status.outcome}"
        for trouble in troubles:
            if trouble.__cause__ is not None and str(trouble)[:_ENOUGH] in told and not is_internal(trouble):
                message = str(trouble.args[0]) if isinstance(trouble, UserCodeError) else told
                raise JobFailed(message, status, told) from from_users_frame(trouble.__cause__)
        raise JobFailed(told, status)


log = logging.getLogger("barrier_runtime")

C = TypeVar("C", bound=type)
F = TypeVar("F", bound=Callable[..., Any])


def plain_errors(cls: C) -> C:
    """Removes our frames from errors, and checks types of arguments."""
    for name, method in list(vars(cls).items()):
        if isinstance(method, FunctionType) and (name == "__init__" or not name.startswith("_")):
            setattr(cls, name, plainly(method))
    return cls


def plainly(method: F) -> F:
    wrong_argument = wrong_arguments_of(method)

    @functools.wraps(method)
    def called(*arguments: Any, **keywords: Any) -> Any:
        try:
            told = wrong_argument(arguments, keywords)
            if told:
                hint = f": {_name_first(method)}" if told.startswith("name=") else ""
                raise WrongCall(f"{_called(method, arguments)}: {told}{hint}")
            return method(*arguments, **keywords)
        except (Corrupt, ProtocolViolation):
            raise
        except BarrierRuntimeError as error:
            log.debug("%s raised %s", method.__qualname__, type(error).__name__, exc_info=True)
            raise error.with_traceback(None) from (None if is_internal(error) else error.__cause__)
        except KeyboardInterrupt as interrupted:
            if not interrupted.args:  # nothing ran when the signal came
                raise
            raise interrupted.with_traceback(None) from None
        except TypeError:
            wrong = _wrong_call(method, arguments, keywords)
            if wrong is None:
                raise
            raise wrong from None

    return called  # type: ignore[return-value]


def _wrong_call(method: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> WrongCall | None:
    """Returns None if the arguments fit: the method itself raised the TypeError."""
    signature = inspect.signature(method)
    try:
        signature.bind(*arguments, **keywords)
    except TypeError as error:
        _, *takes = signature.parameters.values()
        named = bool(takes) and takes[0].name == "name" and takes[0].default is inspect.Parameter.empty
        nameless = named and not isinstance(keywords.get("name", arguments[1] if len(arguments) > 1 else None), str)
        remedy = (
            _name_first(method)
            if nameless or method.__name__ == "__init__"
            else f"it takes {shown_parameters(signature)}"
        )
        return WrongCall(f"{_called(method, arguments)}: {error}{meant_keyword(error, signature)}: {remedy}")
    return None


def _name_first(method: Callable[..., Any]) -> str:
    owner, _, name = method.__qualname__.rpartition(".")
    if name == "__init__":
        return f"the only argument without a name is the job's name, a string, as in {owner}('some-name')"
    return f"the first argument is the step's name, a string, as in {method.__name__}('some-name', …)"


def _called(method: Callable[..., Any], arguments: tuple[Any, ...]) -> str:
    owner, _, _ = method.__qualname__.rpartition(".")
    if arguments and not isinstance(arguments[0], type):
        owner = type(arguments[0]).__name__
    return owner if method.__name__ == "__init__" else f"{owner}.{method.__name__}"
