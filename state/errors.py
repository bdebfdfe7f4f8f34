"""The five kinds of error of this project, told apart by what the caller does next.

A new kind is added only when a caller would *act* differently. Every message names the job, checkpoint, subtask or
object concerned and ends with what to do.
"""

import errno
from typing import Any

import msgspec


class BarrierRuntimeError(Exception):
    """Base of every error this project raises on purpose."""


class Unavailable(BarrierRuntimeError):
    """Retry: the outside world did not answer, and nothing is known to be wrong with the job."""


class Fenced(BarrierRuntimeError):
    """Stop: a newer generation owns the job. No sink call and no delete may follow."""


class InvalidJob(BarrierRuntimeError):
    """Fix the job: a wrong argument, graph, schema, file or setting. The message says which and how."""


class Corrupt(BarrierRuntimeError):
    """Call a person: stored bytes are not what was written. The message names the object and both hashes."""


class ProtocolViolation(BarrierRuntimeError):
    """File a bug: a law of the protocol was broken. The message carries the recent history."""


# What msgspec raises for bytes that are not what they should be: also text that is no UTF-8, and endless nesting.
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

PERMANENT = (InvalidJob, Corrupt, ProtocolViolation, Fenced)  # a repetition would meet the same: do not retry

# Numbers of an OSError that a person must mend: rights, and paths that cannot be what the call needs.
NOT_ALLOWED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
WRONG_PATH = frozenset({errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP})


class UserCodeError(InvalidJob):
    """A user's function raised. `user_traceback` is shown first; then operator, subtask, key, position, record."""

    def __init__(self, message: str, user_traceback: str = "") -> None:
        super().__init__(message)
        self.user_traceback = user_traceback
        self.raised_in = ""  # the operator; where the row was processed, and no further
        self.key: tuple[Any, ...] = ()  # that of the row, alone in a tuple; empty: it has none

    def __str__(self) -> str:
        message = str(self.args[0])
        return f"{self.user_traceback.rstrip()}\n{message}" if self.user_traceback else message

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        return (type(self), (str(self.args[0]), self.user_traceback))


class WrongUse(UserCodeError):
    """A user's function asked this package for what it refuses, as an undeclared side output or state without a key.
    The message begins with the thing and the remedy; then operator, subtask, key, position, record."""


def is_internal(error: BaseException) -> bool:
    """Whether `error.__cause__` says nothing to users: a call of ours or of a library, which the message stands for."""
    return isinstance(error, InvalidJob) and not isinstance(error, UserCodeError)


def missing_extra(who: str, extra: str, error: ImportError) -> InvalidJob:
    """Raise it `from None`: the text has the import's own reason; its traceback would stand before the remedy."""
    return InvalidJob(
        f"{who} needs a package that is not installed ({error}): pip install 'barrier-runtime[{extra}]', on every "
        "machine that runs the job"
    )
