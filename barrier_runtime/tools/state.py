"""Output of the commands `state …`."""

import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.texts import counted
from barrier_runtime.state_tables.arrow_columns import masked
from barrier_runtime.state_tables.differences import diff
from barrier_runtime.state_tables.stored_state import StateTableInfo, StoredState, open_checkpoint
from barrier_runtime.state_tables.wanted_keys import condition, free_name, key_types


def tables(url: str, job: str, checkpoint: int | None) -> str:
    with open_checkpoint(url, job, checkpoint) as stored:
        rows = [("operator", "state", "kind", "key", "values")]
        rows += [(each.operator, each.state, each.kind, each.key or "-", each.type or "-") for each in stored.tables()]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def show(
    url: str,
    job: str,
    checkpoint: int | None,
    state: str,
    where: Sequence[str],
    limit: int,
    redact: Sequence[str] = (),
) -> tuple[str, str]:
    """Up to `limit` entries as lines of JSON, and the checkpoint with its age. `redact`: columns to hide."""
    lines: list[str] = []
    with open_checkpoint(url, job, checkpoint) as stored:
        operator, name = _named(state)
        of = f"{stored!r}".strip("<>").partition(": ")[2] + f", {stored.age_s:.1f} s old"
        for batch in stored.table(operator, name, _conditions(stored, operator, name, where)):
            for row in _rows(batch.slice(0, limit - len(lines))):
                lines.append(json.dumps(masked(row, redact), default=_plain, ensure_ascii=False))
            if len(lines) >= limit:
                break
    return "\n".join(lines), of


def count(url: str, job: str, checkpoint: int | None, state: str, where: Sequence[str]) -> int:
    with open_checkpoint(url, job, checkpoint) as stored:
        operator, name = _named(state)
        return stored.count(operator, name, _conditions(stored, operator, name, where))


_TOLD = ("state", "change", "beside", "before", "after")
Side = tuple[str, str, int | None]  # URL, job, number of the checkpoint


def differences(before: Side, after: Side, state: str, limit: int, redact: Sequence[str]) -> Iterator[str]:
    """Line of JSON for each of the first `limit` differing entries, then a line of counts.

    `state`: operator, or operator.state; empty: all. A key column with the name of another field gets the suffix `_`.
    """
    counts: Counter[str] = Counter()
    with open_checkpoint(*before) as one, open_checkpoint(*after) as other:
        operator, name = _known(state, [*one.tables(), *other.tables()]) if state else ("", "")
        for found in diff(one, other, operator, name):
            counts[found.change] += 1
            if sum(counts.values()) <= limit:
                shown = found.redacted(redact)
                key = {free_name(name, _TOLD): value for name, value in shown.key.items()}
                told = {"state": f"{found.operator}.{found.state}", "change": found.change, **masked(key, redact)}
                if shown.beside is not None:
                    told["beside"] = shown.beside
                told.update(before=shown.before, after=shown.after)
                yield json.dumps(told, default=_plain, ensure_ascii=False)
    yield ", ".join(f"{counts[change]:,} {change}" for change in ("inserted", "changed", "deleted"))


def export(url: str, job: str, checkpoint: int | None, state: str, to: Path) -> str:
    import pyarrow.parquet as pq  # other commands start a tenth of a second faster

    if to.exists():
        raise InvalidJob(f"{to} exists already: choose another file")
    with open_checkpoint(url, job, checkpoint) as stored:
        operator, name = _named(state)
        reader, rows = stored.table(operator, name), 0
        beside = to.with_name(f".{to.name}.{os.getpid()}")
        try:
            file = beside.open("wb")
        except OSError as error:
            raise InvalidJob(f"{to} cannot be written: {error.strerror}: choose another file") from error
        try:
            with file, pq.ParquetWriter(file, reader.schema) as writer:
                for batch in reader:
                    writer.write_batch(batch)
                    rows += batch.num_rows
            beside.replace(to)
        finally:
            beside.unlink(missing_ok=True)
    return f"{to}: {counted(rows, 'row')}"


def _rows(batch: Any) -> list[dict[str, Any]]:
    try:
        return batch.to_pylist()  # type: ignore[no-any-return]
    except (OverflowError, ValueError):  # timers beyond Python's datetime
        columns = [[_told(each) for each in column] for column in batch.columns]
        return [dict(zip(batch.schema.names, row, strict=True)) for row in zip(*columns, strict=True)]


def _told(value: Any) -> Any:
    try:
        return value.as_py()
    except (OverflowError, ValueError):
        return value.value


def _known(state: str, tables: Sequence[StateTableInfo]) -> tuple[str, str]:
    operator, _, name = state.rpartition(".")
    if any(each.operator == state for each in tables):
        return state, ""
    if not any((each.operator, each.state) == (operator, name) for each in tables):
        there = ", ".join(sorted({f"{each.operator}.{each.state}" for each in tables}))
        raise InvalidJob(f"neither of the two has a step or state {state!r}; they have: {there}")
    return operator, name


def _named(state: str) -> tuple[str, str]:
    operator, _, name = state.rpartition(".")
    if not operator or not name:
        raise InvalidJob(f"{state!r} names no state: write it as operator.state; `state tables` lists them")
    return operator, name


def _conditions(stored: StoredState, operator: str, state: str, where: Sequence[str]) -> dict[str, Any]:
    told = (info.key for info in stored.tables() if (info.operator, info.state) == (operator, state))
    types = key_types(next(told, ""))
    found: dict[str, Any] = {}
    for each in where:
        one = condition(each, types)
        if one is None:
            raise InvalidJob(f"--key {each!r} is not a condition: write it as column=value, or as 'column is null'")
        found[one[0]] = one[1]
    return found


def _plain(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)
