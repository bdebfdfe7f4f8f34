"""Sorts exceptions of outside libraries: a person must fix the cause, or the call is retried.

Connectors translate known errors themselves; `told` decides about all others.
"""

import errno
import re
import socket
import ssl
import struct

import msgspec
import pyarrow as pa

from barrier_runtime.state.errors import NOT_ALLOWED, PERMANENT, WRONG_PATH, BarrierRuntimeError, InvalidJob
from barrier_runtime.state.texts import shortened

_UNSUPPORTED = frozenset({errno.EINVAL, errno.EFBIG, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV})
_MENDED = NOT_ALLOWED | WRONG_PATH | _UNSUPPORTED
_MAY_PASS = (MemoryError, EOFError, pa.ArrowCancelled)
_COMES_AGAIN = (  # raised again with the same rows
    *(ValueError, TypeError, LookupError, ArithmeticError, AttributeError, NameError, NotImplementedError),
    *(RecursionError, pa.ArrowException, msgspec.MsgspecError, struct.error),
)
_NUMBER = re.compile(r"(?:os error |\[errno |winerror )(\d+)", re.IGNORECASE)
# Object stores behind pyarrow and delta-rs raise an OSError whose text alone identifies the error.
_REFUSED = re.compile(
    r"access.?denied|invalid.?access.?key|signature.?does.?not.?match|no.?such.?bucket|bucket.?not.?found"
    r"|\b(?:401|403)\b.{0,20}(?:unauthorized|forbidden)|permission.?denied|unauthenticated|container.?not.?found"
    r"|certificate.?verify.?failed",
    re.IGNORECASE,
)
_LONGEST = 600


def must_be_mended(error: BaseException) -> bool:
    if isinstance(error, BarrierRuntimeError):
        return isinstance(error, PERMANENT)
    if isinstance(error, ImportError | ssl.SSLCertVerificationError):
        return True
    if isinstance(error, ssl.SSLError | socket.herror | socket.gaierror):  # their errno has another meaning
        return says_refused(error.strerror or str(error))
    if isinstance(error, OSError):
        return says_refused(str(error)) if error.errno is None else error.errno in _MENDED
    return isinstance(error, _COMES_AGAIN) and not isinstance(error, _MAY_PASS)


def says_refused(text: str) -> bool:
    """True if a person must fix rights, bucket or path. The text may lack a number."""
    number = _number_in(text)
    return _REFUSED.search(text) is not None if number is None else number in _MENDED


def told(error: BaseException, where: str, remedy: str) -> BarrierRuntimeError:
    """Returns an `InvalidJob` if a person must act, else a retryable error.

    Own errors stay unchanged. `where` names the connector and the place. `remedy`: a sentence without full stop, unless
    the error itself has a remedy.
    """
    if isinstance(error, BarrierRuntimeError):
        return error
    if must_be_mended(error):
        return InvalidJob(f"{where}: {described(error)}. {_remedy(error) or remedy}; then start the job again")
    return BarrierRuntimeError(f"{where}: {type(error).__name__}: {error}")


def of_operator(error: BaseException, operator: str, subtask: object = None) -> BaseException:
    """An `InvalidJob` names the operator; a retryable error is returned unchanged."""
    if not must_be_mended(error):
        return error
    where = f"operator {operator!r}" if subtask is None else f"operator {operator!r}, subtask {subtask}"
    return told(error, where, "Correct the rows that come to this step, or what the step does with them")


def text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as failure:
        return f"(its message cannot be told: {type(failure).__name__})"


def described(error: BaseException) -> str:
    text = " ".join(text_of(error).split())
    if isinstance(error, KeyError):
        text = f"nothing is known by the name {text}"
    text = shortened(text, _LONGEST)
    return f"{text} ({type(error).__name__})" if text else type(error).__name__


def _number_in(text: str) -> int | None:
    found = _NUMBER.search(text)
    return int(found.group(1)) if found else None


def _remedy(error: BaseException) -> str:
    """Remedy that fits any rows; empty: the connector knows a better remedy."""
    if isinstance(error, ImportError):
        return "Install the missing package on every machine that runs the job"
    if isinstance(error, ssl.SSLCertVerificationError):
        return "Give the client the certificate of the authority that signed the server's"
    if not isinstance(error, OSError):
        return ""
    number = _number_in(str(error)) if error.errno is None else error.errno
    if number == errno.ENAMETOOLONG:
        return "Shorten what the name is made of (values of partition columns, names of job and sink, folders)"
    if number in WRONG_PATH:
        return "Correct the path: a file is where a folder is wanted, or a folder where a file is"
    if number is None or number in NOT_ALLOWED:
        return "Give this process the right to read and write there, or use another place"
    return ""
