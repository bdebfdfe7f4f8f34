"""What the tables that judge the judges are made of: a history, and the verdict on it.

A history is told to all judges of its kind of job at once. A row of a table names the judge whose rule the history
breaks and what this judge says, so one that is deaf and one that accuses the innocent both fail.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import pytest
from events import EventTimes

Reports = list[tuple[str, str]]  # (judge, what is wrong)

IN_ORDER = EventTimes(
    splits=2,
    count=24,
    start_ms=1_000_000,
    period_ms=100,
    bounded=True,
    window_ms=400,
    bound_ms=0,
    disorder_ms=0,
    idle_ms=None,
    pause_at=None,
    pause_ms=0,
    gap_ms=250,
    within_ms=None,
    text_keys=False,
)


class History(Protocol):
    reports: Reports


@dataclass(frozen=True)
class Told:
    """A history that is over."""

    reports: Reports


@dataclass(frozen=True)
class Case:
    shown: str
    history: Callable[[], History]
    says: str = ""  # what the judge says, in part; nothing: the history comes close to its rule, and nobody speaks
    also: tuple[str, ...] = ()  # judges that speak, too
    once: bool = False  # nothing else is said


Table = Mapping[str, tuple[Case, ...]]  # by the judge whose rule is shown


def each_case(table: Table) -> pytest.MarkDecorator:
    """Parametrizes a test with `judge` and `case`."""
    rows = [pytest.param(judge, case, id=f"{judge}: {case.shown}") for judge, cases in table.items() for case in cases]
    return pytest.mark.parametrize(("judge", "case"), rows)


def check(judge: str, case: Case) -> None:
    reports = case.history().reports
    assert {name for name, _ in reports} == ({judge, *case.also} if case.says else set()), reports
    assert not case.says or any(name == judge and case.says in said for name, said in reports), reports
    assert len(reports) == 1 or not case.once, reports


def untold(table: Table, judges: set[str]) -> list[str]:
    """Judges without a history that breaks their rule, or without one that keeps it; and rows of unknown judges."""
    told = {judge for judge, cases in table.items() if {bool(case.says) for case in cases} == {True, False}}
    return sorted(judges ^ told)
