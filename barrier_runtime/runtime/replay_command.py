"""Command line of `barrier-runtime replay` for a failed row.

For failure reports and for rows on side outputs of errors. Pure.
"""

import datetime
import shlex
from collections.abc import Sequence
from typing import Any

import msgspec

NO_KEY = object()


def replay_command(
    begin: str, checkpoint: int, operator: str, columns: Sequence[str], key: Any, rows: tuple[str, int, int] | None
) -> str:
    """Command line that processes the rows again; "" if they cannot be replayed.

    `begin`: the launcher's part, with program and checkpoints; "" if the program cannot be replayed. `checkpoint`: the
    newest completed checkpoint; 0: none. `columns`: columns of `key`; `rows`: split, first and last row (from 0) of the
    batch, if the step is in one chain with the source.
    """
    if not begin:
        return ""
    words = [begin, f"--from {checkpoint} --operator {operator}"]
    if key is not NO_KEY and columns:
        values = key if isinstance(key, tuple) else (key,)
        if len(values) == len(columns):
            told = (f"{c} is null" if v is None else f"{c}={_text(v)}" for c, v in zip(columns, values, strict=True))
            words += [f"--key {shlex.quote(each)}" for each in told]
    elif key is NO_KEY and rows is not None:  # without a key: the row of a key may have been read long ago
        split, first, last = rows
        words.append(f"--row {shlex.quote(f'{split}:{first}' if first == last else f'{split}:{first}-{last}')}")
    return " ".join(words)


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, datetime.date):  # also datetime
        return value.isoformat()
    return msgspec.json.encode(value, enc_hook=str).decode()
