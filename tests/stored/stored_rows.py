"""The input rows of the job whose stored files are kept in this folder: two folders of JSON lines, always the same
rows.
"""

import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

FILES, ROWS, KEYS = 6, 80, 7
SCHEMA = {"k": int, "n": int, "x": float, "at": "timestamp[ms]"}
START = datetime(2026, 1, 1)


def row(source: str, file: int, number: int) -> dict[str, Any]:
    """A few rows are a little out of order; numbers repeat, so that some are duplicates."""
    n = file * ROWS + number
    late = 1_500 if n % 11 == 3 else 0
    at = START + timedelta(milliseconds=250 * n - late)
    return {
        "k": n % KEYS,
        "n": n - n % 3 if source == "watched" else n,
        "x": n / 4,
        "at": at.isoformat(timespec="milliseconds"),
    }


def rows(source: str) -> Iterator[dict[str, Any]]:
    for file in range(FILES):
        for number in range(ROWS):
            yield row(source, file, number)


def write_inputs(folder: Path) -> None:
    for source in ("fixed", "watched"):
        (folder / source).mkdir(parents=True)
        for file in range(FILES):
            lines = [json.dumps(row(source, file, number)) for number in range(ROWS)]
            (folder / source / f"part-{file:05d}.jsonl").write_text("\n".join(lines) + "\n")
