"""Tests of the checkers of broadcast rules: differing and stale copies are reported."""

from typing import Any

import pytest
from histories import History
from rule_checkers import RulesAgree, RulesSwitchAtBarriers
from workload import NOT_KNOWN, RULED, Row


def row(n: int, rules: int, digest: int, account: int = 1) -> Row:
    return Row("a", 0, n, 0, account, 1, n, n, rules=rules, digest=digest)


CASES: list[tuple[list[Row], str]] = [
    ([row(1, 0, 0), row(2, 3, 7), row(3, 3, 7), row(1, 3, 7, 2), row(2, 4, 9, 2)], ""),
    ([row(1, 3, 7), row(1, 3, 8, 2)], "were under other 3 rules"),
    ([row(1, 4, 9), row(2, 3, 7)], "a rule was there and gone"),
    ([row(2, 3, 7), row(1, 4, 9)], "a rule was there and gone"),
    ([row(1, 2, NOT_KNOWN)], "a rule was lost, came twice, or before an earlier one"),
    ([row(1, 13, 7)], "was under more rules than there are"),
]


@pytest.mark.parametrize(("rows", "said"), CASES)
def test_the_judge_of_rules_says_what_is_wrong_and_nothing_else(rows: list[Row], said: str) -> None:
    reports: list[tuple[str, str]] = []
    history: Any = History(RULED)
    judge = RulesAgree(history.facts, history.workload, lambda *report: reports.append(report))
    for each in rows:
        judge.on_visible("out", 1, (), [each])
    assert all(said in what for _, what in reports)
    assert bool(reports) is bool(said)


@pytest.mark.parametrize(
    ("shown", "said"),
    [
        ([(1, (0, 0)), (2, (3, 3)), (4, (3, 5))], []),
        ([(1, (0, 0)), (2, (3, 4))], ["checkpoint 2 behind 1 has rows under [3, 4] rules"]),
        ([(1, (0,)), (4, (1, 2, 3)), (5, (3, 4))], ["checkpoint 5 behind 4 has rows under [3, 4] rules"]),
        ([(0, (0, 1, 2))], []),
    ],
)
def test_the_judge_of_barriers_says_where_rows_between_two_are_under_other_rules(
    shown: list[tuple[int, tuple[int, ...]]], said: list[str]
) -> None:
    reports: list[str] = []
    history: Any = History(RULED)
    judge = RulesSwitchAtBarriers(history.facts, history.workload, lambda _, what: reports.append(what))
    for checkpoint, rules in shown:
        judge.on_visible("out", checkpoint, (), [row(1, count, 7) for count in rules])
    assert reports == said
