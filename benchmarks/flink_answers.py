"""Flink's answer to a workload over Parquet files: the sum of its changes, without retracted rows.

Flink writes a line of JSON per change (`engines/java/flink/AnswerSink.java`), in as many files as there are subtasks.
Changes of a row can be in several files and in any order; the answer has each row as often as the sum of the row's
changes.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.runner import run
from benchmarks.spec import RunSpec
from benchmarks.workloads import Workload


class AnswerFailed(RuntimeError):
    """Flink did not finish, or the changes do not add up. The message has Flink's last log lines."""


def flink_rows(known: Workload, spec: RunSpec) -> list[dict[str, Any]]:
    """`spec`: a spec of Flink with input; the spec's folder is emptied. Raises `AnswerFailed`."""
    result = run(spec, None)
    if result.error is not None:
        raise AnswerFailed(f"{known.name} in Flink: {result.error}")
    folder = Path(spec.folder)
    columns = folder.joinpath("answer-columns.txt").read_text().split("\n")
    changes = itertools.chain.from_iterable(_changes(file) for file in folder.glob("answer-*.jsonl"))
    left = newest(changes, [columns.index(name) for name in known.flink_key]) if known.flink_key else remaining(changes)
    rows = [dict(zip(columns, row, strict=True)) for row in left]
    return as_lists(rows, known.group, *known.listed) if known.listed else rows


def _changes(file: Path) -> Iterator[list[Any]]:
    with file.open("rb") as lines:
        yield from map(msgspec.json.Decoder(list[Any]).decode, lines)


def remaining(changes: Iterable[list[Any]]) -> Iterable[tuple[Any, ...]]:
    """Rows that remain of changes (+1 or -1, then the fields), each as often as the sum of the row's changes.

    Raises `AnswerFailed` if a retracted row never came."""
    counts: Counter[tuple[Any, ...]] = Counter()
    for sign, *row in changes:
        counts[tuple(row)] += sign
    less = next((row for row, count in counts.items() if count < 0), None)
    if less is not None:
        raise AnswerFailed(f"Flink took back a row more often than it gave it: {less}")
    return counts.elements()


def newest(changes: Iterable[list[Any]], key: Sequence[int]) -> Iterable[tuple[Any, ...]]:
    """Last row of each key (`key`: indices of fields), if rows are replaced without retractions.

    All changes of a key are in the same file."""
    rows: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    for sign, *row in changes:
        of = tuple(row[index] for index in key)
        if sign > 0:
            rows[of] = tuple(row)
        else:
            rows.pop(of, None)
    return rows.values()


def as_lists(rows: Sequence[Mapping[str, Any]], group: Sequence[str], ours: str, flink: str) -> list[dict[str, Any]]:
    """A row per `group`; the list `ours` has the values of the column `flink`, the greatest first."""
    lists: dict[tuple[Any, ...], list[Any]] = defaultdict(list)
    for row in rows:
        lists[tuple(row[name] for name in group)].append(row[flink])
    return [{**dict(zip(group, key, strict=True)), ours: sorted(found, reverse=True)} for key, found in lists.items()]
