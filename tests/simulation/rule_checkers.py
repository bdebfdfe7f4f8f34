"""Checkers of broadcast rules, by the number and digest of rules in rows."""

from collections import defaultdict
from collections.abc import Sequence

from checkers import Checker, Report
from facts import Facts
from workload import NOT_KNOWN, Row, Workload


class RulesAgree(Checker):
    """Rows with the same number of rules have the same rules in the same order, across subtasks and generations.

    The rules of an account only grow, and are never more than the source has."""

    def __init__(self, facts: Facts, workload: Workload, report: Report) -> None:
        super().__init__(facts, workload, report)
        self._digests: dict[int, Row] = {}
        self._accounts: dict[int, dict[int, Row]] = defaultdict(dict)  # by account and number of the leg

    def on_visible(self, sink: str, checkpoint: int, committables: Sequence[bytes], rows: Sequence[Row]) -> None:
        for row in rows:
            other = self._digests.setdefault(row.rules, row)
            if other.digest != row.digest:
                self.wrong(f"{row} and {other} were under other {row.rules} rules")
            if row.digest == NOT_KNOWN:
                self.wrong(f"{row}: a rule was lost, came twice, or before an earlier one")
            if row.rules > self.workload.splits * self.workload.count:
                self.wrong(f"{row} was under more rules than there are")
            legs = self._accounts[row.account]
            legs[row.n] = row
            before, after = legs.get(row.n - 1, row), legs.get(row.n + 1, row)
            if not before.rules <= row.rules <= after.rules:
                self.wrong(f"account {row.account}: a rule was there and gone: {before}, {row}, {after}")


class RulesSwitchAtBarriers(Checker):
    """Between two barriers the rows of all subtasks have the same number of rules."""

    def __init__(self, facts: Facts, workload: Workload, report: Report) -> None:
        super().__init__(facts, workload, report)
        self._shown = 0  # the last checkpoint whose rows are visible

    def on_visible(self, sink: str, checkpoint: int, committables: Sequence[bytes], rows: Sequence[Row]) -> None:
        if not checkpoint or self.workload.rolled:  # the barriers around the rows are unknown
            return
        found = {row.rules for row in rows}
        if len(found) > checkpoint - self._shown:
            self.wrong(f"checkpoint {checkpoint} behind {self._shown} has rows under {sorted(found)} rules")
        self._shown = max(self._shown, checkpoint)
