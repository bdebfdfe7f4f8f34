"""Checks of outputs that users declare besides the main output: `side=`, `on_error=`, branches of a split."""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from barrier_runtime.data.schemas import SchemaLike, as_schema
from barrier_runtime.operators.outputs.failures import ERROR_SCHEMA, ERRORS, OnError
from barrier_runtime.operators.retry import Retry, check_pauses
from barrier_runtime.state.errors import InvalidJob

MAIN = "main"  # name of the output that is no side output


def side_schemas(side: Mapping[str, SchemaLike] | None, on_error: OnError | Retry, where: str) -> dict[str, pa.Schema]:
    """Returns the side outputs of a step by name, in the order of its streams: declared ones, then errors."""
    found: dict[str, pa.Schema] = {}
    if side is not None:
        if not isinstance(side, Mapping) or not side:
            raise InvalidJob(f'{where}: side={side!r}: give a schema by name, as in side={{"late": {{"at": int}}}}')
        for name, schema in side.items():
            _check_name(name, f"{where}: side output")
            if name == MAIN:
                raise InvalidJob(f"{where}: {MAIN!r} is the name of the main output: give the side output another name")
            if schema is None:
                raise InvalidJob(
                    f"{where}: side output {name!r} has no schema, and the rows of its first batch may be far away: "
                    f'say its columns, as in side={{{name!r}: {{"at": int}}}}'
                )
            found[name] = as_schema(schema, f"side output {name!r} of {where}")
    if isinstance(on_error, Retry):
        check_pauses(on_error, where)
        return found
    if on_error not in ("fail", "skip", "side"):
        raise InvalidJob(f'{where}: on_error={on_error!r}: use "fail", "skip", "side" or a Retry, such as Retry(3)')
    if on_error == "side":
        if ERRORS in found:
            raise InvalidJob(
                f'{where}: the side output {ERRORS!r} is that of on_error="side": choose another name for yours'
            )
        found[ERRORS] = ERROR_SCHEMA
    return found


def branch_names(into: Sequence[str], where: str) -> tuple[str, ...]:
    if isinstance(into, str) or not isinstance(into, Sequence) or len(into) < 2:
        raise InvalidJob(f'{where}: into={into!r}: name two branches or more, as in into=("big", "small")')
    for name in into:
        _check_name(name, f"{where}: branch")
        if into.count(name) > 1:
            raise InvalidJob(f"{where}: branch {name!r} is named twice: name each once")
    return tuple(into)


def _check_name(name: Any, what: str) -> None:
    if not isinstance(name, str) or not name.strip():
        raise InvalidJob(f"{what} {name!r} has no name: use a text that is not empty")
