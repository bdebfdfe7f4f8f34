"""The commands about state as tables: `state tables`, `state show` and `state export`."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state_tables.stored_state import StoredState, open_checkpoint


def tables(url: str, job: str, checkpoint: int | None) -> str:
    """A line per state."""
    with open_checkpoint(url, job, checkpoint) as stored:
        rows = [("operator", "state", "kind", "key", "values")]
        rows += [(each.operator, each.state, each.kind, each.key or "-", each.type or "-") for each in stored.tables()]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def show(url: str, job: str, checkpoint: int | None, state: str, where: Sequence[str], limit: int) -> str:
    """Up to `limit` entries, each as a line of JSON."""
    lines: list[str] = []
    with open_checkpoint(url, job, checkpoint) as stored:
        operator, name = _named(state)
        for batch in stored.table(operator, name, _conditions(stored, where)):
            for row in batch.slice(0, limit - len(lines)).to_pylist():
                lines.append(json.dumps(row, default=_plain, ensure_ascii=False))
            if len(lines) >= limit:
                break
    return "\n".join(lines)


def export(url: str, job: str, checkpoint: int | None, state: str, to: Path) -> str:
    """All entries as one Parquet file, in bounded memory."""
    if to.exists():
        raise InvalidJob(f"{to} exists already: choose another file")
    with open_checkpoint(url, job, checkpoint) as stored:
        operator, name = _named(state)
        reader, rows = stored.table(operator, name), 0
        with pq.ParquetWriter(to, reader.schema) as writer:
            for batch in reader:
                writer.write_batch(batch)
                rows += batch.num_rows
    return f"{to}: {rows:,} rows"


def _named(state: str) -> tuple[str, str]:
    operator, dot, name = state.partition(".")
    if not dot or not name:
        raise InvalidJob(f"{state!r} names no state: write it as operator.state; `state tables` lists them")
    return operator, name


def _conditions(stored: StoredState, where: Sequence[str]) -> dict[str, Any]:
    """`column=value` each; values are read as JSON where they are some, else as text."""
    found: dict[str, Any] = {}
    for each in where:
        column, equals, text = each.partition("=")
        if not equals:
            raise InvalidJob(f"--key {each!r} is no condition: write it as column=value")
        kinds = {kind for info in stored.tables() for kind in info.key.split(", ") if kind.startswith(f"{column}: ")}
        if any(kind.endswith(": string") for kind in kinds):
            found[column] = text
            continue
        try:
            found[column] = json.loads(text)
        except json.JSONDecodeError:
            found[column] = text
    return found


def _plain(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)
