"""Errors of sources and sinks with their place, and the command to replay a row."""

import contextlib
import datetime
import shlex
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn, TypeVar

import msgspec
import pyarrow as pa

from barrier_runtime.connectors.sink import TwoPhaseCommitSink
from barrier_runtime.connectors.source import Source
from barrier_runtime.graph.job_graph import SourceSpec
from barrier_runtime.operators.user_code import user_traceback
from barrier_runtime.state.errors import BarrierRuntimeError, InvalidJob, UserCodeError
from barrier_runtime.state.outside_errors import must_be_mended, told
from barrier_runtime.state.texts import both_ends

_MAX_TEXT = 100_000  # characters
_REMEDY = "Correct what is read there, or the source's arguments (schema=, format, credentials)"
_WITH_USERS_FUNCTIONS = (
    "barrier_runtime.connectors.memory.callable",
    "barrier_runtime.connectors.memory.iterator",
    "barrier_runtime.connectors.memory.poll",
)


def runs_users_code(connector: Source | TwoPhaseCommitSink) -> bool:
    """True if readers, or the sink's `write`, may call users' code on the loop."""
    module = type(connector).__module__
    return not module.startswith("barrier_runtime.connectors.") or module in _WITH_USERS_FUNCTIONS


def of_source(error: BaseException, spec: SourceSpec, subtask: int, split: str = "", rows: int = 0) -> BaseException:
    """Converts `error`, raised after `rows` rows of `split`, unless retryable."""
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
    try:
        yield
    except Exception as error:
        raise_named(error, spec, subtask)


T = TypeVar("T")

OPENING = "its target cannot be opened"
STAGING = "rows cannot be staged"
COMMITTING = "decided rows cannot be committed"
_ROWS = "Correct or filter the rows before the sink, convert the column, or correct the sink's arguments"
_TARGET = "Correct the target or the sink's arguments"


class SinkTrouble:
    def __init__(self, sink: TwoPhaseCommitSink, name: str, subtask: int) -> None:
        kind = type(sink)
        self._ours = kind.__module__.startswith("barrier_runtime.")
        self._where = f"sink {name!r} ({kind.__name__}), subtask {subtask}"

    def of(self, error: BaseException, doing: str) -> BarrierRuntimeError:
        if isinstance(error, BarrierRuntimeError):
            return error
        found = told(error, f"{self._where}: {doing}", _TARGET if doing == OPENING else _ROWS)
        if isinstance(found, InvalidJob) and not self._ours:
            return UserCodeError(str(found), user_traceback(error))
        return found

    def of_write(self, error: BaseException, schema: pa.Schema) -> BarrierRuntimeError:
        if isinstance(error, BarrierRuntimeError):
            return error
        if not must_be_mended(error):
            return told(error, self._where, _ROWS)
        columns = ", ".join(f"{field.name}: {field.type}" for field in schema)
        return self.of(error, f"rows with the columns {columns} cannot be written")

    def around(self, doing: str, call: Callable[[], T]) -> T:
        try:
            return call()
        except Exception as error:
            self.raise_named(error, doing)

    def raise_named(self, error: Exception, doing: str) -> NoReturn:
        found = self.of(error, doing)
        if found is error:
            raise error
        raise found from error

    def commit_failed(self, error: BaseException) -> str:
        found = self.of(error, COMMITTING) if must_be_mended(error) else error
        if not isinstance(found, InvalidJob):
            return f"{type(found).__name__}: {found}"
        return f"{found}. The decided rows are kept, and are committed as soon as the cause is mended"


NO_KEY = object()


def replay_command(
    begin: str, checkpoint: int, operator: str, columns: Sequence[str], key: Any, rows: tuple[str, int, int] | None
) -> str:
    """Command `barrier-runtime replay` for the rows; "" if impossible.

    `begin`: the launcher's part. `checkpoint`: newest completed; 0: none. `rows`: split, first and last row (from 0) of
    the batch, if the step is in the source's chain.
    """
    if not begin:
        return ""
    words = [begin, f"--from {checkpoint} --operator {operator}"]
    if key is not NO_KEY and columns:
        values = key if isinstance(key, tuple) else (key,)
        if len(values) == len(columns):
            told = (f"{c} is null" if v is None else f"{c}={_text(v)}" for c, v in zip(columns, values, strict=True))
            words += [f"--key {shlex.quote(each)}" for each in told]
    elif key is NO_KEY and rows is not None:  # the row of a key may have been read long ago
        split, first, last = rows
        words.append(f"--row {shlex.quote(f'{split}:{first}' if first == last else f'{split}:{first}-{last}')}")
    return " ".join(words)


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, datetime.date):
        return value.isoformat()
    return msgspec.json.encode(value, enc_hook=str).decode()


def shortened(text: str) -> str:
    text = encodable(text)
    return text if len(text) <= _MAX_TEXT else both_ends(text, text, len(text), _MAX_TEXT)


def encodable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
