"""The five kinds of error of this project, distinguished by the caller's next action.

Every message names the job, checkpoint, subtask or object concerned and ends with the remedy.
"""

import errno
from typing import Any

import msgspec


class BarrierRuntimeError(Exception):
    """Base of every error that this project raises on purpose."""


class Unavailable(BarrierRuntimeError):
    """Retry: the outside world did not answer, and no fault of the job is known."""


class Fenced(BarrierRuntimeError):
    """Stop: a newer generation owns the job. No sink call and no delete may follow."""


class InvalidJob(BarrierRuntimeError):
    """Fix the job: a wrong argument, graph, schema, file or setting."""


class Corrupt(BarrierRuntimeError):
    """Call a person: stored bytes differ from the written bytes."""


class ProtocolViolation(BarrierRuntimeError):
    """File a bug: a law of the protocol was broken."""


# Errors of msgspec for unreadable bytes, text that is not UTF-8, and endless nesting.
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

PERMANENT = (InvalidJob, Corrupt, ProtocolViolation, Fenced)  # a retry would fail again

# OSErrors that need a person: rights, and paths of the wrong kind.
NOT_ALLOWED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
WRONG_PATH = frozenset({errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP})


class UserCodeError(InvalidJob):
    """A user's function raised. The text has `user_traceback`, then operator, subtask, key, position, record."""

    def __init__(self, message: str, user_traceback: str = "") -> None:
        super().__init__(message)
        self.user_traceback = user_traceback
        self.raised_in = ""  # name of the operator that processed the row
        self.key: tuple[Any, ...] = ()  # of the row, alone in a tuple; empty: no key

    def __str__(self) -> str:
        message = str(self.args[0])
        return f"{self.user_traceback.rstrip()}\n{message}" if self.user_traceback else message

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        return (type(self), (str(self.args[0]), self.user_traceback))


class WrongUse(UserCodeError):
    """A user's function made a call that this package refuses."""


def is_internal(error: BaseException) -> bool:
    """True if `error.__cause__` is useless to users."""
    return isinstance(error, InvalidJob) and not isinstance(error, UserCodeError)


def missing_extra(who: str, extra: str, error: ImportError) -> InvalidJob:
    """Raise `from None`: the import's traceback would hide the remedy."""
    return InvalidJob(
        f"{who} needs a package that is not installed ({error}): pip install 'barrier-runtime[{extra}]', on every "
        "machine that runs the job"
    )
