"""Conversion of sources' exceptions to the project's errors, which name the source, class and split."""

import contextlib
from collections.abc import Iterator
from typing import NoReturn

from barrier_runtime.connectors.source import Source
from barrier_runtime.graph.job_graph import SourceSpec
from barrier_runtime.operators.user_code import user_traceback
from barrier_runtime.state.errors import UserCodeError
from barrier_runtime.state.outside_errors import must_be_mended, told

_REMEDY = "Correct what is read there, or the source's arguments (schema=, format, credentials)"
_WITH_USERS_FUNCTIONS = (
    "barrier_runtime.connectors.memory.iterator",
    "barrier_runtime.connectors.memory.poll",
)


def runs_users_code(source: Source) -> bool:
    """Returns whether readers are users' classes, or may call functions of users on the loop for each row or batch.

    Kafka's deserialisers run in the fetching thread.
    """
    module = type(source).__module__
    return not module.startswith("barrier_runtime.connectors.") or module in _WITH_USERS_FUNCTIONS


def of_source(error: BaseException, spec: SourceSpec, subtask: int, split: str = "", rows: int = 0) -> BaseException:
    """Converts `error`, raised after `rows` rows of `split`; retryable errors are returned unchanged.

    For a user's source class the error shows the user's own frames.
    """
    if isinstance(error, UserCodeError) or not must_be_mended(error):
        return error
    kind = type(spec.source)
    place = f", split {split!r}, after row {rows}" if split else ""
    found = told(error, f"source {spec.name!r} ({kind.__name__}), subtask {subtask}{place}", _REMEDY)
    if found is error or kind.__module__.startswith("barrier_runtime."):
        return found
    return UserCodeError(str(found), user_traceback(error))


def raise_named(error: BaseException, spec: SourceSpec, subtask: int, split: str = "", rows: int = 0) -> NoReturn:
    found = of_source(error, spec, subtask, split, rows)
    if found is error:
        raise error
    raise found from error


@contextlib.contextmanager
def naming_source(spec: SourceSpec, subtask: int) -> Iterator[None]:
    """Converts exceptions during the opening of a source."""
    try:
        yield
    except Exception as error:
        raise_named(error, spec, subtask)
