"""Parts of the tables that test the checkers: a history and the expected reports.

All checkers of a kind of job hear a history at once. A row names the checker whose rule the history breaks, and its
report: a deaf checker fails the row, and so does a checker that reports a correct history.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import pytest
from events import EventTimes

Reports = list[tuple[str, str]]  # (checker, violation)

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
    """A history that has ended."""

    reports: Reports


@dataclass(frozen=True)
class Case:
    shown: str
    history: Callable[[], History]
    says: str = ""  # part of the report; "": the history nearly breaks the rule, and no checker reports
    also: tuple[str, ...] = ()  # other checkers that report
    once: bool = False  # no other reports follow


Table = Mapping[str, tuple[Case, ...]]  # by the checker whose rule the cases show


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
    """Returns checkers without a history that breaks, or that keeps, their rule, and unknown checkers."""
    told = {judge for judge, cases in table.items() if {bool(case.says) for case in cases} == {True, False}}
    return sorted(judges ^ told)
