"""Checks of names from which paths, keys or messages are built."""

import re

from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.texts import shortened

_JOB_ID = re.compile(r"[a-z0-9-]{1,64}")
_OPERATOR_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


def check_job_id(job: str, what: str = "job name") -> str:
    """Raises `InvalidJob` unless `job` has 1 to 64 of `a-z 0-9 -`."""
    if not isinstance(job, str) or not _JOB_ID.fullmatch(job):
        raise InvalidJob(f"{what} {_short(job)} is not allowed: use 1 to 64 of the characters a-z, 0-9 and '-'")
    return job


def is_job_id(name: str) -> bool:
    return _JOB_ID.fullmatch(name) is not None


def check_operator_name(name: str) -> str:
    """Raises `InvalidJob` for an invalid name.

    Valid names have 1 to 64 letters, digits, `_ . -`, and start with a letter or digit.
    """
    if not isinstance(name, str) or not _OPERATOR_NAME.fullmatch(name):
        raise InvalidJob(
            f"operator name {_short(name)} is not allowed: use 1 to 64 letters, digits, '_', '.' or '-', "
            "starting with a letter or digit"
        )
    return name


def _short(value: object) -> str:
    return shortened(repr(value), 100)
